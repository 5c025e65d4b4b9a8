"""The contract that every generation engine keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class SamplingParameters:
    """How completions are sampled. `temperature` 0 is greedy; then logprobs are those of temperature 1."""

    temperature: float
    top_p: float
    max_completion_tokens: int


@dataclass(frozen=True)
class GenerationRequest:
    """One completion to sample: the prompt's token ids and the seed of exactly this sample."""

    prompt_id: str
    sample_index: int
    prompt_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Completion:
    """What came back for one request.

    `behavior_logprobs` has one value per completion token, of the distribution that was sampled from (after
    temperature and top-p), or is None when the engine reported no usable value for some token (-inf, a sentinel,
    a missing entry): such a row is counted and not trained on. `finish_reason` is stop, length or aborted;
    after `stop` by end-of-sequence the last id is that EOS token.
    """

    completion_ids: tuple[int, ...]
    behavior_logprobs: tuple[float, ...] | None
    finish_reason: str
    started_at: datetime
    finished_at: datetime


class Engine(Protocol):
    """A warm generator whose weights are swapped, never restarted."""

    name: str

    @property
    def policy_version(self) -> int:
        """Version of the policy that is being served."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a completion: the tokenizer's EOS and those of the policy's generation config."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the engine was closed or died: it then serves nothing any more."""
        ...

    def load_policy(self, directory: Path) -> None:
        """Serves the policy in `directory`, drops every cache of the old one, and checks the fingerprint.

        Raises:
            PolicyError: the directory is incomplete, altered or of another architecture.
            FingerprintError: the engine does not reproduce the policy's fingerprint.
        """
        ...

    def check_fingerprint(self) -> float:
        """Largest difference (nats) between served and recorded probe logprobs; raises FingerprintError past tolerance."""
        ...

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParameters) -> list[Completion]:
        """One completion for each request, in the order of the requests; checks the fingerprint first.

        Raises:
            EngineError: a prompt does not fit the context.
            InfrastructureError: the engine died; a fresh one may succeed.
        """
        ...

    def sequence_logprobs(self, sequence_ids: Sequence[int]) -> list[float]:
        """Teacher-forced logprobs (temperature 1) of tokens 1..n-1 of one sequence, float."""
        ...

    def close(self) -> None:
        """Frees the memory."""
        ...
