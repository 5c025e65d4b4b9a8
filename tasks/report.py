"""The report: a Flyte Deck, an HTML file on disk and an MLflow artifact, all the same page."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from flytekit import Deck, task
from flytekit.types.file import FlyteFile

from posttrain import resolution, tables
from posttrain.config import GrpoSettings, TrackingSettings
from posttrain.config_base import Settings
from posttrain.report.collapse import collapse_warning
from posttrain.report.curve import ascii_curve
from posttrain.report.inputs import ReportInputs
from posttrain.report.page import write_report
from posttrain.tracking import mlflow_command
from posttrain.tracking_credentials import mask_credentials
from tasks import artifacts
from tasks.artifacts import TableFile
from tasks.pools import CPU
from tasks.record import open_tracker, tracking_uri
from tasks.workspace import run_directory

logger = logging.getLogger("posttrain")


@task(enable_deck=True, **CPU)
def report(
    settings: GrpoSettings,
    execution: str,
    metrics: list[TableFile],
    task_events: list[TableFile],
    samples: list[TableFile],
    prompts: TableFile,
) -> FlyteFile:
    """Writes the report, ends the MLflow run as FINISHED and sends what an outage had held back."""
    inputs = ReportInputs(
        title=f"GRPO {execution}",
        settings=shown_settings(settings),
        metrics=tables.concat("METRICS", artifacts.read_all(metrics, "METRICS")),
        events=tables.concat("EVENTS", artifacts.read_all(task_events, "EVENTS")),
        samples=dict(enumerate(artifacts.read_all(samples, "SCORED"))),
        prompts=artifacts.read(prompts, "PROMPTS"),
    )
    return publish(inputs, settings.tracking, execution)


def shown_settings(settings: Settings) -> dict[str, str]:
    """The flat settings without credentials."""
    return {name: mask_credentials(value) for name, value in resolution.flatten(settings).items()}


def publish(inputs: ReportInputs, tracking: TrackingSettings, execution: str) -> FlyteFile:
    """Ends the MLflow run, writes the page with links to it, and shows where it is."""
    tracker = open_tracker(tracking, execution)
    tracker.finish("FINISHED")
    links = {"MLflow": tracker.run_url() or "", "Open MLflow": f"make mlflow, or {mlflow_command(tracking_uri())}"}
    path = write_report(run_directory(execution) / "report.html", replace(inputs, links=links))
    tables.write_table(inputs.metrics, "METRICS", path.with_name("metrics.arrow"))  # for comparisons of runs
    tracker.log_report(path)
    Deck("Report", Path(path).read_text(encoding="utf-8"))
    logger.info("run %s is finished; report: %s\n%s", execution, path, ascii_curve(inputs.metrics))
    warning = collapse_warning(inputs.metrics)
    if warning:
        logger.warning("%s", warning)
    return FlyteFile(str(path))
