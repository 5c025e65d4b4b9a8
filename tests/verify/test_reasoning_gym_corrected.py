"""Arithmetic expressions are read, never evaluated: what the number games accept, and what they do not."""

from __future__ import annotations

import time

import pytest

from posttrain.verify.reasoning_gym_corrected import score_expression

NUMBERS = [1, 3, 4, 6]  # 6 / (1 - 3/4) is their only way to 24


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("6/(1-3/4)", 1.0), (" 6 / ( 1 - 3 / 4 )\n", 1.0), ("-6/(3/4-1)", 1.0), ("6/(1-(3/4))", 1.0),
        ("6*4", 0.0), ("6*4*1", 0.0), ("6*4*1+3-3", 0.0), ("4*6*1**3", 0.0), ("4*6//1+3*0", 0.0), ("6/(1-3/4)=24", 0.0), ("24", 0.0), ("", 0.0),
        ("6/(1-1)+3+4", 0.0), ("6/(1-3/4", 0.0), ("6,1,3,4", 0.0), ("6/(1-3/4)#", 0.0), ("06/(1-3/4)", 0.0), ("6/(1-0.75)", 0.0), ("six", 0.0),
        ("9**9**9**9", 0.0), ("1.__class__", 0.0), ("__import__('os').system('id')", 0.0), ("(" * 300 + "1" + ")" * 300, 0.0), ("-" * 399 + "1", 0.0),
        ("(" * 199 + "6" + ")" * 199, 0.0), ("6/(1-3/4)" + " " * 400, 0.0), ("6/(1-3/4)\x00", 0.0), ("٦/(1-3/4)", 0.0), ("(6)(1)", 0.0),
    ],
)  # fmt: skip
def test_expressions_of_24(text: str, score: float) -> None:
    assert score_expression(text, NUMBERS, 24) == score


def test_a_number_counts_as_often_as_the_item_holds_it() -> None:
    assert score_expression("(5-1/5)*5", [5, 5, 5, 1], 24) == 1.0
    assert score_expression("5*5-1", [5, 5, 5, 1], 24) == 0.0
    assert score_expression("5*5-1", [5, 5, 1], 24) == 1.0


def test_values_are_exact() -> None:
    assert score_expression("1/3+2", [1, 2, 3], 2) == 0.0
    assert score_expression("1/3*3", [1, 3, 3], 1) == 1.0
    assert score_expression("9007199254740993-1", [9007199254740993, 1], 9007199254740992) == 1.0
    assert score_expression("9007199254740993-0", [9007199254740993, 0], 9007199254740992) == 0.0


def test_nothing_costs_time() -> None:
    started = time.monotonic()
    for text in ("*".join(["9" * 30] * 12), "1/" * 199 + "7", "1+" * 199 + "1", "1" * 400, "(" * 1_000_000, "9" * 1_000_000):
        assert score_expression(text, NUMBERS, 24) == 0.0
    assert time.monotonic() - started < 2
