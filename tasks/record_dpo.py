"""Recording of DPO runs in MLflow; each iteration is recorded by `tasks.record.record`."""

from __future__ import annotations

import logging

from flytekit import task
from flytekit.types.error import FlyteError

from posttrain import resolution
from posttrain.config_dpo import DpoSettings, IterativeDpoSettings
from posttrain.tracking import DatasetInfo
from tasks.artifacts import PolicyDirectory, StateDirectory, TableFile
from tasks.pools import CPU
from tasks.record import describe_dataset, open_tracker

logger = logging.getLogger("posttrain")


@task(**CPU)
def start_dpo(
    settings: DpoSettings,
    execution: str,
    referenced: list[TableFile],
    held_out: TableFile,
    evaluation_prompts: TableFile,
    reference_hash: str,
) -> str:
    """Opens the run with its parameters and data sets, and returns the execution's name."""
    tracker = open_tracker(settings.tracking, execution)
    tracker.start(resolution.flatten(settings), {"posttrain.workflow": "dpo", "posttrain.reference_hash": reference_hash})
    data = settings.data
    described: list[DatasetInfo] = [describe_dataset(shard, "REFERENCED", data.preferences, "training") for shard in referenced]
    described.append(describe_dataset(held_out, "REFERENCED", data.evaluation_preferences or data.preferences, "evaluation"))
    if data.evaluation_prompts:
        described.append(describe_dataset(evaluation_prompts, "PROMPTS", data.evaluation_prompts, "evaluation"))
    tracker.log_datasets(described)
    return execution


@task(**CPU)
def start_iterative_dpo(settings: IterativeDpoSettings, execution: str, prompts: TableFile, evaluation_prompts: TableFile) -> str:
    """Opens the run with its parameters and data sets, and returns the execution's name."""
    tracker = open_tracker(settings.tracking, execution)
    tracker.start(resolution.flatten(settings), {"posttrain.workflow": "iterative_dpo"})
    tracker.log_datasets(
        [
            describe_dataset(prompts, "PROMPTS", settings.data.prompts, "training"),
            describe_dataset(evaluation_prompts, "PROMPTS", settings.data.evaluation_prompts, "evaluation"),
        ]
    )
    return execution


@task(**CPU)
def start_sweep(settings: DpoSettings, execution: str, trials: list[DpoSettings]) -> str:
    """Opens the run that the trials' runs are nested in, and returns the execution's name."""
    tracker = open_tracker(settings.tracking, execution)
    tags = {"posttrain.workflow": "dpo_sweep", "posttrain.num_trials": str(len(trials))}
    tracker.start(resolution.flatten(settings), tags)
    return execution


# Flyte wants a failure handler to take the inputs of its workflow.
@task(**CPU)
def mark_dpo_failed(
    base: PolicyDirectory,
    state: StateDirectory,
    reference_hash: str,
    referenced: list[TableFile],
    held_out: TableFile,
    evaluation_prompts: TableFile,
    reference_events: list[TableFile],
    settings: DpoSettings,
    execution: str,
    err: FlyteError | None = None,
) -> None:
    """Ends the MLflow run as FAILED."""
    open_tracker(settings.tracking, execution).finish("FAILED")
    logger.error("run %s failed%s", execution, f": {err.message}" if err else "")


@task(**CPU)
def mark_iterative_dpo_failed(
    settings: IterativeDpoSettings,
    execution: str,
    has_demonstrations: bool,
    demonstrations_digest: str,
    err: FlyteError | None = None,
) -> None:
    """Ends the MLflow run as FAILED."""
    open_tracker(settings.tracking, execution).finish("FAILED")
    logger.error("run %s failed%s", execution, f": {err.message}" if err else "")


@task(**CPU)
def mark_sweep_failed(settings: DpoSettings, trials: list[DpoSettings], execution: str, err: FlyteError | None = None) -> None:
    """Ends the sweep's MLflow run as FAILED."""
    open_tracker(settings.tracking, execution).finish("FAILED")
    logger.error("sweep %s failed%s", execution, f": {err.message}" if err else "")
