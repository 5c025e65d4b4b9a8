"""Scoring of a finished shard: advantages, and the reference's logprobs where the loss needs them."""

from __future__ import annotations

from typing import NamedTuple

from flytekit import task

from posttrain import advantages, logprobs, tables
from posttrain.config import AdvantageSettings, LearnerSettings
from posttrain.events import EventRecorder
from tasks import artifacts
from tasks.artifacts import PolicyDirectory, TableFile
from tasks.caching import cached
from tasks.pools import REFERENCE


class Scored(NamedTuple):
    scored: TableFile
    events: TableFile


@task(cache=cached("reference_logprobs"), **REFERENCE)
def reference_logprobs(
    rollouts: list[TableFile],
    verdicts: list[TableFile],
    reference: PolicyDirectory,
    advantage: AdvantageSettings,
    kl_coef: float,
    temperature: float,
    dtype: str,
    trust_remote_code: bool,
    iteration: int,
    shard: int,
) -> Scored:
    """Joins the shard's rounds into SCORED rows; with `kl_coef` 0 no reference is loaded."""
    table = advantages.score(
        tables.concat("ROLLOUTS", artifacts.read_all(rollouts, "ROLLOUTS")),
        tables.concat("VERDICTS", artifacts.read_all(verdicts, "VERDICTS")),
        advantage,
    )
    events = EventRecorder("reference", artifacts.device_name(), iteration, shard)
    learner = LearnerSettings.model_validate(
        {"kl_coef": kl_coef, "temperature": temperature, "dtype": dtype, "trust_remote_code": trust_remote_code}
    )
    if kl_coef > 0:
        with artifacts.recoverable_faults(), events.phase("logprob"):
            table = logprobs.add_reference_logprobs(table, artifacts.local_directory(reference), learner)
    return Scored(
        artifacts.write(table, "SCORED", "reference_logprobs"), artifacts.write(events.table(), "EVENTS", "reference_logprobs")
    )
