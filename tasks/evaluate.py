"""Evaluation: from verdicts on held-out prompts to pass rates with intervals, and whether the run may stop."""

from __future__ import annotations

from typing import NamedTuple

from flytekit import task

from posttrain import evaluation
from posttrain.config import EvaluationSettings
from tasks import artifacts
from tasks.artifacts import TableFile
from tasks.caching import cached
from tasks.pools import CPU


class Evaluated(NamedTuple):
    metrics: TableFile
    pass_rate: float
    stop: bool


class PolicyEvaluated(NamedTuple):
    metrics: TableFile
    events: list[TableFile]
    pass_rate: float
    stop: bool


@task(cache=cached("evaluate"), **CPU)
def evaluate(
    sampled: TableFile,
    greedy: TableFile,
    settings: EvaluationSettings,
    target_pass_rate: float,
    stopped_before: bool,
    iteration: int,
) -> Evaluated:
    """pass@1, pass@k and the greedy pass rate; `stop` once sampled pass@1 has reached the target (0 never stops).

    With staleness an iteration is on its way when an evaluation says stop; the one after it must not start anew.
    """
    metrics = evaluation.summarise(artifacts.read(sampled, "VERDICTS"), artifacts.read(greedy, "VERDICTS"), settings, iteration)
    values = dict(zip(metrics["name"].to_pylist(), metrics["value"].to_pylist(), strict=True))
    pass_rate = values["eval/pass_at_1"]
    return Evaluated(
        artifacts.write(metrics, "METRICS", "evaluate"), pass_rate, stopped_before or 0 < target_pass_rate <= pass_rate
    )
