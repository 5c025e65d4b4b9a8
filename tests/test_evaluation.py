"""Pass rates and intervals against hand-worked values, enumeration and scipy."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from posttrain import tables
from posttrain.config import EvaluationSettings
from posttrain.errors import ContractError, VerificationError
from posttrain.evaluation import bootstrap_interval, pass_at_k, summarise, wilson_interval

SETTINGS = EvaluationSettings(num_samples=4, pass_at=(1, 2, 4))


def verdicts(outcomes: dict[str, list[str]]) -> pa.Table:
    rows = [
        {
            "prompt_id": prompt_id, "sample_index": index, "outcome": outcome, "detail": f"{outcome} detail", "seconds": 0.1,
            "reward": None if outcome == "error" else float(outcome == "pass"), "verifier": "exact", "verifier_version": "1",
            "parts": [], "limits": "{}",
        }
        for prompt_id, samples in outcomes.items()
        for index, outcome in enumerate(samples)
    ]  # fmt: skip
    return tables.from_rows("VERDICTS", rows)


def values_of(metrics: pa.Table) -> dict[str, float]:
    return dict(zip(metrics["name"].to_pylist(), metrics["value"].to_pylist(), strict=True))


def test_wilson_interval_by_hand() -> None:
    # z² = 3.841459; 0 of 10: upper bound z²/(n + z²) = 0.277533; 5 of 10: 0.5 ± z·sqrt(0.025 + z²/400)/(1 + z²/10)
    assert wilson_interval(0, 10, 0.95) == (0.0, pytest.approx(0.277533, abs=1e-6))
    assert wilson_interval(5, 10, 0.95) == (pytest.approx(0.236593, abs=1e-6), pytest.approx(0.763407, abs=1e-6))
    assert wilson_interval(10, 10, 0.95) == (pytest.approx(1 - 0.277533, abs=1e-6), 1.0)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_wilson_interval_equals_scipy(confidence: float) -> None:
    for total in (1, 7, 100, 1319):
        for passes in {0, 1, total // 3, total - 1, total}:
            expected = stats.binomtest(passes, total).proportion_ci(confidence, method="wilson")
            assert wilson_interval(passes, total, confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize("arguments", [(0, 0, 0.95), (3, 2, 0.95), (-1, 2, 0.95), (1, 2, 1.0), (1, 2, 0.0)])
def test_wilson_interval_refuses_what_is_no_pass_rate(arguments: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match="is not a pass rate"):
        wilson_interval(*arguments)


def test_pass_at_k_equals_enumeration_of_all_draws() -> None:
    for num_samples in range(1, 7):
        for num_correct in range(num_samples + 1):
            passed = [index < num_correct for index in range(num_samples)]
            for k in range(1, num_samples + 1):
                draws = [any(passed[index] for index in draw) for draw in combinations(range(num_samples), k)]
                assert pass_at_k(num_samples, num_correct, k) == pytest.approx(sum(draws) / len(draws))


@pytest.mark.parametrize("arguments", [(3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1)])
def test_pass_at_k_refuses_undefined_cases(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="is not defined"):
        pass_at_k(*arguments)


def test_bootstrap_interval_agrees_with_scipy_and_repeats_exactly() -> None:
    means = np.random.default_rng(5).choice([0.0, 0.25, 0.5, 1.0], 80).tolist()
    low, high = bootstrap_interval(means, 0.9)
    expected = stats.bootstrap((means,), np.mean, confidence_level=0.9, method="percentile", n_resamples=20_000, rng=1)
    assert (low, high) == pytest.approx(tuple(expected.confidence_interval), abs=0.01)
    assert bootstrap_interval(means, 0.9) == (low, high)


def test_bootstrap_interval_counts_prompts_not_samples() -> None:
    # 40 prompts whose 16 samples always agree carry 40 trials, not 640: the interval must be about four times as wide
    means = [1.0] * 20 + [0.0] * 20
    low, high = bootstrap_interval(means, 0.95)
    wilson_low, wilson_high = wilson_interval(20, 40, 0.95)
    assert high - low == pytest.approx(wilson_high - wilson_low, abs=0.03)
    naive_low, naive_high = wilson_interval(320, 640, 0.95)
    assert high - low > 3.5 * (naive_high - naive_low)


@pytest.mark.parametrize("mean", [0.0, 0.5, 1.0])
def test_bootstrap_interval_is_not_empty_when_all_prompts_agree(mean: float) -> None:
    assert bootstrap_interval([mean] * 10, 0.95) == wilson_interval(10 * mean, 10, 0.95)


def test_summarise_leaves_verifier_errors_out_of_every_denominator_and_counts_them() -> None:
    sampled = verdicts(
        {"a": ["pass", "fail", "error", "pass"], "b": ["fail", "timeout", "unparseable", "fail"], "c": ["error"] * 4}
    )
    greedy = verdicts({"a": ["pass"], "b": ["fail"], "c": ["error"]})
    metrics = summarise(sampled, greedy, SETTINGS, iteration=3)
    found = values_of(metrics)
    assert set(metrics["iteration"].to_pylist()) == {3}
    assert found["eval/pass_at_1"] == pytest.approx((2 / 3 + 0) / 2)
    assert found["eval/pass_at_2"] == pytest.approx((1 + 0) / 2)  # a: 1 − C(1,2)/C(3,2) = 1
    assert found["eval/pass_at_4"] == 0.0  # only b has four judged samples
    assert found["eval/greedy_pass_rate"] == 0.5
    assert (found["eval/greedy_pass_rate_low"], found["eval/greedy_pass_rate_high"]) == wilson_interval(1, 2, 0.95)
    assert found["eval/num_prompts"] == 2
    assert found["eval/num_unjudged"] == 6
    for name in ("eval/pass_at_1", "eval/pass_at_2", "eval/pass_at_4", "eval/greedy_pass_rate"):
        assert 0 <= found[f"{name}_low"] <= found[name] <= found[f"{name}_high"] <= 1


def test_summarise_leaves_out_a_k_that_no_prompt_can_give() -> None:
    sampled, greedy = verdicts({"a": ["pass", "pass", "error", "fail"]}), verdicts({"a": ["pass"]})
    found = values_of(summarise(sampled, greedy, SETTINGS, iteration=0))
    assert "eval/pass_at_2" in found
    assert not [name for name in found if name.startswith("eval/pass_at_4")]


def test_summarise_always_gives_pass_at_1() -> None:
    settings = EvaluationSettings(num_samples=2, pass_at=(2,))
    found = values_of(summarise(verdicts({"a": ["pass", "fail"]}), verdicts({"a": ["fail"]}), settings, iteration=0))
    assert (found["eval/pass_at_1"], found["eval/pass_at_2"]) == (0.5, 1.0)


@pytest.mark.parametrize("kind", ["sampled", "greedy"])
@pytest.mark.parametrize("outcomes", [{"a": ["error", "error"]}, {}])
def test_summarise_raises_when_nothing_was_judged(kind: str, outcomes: dict[str, list[str]]) -> None:
    fine, broken = verdicts({"a": ["pass"]}), verdicts(outcomes)
    with pytest.raises(VerificationError, match=f"iteration 7: no {kind} completion was judged"):
        summarise(*(broken, fine) if kind == "sampled" else (fine, broken), SETTINGS, iteration=7)


def test_summarise_names_the_verifier_error() -> None:
    with pytest.raises(VerificationError, match="First detail: error detail"):
        summarise(verdicts({"a": ["error"]}), verdicts({"a": ["pass"]}), SETTINGS, iteration=0)


def test_summarise_refuses_another_table() -> None:
    with pytest.raises(ContractError, match="VERDICTS"):
        summarise(tables.empty("METRICS"), verdicts({"a": ["pass"]}), SETTINGS, iteration=0)
