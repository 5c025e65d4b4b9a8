"""What the product decides where math-verify leaves it open: mixed numbers, percentages, units, several values."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from posttrain.config_verify import PercentRule, VerifySettings
from posttrain.errors import ConfigError
from posttrain.verify.maths_text import stated_list
from posttrain.verify.registry import create_verifier
from posttrain.verify.scorers import scorer_sandbox
from tests.verify.judging import judge

BOXES = [
    (r"\boxed{\frac{1}{3}}", "1/3", "pass"), (r"\boxed{\{1,\frac{2}{3}\}}", r"\{1,\frac{2}{3}\}", "pass"),
    (r"\boxed{\{\frac{2}{3},1\}}", r"\{1,\frac{2}{3}\}", "pass"), (r"\boxed{\frac{1}{3}", "1/3", "unparseable"),
    (r"\boxed{12}, no wait, \boxed{13}", "13", "pass"), (r"\boxed{12}, no wait, \boxed{13}", "12", "fail"),
    (r"\fbox{\frac{1}{3}}", r"\frac{1}{3}", "pass"),
]  # fmt: skip
NUMBERS = [
    ("2 2/3", "2", "fail"), ("2 2/3", "8/3", "pass"), ("-1 1/2", "-3/2", "pass"), ("−5", "-5", "pass"), ("1,234,567", "1234567", "pass"),
    ("12 cm", "12", "pass"), ("4 10/3", "10", "fail"),
    (r"\boxed{2 2/3}", "2", "fail"), (r"\boxed{-1\frac{1}{2}}", "-3/2", "pass"), (r"\boxed{−5}", "-5", "pass"), (r"\boxed{1{,}234{,}567}", "1234567", "pass"),
    (r"\boxed{12\text{ cm}}", "12", "pass"), (r"\boxed{(0,1]}", "(0,1]", "pass"), (r"\boxed{(0,1)}", "(0,1]", "fail"), (r"\boxed{\frac{2}{4}}", "1/2", "pass"),
]  # fmt: skip
SEVERAL = [
    (text, answer, outcome)
    for answer in ("{2,3}", r"\{2,3\}", "2, 3", "x=2 or x=3")
    for text, outcome in [
        ("x=2 or x=3", "pass"), ("x=3 or x=2", "pass"), ("$x=2$ or $x=3$", "pass"), (r"\boxed{x=3 \text{ or } x=2}", "pass"), (r"\boxed{3,2}", "pass"),
        (r"\boxed{\{3, 2\}}", "pass"), (r"\boxed{x=2 \lor x=3}", "pass"), ("The solutions are 2 and 3.", "pass"), ("The answer is x = 2, 3", "pass"),
        ("so we get x = 2 or x = 3.", "pass"), ("x=2", "fail"), (r"\boxed{2}", "fail"), ("x=2 or x=3 or x=4", "fail"), (r"\boxed{2,3,4}", "fail"),
        ("x=2 or x=4", "fail"), (r"\boxed{-2,3}", "fail"),
    ]
]  # fmt: skip
HEDGES = [
    ("The answer is 2 or 3.", "3", "fail"),
    ("The answer is 2 or 3.", "2", "fail"),
    ("5 or 6", "6", "fail"),
    (r"\boxed{2, 3}", "3", "fail"),
]
PERCENT = {  # answer 28%: what meets it under each rule
    "28%": "sign hundredths bare", "28 percent": "sign hundredths bare", "0.28": "hundredths bare", "28": "bare", "2800%": "", "2800": "", "0.28%": "",
    r"\boxed{28\%}": "sign hundredths bare", r"\boxed{28}": "bare",
}  # fmt: skip
SETTINGS = VerifySettings(timeout_s=2, memory_mib=1024)
PATIENT = VerifySettings(timeout_s=20)  # what is right must not depend on how busy the machine is


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    """Keeps the servers that all tests of this module share."""
    with scorer_sandbox("posttrain.verify.maths_check", PATIENT):
        yield


def outcomes(cases: list[tuple[str, Any, str]], prompt: str = "", **rules: Any) -> list[str]:
    settings = PATIENT.model_copy(update=rules)
    return [verdict.outcome for verdict in judge("maths", [case[:2] for case in cases], prompt, settings)]


def wrong(cases: list[tuple[str, Any, str]], found: list[str]) -> list[tuple[Any, ...]]:
    return [(*case, got) for case, got in zip(cases, found, strict=True) if case[2] != got]


def test_boxes_numbers_and_several_values() -> None:
    cases = [*BOXES, *NUMBERS, *SEVERAL, *HEDGES]
    assert wrong(cases, outcomes(cases)) == []


@pytest.mark.parametrize("rule", list(PercentRule))
def test_percent_by_setting_and_by_answer(rule: PercentRule) -> None:
    cases = [(text, "28%", "pass" if rule.value in rules.split() else "fail") for text, rules in PERCENT.items()]
    cases += [("28%", "0.28", "fail" if rule is PercentRule.sign else "pass"), ("0.28", "28", "fail"), ("28", "28", "pass")]
    cases += [("28%", "28", "pass" if rule is PercentRule.bare else "fail")]
    other = PercentRule.sign if rule is PercentRule.bare else PercentRule.bare
    by_answer = [(text, {"value": answer, "percent": rule.value}, outcome) for text, answer, outcome in cases]
    assert wrong(cases, outcomes(cases, percent=rule)) == []
    assert wrong(by_answer, outcomes(by_answer, percent=other)) == []


def test_a_question_for_percent_takes_the_bare_number_except_under_the_rule_sign() -> None:
    question = "What percent of 50 is 14?"
    cases = [("28", "28%", "pass"), ("28", {"value": "28%", "percent": "sign"}, "fail")]
    assert wrong(cases, outcomes(cases, question)) == []


def test_units_may_be_required() -> None:
    required = {"value": "12 cm", "units": "required"}
    cases = [
        ("12 cm", required, "pass"), (r"\boxed{12\text{ cm}}", required, "pass"), ("12", required, "fail"), (r"\boxed{12}", required, "fail"), ("12 m", required, "fail"),
        ("It is 12 centimeters.", required, "pass"), ("12", {"value": "12 cm"}, "pass"), ("12", {"value": "12 cm", "units": "optional"}, "pass"),
    ]  # fmt: skip
    assert wrong(cases, outcomes(cases)) == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"value": " "}, "neither a number nor a text"), ({"value": ["1"]}, "neither a number nor a text"), ({"percent": "bare"}, "'value' is missing"),
        ({"value": 1, "unit": "cm"}, "no such key"), ({"value": 1, "percent": "always"}, "no such rule"), ({"value": 1, "units": True}, "no such rule"),
        ({"value": 12, "units": "required"}, "no known unit"), ({"value": True}, "neither"),
    ],
)  # fmt: skip
def test_rules_of_an_answer_are_checked_beforehand(answer: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        create_verifier("maths", VerifySettings()).check_answer(answer)


@pytest.mark.parametrize(
    ("prose", "values"),
    [
        ("x = 2 or x = 3", "x = 2 or x = 3"), ("Roots: $1$, $2$, and $3$.", "1, 2, and 3"), ("they ate 5 apples and 6 pears", None), ("5, 6", "5, 6"),
        ("on May 5, 2020", None), ("1,234", None), ("2,3", None), ("f(2) = 3 and g(3) = 4", None), ("x = 2 or\nx = 3", None), ("2 and 3 make 5", None),
        (r"\frac{1}{2} or \frac{1}{3}", r"\frac{1}{2} or \frac{1}{3}"),
    ],
)  # fmt: skip
def test_values_that_end_prose(prose: str, values: str | None) -> None:
    assert stated_list(prose) == values


def test_hostile_lists_cost_no_time() -> None:
    started = time.monotonic()
    for text in ("1 or " * 100_000, "1, " * 100_000 + "x", "x=" * 100_000, "1" * 500_000 + " or", "answer " * 100_000):
        stated_list(text)
    assert time.monotonic() - started < 2


@pytest.mark.slow
def test_a_power_tower_in_four_threads_costs_its_own_time_limit() -> None:
    """Seven right answers and a tower, 2 s and 1 GiB each, once the servers that all share have imported the library."""
    batches = [[("5", 5), ("1/2", "0.5")], [("7", 7), ("5^(5^(5^5))", 1)], [("8", 8), ("9", 9)], [("x=3", 3), ("-2", -2)]]
    with scorer_sandbox("posttrain.verify.maths_check", SETTINGS):
        assert {verdict.outcome for verdict in judge("maths", [("1", 1)] * 8, settings=SETTINGS)} == {"pass"}
        started = time.monotonic()
        with ThreadPoolExecutor(4) as threads:
            found = [
                verdict
                for batch in threads.map(lambda pairs: judge("maths", pairs, settings=SETTINGS), batches)
                for verdict in batch
            ]
        seconds = time.monotonic() - started
        assert [verdict.reward for verdict in found] == [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
        assert (found[3].outcome, found[3].detail) == ("timeout", "stopped after 2 s")
        assert seconds < 10
        assert {verdict.outcome for verdict in judge("maths", batches[0], settings=SETTINGS)} == {"pass"}
