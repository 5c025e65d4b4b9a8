"""Advantages against the values of the arithmetic sheet and the field reports."""

from __future__ import annotations

import pyarrow as pa
import pytest

from posttrain import tables
from posttrain.advantages import batch_scale, compute_advantages, group_metrics, num_trainable_groups, score
from posttrain.config import AdvantageBaseline, AdvantageScaling, AdvantageSettings
from posttrain.errors import ContractError
from tests.learner.scored_tables import rollout_row, verdict_row

GROUP = AdvantageSettings()
CENTRED = AdvantageSettings(scaling=AdvantageScaling.none)


def one_group(rewards: list[float | None], settings: AdvantageSettings = GROUP) -> list[float | None]:
    return compute_advantages(rewards, ["p"] * len(rewards), settings)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 0, 0, 0], [1.4997, -0.4999, -0.4999, -0.4999]),
        ([1, 1, 0, 0], [0.865875, 0.865875, -0.865875, -0.865875]),
        ([1] + [0] * 15, [3.748501] + [-0.2499] * 15),
        ([1] * 8 + [0] * 8, [0.968058] * 8 + [-0.968058] * 8),
    ],
)
def test_group_scaling_divides_by_the_unbiased_deviation(rewards: list[float], expected: list[float]) -> None:
    assert one_group(rewards) == pytest.approx(expected, abs=5e-5)


def test_without_scaling_only_the_mean_is_subtracted() -> None:
    assert one_group([1, 0, 0, 0], CENTRED) == [0.75, -0.25, -0.25, -0.25]


def test_leave_one_out_is_g_over_g_minus_one_times_the_centred_reward() -> None:
    settings = AdvantageSettings(scaling=AdvantageScaling.none, baseline=AdvantageBaseline.leave_one_out)
    assert one_group([1, 0, 0, 0], settings) == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    assert one_group([0.9, 0.5, 0.1], settings) == pytest.approx([0.9 - 0.3, 0.5 - 0.5, 0.1 - 0.7])


@pytest.mark.parametrize("baseline", list(AdvantageBaseline))
@pytest.mark.parametrize("scaling", list(AdvantageScaling))
@pytest.mark.parametrize("reward", [0.1, 1 / 3, 1e-9, 7.7])
def test_equal_rewards_give_exactly_zero(reward: float, scaling: AdvantageScaling, baseline: AdvantageBaseline) -> None:
    settings = AdvantageSettings(scaling=scaling, baseline=baseline)
    assert one_group([reward] * 3, settings) == [0.0, 0.0, 0.0]


def test_a_row_that_was_not_judged_stays_outside_baseline_and_deviation() -> None:  # B04
    right, wrong = pytest.approx(0.577, abs=1e-3), pytest.approx(-1.155, abs=1e-3)
    assert one_group([1, 0, None, 1]) == [right, wrong, None, right]


@pytest.mark.parametrize("baseline", list(AdvantageBaseline))
def test_unjudged_groups_and_single_judgements_give_no_signal(baseline: AdvantageBaseline) -> None:
    settings = AdvantageSettings(baseline=baseline)
    assert one_group([None, None], settings) == [None, None]
    assert one_group([None, 1.0, None], settings) == [None, 0.0, None]


def test_groups_may_be_interleaved() -> None:
    assert compute_advantages([1, 5, 0, 9], ["a", "b", "a", "b"], CENTRED) == [0.5, -2.0, -0.5, 2.0]


def rollouts(*keys: tuple[str, int]) -> pa.Table:
    return tables.from_rows("ROLLOUTS", [rollout_row(*key) for key in keys])


def verdicts(*rows: tuple[str, int, float | None]) -> pa.Table:
    return tables.from_rows("VERDICTS", [verdict_row(*row) for row in rows])


def test_score_joins_by_key_and_keeps_the_order_of_the_rollouts() -> None:
    scored = score(rollouts(("b", 1), ("a", 0), ("b", 0)), verdicts(("a", 0, 1.0), ("b", 0, 0.0), ("b", 1, 1.0)), CENTRED)
    assert tables.keys(scored) == [("b", 1), ("a", 0), ("b", 0)]
    assert scored["reward"].to_pylist() == [1.0, 1.0, 0.0]
    assert scored["advantage"].to_pylist() == [0.5, 0.0, -0.5]
    assert scored["reference_logprobs"].null_count == 3


def test_score_names_the_key_of_a_missing_or_an_extra_verdict() -> None:
    with pytest.raises(ContractError, match=r"\('a', 1\)"):
        score(rollouts(("a", 0), ("a", 1)), verdicts(("a", 0, 1.0)), GROUP)
    with pytest.raises(ContractError, match=r"\('c', 7\)"):
        score(rollouts(("a", 0)), verdicts(("a", 0, 1.0), ("c", 7, 1.0)), GROUP)


def test_batch_scaling_leaves_centred_values_for_the_update_to_divide() -> None:
    keys = [("a", 0, 1.0), ("a", 1, 0.0), ("b", 0, 3.0), ("b", 1, None)]
    scored = score(rollouts(*[key[:2] for key in keys]), verdicts(*keys), AdvantageSettings(scaling=AdvantageScaling.batch))
    assert scored["advantage"].to_pylist() == [0.5, -0.5, 0.0, None]
    assert batch_scale(scored) == pytest.approx(1.5275252 + 1e-4)  # std of 1, 0, 3: variance (1/9 + 16/9 + 25/9) / 2


def test_an_empty_shard_is_scored() -> None:
    scored = score(tables.empty("ROLLOUTS"), tables.empty("VERDICTS"), GROUP)
    assert scored.num_rows == 0 and num_trainable_groups(scored) == 0


def test_group_metrics_count_what_carries_no_signal() -> None:
    keys: list[tuple[str, int, float | None]] = [
        ("signal", 0, 1.0),
        ("signal", 1, 0.0),
        ("equal", 0, 1.0),
        ("equal", 1, 1.0),
        ("none", 0, None),
        ("none", 1, None),
        ("one", 0, None),
        ("one", 1, 1.0),
    ]
    scored = score(rollouts(*[key[:2] for key in keys]), verdicts(*keys), GROUP)
    found = {row["name"]: row["value"] for row in group_metrics(scored, 3).to_pylist()}
    assert found == {"train/num_groups": 4, "train/num_zero_variance_groups": 2, "train/num_unjudged_groups": 1}
    assert num_trainable_groups(scored) == 1


def test_a_reward_that_would_overflow_is_refused_with_its_row() -> None:
    keys = [("p", 0, 1e308), ("p", 1, 0.0), ("p", 2, -1e308)]
    with pytest.raises(ContractError, match=r"'reward', row \('p', 0\), \('p', 2\).*overflow") as caught:
        score(rollouts(*[key[:2] for key in keys]), verdicts(*keys), GROUP)
    assert "1e+308" in str(caught.value)
