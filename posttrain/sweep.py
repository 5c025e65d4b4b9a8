"""A sweep: the product of a few settings, each combination a trial with a name of its own."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain import resolution
from posttrain.config_dpo import DpoSettings
from posttrain.errors import ConfigError

# Input of the workflow → the learner's setting that it lists values of.
AXES = {"loss_types": "loss_type", "betas": "beta", "learning_rates": "learning_rate", "nll_coefs": "nll_coef"}
MAX_TRIALS = 64


def trials(settings: DpoSettings, axes: Mapping[str, str], execution: str) -> list[DpoSettings]:
    """The settings of every trial; each run is nested in the sweep's and named after what distinguishes it.

    Args:
        axes: comma-separated values for each name in AXES; an empty text keeps the value of `settings`.
        execution: name of the sweep.

    Raises:
        ConfigError: a value that the setting refuses, one that stands twice, or more trials than one launch takes.
    """
    listed = {AXES[name]: _values(name, text) for name, text in axes.items() if text.strip()}
    combinations = [dict(zip(listed, values, strict=True)) for values in itertools.product(*listed.values())]
    if len(combinations) > MAX_TRIALS:
        why = f"the product has {len(combinations)} trials, one launch takes {MAX_TRIALS}"
        raise ConfigError(", ".join(axes), None, why, "List fewer values.")
    varied = [name for name, values in listed.items() if len(values) > 1]
    found = [_trial(settings, values, varied, execution) for values in combinations]
    _check_distinct(found, axes)
    return found


def trial_execution(settings: DpoSettings) -> str:
    """Name of a trial's own execution, which its MLflow run is found by."""
    return f"{settings.tracking.parent_execution}.{settings.tracking.run_name}"


def _values(name: str, text: str) -> list[str]:
    values = [value.strip() for value in text.split(",")]
    twice = [value for number, value in enumerate(values) if value in values[:number]]
    if twice or "" in values:
        why = f"{twice[0]!r} stands twice" if twice else "there is an empty value"
        raise ConfigError(name, text, why, "Write each value once, with commas between, as in 0.1,0.5.")
    return values


def _check_distinct(trials: Sequence[DpoSettings], axes: Mapping[str, str]) -> None:
    """One value may be written in two ways: 0.1 and 0.10."""
    for number, trial in enumerate(trials):
        twin = next((other for other in trials[:number] if other.learner == trial.learner), None)
        if twin is not None:
            why = f"{twin.tracking.run_name} and {trial.tracking.run_name} are the same trial"
            raise ConfigError(", ".join(axes), None, why, "Write each value once.")


def _trial(settings: DpoSettings, values: Mapping[str, str], varied: list[str], execution: str) -> DpoSettings:
    label = "_".join(f"{name}-{values[name]}" for name in varied) or "trial"
    fields: dict[str, Any] = settings.model_dump()
    fields["learner"] |= values
    fields["tracking"] |= {"parent_execution": execution, "run_name": label.replace("+", "")}
    return resolution.parse(DpoSettings, fields)
