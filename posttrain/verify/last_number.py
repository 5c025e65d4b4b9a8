"""The last number in the completion must equal the answer.

A number is digits with an optional fraction (`12`, `12.50`, `.5`), optionally with thousands separators (`1,234,567`), an
exponent of up to three digits, and a sign: `-`, `+`, or one of the Unicode minus signs. A sign directly after a digit, a
letter or a closing bracket is an operator (`7-3` ends in 3). Of a fraction `1/2` the last number is 2; units, currency and
percent signs are not looked at. Comparison is exact, in decimals: 2.50 equals 2.5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from posttrain.config_verify import VerifySettings
from posttrain.verify import verdicts
from posttrain.verify.answers import is_number, refuse
from posttrain.verify.base import Verdict, VerificationRequest

MINUS_SIGNS = "-\N{MINUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{SMALL HYPHEN-MINUS}\N{HYPHEN}\N{NON-BREAKING HYPHEN}\N{EN DASH}"
MAX_DIGITS = 1_000
_NUMBER = re.compile(
    rf"(?:(?<![\w)\]}}])(?P<sign>[+{re.escape(MINUS_SIGNS)}]))?"
    r"(?P<digits>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+|(?<![0-9.])(?=\.[0-9]))"
    r"(?P<rest>(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3}(?![0-9]))?)"
)


class LastNumberVerifier:
    """The answer is a number, or a text that is one number. Reward 1.0 or 0.0."""

    name = "last_number"
    version = "1"

    def __init__(self, settings: VerifySettings) -> None:
        self.limits: Mapping[str, Any] = {}
        self._judge = verdicts.guarded(self.check_answer, _judge)

    def check_answer(self, answer: Any) -> None:
        """Raises ConfigError for anything but one finite number."""
        if not is_number(answer) and not (isinstance(answer, str) and _whole(answer) is not None):
            remedy = 'Give a number, or a text that is one number, such as "1,234.5".'
            raise refuse("answer", answer, "it is not one number", remedy)

    def verify(self, requests: Sequence[VerificationRequest]) -> list[Verdict]:
        """One verdict for each request, in order."""
        return [self._judge(request) for request in requests]


def last_number(text: str) -> Decimal | None:
    """The last number of `text` by the rule of the module, or None."""
    last = None
    for match in _NUMBER.finditer(text):
        last = match
    return _decimal(last) if last else None


def _whole(text: str) -> Decimal | None:
    match = _NUMBER.fullmatch(text.strip())
    return _decimal(match) if match else None


def _decimal(match: re.Match[str]) -> Decimal | None:
    if len(match[0]) > MAX_DIGITS:
        return None
    sign = "-" if match["sign"] and match["sign"] in MINUS_SIGNS else ""
    return Decimal(sign + match["digits"].replace(",", "") + match["rest"])


def _judge(request: VerificationRequest) -> Verdict:
    answer = request.answer
    expected = _whole(answer) if isinstance(answer, str) else Decimal(repr(answer))
    found = last_number(request.completion)
    if found is None:
        return verdicts.unparseable("the completion holds no number")
    return verdicts.passed(f"found {found}") if found == expected else verdicts.failed(f"expected {expected}, found {found}")
