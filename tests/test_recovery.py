"""Nothing is lost: a killed run goes on from what was finished, a cached file that has gone is made again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from diskcache import Cache

from posttrain import policy

ROOT = Path(__file__).parent.parent
INPUTS = [
    "--prompts", "brackets?size=64", "--evaluation_prompts", "brackets?size=10&seed=1000001", "--prompts_per_iteration", "8",
    "--num_shards", "2", "--num_iterations", "1", "--engine", "transformers", "--max_completion_tokens", "24",
    "--overrides", "{evaluation: {num_samples: 1, pass_at: [1]}, loop: {max_refill_rounds: 0}}",
]  # fmt: skip


def start(workspace: Path, model: Path) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).with_name("pyflyte")), "-c", "flyte.config", "run", "workflows/grpo.py", "grpo"]
    environment = os.environ | {
        "POSTTRAIN_WORKSPACE": str(workspace), "FLYTE_LOCAL_CACHE_ENABLED": "true", "FLYTECTL_CONFIG": "flyte.config",
    }  # fmt: skip
    return subprocess.Popen(
        [*command, "--model", str(model), *INPUTS], cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], workspace: Path) -> tuple[str, int, int]:
    """Waits for the run; returns the hash of its policy and the cache's hits and misses."""
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    (newest,) = {policy.policy_hash(path) for path in workspace.glob("artifacts/update/*/policy")}
    with Cache(str(workspace / "cache")) as cache:
        hits, misses = cache.stats(reset=True)
    return newest, hits, misses


def count_statistics(workspace: Path) -> None:
    with Cache(str(workspace / "cache")) as cache:
        cache.stats(enable=True, reset=True)


@pytest.mark.slow
def test_a_killed_run_and_a_lost_file_end_in_the_same_policy(tmp_path: Path, warm_policy: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for workspace in (whole, broken):
        count_statistics(workspace)
    expected, hits, num_tasks = finish(start(whole, warm_policy), whole)
    assert hits == 0

    process = start(broken, warm_policy)
    deadline = time.monotonic() + 240
    while len(list(broken.glob("artifacts/rollouts/*/rollouts.arrow"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)  # evaluation twice, then the first training shard
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not list(broken.glob("artifacts/update/*/policy"))

    count_statistics(broken)
    resumed, hits, misses = finish(start(broken, warm_policy), broken)
    assert resumed == expected
    assert hits >= 5 and hits + misses == num_tasks  # both evaluations were finished, and verified; the shard's rollouts too

    lost = max(broken.glob("artifacts/update/*/policy"), key=lambda path: path.stat().st_mtime)
    (lost / "model.safetensors").rename(broken / "elsewhere")
    (lost / "policy.json").unlink()
    for file in lost.iterdir():
        file.unlink()
    lost.rmdir()
    count_statistics(broken)
    again, hits, misses = finish(start(broken, warm_policy), broken)
    assert again == expected and misses == 1 and hits == num_tasks - 1
