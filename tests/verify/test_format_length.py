"""The form of a completion, and its length."""

from __future__ import annotations

import time
from typing import Any

import pytest

from posttrain.config_verify import VerifySettings
from posttrain.errors import ConfigError
from posttrain.verify.base import VerificationRequest
from posttrain.verify.length import length_reward
from posttrain.verify.registry import create_verifier
from tests.verify.judging import judge, outcomes
from tests.verify.rollout_tables import prompt, rollout, verify

TAGGED = "<think>2+2</think>\n<answer>4</answer>"


def test_a_pattern_is_matched_as_a_whole_somewhere_or_once() -> None:
    full = {"pattern": r"Answer: \d+"}
    texts = ["Answer: 42", "\n Answer: 42 \n", "So Answer: 42", "Answer: 42 apples", "answer: 42", ""]
    assert outcomes("format", [(text, full) for text in texts]) == ["pass", "pass", "fail", "fail", "fail", "fail"]
    assert outcomes("format", [(text, full | {"match": "full"}) for text in texts[:3]]) == ["pass", "pass", "fail"]
    assert outcomes("format", [(text, full | {"match": "search"}) for text in texts]) == ["pass"] * 4 + ["fail"] * 2
    once = {"pattern": r"\d+", "match": "once"}
    assert outcomes("format", [(text, once) for text in ["12", "a 12 b", "1 2", "1 2 3", "none"]]) == [
        "pass",
        "pass",
        "fail",
        "fail",
        "fail",
    ]


def test_alternatives_lines_and_letters_beyond_ascii_mean_what_they_say() -> None:
    assert outcomes("format", [("ab", {"pattern": "a|b"}), ("b", {"pattern": "a|b"})]) == ["fail", "pass"]
    assert outcomes("format", [("a\nb", {"pattern": "a.b"}), ("a\nb", {"pattern": "(?s)a.b"})]) == ["fail", "pass"]
    assert outcomes("format", [("a\n", {"pattern": "a$"}), ("a\nb", {"pattern": "a$"})]) == ["pass", "fail"]
    assert outcomes("format", [("日本", {"pattern": r"\p{Han}{2}"}), ("é", {"pattern": "."})]) == ["pass", "pass"]


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|aa)*c", r"(.*)(.*)(.*)(.*)(.*)[^>]z", r"((a*)*)*b", r"[ab]*a[ab]{300}c"])
@pytest.mark.parametrize("match", ["full", "search", "once"])
def test_a_pattern_takes_linear_time_whatever_the_completion(pattern: str, match: str) -> None:
    started = time.monotonic()
    (verdict,) = judge("format", [("a" * 1_000_000 + "!", {"pattern": pattern, "match": match})])
    assert verdict.outcome == "fail"
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (TAGGED, ""), (f"  {TAGGED}\n", ""), ("<think>a</think><answer><b>4</b></answer>", ""),
        ("<answer>4</answer><think>2+2</think>", "before <think>"), ("<think>2+2</think>", "<answer> occurs 0 times"),
        (TAGGED + TAGGED, "<think> occurs 2 times"), ("<think>a</think><answer>4</answer></answer>", "</answer> occurs 2 times"),
        ("<think>a<answer>4</think></answer>", "before <answer>"), ("</think>a<think><answer>4</answer>", "before <think>"),
        ("<think>a</think>b<answer>4</answer>", "before <answer>"), (TAGGED + " so 4", "after </answer>"), ("Well. " + TAGGED, "before <think>"),
        ("<think> \n</think><answer>4</answer>", "<think> is empty"), ("<think>a</think><answer></answer>", "<answer> is empty"), ("", "occurs 0 times"),
        ("<THINK>a</THINK><answer>4</answer>", "<think> occurs 0 times"),
    ],
)  # fmt: skip
def test_tags_stand_once_in_order_with_something_in_each(text: str, wrong: str) -> None:
    for answer in ("think_answer", {"tags": ["think", "answer"]}):
        (verdict,) = judge("format", [(text, answer)])
        assert (verdict.outcome, verdict.reward) == (("fail", 0.0) if wrong else ("pass", 1.0))
        assert wrong in verdict.detail


def test_tags_that_overlap_are_refused() -> None:
    assert outcomes("format", [("<a><b>x</a>y</b>", {"tags": ["a", "b"]}), ("<a>x</a><b>y</b>", {"tags": ["a", "b"]})]) == [
        "fail",
        "pass",
    ]


def test_json_is_one_strict_value() -> None:
    texts = [
        '{"a": [1, 2.5, null]}',
        " 12 ",
        "9" * 100_000,
        '{"a": NaN}',
        "{'a': 1}",
        '{"a": 1} so',
        "[" * 100_000,
        "",
        "```json\n{}\n```",
    ]
    assert outcomes("format", [(text, "json") for text in texts]) == ["pass"] * 3 + ["fail"] * 6


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ("xml", "no such format"), ({"pattern": "("}, "RE2 cannot use it"), ({"pattern": r"(?=a)b"}, "RE2 cannot use it"), ({"pattern": r"(a)\1"}, "RE2 cannot use it"),
        ({"pattern": "a" * 2_001}, "longer than 2000"), ({"pattern": "((a{100}){100}){100}"}, "RE2 cannot use it"), ({"pattern": ""}, "empty one"),
        ({"pattern": 3}, "not a text"), ({"pattern": "a*", "match": "search"}, "matches the empty text"), ({"pattern": "a", "match": "any"}, "none of full"),
        ({"tags": []}, "different names of tags"), ({"tags": ["a", "a"]}, "different names"), ({"tags": ["a b"]}, "different names"), ({"tags": "ab"}, "different names"),
        ({"tags": ["a"], "pattern": "x"}, "no such key"), (None, "not a mapping"), ({"pattern": "a) (b"}, "RE2 cannot use it"), ({"pattern": r"\Qa"}, "RE2 cannot use it"),
    ],
)  # fmt: skip
def test_a_form_that_cannot_be_used_is_refused_and_never_scored(answer: Any, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        create_verifier("format", VerifySettings()).check_answer(answer)
    (verdict,) = judge("format", [("x", answer)])
    assert (verdict.outcome, verdict.reward) == ("error", None)


def test_length_falls_linearly_between_its_bounds_in_either_direction() -> None:
    assert [length_reward(n, 200, 400) for n in (0, 200, 250, 300, 400, 9_999)] == [1.0, 1.0, 0.75, 0.5, 0.0, 0.0]
    assert [length_reward(n, 400, 200) for n in (0, 200, 250, 400, 9_999)] == [0.0, 0.0, 0.25, 1.0, 1.0]
    answer = {"full_reward_tokens": 200, "no_reward_tokens": 400}
    requests = [VerificationRequest("p", 0, "", "text", answer, "stop", num_tokens) for num_tokens in (150, 350, 500)]
    verdicts = create_verifier("length", VerifySettings()).verify(requests)
    assert [(verdict.outcome, verdict.reward) for verdict in verdicts] == [("pass", 1.0), ("fail", 0.25), ("fail", 0.0)]
    assert verdicts[1].detail == "350 tokens"


@pytest.mark.parametrize("bounds", [(200, 200), (-1, 5), (1.5, 5), (True, 5), ("1", 5)])
def test_bounds_that_are_no_bounds_are_refused(bounds: tuple[Any, Any]) -> None:
    answer = dict(zip(("full_reward_tokens", "no_reward_tokens"), bounds, strict=True))
    with pytest.raises(ConfigError, match="answer"):
        create_verifier("length", VerifySettings()).check_answer(answer)


def test_overlong_shaping_comes_on_top_of_what_a_verifier_gives() -> None:
    """Tokens 50, 70 and 100 under a cap of 100: `length` gives 1, 0.5, 0, shaping with a buffer of 40 adds 0, −0.25, −1."""
    answer = {"full_reward_tokens": 60, "no_reward_tokens": 80}
    prompts = [prompt("long", "length", answer), prompt("right", "last_number", 3)]
    rows = [rollout(name, index, "3", num_tokens) for name in ("long", "right") for index, num_tokens in enumerate((50, 70, 100))]
    for buffer, expected in ((0, [1.0, 0.5, 0.0, 1.0, 1.0, 1.0]), (40, [1.0, 0.25, -1.0, 1.0, 0.75, 0.0])):
        verdicts = verify(prompts, rows, VerifySettings(overlong_buffer_tokens=buffer))
        assert verdicts["reward"].to_pylist() == expected
        assert verdicts["outcome"].to_pylist() == ["pass", "fail", "fail", "pass", "pass", "pass"]
