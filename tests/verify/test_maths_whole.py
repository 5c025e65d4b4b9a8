r"""What is read as the answer is read whole or not at all: no fragment of a box or of prose stands for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from posttrain.config_verify import VerifySettings
from posttrain.errors import ConfigError
from posttrain.verify.maths_text import last_box, normalise
from posttrain.verify.registry import create_verifier
from posttrain.verify.scorers import scorer_sandbox
from tests.verify.judging import judge

PATIENT = VerifySettings(timeout_s=20)
THINKING_FAILS = [
    ("<think>It is 42.</think><answer>41</answer>", "42"), ("<think>the value is 41.</think><answer>42</answer>", "41"),
    (r"<think>Let me see \boxed{7}</think> The answer is 8.", "7"), (r"<think>\boxed{7}", "7"), ("<answer>7</answer> <answer>8</answer>", "7"),
]  # fmt: skip
THINKING_PASSES = [
    ("<think>6 times 7, not 41.</think><answer>42</answer>", "42"), ("<answer>42.</answer>", "42"), ("<answer>3/4</answer>", "3/4"),
    (r"<think>Let me see \boxed{7}</think> The answer is 8.", "8"), (r"<answer>\boxed{8}</answer>", "8"),
]  # fmt: skip
BOX_FAILS = [
    (rf"\boxed{{{box}}}", answer)
    for box, answer in [
        ("2½", "2"), ("2√3", "2"), ("2²", "2"), ("5×10⁸", "5"), ("10⁻³", "10"), ("3·4", "3"), ("3⁄4", "3"), ("17$ $23", "23"), ("17 | 23", "23"), (r"17\\23", "17"),
        ("17或23", "17"), (r"17 \implies 23", "23"), ("12 (or 13)", "13"), (r"0.\overline{5}", r"0.\overline{3}"), ("0", r"0.\overline{3}"), (r"\ge 3", "3"),
        ("2**10", "2"), ("5^(5)", "5"),
        (r"9.1\times10^{-31}", r"1.6\times10^{-19}"), ("0.0", r"1.6\times10^{-19}"), ("1e-8", "1e-9"), ("0.0000001", "0.0000002"), (r"\frac{1}{2^{98}}", r"\frac{1}{2^{99}}"),
        (r"5\text{ million}", "5"), ("5", r"5\text{ million}"), (r"5\text{ thousand}", "5"), ("5 dozen", "5"), ("5 kHz", "5 Hz"),
    ]
]  # fmt: skip
BOX_PASSES = [
    (rf"\boxed{{{box}}}", answer)
    for box, answer in [
        (r"\$12", "12"), (r"\$1,200", "1200"), ("12.", "12"), (r"\approx 12", "12"), ("90°", "90"), (r"90\degree", r"90^\circ"), (r"\ge 3", r"\ge 3"), ("１２", "12"),
        (r"\frac13", r"0.\overline{3}"), (r"0.\overline{3}", "1/3"), (r"0.1\overline{6}", "1/6"), (r"1.\overline{09}", "12/11"), ("2**10", "1024"), ("5^(5)", "3125"),
        ("0.333333", "1/3"), ("0.166667", "1/6"), (r"1.6\times10^{-19}", r"1.6\times10^{-19}"), ("0", "0.0"),
        ("5,000,000", r"5\text{ million}"), (r"5\text{ million}", "5000000"), (r"2.5\text{ million dollars}", "2500000"),
    ]
]  # fmt: skip
PROSE_FAILS = [
    ("**3/4**", "3"), ("The answer is **7/2**.", "7"), ("The answer is 2pi", "2"), ("2*pi", "2"), ("The answer is 2√3", "2"), ("The answer is 2x+3", "3"), ("3 million", "3"),
    ("The answer is 5!", "5"), ("The answer is 12 (or 13)", "12"), ("answer: [11, 12, 13]", "12"), ("The answer is 12 or 13 apples.", "12"), ("12 or 13 I guess", "13"),
    ("The answer is 12 | 13", "12"), ("**12** or **13**", "13"), ("$12$. Or $13$.", "13"), ("The answer is not 12.", "12"), ("The answer is less than 3", "3"),
]  # fmt: skip
PROSE_PASSES = [
    ("**3/4**", "3/4"), ("The answer is **7/2**.", "7/2"), ("The answer is 2pi", r"2\pi"), ("The answer is 2x+3", "2x+3"), ("3 million", "3000000"),
    (r"The final answer is: \(\text{Monday}\)", "Monday"), (r"\(17:00\)", "17:00"), ("#### 1,200", "1200"), ("$1,200.50", "1200.5"), (r"So \(x = \frac{3}{4}\).", "3/4"),
    ("**12**", "12"), ("= 12", "12"), ("She has 12 apples.", "12"),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    """Keeps the servers that all tests of this module share."""
    with scorer_sandbox("posttrain.verify.maths_check", PATIENT):
        yield


@pytest.mark.parametrize("pairs", [THINKING_FAILS, BOX_FAILS, PROSE_FAILS])
def test_no_fragment_is_paid(pairs: list[tuple[str, Any]]) -> None:
    found = [verdict.outcome for verdict in judge("maths", pairs, settings=PATIENT)]
    assert [(*pair, got) for pair, got in zip(pairs, found, strict=True) if got not in ("fail", "unparseable")] == []


@pytest.mark.parametrize("pairs", [THINKING_PASSES, BOX_PASSES, PROSE_PASSES])
def test_the_whole_answer_is_understood(pairs: list[tuple[str, Any]]) -> None:
    found = [verdict.outcome for verdict in judge("maths", pairs, settings=PATIENT)]
    assert [(*pair, got) for pair, got in zip(pairs, found, strict=True) if got != "pass"] == []


def test_towers_in_a_box_are_a_timeout_in_the_datasets_answer_an_error() -> None:
    pairs = [(r"\boxed{5^(5^(5^5))}", "5"), (r"\boxed{3}", "9^{9^{9^{9}}}")]
    found = judge("maths", pairs, settings=VerifySettings(timeout_s=2))
    assert [(verdict.outcome, verdict.reward) for verdict in found] == [("timeout", 0.0), ("error", None)]


def test_a_box_behind_two_backslashes_counts() -> None:
    assert last_box(r"\\boxed{7}") == "7"
    assert last_box(r"\boxed{a\\b}") == r"a\\b"


def test_a_repeating_decimal_is_an_exact_fraction() -> None:
    assert normalise(r"-0.1\overline{36}") == r"-\frac{3}{22}"


@pytest.mark.parametrize("answer", [float("inf"), float("nan")])
def test_an_answer_that_is_no_finite_number_is_refused(answer: float) -> None:
    with pytest.raises(ConfigError, match="neither a number nor a text"):
        create_verifier("maths", VerifySettings()).check_answer(answer)


@pytest.mark.parametrize(("name", "package"), [("maths", "sympy"), ("maths", "math-verify"), ("reasoning_gym", "reasoning-gym")])
def test_the_version_names_the_installed_library(name: str, package: str) -> None:
    assert f"{package} " in create_verifier(name, VerifySettings()).version
