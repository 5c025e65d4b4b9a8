"""Verification on the CPU pool."""

from __future__ import annotations

import os
from typing import NamedTuple

from flytekit import task

from posttrain import advantages
from posttrain.config import VerifySettings
from posttrain.errors import VerificationError
from posttrain.events import EventRecorder
from posttrain.tables import JUDGED_COLUMNS
from posttrain.verify.registry import verifier_versions as versions_here
from posttrain.verify.score import verify_rollouts
from tasks import artifacts
from tasks.artifacts import CompletionsFile, TableFile
from tasks.caching import cached
from tasks.pools import CPU


class Verified(NamedTuple):
    verdicts: TableFile
    num_missing_groups: int
    events: TableFile


@task(cache=cached("verify"), **CPU)
def verify(
    completions: CompletionsFile,
    prompts: TableFile,
    settings: VerifySettings,
    verifier_versions: str,
    max_completion_tokens: int,
    num_wanted_groups: int,
    iteration: int,
    shard: int,
) -> Verified:
    """A verdict for every completion, and how many of the wanted groups are missing: those that cannot teach anything.

    A group teaches nothing when all its rewards are equal or none was judged. `verifier_versions` makes the versions of the
    verifiers, a user's own among them, part of the cache key.

    Raises:
        VerificationError: the verifiers of this pool have other versions, or `verify_rollouts` says why.
    """
    events = EventRecorder("cpu", f"cpu x{os.cpu_count()}", iteration, shard)
    with artifacts.recoverable_faults(), events.phase("verify"):
        table, prompt_table = artifacts.read(completions, "ROLLOUTS", JUDGED_COLUMNS), artifacts.read(prompts, "PROMPTS")
        _check_versions(versions_here(prompt_table, settings), verifier_versions)
        verdicts = verify_rollouts(table, prompt_table, settings, max_completion_tokens=max_completion_tokens)
    return Verified(
        artifacts.write(verdicts, "VERDICTS", "verify"),
        max(0, num_wanted_groups - advantages.num_trainable_groups(verdicts)),
        artifacts.write(events.table(), "EVENTS", "verify"),
    )


def _check_versions(here: str, planned: str) -> None:
    """Another version here would leave its verdicts in the cache under the key of the planned one."""
    if here != planned:
        raise VerificationError(
            f"the verifiers installed here are {here}, those of the task that started this one {planned}. "
            "Use images with the same verifiers for every pool."
        )
