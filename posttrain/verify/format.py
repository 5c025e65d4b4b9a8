r"""The form of a completion: a pattern that it must match, or tags that it must have. What it says is not looked at.

The answer is one of
- {"pattern": "Answer: \\d+", "match": "full"}, where match is `full` (the default; white space around the completion does
  not count), `search` (somewhere in it), or `once` (somewhere, and not a second time behind it);
- {"tags": ["think", "answer"]}: the completion is <think>…</think><answer>…</answer>, every tag once, in this order, with
  something in each and nothing but white space around them;
- a name: "think_answer" for these two tags, "json" for one JSON value and nothing else.

Patterns are of RE2, whose time is linear in the completion whatever the pattern. It knows no lookaround and no
backreference. `.` does not match a new line, unless the pattern starts with (?s).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from posttrain.config_verify import VerifySettings
from posttrain.verify import verdicts
from posttrain.verify.answers import refuse, require_keys
from posttrain.verify.base import Verdict, VerificationRequest
from posttrain.verify.plain_values import refuse_constant

MAX_PATTERN_CHARACTERS = 2_000
MATCHES = ("full", "search", "once")
_TAG = r"^[A-Za-z][A-Za-z0-9_-]{0,31}$"
_REMEDY = 'Use {"pattern": …, "match": "full", "search" or "once"}, {"tags": ["think", "answer"]}, "think_answer" or "json".'


class FormatVerifier:
    """See the module. Reward 1.0 or 0.0."""

    name = "format"
    version = "1"

    def __init__(self, settings: VerifySettings) -> None:
        self.limits: Mapping[str, Any] = {}
        self._judge = verdicts.guarded(self.check_answer, _judge)

    def check_answer(self, answer: Any) -> None:
        """Raises ConfigError for another shape, a pattern that RE2 cannot use, or one that every completion meets."""
        if isinstance(answer, str):
            if answer not in _NAMED:
                raise refuse("answer", answer, f"no such format; known are {', '.join(_NAMED)}", _REMEDY)
        elif isinstance(answer, dict) and "tags" in answer:
            _check_tags(require_keys(answer, ["tags"], _REMEDY)["tags"])
        else:
            require_keys(answer, ["pattern"], _REMEDY, optional=["match"])
            _check_pattern(answer["pattern"], answer.get("match", "full"))

    def verify(self, requests: Sequence[VerificationRequest]) -> list[Verdict]:
        """One verdict for each request, in order."""
        return [self._judge(request) for request in requests]


def _judge(request: VerificationRequest) -> Verdict:
    answer = request.answer
    if isinstance(answer, str):
        problem = _NAMED[answer](request.completion)
    elif "tags" in answer:
        problem = _misses_tags(request.completion, answer["tags"])
    else:
        problem = _misses_pattern(request.completion, answer["pattern"], answer.get("match", "full"))
    return verdicts.failed(problem) if problem else verdicts.passed()


def _misses_pattern(completion: str, pattern: str, match: str) -> str:
    """What is wrong with the completion, or an empty text."""
    if match == "full":
        found = _count(completion.strip(), _whole(pattern))
        return "" if found else "it does not match the pattern as a whole"
    found = _count(completion, pattern)
    if not found:
        return "the pattern occurs nowhere"
    return "the pattern occurs more than once" if match == "once" and found > 1 else ""


def _whole(pattern: str) -> str:
    return rf"\A(?:{pattern})\z"


def _count(text: str, pattern: str) -> int:
    """How often the pattern occurs, 2 for twice or more: counting on would take quadratic time."""
    pieces = pc.split_pattern_regex(_column(text), pattern=pattern, max_splits=2)
    return len(pieces[0]) - 1


def _column(text: str) -> pa.Array:
    return pa.array([text.encode("utf-8", "replace").decode()], pa.large_string())


def _misses_tags(completion: str, tags: Sequence[str]) -> str:
    """What is wrong with the completion, or an empty text."""
    rest = completion
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        for mark in (opening, closing):
            number = completion.count(mark)
            if number != 1:
                return f"{mark} occurs {number} times instead of once"
        before, _, rest = rest.partition(opening)
        content, closed, rest = rest.partition(closing)
        if before.strip():
            return f"there is text before {opening}"
        if not closed:
            return f"{closing} stands before {opening}, or tags are not in the order {', '.join(tags)}"
        if not content.strip():
            return f"{opening} is empty"
    return f"there is text after </{tags[-1]}>" if rest.strip() else ""


def _misses_json(completion: str) -> str:
    try:
        json.loads(completion, parse_int=str, parse_float=str, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        return f"it is not JSON ({error})"
    return ""


def _check_pattern(pattern: Any, match: Any) -> None:
    if match not in MATCHES:
        raise refuse("answer.match", match, f"it is none of {', '.join(MATCHES)}", _REMEDY)
    if not isinstance(pattern, str) or not pattern:
        raise refuse("answer.pattern", pattern, "it is not a text, or an empty one", _REMEDY)
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise refuse("answer.pattern", pattern, f"it is longer than {MAX_PATTERN_CHARACTERS} characters", "Shorten it.")
    try:
        matches_nothing = pc.match_substring_regex(_column(""), pattern=pattern)[0].as_py()
        _count("", _whole(pattern))
    except pa.ArrowInvalid as error:
        why = f"RE2 cannot use it ({error})"
        raise refuse("answer.pattern", pattern, why, "RE2 knows no lookaround and no backreferences.") from error
    if matches_nothing and match != "full":
        why = "it matches the empty text, and so somewhere in every completion"
        raise refuse("answer.pattern", pattern, why, "Ask for at least one character, or for match full.")


def _check_tags(tags: Any) -> None:
    valid = isinstance(tags, list) and tags and all(isinstance(tag, str) for tag in tags) and len(set(tags)) == len(tags)
    if not valid or not all(pc.match_substring_regex(_column(tag), pattern=_TAG)[0].as_py() for tag in tags):
        raise refuse("answer.tags", tags, "it is not a list of different names of tags", _REMEDY)


_NAMED: Mapping[str, Callable[[str], str]] = {
    "think_answer": lambda completion: _misses_tags(completion, ("think", "answer")),
    "json": _misses_json,
}
