"""Rollout generation on the rollout pool."""

from __future__ import annotations

from typing import NamedTuple

from flytekit import task

from posttrain import policy
from posttrain import rollouts as generation
from posttrain.config import RolloutSettings
from posttrain.engines.base import SamplingParameters
from posttrain.engines.registry import shared_engine
from posttrain.events import EventRecorder
from posttrain.table_checks import list_lengths
from posttrain.tables import JUDGED_COLUMNS
from tasks import artifacts
from tasks.artifacts import CompletionsFile, PolicyDirectory, TableFile
from tasks.caching import cached
from tasks.pools import ROLLOUT


class Rollouts(NamedTuple):
    rollouts: TableFile
    completions: CompletionsFile
    events: TableFile


@task(cache=cached("rollouts"), **ROLLOUT)
def rollouts(
    policy_directory: PolicyDirectory, prompts: TableFile, settings: RolloutSettings, iteration: int, shard: int, greedy: bool
) -> Rollouts:
    """`group_size` completions of every prompt, from a warm engine that has proved which policy it serves."""
    directory = artifacts.local_directory(policy_directory)
    events = EventRecorder("rollout", artifacts.device_name(), iteration, shard)
    sampling = SamplingParameters(0.0 if greedy else settings.temperature, settings.top_p, settings.max_completion_tokens)
    with artifacts.recoverable_faults():
        with events.phase("load"):
            engine = shared_engine(settings, directory)
        with events.phase("generate") as phase:
            table = generation.generate_rollouts(
                engine,
                artifacts.read(prompts, "PROMPTS"),
                sampling,
                group_size=settings.group_size,
                run_seed=settings.seed,
                iteration=iteration,
                tokenizer=policy.load_tokenizer(directory, settings.trust_remote_code),
            )
            phase.tokens = int(list_lengths(table, "completion_ids").sum())
    return Rollouts(
        artifacts.write(table, "ROLLOUTS", "rollouts"),
        artifacts.write(table, "ROLLOUTS", "rollouts", JUDGED_COLUMNS),
        artifacts.write(events.table(), "EVENTS", "rollouts"),
    )
