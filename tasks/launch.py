"""First task of a run: every input is resolved and validated before anything costs money."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from flytekit import task

from posttrain import resolution
from posttrain.config import EngineName, GrpoSettings, LossType
from posttrain.directories import hash_file
from posttrain.verify.registry import create_verifier
from tasks import artifacts
from tasks.pools import CPU

logger = logging.getLogger("posttrain")

# The flat inputs of the workflow and the settings that they are.
FLAT_INPUTS = {
    "run_name": "tracking.run_name",
    "experiment": "tracking.experiment",
    "model": "data.model",
    "prompts": "data.prompts",
    "evaluation_prompts": "data.evaluation_prompts",
    "verifier": "data.verifier",
    "demonstrations": "warm_start.demonstrations",
    "engine": "rollout.engine",
    "num_iterations": "loop.num_iterations",
    "prompts_per_iteration": "loop.prompts_per_iteration",
    "group_size": "rollout.group_size",
    "num_shards": "loop.num_shards",
    "staleness": "loop.staleness",
    "temperature": "rollout.temperature",
    "max_prompt_tokens": "data.max_prompt_tokens",
    "max_completion_tokens": "data.max_completion_tokens",
    "loss_type": "learner.loss_type",
    "learning_rate": "learner.learning_rate",
    "kl_coef": "learner.kl_coef",
    "target_pass_rate": "loop.target_pass_rate",
    "seed": "loop.seed",
}


class Launch(NamedTuple):
    settings: GrpoSettings
    execution: str
    has_demonstrations: bool
    demonstrations_digest: str


@task(**CPU)
def launch(
    run_name: str,
    experiment: str,
    model: str,
    prompts: str,
    evaluation_prompts: str,
    verifier: str,
    demonstrations: str,
    engine: EngineName,
    num_iterations: int,
    prompts_per_iteration: int,
    group_size: int,
    num_shards: int,
    staleness: int,
    temperature: float,
    max_prompt_tokens: int,
    max_completion_tokens: int,
    loss_type: LossType,
    learning_rate: float,
    kl_coef: float,
    target_pass_rate: float,
    seed: int,
    overrides: str,
) -> Launch:
    """Effective settings of the run, its name, and whether there is a warm start.

    Raises:
        ConfigError: with every wrong field, its value, the reason and the remedy.
    """
    given = locals()
    # On the command line `--run_name None` means what leaving it out means.
    given |= {name: "" for name in ("run_name", "demonstrations") if given[name] == "None"}
    settings = resolution.resolve({field: given[name] for name, field in FLAT_INPUTS.items()}, overrides)
    create_verifier(settings.data.verifier, settings.verify)
    execution = artifacts.execution_name(settings.tracking.run_name)
    logger.info("run %s: the settings are valid", execution)
    source = settings.warm_start.demonstrations
    return Launch(settings, execution, bool(source), demonstrations_digest(source))


def demonstrations_digest(demonstrations: str) -> str:
    """sha256 of a demonstrations file, empty for a generator, whose text says everything."""
    path = Path(artifacts.fetch(demonstrations)) if demonstrations else Path()
    return hash_file(path) if path.is_file() else ""
