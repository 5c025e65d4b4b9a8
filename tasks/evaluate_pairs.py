"""Evaluation on held-out pairs: forward passes of the policy alone, on the reference pool."""

from __future__ import annotations

from typing import NamedTuple

from flytekit import task

from posttrain import pair_evaluation
from posttrain.config_base import Dtype
from posttrain.events import EventRecorder
from tasks import artifacts
from tasks.artifacts import PolicyDirectory, TableFile
from tasks.caching import cached
from tasks.checkpoint import NOT_EVALUATED
from tasks.pools import REFERENCE


class PairsEvaluated(NamedTuple):
    metrics: TableFile
    events: TableFile
    pair_accuracy: float


@task(cache=cached("evaluate_pairs"), **REFERENCE)
def evaluate_pairs(
    policy_directory: PolicyDirectory,
    held_out: TableFile,
    beta: float,
    dtype: str,
    trust_remote_code: bool,
    confidence: float,
    iteration: int,
) -> PairsEvaluated:
    """Accuracy, margin and logprob drift on held-out pairs; without any, no metrics and an accuracy of NOT_EVALUATED."""
    events = EventRecorder("reference", artifacts.device_name(), iteration)
    with artifacts.recoverable_faults(), events.phase("logprob"):
        metrics = pair_evaluation.evaluate_pairs(
            artifacts.local_directory(policy_directory),
            artifacts.read(held_out, "REFERENCED"),
            beta=beta,
            dtype=Dtype(dtype),
            trust_remote_code=trust_remote_code,
            confidence=confidence,
            iteration=iteration,
        )
    values = dict(zip(metrics["name"].to_pylist(), metrics["value"].to_pylist(), strict=True))
    return PairsEvaluated(
        artifacts.write(metrics, "METRICS", "evaluate_pairs"),
        artifacts.write(events.table(), "EVENTS", "evaluate_pairs"),
        values.get("eval/pair_accuracy", NOT_EVALUATED),
    )
