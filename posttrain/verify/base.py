"""The contract that every verifier keeps: outcome and reward are separate, and an error is never a reward of 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

MAX_DETAIL_CHARACTERS = 2_000
PASS_SCORE = 0.99  # some scorers pay a little for junk; only this much counts as solved


@dataclass(frozen=True)
class VerificationRequest:
    """One completion to judge. `answer` is the dataset's solution, decoded from JSON."""

    prompt_id: str
    sample_index: int
    prompt: str
    completion: str
    answer: Any
    finish_reason: str


@dataclass(frozen=True)
class Verdict:
    """`outcome` is pass, fail, timeout, unparseable or error; `reward` is None when the completion was not judged."""

    outcome: str
    reward: float | None
    detail: str
    seconds: float


class Verifier(Protocol):
    """Judges completions. Never raises for a bad completion; a fault of its own is outcome `error` with no reward."""

    name: str
    version: str

    def check_answer(self, answer: Any) -> None:
        """Raises ConfigError when a dataset's answer has the wrong shape for this verifier (before anything is generated)."""
        ...

    def verify(self, requests: Sequence[VerificationRequest]) -> list[Verdict]:
        """One verdict for each request, in order."""
        ...
