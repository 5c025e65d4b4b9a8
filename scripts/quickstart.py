"""Runs the workflows of a recipe on this machine and says what came out and where to look next.

Usage: python scripts/quickstart.py [brackets|smollm|dpo|sweep|iterative] [further pyflyte inputs for the last launch]
"""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path

from diskcache import Cache

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]  # a script sees its own folder only

from recipes import RECIPES, Launch  # noqa: E402


def main() -> int:
    recipe, *further = sys.argv[1:] or ["brackets"]
    if recipe not in RECIPES:
        print(f"no recipe {recipe!r}; known: {', '.join(RECIPES)}", file=sys.stderr)
        return 2
    workspace = Path(os.environ.get("POSTTRAIN_WORKSPACE", ROOT / "workspace")).absolute()
    os.environ["POSTTRAIN_WORKSPACE"] = str(workspace)
    if recipe == "smollm":
        from posttrain import smollm

        smollm.convert(workspace / "models" / "smollm2-135m-instruct")
    *first, last = RECIPES[recipe]
    started = time.time()
    for launch, inputs in [*((launch, []) for launch in first), (last, further)]:
        status = run_launch(launch, inputs, workspace)
        if status:
            return status
    if recipe == "iterative":
        print_comparison(workspace, [launch.inputs["run_name"] for launch in RECIPES[recipe]])
    print_summary(workspace, started)
    return 0


def print_comparison(workspace: Path, run_names: list[str]) -> None:
    """The newest run of each name side by side, by completions spent."""
    from posttrain import tables
    from posttrain.report.comparison import compare_runs_text, run_of

    newest = [max((workspace / "runs").glob(f"{name}-[0-9]*/metrics.arrow"), key=os.path.getmtime) for name in run_names]
    runs = [run_of(name, tables.read_table(path, "METRICS")) for name, path in zip(run_names, newest, strict=True)]
    print(f"{compare_runs_text(runs)}\n")


def run_launch(launch: Launch, further: list[str], workspace: Path) -> int:
    """`pyflyte run` of the workflow in a process of its own; Ctrl-C ends it and keeps what was finished."""
    flags = [
        text for name, value in launch.inputs.items() for text in (f"--{name}", value.replace("{workspace}", str(workspace)))
    ]
    command = ["pyflyte", "-c", "flyte.config", "run", f"workflows/{launch.workflow}.py", launch.workflow, *flags, *further]
    print("$", shlex.join(command), flush=True)
    command[0] = str(Path(sys.executable).with_name("pyflyte"))
    environment = os.environ | {"FLYTECTL_CONFIG": "flyte.config"}
    started = time.monotonic()
    with Cache(str(workspace / "cache")) as cache:
        cache.stats(enable=True, reset=True)
    try:
        status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    except KeyboardInterrupt:
        print("\ninterrupted: run it again and it goes on from what was finished", file=sys.stderr)
        return 130
    with Cache(str(workspace / "cache")) as cache:
        hits, misses = cache.stats()
    if status == 0:
        seconds = time.monotonic() - started
        found = f"{hits} of {hits + misses} results of cacheable tasks were there already"
        print(f"\n{launch.workflow}: {seconds:.0f} s; {found}\n", flush=True)
    return status


def print_summary(workspace: Path, started: float) -> None:
    """What the recipe cost and where to look."""
    from posttrain.tracking import mlflow_command
    from posttrain.tracking_address import default_store

    reports = sorted((workspace / "runs").glob("*/*.html"), key=lambda path: path.stat().st_mtime)
    fresh = [path for path in reports if path.stat().st_mtime >= started]
    shown = [path for path in fresh if path.name == "sweep.html"] or fresh
    peak_gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    uri = default_store(workspace)
    print(f"wall time    {time.time() - started:.0f} s, peak memory {peak_gib:.1f} GiB")
    for path in shown:
        print(f"report       {path}")
    if (checkpoints := shown[-1].parent / "checkpoints").is_dir():
        print(f"checkpoints  {checkpoints}")
    print(f"MLflow       make mlflow   (or .venv/bin/{mlflow_command(uri)})")


if __name__ == "__main__":
    sys.exit(main())
