"""Checkpoints, off the path of the next rollouts: verify what the update wrote, keep the last and the best, register."""

from __future__ import annotations

import logging
from pathlib import Path

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
    """Verifies one iteration's policy and trainer state and publishes them; returns where, empty when the run had stopped.

    On a cluster both are in the object store already, where the store's own rules say how long; a local run copies them
    out of the cache's artifacts and keeps the last few and the best.

    Raises:
        PolicyError: the update's output is incomplete or altered.
    """
    directory, state_directory = artifacts.local_directory(policy_directory), artifacts.local_directory(state)
    if policy.read_manifest(directory).iteration != iteration:
        return ""
    manifest = checkpoints.verify(directory, state_directory)
    location = policy_directory.remote_source or _publish(directory, state_directory, settings, execution, iteration, pass_rate)
    if settings.register_as:
        tags = {"policy_hash": manifest.hash, "execution": execution, "iteration": str(iteration)}
        open_tracker(settings, execution).register_policy(location, settings.register_as, tags)
    return location


def _publish(
    directory: Path, state_directory: Path, settings: TrackingSettings, execution: str, iteration: int, pass_rate: float
) -> str:
    root = run_directory(execution) / "checkpoints"
    evaluated = None if pass_rate == NOT_EVALUATED else pass_rate
    published = checkpoints.publish(directory, state_directory, root, iteration, evaluated)
    for removed in checkpoints.apply_retention(root, settings.keep_last):
        logger.debug("checkpoint of iteration %d removed: neither the best nor among the last", removed.iteration)
    return f"{published.directory}/policy"
