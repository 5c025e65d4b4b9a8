"""The policy update on the train pool."""

from __future__ import annotations

from typing import NamedTuple

from flytekit import task
from flytekit.types.directory import FlyteDirectory

from posttrain import grpo
from posttrain.config import LearnerSettings
from posttrain.events import EventRecorder
from posttrain.table_checks import list_lengths
from tasks import artifacts
from tasks.artifacts import PolicyDirectory, StateDirectory, TableFile
from tasks.caching import cached
from tasks.pools import TRAIN


class Updated(NamedTuple):
    policy: PolicyDirectory
    state: StateDirectory
    metrics: TableFile
    events: TableFile


@task(cache=cached("update"), **TRAIN)
def update(
    policy_directory: PolicyDirectory, state: StateDirectory, scored: list[TableFile], settings: LearnerSettings, iteration: int
) -> Updated:
    """One GRPO update from recorded rollouts: the next policy and the next trainer state."""
    shards = artifacts.read_all(scored, "SCORED")
    old_state = artifacts.local_directory(state)
    new_policy, new_state = artifacts.new_path("update", "policy"), artifacts.new_path("update", "state")
    events = EventRecorder("train", artifacts.device_name(), iteration)
    with artifacts.recoverable_faults(), events.phase("update") as phase:
        phase.tokens = sum(int(list_lengths(shard, "completion_ids").sum()) for shard in shards)
        metrics = grpo.update_policy(
            artifacts.local_directory(policy_directory),
            None if (old_state / artifacts.NO_STATE).exists() else old_state,
            shards,
            settings,
            iteration=iteration,
            output_policy=new_policy,
            output_state=new_state,
        )
    return Updated(
        FlyteDirectory(str(new_policy)),
        FlyteDirectory(str(new_state)),
        artifacts.write(metrics, "METRICS", "update"),
        artifacts.write(events.table(), "EVENTS", "update"),
    )
