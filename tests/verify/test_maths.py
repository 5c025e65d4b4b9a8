"""Mathematical answers: the decisions written in the module, pinned against the library's changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from posttrain.config_verify import VerifySettings
from posttrain.verify.maths_text import last_box, normalise
from posttrain.verify.scorers import scorer_sandbox
from tests.verify.judging import judge

PATIENT = VerifySettings(timeout_s=20)  # what is right must not depend on how busy the machine is
PASSES = [
    ("2 2/3", "8/3"), ("-1 1/2", "-3/2"), ("\u22125", "-5"), ("1,234,567", "1234567"), ("12 cm", "12"),
    ("28%", "28%"), ("28 percent", "28%"), ("0.28", "28%"), ("28%", "0.28"), (r"$28\%$", "0.28"),
    (r"\boxed{\frac{1}{3}}", "1/3"), (r"\boxed{\{1,\frac{2}{3}\}}", r"\{1,\frac{2}{3}\}"), (r"\fbox{7}", 7),
    (r"so \boxed{12}, no wait, \boxed{13}", "13"), (r"\boxed{13} and then \boxed{\frac{1}{", "13"), (r"\boxed{2 2/3}", r"\frac{8}{3}"),
    (r"\boxed{2\frac{2}{3}}", "8/3"), (r"\boxed{0.5}", "1/2"), (r"\boxed{[0,1)}", "[0,1)"), (r"\boxed{x^2+2x+1}", "(x+1)^2"),
    ("The final answer is $3\\sqrt{2}$.", r"3\sqrt{2}"), ("1+1", 2), (r"\boxed{5}", r"the answer is \boxed{5}"),
    ("1e3", 1000), (r"\boxed{-1e-3}", "-0.001"), (r"\boxed{1 000 000}", "1000000"), (r"It is 5\,000 km", "5000"), (r"\boxed{2\ 2/3}", "8/3"),
    (r"\boxed{1{,}000}", 1000), (r"\boxed{1 000/3}", "1000/3"), (r"\boxed{\frac 1 2}", "0.5"), (r"\boxed{3:4}", "3/4"),
    (r"\boxed{x=5}", 5), (r"\boxed{\log_2 8}", 3), (r"The answer is $\text{Evelyn}$.", "Evelyn"), (r"\boxed{70}", r"70 \text{ square inches}"),
     (r"\boxed{Answer: 5}", 5), (r"\boxed{\text{Area} = 5}", 5), (r"\boxed{f(x)=3}", 3), ("5", "x=5"), (r"\boxed{y=2x+1}", "y=2x+1"),
    (r"\boxed{x=1 \text{ or } x=2}", "1, 2"), (r"\boxed{5 km}", "5"), (r"\boxed{5}", "5 km"), (r"\boxed{5 km}", "5 kilometers"),
    (r"\boxed{5\text{ m}^2}", "5 square meters"), (r"\boxed{5 dollars}", "5"), (r"\boxed{\text{Paris}}", "paris"), (r"\boxed{3:15}", "3:15"),
    ("At 3:15 there are 7.", "7"), ("It is late. The answer is 3:15.", "3:15"), (r"\boxed{x \neq 5}", r"x\ne 5"), ("x \u2260 5, so it is 3", 3),
    (r"\boxed{\begin{pmatrix}1 & 2 \\ 3 & 4\end{pmatrix}}", r"\begin{pmatrix} 1&2\\3&4 \end{pmatrix}"),
]  # fmt: skip
FAILS = [
    ("2 2/3", "2"), ("4 10/3", "10"), ("4 10/3", "4"), ("28", "28%"), ("2800%", "28%"), ("0.28", "28"), ("28%", "28"),
    (r"so \boxed{12}, no wait, \boxed{13}", "12"), (r"\boxed{[0,1]}", "[0,1)"), (r"\boxed{\frac{1}{3}}", "3"), (r"\boxed{5}", "-5"),
    (r"\boxed{{7 8}}", "15"), (r"\boxed{7 8}", "56"), (r"\boxed{7 8}", "78"), (r"\boxed{1 2 3}", "6"), (r"\boxed{3:15}", "1/5"), (r"\boxed{Pairs}", "Paris"),
    (r"\boxed{a=b=5}", "5"), (r"\boxed{2+3=5}", "5"), (r"\boxed{x+1=5}", "5"), (r"\boxed{5=5}", "5"), (r"\boxed{5..6}", "5"), (r"\boxed{\ne 5}", "5"),
    (r"\boxed{5 apples and 6 pears}", "5"), (r"\boxed{5 apples and 6 pears}", "6"), ("5 apples and 6 pears", "5"), ("5 or 6", "5"), ("5 or 6", "6"),
    (r"\boxed{5 km}", "5 m"), (r"\boxed{5 m}", r"5\text{ m}^2"), ("It is 5 km.", "5 m"),
]  # fmt: skip
UNPARSEABLE = [
    (r"thus \boxed{\frac{1}{3", "1/3"),
    ("no idea", "1"),
    ("5..6", "5"),
    (r"\ne 5", "5"),
    ("3:15", "3"),
    ("$7 8$", "15"),
    (r"\boxed{}", "1"),
    (r"\boxed{" + "1+" * 2_000 + "1}", "2001"),
]


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    """Keeps the servers that all tests of this module share."""
    with scorer_sandbox("posttrain.verify.maths_check", PATIENT):
        yield


def outcomes(pairs: list[tuple[str, Any]], prompt: str = "") -> list[str]:
    return [verdict.outcome for verdict in judge("maths", pairs, prompt, PATIENT)]


def test_right_wrong_and_missing_answers() -> None:
    found = outcomes([*PASSES, *FAILS, *UNPARSEABLE])
    wanted = ["pass"] * len(PASSES) + ["fail"] * len(FAILS) + ["unparseable"] * len(UNPARSEABLE)
    wrong = [
        (pair, got, want) for pair, got, want in zip([*PASSES, *FAILS, *UNPARSEABLE], found, wanted, strict=True) if got != want
    ]
    assert wrong == []


def test_a_bare_number_means_percent_only_if_the_question_asks_for_percent() -> None:
    pairs = [("28", "28%"), ("28%", "28"), ("0.28", "28%"), ("0.28", "28"), ("2800%", "28")]
    assert outcomes(pairs, "What percent of 50 is 14?") == ["pass", "pass", "pass", "fail", "fail"]


def test_an_unclosed_box_says_so() -> None:
    (verdict,) = judge("maths", [(r"\boxed{\frac{1}{3}", "1/3")], settings=PATIENT)
    assert (verdict.outcome, verdict.reward, verdict.detail) == ("unparseable", 0.0, "the box is never closed")


def test_an_answer_of_the_dataset_that_cannot_be_parsed_is_an_error_not_a_zero() -> None:
    (verdict,) = judge("maths", [("5", "$@!")], settings=PATIENT)
    assert (verdict.outcome, verdict.reward) == ("error", None)
    assert "'$@!' cannot be parsed" in verdict.detail


@pytest.mark.slow
def test_no_nesting_makes_a_completion_an_error() -> None:
    wrappers = (("(", ")"), ("{", "}"), ("-", ""), (r"\sqrt{", "}"), ("x^{", "}"))
    nested = [(r"\boxed{" + start * depth + "1" + end * depth + "}", "1") for start, end in wrappers for depth in (50, 330)]
    assert "error" not in {verdict.outcome for verdict in judge("maths", nested)}


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{1}", "1"), (r"\boxed {a{b}c}", "a{b}c"), (r"\boxed{\{1\}}", r"\{1\}"), (r"\boxed{1} \boxed{2", "1"), (r"\boxed{", None),
        ("none", None), (r"\boxed{a\boxed{b}}", "b"), (r"\boxed{\boxed{b}", "b"),
    ],
)  # fmt: skip
def test_the_last_complete_box(text: str, content: str | None) -> None:
    assert last_box(text) == content


def test_a_million_unclosed_boxes_take_no_time() -> None:
    started = time.monotonic()
    assert last_box(r"\boxed{" * 100_000) is None
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("text", "plain"), [("2 2/3", "8/3"), ("-1 1/2", "-3/2"), ("\u22122", "-2"), ("1/2", "1/2"), ("x2 1/2", "x2 1/2")]
)
def test_mixed_numbers_become_fractions(text: str, plain: str) -> None:
    assert normalise(text) == plain
