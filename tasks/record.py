"""Recording in MLflow: tasks of their own, so that a cached iteration is recorded too and nothing is logged twice."""

from __future__ import annotations

import logging
from typing import NamedTuple

import pyarrow as pa
from flytekit import task
from flytekit.types.error import FlyteError

from posttrain import advantages, events, resolution, tables
from posttrain.config import GrpoSettings, TrackingSettings
from posttrain.rollouts import rollout_metrics
from posttrain.tracking import DatasetInfo, Tracker, mask_credentials
from posttrain.tracking_address import default_store
from posttrain.verify.metrics import copied_metrics, verdict_metrics
from tasks import artifacts
from tasks.artifacts import TableFile
from tasks.pools import CPU
from tasks.workspace import workspace

logger = logging.getLogger("posttrain")
MAX_REPORTED_ROWS = 1024  # of an iteration; the report draws distributions and a dozen samples from them


class Recorded(NamedTuple):
    metrics: TableFile
    events: TableFile
    samples: TableFile


def tracking_uri() -> str:
    """The MLflow store: `MLFLOW_TRACKING_URI`, or a database in the workspace."""
    return default_store(workspace())


def open_tracker(settings: TrackingSettings, execution: str) -> Tracker:
    """The tracker of this execution; whichever task asks, it is the same run."""
    workspace().mkdir(parents=True, exist_ok=True)
    spool = workspace() / "spool"
    return Tracker(
        tracking_uri(), settings.experiment, execution, spool, settings.run_name, parent_execution=settings.parent_execution
    )


@task(**CPU)
def start_tracking(settings: GrpoSettings, execution: str, prompts: TableFile, evaluation_prompts: TableFile) -> str:
    """Opens the run with its parameters and data sets, and returns the execution's name."""
    tracker = open_tracker(settings.tracking, execution)
    tracker.start(resolution.flatten(settings), {"posttrain.workflow": "grpo"})
    tracker.log_datasets(
        [
            describe_dataset(prompts, "PROMPTS", settings.data.prompts, "training"),
            describe_dataset(evaluation_prompts, "PROMPTS", settings.data.evaluation_prompts, "evaluation"),
        ]
    )
    return execution


@task(**CPU)
def record(
    settings: TrackingSettings,
    execution: str,
    iteration: int,
    prompts: TableFile,
    scored: list[TableFile],
    metrics: list[list[TableFile]],
    task_events: list[list[TableFile]],
) -> Recorded:
    """Logs one iteration (0 is the state before the first update) and returns its numbers for the report."""
    rows = tables.concat("SCORED", artifacts.read_all(scored, "SCORED"))
    recorded = [table for files in task_events for table in artifacts.read_all(files, "EVENTS")]
    intervals = events.in_iteration(tables.concat("EVENTS", recorded), iteration)
    measured = [table for files in metrics for table in artifacts.read_all(files, "METRICS")]
    parts = [*measured, *_derived(rows, iteration), events.durations(intervals)]
    numbers = tables.concat("METRICS", parts)
    samples = rows.slice(0, MAX_REPORTED_ROWS)
    if numbers.num_rows:
        tracker = open_tracker(settings, execution)
        tracker.log_iteration(iteration, numbers)
        if samples.num_rows:
            tracker.log_samples(iteration, samples, artifacts.prompt_texts(prompts))
        _announce(iteration, numbers)
    return Recorded(
        artifacts.write(numbers, "METRICS", "record"),
        artifacts.write(intervals, "EVENTS", "record"),
        artifacts.write(samples, "SCORED", "record"),
    )


@task(**CPU)
def mark_failed(
    settings: GrpoSettings, execution: str, has_demonstrations: bool, demonstrations_digest: str, err: FlyteError | None = None
) -> None:
    """Ends the MLflow run as FAILED. Flyte wants a failure handler to take the inputs of its workflow."""
    tracker = open_tracker(settings.tracking, execution)
    tracker.finish("FAILED")
    logger.error("run %s failed%s", execution, f": {err.message}" if err else "")


def _derived(rows: pa.Table, iteration: int) -> list[pa.Table]:
    if not rows.num_rows:
        return []
    rollouts, verdicts = rows.select(tables.ROLLOUTS.names), rows.select(tables.VERDICTS.names)
    return [
        rollout_metrics(rollouts, iteration),
        verdict_metrics(verdicts, iteration),
        copied_metrics(rollouts, iteration),
        advantages.group_metrics(rows, iteration),
    ]


def _announce(iteration: int, numbers: pa.Table) -> None:
    last = dict(zip(numbers["name"].to_pylist(), numbers["value"].to_pylist(), strict=True))
    shown = {
        "reward": "verify/reward_mean",
        "sampled pass@1": "eval/pass_at_1",
        "greedy": "eval/greedy_pass_rate",
        "pair accuracy": "eval/pair_accuracy",
        "margin": "eval/reward_margin",
    }
    parts = [f"{label} {last[name]:.2f}" for label, name in shown.items() if name in last]
    logger.info("iteration %d: %s", iteration, ", ".join(parts) or "recorded")


def describe_dataset(file: TableFile, table_name: str, source: str, context: str) -> DatasetInfo:
    """What MLflow shows of a data set: `context` is training or evaluation."""
    table = artifacts.read(file, table_name)
    return DatasetInfo(
        mask_credentials(source).partition("?")[0], source, tables.content_hash(table)[:16], table.num_rows, context
    )
