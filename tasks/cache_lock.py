"""Which code each cached task reaches, and the version it runs under: `python -m tasks.cache_lock` bumps what changed.

A cached result is reused as long as its version stays. This keeps the versions honest: the digest covers the syntax tree
(without comments and docstrings) of every module of this project that the task's module imports, directly or not.
"""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path

import grimp

from tasks.caching import LOCK

ROOT = Path(__file__).parent.parent
# cached task → module that defines it
CACHED_TASKS = {
    "warm_start": "tasks.prepare",
    "rollouts": "tasks.rollouts",
    "verify": "tasks.verify",
    "reference_logprobs": "tasks.reference",
    "update": "tasks.update",
    "evaluate": "tasks.evaluate",
    "make_preferences": "tasks.preferences",
    "reference_pairs": "tasks.reference_pairs",
    "update_dpo": "tasks.update_dpo",
    "evaluate_pairs": "tasks.evaluate_pairs",
}


def current_digests() -> dict[str, str]:
    """sha256 of the code that each cached task reaches."""
    graph = grimp.build_graph("tasks", "posttrain", cache_dir=None)
    return {task: _digest(reached_modules(graph, module)) for task, module in CACHED_TASKS.items()}


def reached_modules(graph: grimp.ImportGraph, module: str) -> set[str]:
    """Modules that `module` imports, directly or not, and those that any of them loads by name (workers, sandbox programs)."""
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        current = waiting.pop()
        if current not in reached:
            reached.add(current)
            waiting += graph.find_modules_directly_imported_by(current)
            waiting += _named_modules(_path(current), graph.modules)
    return reached


def _named_modules(path: Path, modules: set[str]) -> set[str]:
    """Modules whose name stands in a string of the file: `posttrain.engines.vllm_worker.Worker` names its module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    names = [text for text in texts if text.startswith(("posttrain.", "tasks."))]
    return {name for text in names for name in (text, text.rpartition(".")[0]) if name in modules}


def changed_tasks() -> list[str]:
    """Cached tasks whose code changed since their version was locked."""
    locked = json.loads(LOCK.read_text(encoding="utf-8")) if LOCK.is_file() else {}
    return [task for task, digest in current_digests().items() if locked.get(task, {}).get("digest") != digest]


def bump() -> list[str]:
    """Gives every changed task the next version; returns their names."""
    locked = json.loads(LOCK.read_text(encoding="utf-8")) if LOCK.is_file() else {}
    digests, changed = current_digests(), changed_tasks()
    for task in changed:
        version = int(locked.get(task, {}).get("version", "0")) + 1
        locked[task] = {"version": str(version), "digest": digests[task]}
    LOCK.write_text(json.dumps({task: locked[task] for task in CACHED_TASKS}, indent=2) + "\n", encoding="utf-8")
    return changed


def _digest(modules: set[str]) -> str:
    digest = hashlib.sha256()
    for module in sorted(modules):
        digest.update(f"{module}\n{_code(_path(module))}\n".encode())
    return digest.hexdigest()


def _path(module: str) -> Path:
    path = ROOT / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _code(path: Path) -> str:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and ast.get_docstring(node) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


if __name__ == "__main__":
    bumped = bump()
    print(f"bumped: {', '.join(bumped)}" if bumped else "every cache version is current")
