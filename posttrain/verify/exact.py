"""The completion must be the answer, character for character, apart from white space around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.config_verify import VerifySettings
from posttrain.verify import verdicts
from posttrain.verify.answers import refuse
from posttrain.verify.base import Verdict, VerificationRequest


class ExactVerifier:
    """The answer is a text. Reward 1.0 or 0.0."""

    name = "exact"
    version = "1"

    def __init__(self, settings: VerifySettings) -> None:
        self.limits: Mapping[str, Any] = {}
        self._judge = verdicts.guarded(self.check_answer, _judge)

    def check_answer(self, answer: Any) -> None:
        """Raises ConfigError for anything but a text that is not blank."""
        if not isinstance(answer, str) or not answer.strip():
            raise refuse("answer", answer, "it is not a text, or a blank one", "Give the exact text of the right completion.")

    def verify(self, requests: Sequence[VerificationRequest]) -> list[Verdict]:
        """One verdict for each request, in order."""
        return [self._judge(request) for request in requests]


def _judge(request: VerificationRequest) -> Verdict:
    if request.completion.strip() == request.answer.strip():
        return verdicts.passed()
    return verdicts.failed(f"expected {request.answer.strip()[:200]!r}, found {request.completion.strip()[:200]!r}")
