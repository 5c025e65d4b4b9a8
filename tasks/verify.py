"""Verification on the CPU pool."""

from __future__ import annotations

import os
from typing import NamedTuple

from flytekit import task

from posttrain import advantages
from posttrain.config import AdvantageSettings, VerifySettings
from posttrain.events import EventRecorder
from posttrain.verify.score import verify_rollouts
from tasks import artifacts
from tasks.artifacts import TableFile
from tasks.caching import cached
from tasks.pools import CPU


class Verified(NamedTuple):
    verdicts: TableFile
    num_missing_groups: int
    events: TableFile


@task(cache=cached("verify"), **CPU)
def verify(
    rollouts: TableFile,
    prompts: TableFile,
    settings: VerifySettings,
    max_completion_tokens: int,
    num_wanted_groups: int,
    iteration: int,
    shard: int,
) -> Verified:
    """A verdict for every rollout, and how many of the wanted groups are missing: those that cannot teach anything.

    A group teaches nothing when all its rewards are equal or none was judged.
    """
    table = artifacts.read(rollouts, "ROLLOUTS")
    events = EventRecorder("cpu", f"cpu x{os.cpu_count()}", iteration, shard)
    with artifacts.recoverable_faults(), events.phase("verify"):
        prompt_table = artifacts.read(prompts, "PROMPTS")
        verdicts = verify_rollouts(table, prompt_table, settings, max_completion_tokens=max_completion_tokens)
    trainable = advantages.num_trainable_groups(advantages.score(table, verdicts, AdvantageSettings()))
    return Verified(
        artifacts.write(verdicts, "VERDICTS", "verify"),
        max(0, num_wanted_groups - trainable),
        artifacts.write(events.table(), "EVENTS", "verify"),
    )
