"""Runs the `grpo` workflow on this machine and says what came out and where to look next.

Usage: python scripts/quickstart.py [brackets|smollm] [further pyflyte inputs]
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from diskcache import Cache

ROOT = Path(__file__).resolve().parent.parent
RECIPES: dict[str, list[str]] = {
    "brackets": [
        "--run_name", "quickstart",
        "--demonstrations", "brackets_demonstrations?size=2048&seed=7",
        "--num_iterations", "8",
        "--prompts_per_iteration", "32",
    ],
}  # fmt: skip


def main() -> int:
    recipe, *inputs = sys.argv[1:] or ["brackets"]
    if recipe not in RECIPES:
        print(f"no recipe {recipe!r}; known: {', '.join(RECIPES)}", file=sys.stderr)
        return 2
    workspace = Path(os.environ.get("POSTTRAIN_WORKSPACE", ROOT / "workspace"))
    cache = Cache(str(workspace / "cache"))
    cache.stats(enable=True, reset=True)
    started = time.monotonic()
    status = run_workflow([*RECIPES[recipe], *inputs], workspace)
    if status == 0:
        hits, misses = cache.stats()
        print_summary(time.monotonic() - started, hits, misses)
    return status


def run_workflow(inputs: list[str], workspace: Path) -> int:
    """`pyflyte run` of the workflow in a process of its own; Ctrl-C ends it and keeps what was cached."""
    command = [str(Path(sys.executable).with_name("pyflyte")), "-c", "flyte.config", "run", "workflows/grpo.py", "grpo", *inputs]
    environment = os.environ | {"FLYTECTL_CONFIG": "flyte.config", "POSTTRAIN_WORKSPACE": str(workspace)}
    print("$", " ".join(command), flush=True)
    try:
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    except KeyboardInterrupt:
        print("\ninterrupted; a further run goes on from the cached results", file=sys.stderr)
        return 130


def print_summary(seconds: float, hits: int, misses: int) -> None:
    peak_gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"\nwall time {seconds:.0f} s, peak memory {peak_gib:.1f} GiB")
    print(f"cached tasks: {hits} of {hits + misses} results came from the cache")


if __name__ == "__main__":
    sys.exit(main())
