"""Rules between sections of the settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.config import GrpoSettings, RolloutSettings, VerifySettings
    from posttrain.config_base import ModelData

Pair = tuple[str, Any, Any]
MAX_STALENESS = 4  # beyond it the decoupled loss has not been shown to hold up (AReaL, staleness table)


def check_sections(settings: GrpoSettings) -> None:
    """Raises ConfigError for the first pair of settings that cannot go together; better here than after an hour of rollouts."""
    check_group(settings.rollout)
    _check_staleness(settings)
    _check_sampling(settings)
    check_overlong(settings.verify, settings.data)
    _check_shared(settings)
    _check_schedule(settings)


def check_group(rollout: RolloutSettings) -> None:
    """A group needs two completions."""
    if rollout.group_size < 2:
        raise ConfigError(
            "rollout.group_size",
            rollout.group_size,
            "a group of one has no baseline: every advantage would be 0",
            "Use 2 or more; 8 or 16 are common.",
        )


def _check_staleness(settings: GrpoSettings) -> None:
    staleness = settings.loop.staleness
    if not 0 <= staleness <= MAX_STALENESS:
        raise ConfigError(
            "loop.staleness", staleness, f"it must lie between 0 and {MAX_STALENESS}", "0 is synchronous, 1 overlaps."
        )
    if staleness > 1 and settings.learner.importance_correction == "none":
        raise ConfigError(
            "loop.staleness",
            staleness,
            "above 1 only the decoupled loss holds up, and learner.importance_correction is none",
            "Set learner.importance_correction to token_truncate, or staleness to 1.",
        )


def _check_sampling(settings: GrpoSettings) -> None:
    """With top-p the sampler's logprobs are those of a cut distribution, the learner's of the whole: their ratio is no weight."""
    if settings.rollout.top_p < 1 and settings.learner.importance_correction != "none":
        raise ConfigError(
            "rollout.top_p",
            settings.rollout.top_p,
            "below 1 the stored logprobs cannot correct the importance of a completion",
            "Sample with top_p 1 (temperature is corrected for), or set learner.importance_correction to none.",
        )


def check_overlong(verify: VerifySettings, data: ModelData) -> None:
    """The soft penalty must leave room for completions without one."""
    buffer, cap = verify.overlong_buffer_tokens, data.max_completion_tokens
    if buffer > cap:
        raise ConfigError(
            "verify.overlong_buffer_tokens",
            buffer,
            f"longer than the cap of {cap} tokens: every completion would be punished",
            "Choose a quarter of the cap, or 0.",
        )


def _check_shared(settings: GrpoSettings) -> None:
    """Values that several sections need must agree; `resolve` sets them from one place."""
    pairs: tuple[Pair, ...] = (
        ("rollout.max_completion_tokens", settings.rollout.max_completion_tokens, settings.data.max_completion_tokens),
        ("rollout.max_model_tokens", settings.rollout.max_model_tokens, settings.data.context_tokens),
        ("rollout.trust_remote_code", settings.rollout.trust_remote_code, settings.data.trust_remote_code),
        ("learner.max_completion_tokens", settings.learner.max_completion_tokens, settings.data.max_completion_tokens),
        ("learner.trust_remote_code", settings.learner.trust_remote_code, settings.data.trust_remote_code),
        ("learner.temperature", settings.learner.temperature, settings.rollout.temperature),
        ("learner.scaling", settings.learner.scaling, settings.advantage.scaling),
    )
    check_pairs(pairs)


def check_pairs(pairs: Sequence[Pair]) -> None:
    """Raises ConfigError for the first (field, value, value of the other section) that differs."""
    for field, found, expected in pairs:
        if found != expected:
            raise ConfigError(field, found, f"another section says {expected}", "Leave it out: it follows the other section.")


def most_steps(settings: GrpoSettings) -> int:
    """Optimiser steps of the whole run when every group is trained on."""
    learner, loop = settings.learner, settings.loop
    return math.ceil(loop.prompts_per_iteration / learner.groups_per_step) * learner.num_epochs * loop.num_iterations


def _check_schedule(settings: GrpoSettings) -> None:
    learner, needed = settings.learner, most_steps(settings)
    if learner.lr_scheduler in ("linear", "cosine") and 0 < learner.total_steps < needed:
        raise ConfigError(
            "learner.total_steps",
            learner.total_steps,
            f"the {learner.lr_scheduler} schedule would end before the run, which takes up to {needed} steps",
            f"Set it to {needed} or more, or to 0: then it is computed.",
        )
    if learner.warmup_steps and learner.lr_scheduler == "constant":
        raise ConfigError(
            "learner.warmup_steps",
            learner.warmup_steps,
            "learner.lr_scheduler = 'constant' has no warmup",
            "Set lr_scheduler to constant_with_warmup, or warmup_steps to 0.",
        )
    length = max(learner.total_steps, needed)
    if learner.warmup_steps >= length:
        raise ConfigError(
            "learner.warmup_steps",
            learner.warmup_steps,
            f"the schedule has {length} steps: learning_rate would never be reached",
            "Lower it, or raise total_steps when further runs go on from this one.",
        )
