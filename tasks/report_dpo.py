"""Reports of DPO runs: the same page with the pairs' figures, and the comparison of a sweep's trials."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
from flytekit import Deck, task
from flytekit.types.file import FlyteFile

from posttrain import policy, tables
from posttrain.chat import decode_completion
from posttrain.config_dpo import DpoSettings, IterativeDpoSettings
from posttrain.events import durations
from posttrain.planner.rendering import plan_html
from posttrain.report.inputs import PairSample, ReportInputs
from posttrain.report.sweep import Trial, sweep_text, write_sweep
from tasks import artifacts
from tasks.artifacts import PolicyDirectory, TableFile
from tasks.plan import plan_of
from tasks.pools import CPU
from tasks.record import open_tracker
from tasks.report import publish, shown_settings
from tasks.workspace import run_directory

logger = logging.getLogger("posttrain")
NUM_SHOWN_PAIRS = 8


@task(enable_deck=True, **CPU)
def report_dpo(
    base: PolicyDirectory,
    referenced: list[TableFile],
    settings: DpoSettings,
    execution: str,
    metrics: list[TableFile],
    task_events: list[TableFile],
) -> FlyteFile:
    """Writes the report, ends the MLflow run as FINISHED and sends what an outage had held back."""
    shards = artifacts.read_all(referenced, "REFERENCED")
    pairs = tables.concat("REFERENCED", shards)
    tokenizer = policy.load_tokenizer(artifacts.local_directory(base), settings.data.trust_remote_code)
    inputs = ReportInputs(
        title=f"DPO {execution}",
        settings=shown_settings(settings),
        metrics=tables.concat("METRICS", artifacts.read_all(metrics, "METRICS")),
        events=tables.concat("EVENTS", artifacts.read_all(task_events, "EVENTS")),
        pairs=_samples(pairs, tokenizer),
        num_pairs=pairs.num_rows,
        plan_html=plan_html(plan_of(base, shards, settings.learner)),
    )
    return publish(inputs, settings.tracking, execution)


@task(enable_deck=True, **CPU)
def report_iterative_dpo(
    settings: IterativeDpoSettings,
    execution: str,
    metrics: list[TableFile],
    task_events: list[TableFile],
    samples: list[TableFile],
    prompts: TableFile,
) -> FlyteFile:
    """Writes the report, ends the MLflow run as FINISHED and sends what an outage had held back."""
    numbers = tables.concat("METRICS", artifacts.read_all(metrics, "METRICS"))
    inputs = ReportInputs(
        title=f"Iterative DPO {execution}",
        settings=shown_settings(settings),
        metrics=numbers,
        num_pairs=int(sum(row["value"] for row in numbers.to_pylist() if row["name"] == "preferences/num_pairs")),
        events=tables.concat("EVENTS", artifacts.read_all(task_events, "EVENTS")),
        samples=dict(enumerate(artifacts.read_all(samples, "SCORED"))),
        prompts=artifacts.read(prompts, "PROMPTS"),
    )
    return publish(inputs, settings.tracking, execution)


@task(enable_deck=True, **CPU)
def report_sweep(
    settings: DpoSettings,
    trials: list[DpoSettings],
    execution: str,
    metrics: list[list[TableFile]],
    reference_events: list[TableFile],
) -> FlyteFile:
    """All trials in one table; ends the sweep's MLflow run as FINISHED."""
    compared = [_trial(trial, files) for trial, files in zip(trials, metrics, strict=True)]
    tasks = tables.concat("EVENTS", artifacts.read_all(reference_events, "EVENTS"))
    seconds = sum(durations(tasks)["value"].to_pylist())
    shared = f"The reference was computed in {tasks.num_rows} tasks ({seconds:.1f} s), once for all {len(trials)} trials."
    path = run_directory(execution) / "sweep.html"
    write_sweep(path, compared, title=f"Sweep {execution}", notes=shared, settings=shown_settings(settings))
    tracker = open_tracker(settings.tracking, execution)
    tracker.log_report(path)
    tracker.finish("FINISHED")
    Deck("Sweep", Path(path).read_text(encoding="utf-8"))
    logger.info("sweep %s is finished. %s\nreport: %s\n%s", execution, shared, path, sweep_text(compared))
    return FlyteFile(str(path))


def _trial(settings: DpoSettings, metrics: list[TableFile]) -> Trial:
    table = tables.concat("METRICS", artifacts.read_all(metrics, "METRICS"))
    seconds = sum(row["value"] for row in table.to_pylist() if row["name"] == "time/update")
    return Trial(settings.tracking.run_name, shown_settings(settings), table, seconds)


def _samples(pairs: pa.Table, tokenizer: Any) -> list[PairSample]:
    """A few pairs, spread over the table, as a person reads them."""
    step = max(1, pairs.num_rows // NUM_SHOWN_PAIRS)
    return [
        PairSample(
            prompt=decode_completion(tokenizer, row["prompt_ids"]),
            chosen=decode_completion(tokenizer, row["chosen_ids"]),
            rejected=decode_completion(tokenizer, row["rejected_ids"]),
            pair_id=row["pair_id"],
            margin=row["margin"],
        )
        for row in pairs.take(pa.array(range(0, pairs.num_rows, step), pa.int64())).to_pylist()[:NUM_SHOWN_PAIRS]
    ]
