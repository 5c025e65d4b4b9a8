"""Checkpoints, off the path of the next rollouts: verify what the update wrote, keep the last and the best, register."""

from __future__ import annotations

import logging

from flytekit import task

from posttrain import checkpoints, policy
from posttrain.config import TrackingSettings
from tasks import artifacts
from tasks.artifacts import PolicyDirectory, StateDirectory
from tasks.pools import CPU
from tasks.record import open_tracker
from tasks.workspace import run_directory

logger = logging.getLogger("posttrain")
NOT_EVALUATED = -1.0


@task(**CPU)
def checkpoint(
    policy_directory: PolicyDirectory,
    state: StateDirectory,
    settings: TrackingSettings,
    execution: str,
    iteration: int,
    pass_rate: float,
) -> str:
    """Publishes one iteration's policy and trainer state; returns its path, empty when the run had stopped before.

    Raises:
        PolicyError: the update's output is incomplete or altered.
    """
    directory = artifacts.local_directory(policy_directory)
    if policy.read_policy(directory).iteration != iteration:
        return ""
    root = run_directory(execution) / "checkpoints"
    evaluated = None if pass_rate == NOT_EVALUATED else pass_rate
    published = checkpoints.publish(directory, artifacts.local_directory(state), root, iteration, evaluated)
    if settings.register_as:
        tags = {"policy_hash": published.policy_hash, "execution": execution, "iteration": str(iteration)}
        open_tracker(settings, execution).register_policy(f"{published.directory}/policy", settings.register_as, tags)
    for removed in checkpoints.apply_retention(root, settings.keep_last):
        logger.debug(
            "checkpoint of iteration %d removed: neither among the last %d nor the best", removed.iteration, settings.keep_last
        )
    return published.directory
