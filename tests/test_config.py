"""Settings: unknown keys are refused with the nearest name, every error says field, value, why and remedy."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from posttrain import resolution
from posttrain.config import GrpoSettings
from posttrain.errors import ConfigError, ConfigErrors


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ("{learner: {kl_coeff: 0.01}}", ["learner.kl_coeff", "0.01", "no such setting", "'kl_coef'"]),
        ("{lerner: {kl_coef: 0.01}}", ["lerner", "no such setting", "'learner'"]),
        ("{rollout: {group_size: 1}}", ["rollout.group_size", "1", "no baseline", "Use 2 or more"]),
        ("{rollout: {group_size: two}}", ["rollout.group_size", "two", "integer"]),
        ("{loop: {staleness: -1}}", ["loop.staleness", "-1", "between 0 and 4"]),
        ("{loop: {staleness: 9}}", ["loop.staleness", "9", "between 0 and 4"]),
        ("{loop: {staleness: 2}, learner: {importance_correction: none}}", ["loop.staleness", "2", "decoupled"]),
        ("{rollout: {group_size: true}}", ["group_size", "True", "a number is wanted"]),
        ("{loop: {seed: 9223372036854775808}}", ["loop.seed", "9223372036854775808"]),
        ("{verify: {overlong_buffer_tokens: 100}}", ["verify.overlong_buffer_tokens", "100", "cap of 48"]),
        ("{learner: {loss_type: vespo, importance_correction: sequence_mask}}", ["learner.importance_correction", "vespo"]),
        ("{learner: {trainable_parameters: '('}}", ["learner.trainable_parameters", "regular expression"]),
        ("{learner: {kl_coef: 0.1, kl_coef: 0.2}}", ["overrides", "'kl_coef' stands twice"]),
        ("{tracking: {register_as: a/b}}", ["tracking.register_as", "a/b"]),
        ("{rollout: {top_p: 0.9}}", ["rollout.top_p", "0.9", "top_p 1"]),
        ("{loop: {prompts_per_iteration: 10, num_shards: 3}}", ["loop.num_shards", "3", "does not divide", "divisor"]),
        ("{learner: {groups_per_step: 8, groups_per_microbatch: 3}}", ["learner.groups_per_microbatch", "3", "divisor"]),
        ("{data: {max_model_tokens: 10}}", ["data.max_model_tokens", "10", "112 tokens"]),
        ("{evaluation: {num_samples: 2, pass_at: [1, 4]}}", ["evaluation.pass_at", "4", "num_samples = 2"]),
        ("{learner: {temperature: 0.5}}", ["learner.temperature", "0.5", "another section says 1.0"]),
        ("{learner: {learning_rate: .nan}}", ["learner.learning_rate", "nan", "finite"]),
        ("{learner: {loss_type: ppo}}", ["learner.loss_type", "ppo", "dapo"]),
        ("{learner: {lr_scheduler: linear, total_steps: 39}}", ["learner.total_steps", "39", "up to 40 steps", "computed"]),
        ("{learner: {lr_scheduler: cosine, total_steps: 79, num_epochs: 2}}", ["learner.total_steps", "79", "80 or more"]),
        ("{learner: {lr_scheduler: linear, warmup_steps: 40}}", ["learner.warmup_steps", "40 steps", "never be reached"]),
        (
            "{learner: {lr_scheduler: cosine, total_steps: 50, warmup_steps: 60}}",
            ["learner.warmup_steps", "60", "50 steps", "Lower it"],
        ),
        ("{learner: {lr_scheduler: constant_with_warmup, warmup_steps: 41}}", ["learner.warmup_steps", "41", "40 steps"]),
        ("{learner: {warmup_steps: 5}}", ["learner.warmup_steps", "5", "no warmup", "constant_with_warmup"]),
        ("{learner: {trust_remote_code: true}}", ["learner.trust_remote_code", "another section says False"]),
        ("{rollout: 3}", ["rollout", "3"]),
        ("[1, 2]", ["overrides", "mapping of sections"]),
        ("{a: [", ["overrides", "not YAML"]),
        ("{data: {model: ''}}", ["data.model", "at least 1 character"]),
    ],
)
def test_a_wrong_setting_is_explained(overrides: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        resolution.resolve({}, overrides)
    for part in parts:
        assert part in str(error.value)


def test_every_wrong_field_is_reported_at_once() -> None:
    with pytest.raises(ConfigErrors) as error:
        resolution.resolve({}, "{learner: {kl_coef: -1, learning_rat: 1}}")
    assert len(error.value.errors) == 2


def test_shared_values_follow_from_one_place() -> None:
    flat: dict[str, Any] = {
        "rollout.temperature": 0.7,
        "data.max_completion_tokens": 100,
        "loop.seed": 5,
        "advantage.scaling": "batch",
        "data.trust_remote_code": True,
    }
    settings = resolution.resolve(flat, "")
    assert settings.learner.temperature == 0.7
    assert settings.rollout.max_completion_tokens == settings.learner.max_completion_tokens == 100
    assert settings.rollout.max_model_tokens == settings.data.max_prompt_tokens + 100
    assert settings.rollout.seed == settings.learner.seed == settings.warm_start.seed == 5
    assert settings.learner.scaling == "batch"
    assert settings.rollout.trust_remote_code and settings.learner.trust_remote_code


@pytest.mark.parametrize("number", ['"128"', "128.0", "128"])
def test_token_limits_are_shared_as_they_were_understood(number: str) -> None:
    settings = resolution.resolve({}, f"{{data: {{max_prompt_tokens: {number}, max_completion_tokens: {number}}}}}")
    assert settings.data.max_prompt_tokens == settings.learner.max_completion_tokens == 128
    assert settings.rollout.max_model_tokens == 256


def test_a_wrong_limit_is_blamed_on_its_own_setting() -> None:
    with pytest.raises(ConfigErrors) as error:
        resolution.resolve({}, "{data: {max_prompt_tokens: many}, learner: {kl_coef: -1}}")
    assert [one.field for one in error.value.errors] == ["data.max_prompt_tokens", "learner.kl_coef"]


def test_overrides_win_over_flat_inputs_and_json_is_yaml() -> None:
    assert resolution.resolve({"learner.kl_coef": 0.1}, '{"learner": {"kl_coef": 0.2}}').learner.kl_coef == 0.2


@pytest.mark.parametrize("overrides", ["", "  ", "None", "null", "# nothing"])
def test_none_and_leaving_out_mean_the_same(overrides: str) -> None:
    assert resolution.resolve({}, overrides) == GrpoSettings()


def test_numbers_keep_their_types() -> None:
    settings = resolution.resolve({"loop.seed": 2**60 + 1, "learner.learning_rate": 1}, "")
    assert settings.loop.seed == 2**60 + 1 and isinstance(settings.loop.seed, int)
    assert settings.learner.learning_rate == 1.0 and isinstance(settings.learner.learning_rate, float)
    restored = GrpoSettings.model_validate_json(settings.model_dump_json())
    assert restored == settings


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        GrpoSettings().loop.seed = 3  # type: ignore[misc]


def test_a_decaying_schedule_gets_its_length_from_the_loop() -> None:
    settings = resolution.resolve(
        {"loop.num_iterations": 7, "loop.prompts_per_iteration": 20}, "{learner: {lr_scheduler: cosine}}"
    )
    assert settings.learner.total_steps == 7 * 3  # 20 groups in steps of 8
    assert (
        resolution.resolve({"loop.num_iterations": 7}, "").learner.total_steps == 0
    )  # a constant rate has no length: no cache key


@pytest.mark.parametrize(
    "learner",
    [
        "{lr_scheduler: linear, total_steps: 40}",
        "{lr_scheduler: cosine, total_steps: 400, warmup_steps: 100}",
        "{lr_scheduler: linear, warmup_steps: 39}",
        "{lr_scheduler: constant_with_warmup, total_steps: 400, warmup_steps: 100}",
    ],
)
def test_a_schedule_that_lasts_as_long_as_the_run_or_longer_is_accepted(learner: str) -> None:
    assert resolution.resolve({}, f"{{learner: {learner}}}").learner.total_steps in (40, 400)


def test_flattened_settings_are_text_by_dotted_name() -> None:
    flat = resolution.flatten(GrpoSettings())
    assert flat["learner.kl_coef"] == "0.0" and flat["data.model"] == "brackets" and flat["evaluation.pass_at"] == "[1, 4]"
    assert all(isinstance(value, str) for value in flat.values())
