"""First tasks of the DPO workflows: every input is resolved and validated before anything costs money."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from flytekit import task

from posttrain import resolution, sweep
from posttrain.config import EngineName
from posttrain.config_dpo import DpoLoss, DpoSettings, IterativeDpoSettings
from posttrain.verify.registry import create_verifier
from tasks import artifacts
from tasks.launch import demonstrations_digest
from tasks.pools import CPU

logger = logging.getLogger("posttrain")

# The flat inputs of the workflows and the settings that they are.
_COMMON = {
    "run_name": "tracking.run_name",
    "experiment": "tracking.experiment",
    "model": "data.model",
    "evaluation_prompts": "data.evaluation_prompts",
    "verifier": "data.verifier",
    "engine": "rollout.engine",
    "num_epochs": "learner.num_epochs",
    "num_iterations": "loop.num_iterations",
    "num_shards": "loop.num_shards",
    "pairs_per_step": "learner.pairs_per_step",
    "lora_rank": "learner.lora_rank",
    "max_prompt_tokens": "data.max_prompt_tokens",
    "max_completion_tokens": "data.max_completion_tokens",
    "seed": "loop.seed",
}
_PAIRS = {
    "preferences": "data.preferences",
    "reference": "data.reference",
    "evaluation_preferences": "data.evaluation_preferences",
    "max_pair_tokens": "data.max_pair_tokens",
}
_LOSS = {
    "loss_type": "learner.loss_type",
    "beta": "learner.beta",
    "nll_coef": "learner.nll_coef",
    "learning_rate": "learner.learning_rate",
}
_SAMPLING = {
    "prompts": "data.prompts",
    "demonstrations": "warm_start.demonstrations",
    "prompts_per_iteration": "loop.prompts_per_iteration",
    "group_size": "rollout.group_size",
    "temperature": "rollout.temperature",
}
COLLECT_INPUTS = {
    **{name: _COMMON[name] for name in ("run_name", "model", "verifier", "engine", "num_shards")},
    **{name: _COMMON[name] for name in ("max_prompt_tokens", "max_completion_tokens", "seed")},
    **{name: _SAMPLING[name] for name in ("prompts", "demonstrations", "group_size", "temperature")},
    "num_prompts": "loop.prompts_per_iteration",
}
DPO_INPUTS = {**_COMMON, **_PAIRS, **_LOSS}
SWEEP_INPUTS = {**_COMMON, **_PAIRS}
ITERATIVE_INPUTS = {**_COMMON, **_SAMPLING, **_LOSS}


class DpoLaunch(NamedTuple):
    settings: DpoSettings
    execution: str


class SweepLaunch(NamedTuple):
    settings: DpoSettings
    trials: list[DpoSettings]
    execution: str


class IterativeLaunch(NamedTuple):
    settings: IterativeDpoSettings
    execution: str
    has_demonstrations: bool
    demonstrations_digest: str


@task(**CPU)
def launch_dpo(
    run_name: str,
    experiment: str,
    model: str,
    preferences: str,
    reference: str,
    evaluation_preferences: str,
    evaluation_prompts: str,
    verifier: str,
    engine: EngineName,
    loss_type: DpoLoss,
    beta: float,
    nll_coef: float,
    learning_rate: float,
    num_epochs: int,
    num_iterations: int,
    num_shards: int,
    pairs_per_step: int,
    lora_rank: int,
    max_pair_tokens: int,
    max_prompt_tokens: int,
    max_completion_tokens: int,
    seed: int,
    overrides: str,
) -> DpoLaunch:
    """Effective settings of the run and its name.

    Raises:
        ConfigError: with every wrong field, its value, the reason and the remedy.
    """
    settings = _resolve(DpoSettings, locals(), DPO_INPUTS, overrides)
    return DpoLaunch(settings, _start(settings, "dpo"))


@task(**CPU)
def launch_dpo_sweep(
    run_name: str,
    experiment: str,
    model: str,
    preferences: str,
    reference: str,
    evaluation_preferences: str,
    evaluation_prompts: str,
    verifier: str,
    engine: EngineName,
    loss_types: str,
    betas: str,
    learning_rates: str,
    nll_coefs: str,
    num_epochs: int,
    num_iterations: int,
    num_shards: int,
    pairs_per_step: int,
    lora_rank: int,
    max_pair_tokens: int,
    max_prompt_tokens: int,
    max_completion_tokens: int,
    seed: int,
    overrides: str,
) -> SweepLaunch:
    """The settings of every trial, all validated, and the sweep's name.

    Raises:
        ConfigError: with every wrong field, its value, the reason and the remedy.
    """
    given = locals()
    axes = {name: given[name] for name in sweep.AXES}
    settings = _resolve(DpoSettings, given, SWEEP_INPUTS, overrides)
    execution = _start(settings, "dpo-sweep")
    return SweepLaunch(settings, sweep.trials(settings, axes, execution), execution)


@task(**CPU)
def launch_iterative_dpo(
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
    temperature: float,
    loss_type: DpoLoss,
    beta: float,
    nll_coef: float,
    learning_rate: float,
    num_epochs: int,
    pairs_per_step: int,
    lora_rank: int,
    max_prompt_tokens: int,
    max_completion_tokens: int,
    seed: int,
    overrides: str,
) -> IterativeLaunch:
    """Effective settings of the run, its name, and whether there is a warm start.

    Raises:
        ConfigError: with every wrong field, its value, the reason and the remedy.
    """
    return _launch_sampling(locals(), ITERATIVE_INPUTS, "iterative-dpo")


@task(**CPU)
def launch_preferences(
    run_name: str,
    model: str,
    prompts: str,
    verifier: str,
    demonstrations: str,
    engine: EngineName,
    num_prompts: int,
    group_size: int,
    num_shards: int,
    temperature: float,
    max_prompt_tokens: int,
    max_completion_tokens: int,
    seed: int,
    overrides: str,
) -> IterativeLaunch:
    """Effective settings of the data set's making, its name, and whether there is a warm start.

    Raises:
        ConfigError: with every wrong field, its value, the reason and the remedy.
    """
    launched = _launch_sampling(locals(), COLLECT_INPUTS, "preferences")
    run_name = launched.settings.tracking.run_name
    return launched._replace(execution=artifacts.folder_name(run_name) or launched.execution)  # a folder to find again


def _launch_sampling(given: dict[str, Any], inputs: dict[str, str], fallback_name: str) -> IterativeLaunch:
    settings = _resolve(IterativeDpoSettings, given, inputs, given["overrides"])
    source = settings.warm_start.demonstrations
    return IterativeLaunch(settings, _start(settings, fallback_name), bool(source), demonstrations_digest(source))


def _resolve(
    kind: type[resolution.AnySettings], given: dict[str, Any], inputs: dict[str, str], overrides: str
) -> resolution.AnySettings:
    """On the command line `--run_name None` means what leaving it out means."""
    plain = {name: "" if value == "None" else value for name, value in given.items()}
    return resolution.resolve_as(kind, {field: plain[name] for name, field in inputs.items()}, overrides)


def _start(settings: DpoSettings | IterativeDpoSettings, fallback_name: str) -> str:
    create_verifier(settings.data.verifier, settings.verify)
    execution = artifacts.execution_name(settings.tracking.run_name or fallback_name)
    logger.info("run %s: the settings are valid", execution)
    return execution
