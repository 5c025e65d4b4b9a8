"""The other side of every condition: tasks that pass on what there is, with the outputs of the task they stand in for."""

from __future__ import annotations

from typing import NamedTuple

from flytekit import task
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from posttrain import tables
from tasks import artifacts
from tasks.artifacts import PolicyDirectory, StateDirectory, TableFile
from tasks.pools import CPU
from tasks.update import Updated


class Refilled(NamedTuple):
    rollouts: TableFile
    verdicts: TableFile
    rollout_events: TableFile
    verify_events: TableFile
    num_missing_groups: int


class Collected(NamedTuple):
    scored: list[TableFile]
    events: list[TableFile]
    stopped: bool


@task(**CPU)
def no_refill(num_missing_groups: int) -> Refilled:
    """Every group of the shard can teach something."""
    return Refilled(
        _empty("ROLLOUTS", "no_refill"),
        _empty("VERDICTS", "no_refill"),
        _empty("EVENTS", "no_refill"),
        _empty("EVENTS", "no_refill"),
        num_missing_groups,
    )


@task(**CPU)
def keep_policy(policy_directory: PolicyDirectory, state: StateDirectory) -> Updated:
    """The target is reached: the policy stays as it is."""
    return Updated(
        FlyteDirectory(str(artifacts.local_directory(policy_directory))),
        FlyteDirectory(str(artifacts.local_directory(state))),
        _empty("METRICS", "keep_policy"),
        _empty("EVENTS", "keep_policy"),
    )


def _empty(name: str, task_name: str) -> FlyteFile:
    return artifacts.write(tables.empty(name), name, task_name)
