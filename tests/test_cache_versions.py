"""A cached result must not outlive the code that made it."""

from __future__ import annotations

import importlib
from pathlib import Path

import grimp
from flytekit.core.base_task import PythonTask

from tasks import cache_lock


def test_cache_versions_follow_the_code() -> None:
    changed = cache_lock.changed_tasks()
    assert not changed, f"code of cached tasks changed: {', '.join(changed)}. Run: python -m tasks.cache_lock"


def test_every_cached_task_is_under_the_lock() -> None:
    modules = [importlib.import_module(f"tasks.{path.stem}") for path in Path(cache_lock.__file__).parent.glob("[a-z]*.py")]
    tasks = [value for module in modules for value in vars(module).values() if isinstance(value, PythonTask)]
    cached = {task.name.rpartition(".")[2] for task in tasks if task.metadata.cache}
    assert cached == set(cache_lock.CACHED_TASKS)


def test_code_that_is_loaded_by_name_counts() -> None:
    graph = grimp.build_graph("tasks", "posttrain", cache_dir=None)
    names = ("programs", "assertions", "maths_check", "reasoning_gym_check", "sandbox.server", "own_worker")
    by_name = {f"posttrain.verify.{name}" for name in names}
    assert by_name <= cache_lock.reached_modules(graph, "tasks.verify")
    assert "posttrain.engines.vllm_worker" in cache_lock.reached_modules(graph, "tasks.rollouts")
    assert "posttrain.brackets" not in cache_lock.reached_modules(graph, "tasks.update")


def test_a_comment_is_no_change_and_a_statement_is(tmp_path: Path) -> None:
    codes = []
    for text in (
        "def f():\n    return 1\n",
        'def f():\n    """Says more."""\n    # why\n    return 1\n',
        "def f():\n    return 2\n",
    ):
        path = tmp_path / "module.py"
        path.write_text(text)
        codes.append(cache_lock._code(path))
    assert codes[0] == codes[1] != codes[2]
