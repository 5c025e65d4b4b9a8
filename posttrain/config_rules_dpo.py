"""Rules between sections of the settings of DPO and of iterative DPO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posttrain.config_rules import check_group, check_overlong, check_pairs
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.config_dpo import DpoSettings, IterativeDpoSettings


def check_dpo(settings: DpoSettings) -> None:
    """Raises ConfigError for the first pair of sections that cannot go together."""
    _check_sampling_limits(settings)
    check_overlong(settings.verify, settings.data)
    _check_warmup(settings)


def check_iterative_dpo(settings: IterativeDpoSettings) -> None:
    """Raises ConfigError for the first pair of sections that cannot go together."""
    _check_sampling_limits(settings)
    check_group(settings.rollout)
    check_overlong(settings.verify, settings.data)
    _check_warmup(settings)
    for field, value, allowed, why in (
        ("loop.staleness", settings.loop.staleness, 0, "pairs are always made from the newest policy"),
        ("learner.total_steps", settings.learner.total_steps, 0, "the number of pairs, so of steps, is known only as it runs"),
    ):
        if value != allowed:
            raise ConfigError(field, value, why, f"Set it to {allowed}.")
    if settings.learner.lr_scheduler in ("linear", "cosine"):
        why = "a decaying schedule needs the number of steps, which is known only as it runs"
        raise ConfigError("learner.lr_scheduler", settings.learner.lr_scheduler, why, "Use constant or constant_with_warmup.")


def _check_sampling_limits(settings: DpoSettings | IterativeDpoSettings) -> None:
    check_pairs(
        (
            ("rollout.max_completion_tokens", settings.rollout.max_completion_tokens, settings.data.max_completion_tokens),
            ("rollout.max_model_tokens", settings.rollout.max_model_tokens, settings.data.context_tokens),
            ("rollout.trust_remote_code", settings.rollout.trust_remote_code, settings.data.trust_remote_code),
            ("learner.trust_remote_code", settings.learner.trust_remote_code, settings.data.trust_remote_code),
        )
    )


def _check_warmup(settings: DpoSettings | IterativeDpoSettings) -> None:
    if settings.learner.warmup_steps and settings.learner.lr_scheduler == "constant":
        why = "learner.lr_scheduler = 'constant' has no warmup"
        remedy = "Set lr_scheduler to constant_with_warmup, or warmup_steps to 0."
        raise ConfigError("learner.warmup_steps", settings.learner.warmup_steps, why, remedy)
