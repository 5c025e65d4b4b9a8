"""The trials of a sweep: the product of what is listed, each valid, named and nested."""

from __future__ import annotations

import pytest

from posttrain import sweep
from posttrain.config_dpo import DpoLoss, DpoSettings
from posttrain.errors import ConfigError, ConfigErrors

SETTINGS = DpoSettings.model_validate({"data": {"model": "policy", "preferences": "pairs.jsonl"}, "learner": {"beta": 0.3}})


def test_trials_are_the_product_and_say_what_distinguishes_them() -> None:
    trials = sweep.trials(SETTINGS, {"loss_types": "sigmoid, ipo", "betas": "0.1,0.5", "learning_rates": "2e-4"}, "night")

    found = [(trial.learner.loss_type, trial.learner.beta, trial.learner.learning_rate) for trial in trials]
    assert found == [
        (DpoLoss.sigmoid, 0.1, 2e-4), (DpoLoss.sigmoid, 0.5, 2e-4), (DpoLoss.ipo, 0.1, 2e-4), (DpoLoss.ipo, 0.5, 2e-4),
    ]  # fmt: skip
    assert trials[3].tracking.run_name == "loss_type-ipo_beta-0.5"
    assert {trial.tracking.parent_execution for trial in trials} == {"night"}
    assert len({sweep.trial_execution(trial) for trial in trials}) == 4
    assert trials[0].data == SETTINGS.data


def test_what_is_not_listed_keeps_its_value() -> None:
    (trial,) = sweep.trials(SETTINGS, {"loss_types": "", "betas": " "}, "night")
    assert trial.learner == SETTINGS.learner


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ({"betas": "0.1,0.1"}, "'0.1' stands twice"),
        ({"betas": "0.1,0.10"}, "beta-0.1 and beta-0.10 are the same trial"),
        ({"betas": "0.1", "learning_rates": "1e-6,2e-6,0.000001"}, "learning_rate-1e-6 and learning_rate-0.000001 are the same"),
        ({"betas": "0.1,,0.2"}, "empty value"),
        ({"betas": ",".join(str(number) for number in range(1, 66))}, "65 trials"),
    ],
)
def test_lists_that_cannot_be_meant_are_refused(axes: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        sweep.trials(SETTINGS, axes, "night")


@pytest.mark.parametrize(("axis", "text"), [("betas", "0.1,-1"), ("loss_types", "sigmoid,simoid"), ("betas", "0.1,nan")])
def test_a_value_that_the_setting_refuses_is_named(axis: str, text: str) -> None:
    with pytest.raises(ConfigErrors, match=r"learner\."):
        sweep.trials(SETTINGS, {axis: text}, "night")
