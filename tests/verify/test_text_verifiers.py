"""exact and last_number, the registry, and what every verifier owes an odd completion."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from posttrain.config_verify import VerifySettings
from posttrain.errors import ConfigError
from posttrain.verify.last_number import last_number
from posttrain.verify.registry import VERIFIERS, create_verifier
from tests.verify.judging import judge, outcomes

ODD = [
    "",
    "   \n\t",
    "\x00",
    "a\x00b",
    "\x1b[2J\x07",
    "😀 ünïcödé 数字",
    "\u202e5",
    "\ud800",
    "x" * 1_000_000,
    "9" * 1_000_000,
    "{" * 10_000,
]
ANSWERS = {
    "exact": "42",
    "last_number": 42,
    "maths": "42",
    "reasoning_gym": {"dataset": "leg_counting", "entry": {"question": "How many legs?", "answer": "42", "metadata": {}}},
    "code": {"mode": "function", "name": "solve", "inputs": [[1]], "outputs": [42]},
    "format": {"pattern": "42"},
    "weighted": {"parts": [{"verifier": "exact", "weight": 1.0, "answer": "42"}]},
}


def test_exact_ignores_white_space_around_and_nothing_else() -> None:
    pairs = [("yes", "yes"), (" yes\n", "yes"), ("Yes", "yes"), ("yes.", "yes"), ("y es", "yes"), ("", "yes")]
    assert outcomes("exact", pairs) == ["pass", "pass", "fail", "fail", "fail", "fail"]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12", "12"), ("the sum is 3 + 4 = 7.", "7"), ("1,234,567 apples", "1234567"), ("1,23", "23"), ("-5", "-5"),
        ("\u22125", "-5"), ("x = \u22121,000.50", "-1000.5"), ("7-3", "3"), ("(7)-3", "3"), ("7 - 3", "3"), ("7 -3", "-3"), (".5", "0.5"),
        ("3.", "3"), ("1.2.3", "3"), ("1/2", "2"), ("50%", "50"), ("$20", "20"), ("6e3", "6000"), ("2.50", "2.5"), ("007", "7"), ("+4", "4"),
        ("step 1: add. answer: 9 cm", "9"), ("10000,000", "0"),
    ],
)  # fmt: skip
def test_last_number_by_its_rule(text: str, number: str) -> None:
    assert last_number(text) == Decimal(number)


def test_last_number_compares_exactly_and_without_a_number_is_unparseable() -> None:
    pairs = [
        ("it is 0.1", 0.1),
        ("it is 0.10", "0.1"),
        ("0.1000001", 0.1),
        ("12", 12),
        ("12.0", 12),
        ("none", 12),
        ("1,000", "1000"),
    ]
    assert outcomes("last_number", pairs) == ["pass", "pass", "fail", "pass", "pass", "unparseable", "pass"]


@pytest.mark.parametrize("verifier", sorted(ANSWERS))
def test_every_verifier_gives_odd_completions_a_verdict_without_reward(verifier: str) -> None:
    verdicts = judge(verifier, [(completion, ANSWERS[verifier]) for completion in ODD])
    assert [verdict.reward for verdict in verdicts] == [0.0] * len(ODD)
    assert {verdict.outcome for verdict in verdicts} <= {"fail", "timeout", "unparseable"}
    for verdict in verdicts:
        assert type(verdict.reward) is float
        assert len(verdict.detail) <= 2_000
        assert "\x00" not in verdict.detail
        verdict.detail.encode()
        assert verdict.seconds >= 0


@pytest.mark.parametrize("verifier", sorted(ANSWERS))
def test_every_verifier_passes_the_right_completion_and_accepts_its_answer_from_json(verifier: str) -> None:
    right = {"code": "def solve(x):\n    return x + 41"}.get(verifier, "42")
    answer = json.loads(json.dumps(ANSWERS[verifier]))
    create_verifier(verifier, VerifySettings()).check_answer(answer)
    (verdict,) = judge(verifier, [(right, answer)])
    assert (verdict.outcome, verdict.reward) == ("pass", 1.0)


@pytest.mark.parametrize(
    ("verifier", "answer", "part"),
    [
        ("exact", 42, "not a text"), ("exact", " ", "blank"), ("last_number", True, "not one number"), ("last_number", "1 or 2", "not one number"),
        ("last_number", None, "not one number"), ("maths", ["1"], "neither a number nor a text"), ("maths", "", "neither"),
        ("code", "x + 1", "answer.mode"), ("code", {"mode": "notebook"}, "answer.mode"),
        ("code", {"mode": "expression", "inputs": [1], "outputs": [1]}, "'variable' is missing"),
        ("code", {"mode": "expression", "variable": "2x", "inputs": [1], "outputs": [1]}, "not a Python name"),
        ("code", {"mode": "expression", "variable": "x", "inputs": [1, 2], "outputs": [1]}, "1 outputs for 2 inputs"),
        ("code", {"mode": "expression", "variable": "x", "inputs": [], "outputs": []}, "without a test case"),
        ("code", {"mode": "expression", "variable": "x", "inputs": "12", "outputs": "12"}, "not a list"),
        ("code", {"mode": "function", "name": "solve", "inputs": [1], "outputs": [1]}, "an input is a list"),
        ("code", {"mode": "program", "inputs": ["1"], "outputs": [1]}, "the text to print"),
        ("code", {"mode": "program", "inputs": ["1"], "outputs": ["1"], "tests": []}, "no such key"),
        ("reasoning_gym", {"dataset": "chain_sum"}, "'entry' is missing"), ("reasoning_gym", {"dataset": "nope", "entry": {}}, "no such generator"),
        ("reasoning_gym", {"dataset": "polynomial_multiplication", "entry": {}}, "evaluates the completion's text"),
        ("reasoning_gym", {"dataset": "game_of_life_halting", "entry": {}}, "full reward to any text"),
        ("reasoning_gym", {"dataset": "chain_sum", "entry": {"answer": "1"}}, "not an item"),
    ],
)  # fmt: skip
def test_an_answer_of_the_wrong_shape_is_refused_and_never_scored(verifier: str, answer: object, part: str) -> None:
    with pytest.raises(ConfigError, match=part) as caught:
        create_verifier(verifier, VerifySettings()).check_answer(answer)
    assert caught.value.field.startswith("answer")
    assert caught.value.remedy
    (verdict,) = judge(verifier, [("42", answer)])
    assert (verdict.outcome, verdict.reward) == ("error", None)


def test_every_verifier_is_tried_here_that_needs_the_text_alone() -> None:
    assert VERIFIERS.keys() - ANSWERS.keys() == {"length", "judge"}


def test_an_unknown_verifier_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'maths'"):
        create_verifier("math", VerifySettings())
