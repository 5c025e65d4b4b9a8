"""What a verifier of one's own is made of: a class with a name, a version and one function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.config_verify import VerifySettings
from posttrain.verify import verdicts
from posttrain.verify.base import PASS_SCORE, Verdict, VerificationRequest
from posttrain.verify.batches import is_finite


class OwnVerifier:
    """Base of a verifier that judges one completion after another. Give it `name` and `version`, and write `judge`.

    Raise `version` whenever a verdict may change: cached verdicts are found by it.
    """

    name: str = ""
    version: str = ""

    def __init__(self, settings: VerifySettings) -> None:
        self.settings = settings

    @property
    def limits(self) -> Mapping[str, Any]:
        """What bounds the verdicts beyond the process that they are made in."""
        return {}

    def check_answer(self, answer: Any) -> None:
        """Raises ConfigError for a dataset's answer that cannot be judged by. Every answer is fine unless this says more."""

    def judge(self, request: VerificationRequest) -> float | Verdict | None:
        """The reward (from 0.99 on the completion passes), a whole verdict, or None to abstain. May raise: that is an `error`."""
        raise NotImplementedError(f"{type(self).__name__} does not define judge")

    def verify(self, requests: Sequence[VerificationRequest]) -> list[Verdict]:
        """One verdict for each request, in order."""
        judge = verdicts.guarded(self.check_answer, lambda request: as_verdict(self.judge(request)))
        return [judge(request) for request in requests]


def as_verdict(judged: object) -> Verdict:
    """The verdict that a number, None or a verdict stands for; anything else is a fault of the verifier.

    A truth value counts as 1 or 0.
    """
    if judged is None:
        return verdicts.abstained("not judged by this verifier")
    if isinstance(judged, Verdict):
        return judged
    if not isinstance(judged, bool) and not is_finite(judged):
        return verdicts.errored(f"judge gave {judged!r}, which is no finite number, no verdict and not None")
    reward = float(judged)  # type: ignore[arg-type]  # any number, of numpy too
    return verdicts.passed("", reward) if reward >= PASS_SCORE else verdicts.failed("", reward)
