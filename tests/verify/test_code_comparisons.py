"""Comparing in any order ends soon, whatever a completion gave, and says so."""

from __future__ import annotations

import time
from typing import Any

import pytest

from posttrain.config_verify import CodeReward, VerifySettings
from posttrain.verify.compare import Comparisons, Equality, Order, TooManyComparisons, equal_text, equal_values
from tests.verify.judging import judge

NESTED, OUTERMOST = Equality(Order.nested), Equality(Order.outermost)
MAX_SECONDS = 8  # of the processor


def nested(depth: int, value: Any, width: int = 1) -> Any:
    for _ in range(depth):
        value = [value] * width
    return value


def grid(size: int, first: float = 0.5) -> list[list[float]]:
    return [[first + row * size + column for column in range(size)] for row in range(size)]


def with_one_wrong(rows: list[list[float]], place: int) -> list[list[float]]:
    return [[*row[:-1], 1e9] if number == place else row for number, row in enumerate(rows)]


def is_equal(expected: Any, found: Any, equality: Equality = NESTED) -> bool:
    """Also where it takes too many comparisons it is not equal."""
    compare = equal_text if isinstance(expected, str) else equal_values
    try:
        return compare(expected, found, equality)
    except TooManyComparisons:
        return False


def lines(rows: list[list[float]]) -> str:
    return "\n".join(" ".join(map(str, row)) for row in rows)


WRONG = [
    (grid(80), grid(80, -9_000.5)), (grid(200), grid(200, -90_000.5)), (grid(200), with_one_wrong(grid(200), 0)), (grid(200), with_one_wrong(grid(200), 199)),
    (nested(30, 1), nested(30, 2)), (nested(14, 1.5, 2), nested(14, 2.5, 2)), ([[1] * 1_000 + [row] for row in range(200)], [[1] * 1_000 + [-row] for row in range(200)]),
    (lines(grid(80)), lines(grid(80, -9_000.5))), (lines(grid(80)), lines(with_one_wrong(grid(80), 79))),
    # every item meets almost every other, so that only pairing tells
    ([[0.5, 1e-12 * row] for row in range(200)], [[0.5, 1e-12 * row] for row in range(199)] + [[0.5, 7]]),
]  # fmt: skip


@pytest.mark.parametrize("pair", WRONG)
@pytest.mark.parametrize("equality", [NESTED, OUTERMOST])
def test_a_wrong_value_of_the_right_shape_is_told_soon(pair: tuple[Any, Any], equality: Equality) -> None:
    started = time.process_time()
    assert not is_equal(*pair, equality)
    assert time.process_time() - started < MAX_SECONDS


def test_lists_nested_in_what_was_found_alone_are_sorted_soon() -> None:
    started = time.process_time()
    assert not is_equal([[1]] * 500, [nested(190, number) for number in range(2_000)])
    assert time.process_time() - started < MAX_SECONDS


def test_right_values_of_any_size_cost_no_comparison() -> None:
    work = Comparisons()
    work.spend(500_000)
    rows = grid(300)
    assert equal_values(rows, [row[::-1] for row in rows[::-1]], NESTED, work)
    assert equal_values(rows, rows[::-1], OUTERMOST, work)
    assert equal_text(lines(rows), lines([row[::-1] for row in rows[::-1]]), NESTED, work)
    assert equal_values(nested(14, 1.5, 2), nested(14, 1.5, 2), NESTED, work)
    assert not equal_values([1, 2], [1, 3], Equality(), work)
    with pytest.raises(TooManyComparisons):
        equal_values([1, 2], [1, 3], NESTED, work)


def test_items_that_tolerance_sorts_apart_are_still_paired() -> None:
    expected = [[0.1 + 1e-12 * number, number] for number in range(100)]
    found = [[0.1 - 1e-12 * number, number] for number in range(100)]
    assert equal_values(expected, found, NESTED)
    assert equal_values({"a": [expected]}, {"a": [found]}, NESTED)
    assert not equal_values(expected, [*found[:-1], [0.1, 100]], NESTED)
    assert equal_text("0.1000000 3\n0.1000001 5", "0.1000000 5\n0.1000001 3", OUTERMOST)


def test_all_cases_of_a_completion_share_the_comparisons_and_the_verdict_says_so() -> None:
    rows = grid(60)
    cases = {"inputs": [[case] for case in range(9)], "outputs": [rows] * 9}
    answer = {"mode": "function", "name": "f", "unordered": "nested", **cases}
    completion = f"def f(x): return {rows[::-1]} if x == 8 else {with_one_wrong(rows, 59)}"
    settings = VerifySettings(timeout_s=10.0, code_reward=CodeReward.fraction)
    started = time.process_time()
    (verdict,) = judge("code", [(completion, answer)], settings=settings)
    assert time.process_time() - started < MAX_SECONDS
    assert (verdict.outcome, verdict.reward) == ("fail", 1 / 9)
    large = {**answer, "inputs": [[1]], "outputs": [grid(120)]}
    (verdict,) = judge("code", [(f"def f(x): return {with_one_wrong(grid(120), 119)}", large)])
    assert (verdict.outcome, verdict.reward) == ("fail", 0.0)
    why = "case 0: not equal when sorted, and pairing its items takes more than 500,000 comparisons: expected [[0.5"
    assert verdict.detail.startswith(why)
