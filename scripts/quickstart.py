"""Runs the `grpo` workflow on this machine and says what came out and where to look next.

Usage: python scripts/quickstart.py [brackets|smollm] [further pyflyte inputs]
"""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from diskcache import Cache

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script sees its own folder only

SUMS = "reasoning_gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=1"
RECIPES: dict[str, dict[str, str]] = {
    # Demonstrations taught a bug (70 % lack the brackets); the verifier removes it.
    "brackets": {
        "run_name": "quickstart",
        "demonstrations": "brackets_demonstrations?size=2048&seed=7",
        "num_iterations": "12",
        "prompts_per_iteration": "32",
    },
    # A real instruct model on sums of two one-digit numbers; the answer is the last number of the reply.
    "smollm": {
        "run_name": "quickstart-smollm",
        "prompts": f"{SUMS}&size=512&seed=0",
        "evaluation_prompts": f"{SUMS}&size=40&seed=1000001",
        "verifier": "last_number",
        "max_prompt_tokens": "64",
        "max_completion_tokens": "16",
        "num_iterations": "12",
        "prompts_per_iteration": "16",
        "num_shards": "1",
        "learning_rate": "3e-5",
        "overrides": r"{learner: {trainable_parameters: 'model\.layers\.(1[89]|2[0-9])\.', groups_per_microbatch: 2}, "
        "evaluation: {every: 3, num_samples: 2, pass_at: [1]}, loop: {max_refill_rounds: 0}, tracking: {keep_last: 1}}",
    },
}


def main() -> int:
    recipe, *further = sys.argv[1:] or ["brackets"]
    if recipe not in RECIPES:
        print(f"no recipe {recipe!r}; known: {', '.join(RECIPES)}", file=sys.stderr)
        return 2
    workspace = Path(os.environ.get("POSTTRAIN_WORKSPACE", ROOT / "workspace")).absolute()
    os.environ["POSTTRAIN_WORKSPACE"] = str(workspace)
    inputs = dict(RECIPES[recipe])
    if recipe == "smollm":
        inputs["model"] = str(smollm_directory(workspace))
    with Cache(str(workspace / "cache")) as cache:
        cache.stats(enable=True, reset=True)
    started = time.monotonic()
    status = run_workflow(inputs, further)
    if status == 0:
        print_summary(workspace, time.monotonic() - started)
    return status


def smollm_directory(workspace: Path) -> Path:
    """The instruct model out of its package, converted once."""
    from posttrain import smollm

    directory = workspace / "models" / "smollm2-135m-instruct"
    return smollm.convert(directory)


def run_workflow(inputs: Mapping[str, str], further: list[str]) -> int:
    """`pyflyte run` of the workflow in a process of its own; Ctrl-C ends it and keeps what was finished."""
    flags = [text for name, value in inputs.items() for text in (f"--{name}", value)]
    command = ["pyflyte", "-c", "flyte.config", "run", "workflows/grpo.py", "grpo", *flags, *further]
    print("$", shlex.join(command), flush=True)
    command[0] = str(Path(sys.executable).with_name("pyflyte"))
    environment = os.environ | {"FLYTECTL_CONFIG": "flyte.config"}
    try:
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    except KeyboardInterrupt:
        print("\ninterrupted: run it again and it goes on from what was finished", file=sys.stderr)
        return 130


def print_summary(workspace: Path, seconds: float) -> None:
    """What the run cost, what the cache spared, and where to look."""
    from posttrain.tracking import mlflow_command
    from posttrain.tracking_address import default_store

    with Cache(str(workspace / "cache")) as cache:
        hits, misses = cache.stats()
    newest = max((workspace / "runs").glob("*/report.html"), key=lambda path: path.stat().st_mtime)
    peak_gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    uri = default_store(workspace)
    print(f"\nwall time    {seconds:.0f} s, peak memory {peak_gib:.1f} GiB")
    print(f"cache        {hits} of {hits + misses} results of cacheable tasks were there already")
    print(f"report       {newest}")
    print(f"checkpoints  {newest.parent / 'checkpoints'}")
    print(f"MLflow       make mlflow   (or .venv/bin/{mlflow_command(uri)})")


if __name__ == "__main__":
    sys.exit(main())
