"""The contract that every verifier keeps: outcome and reward are separate, and an error is never a reward of 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

MAX_DETAIL_CHARACTERS = 2_000
PASS_SCORE = 0.99  # some scorers pay a little for junk; only this much counts as solved


@dataclass(frozen=True)
class VerificationRequest:
    """One completion to judge. `answer` is the dataset's solution, decoded from JSON; `num_tokens` those of the completion."""

    prompt_id: str
    sample_index: int
    prompt: str
    completion: str
    answer: Any
    finish_reason: str
    num_tokens: int = 0


@dataclass(frozen=True)
class Part:
    """What one verifier of several said: its own reward, and the weight with which it enters the sum."""

    name: str
    outcome: str
    reward: float | None
    weight: float


@dataclass(frozen=True)
class Verdict:
    """`outcome` is one of `table_checks.OUTCOMES`; `reward` is None for `error` and `abstain`, else finite."""

    outcome: str
    reward: float | None
    detail: str
    seconds: float
    parts: tuple[Part, ...] = ()


class Verifier(Protocol):
    """Judges completions. Never raises for a bad completion; a fault of its own is outcome `error` with no reward.

    `limits` says what bounded the verdicts, by names with units; it is read after `verify`. Equal completions of one prompt
    are judged once, so a verdict must not depend on `sample_index`.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def limits(self) -> Mapping[str, Any]: ...

    def check_answer(self, answer: Any) -> None:
        """Raises ConfigError when a dataset's answer has the wrong shape for this verifier (before anything is generated)."""
        ...

    def verify(self, requests: Sequence[VerificationRequest]) -> list[Verdict]:
        """One verdict for each request, in order."""
        ...
