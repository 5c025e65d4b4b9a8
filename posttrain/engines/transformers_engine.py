"""Plain transformers with the engine's contract: the fallback where vLLM does not run, and the oracle it is tested against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.engines.base import Completion, GenerationRequest, SamplingParameters
from posttrain.engines.requests import check_requests, usable_logprobs
from posttrain.engines.served import check_same_architecture, read_served
from posttrain.errors import InfrastructureError
from posttrain.fingerprint import check_served, teacher_forced_logprobs
from posttrain.policy import load_model
from posttrain.progress import progress

if TYPE_CHECKING:
    import torch

BATCH_SIZE = 64


class TransformersEngine:
    """An Engine (see `posttrain.engines.base`); prompts of equal length form a batch, so that nothing is ever padded."""

    name = "transformers"

    def __init__(self, directory: Path, *, dtype: str, max_model_tokens: int, trust_remote_code: bool = False) -> None:
        """Loads the policy in `directory` and checks its fingerprint; arguments and errors as of VllmEngine."""
        self.dtype, self.max_model_tokens, self.trust_remote_code = dtype, max_model_tokens, trust_remote_code
        self._served = read_served(directory, trust_remote_code)
        self._model: Any = self._load(directory)
        self.check_fingerprint()

    @property
    def policy_version(self) -> int:
        return self._served.manifest.version

    @property
    def end_ids(self) -> frozenset[int]:
        return self._served.end_ids

    @property
    def closed(self) -> bool:
        return self._model is None

    def load_policy(self, directory: Path) -> None:
        self._require_open()
        served = read_served(directory, self.trust_remote_code)
        check_same_architecture(self._served, served)
        if served.manifest.hash != self._served.manifest.hash:
            self._model = self._load(directory)
        self._served = served
        self.check_fingerprint()

    def check_fingerprint(self) -> float:
        recorded = self._served.manifest.fingerprint
        served = self.sequence_logprobs(recorded.probe_ids[: self.max_model_tokens])
        return check_served(served, recorded, self.dtype, self.name, str(self._served.directory))

    def generate(self, requests: Sequence[GenerationRequest], sampling: SamplingParameters) -> list[Completion]:
        self._require_open()
        check_requests(requests, self.max_model_tokens, self._model.config.vocab_size)
        self.check_fingerprint()
        completions: dict[int, Completion] = {}
        for batch in progress(_batches(requests), "rollouts", len(list(_batches(requests))), "batch"):
            results = self._generate_batch([requests[position] for position in batch], sampling)
            completions.update(zip(batch, results, strict=True))
        return [completions[position] for position in range(len(requests))]

    def sequence_logprobs(self, sequence_ids: Sequence[int]) -> list[float]:
        self._require_open()
        return teacher_forced_logprobs(self._model, sequence_ids)

    def close(self) -> None:
        self._model = None

    def _load(self, directory: Path) -> Any:
        import torch

        return load_model(directory, self.dtype, self.trust_remote_code).to("cuda" if torch.cuda.is_available() else "cpu")

    def _generate_batch(self, requests: Sequence[GenerationRequest], sampling: SamplingParameters) -> list[Completion]:
        """One completion for each of up to BATCH_SIZE requests whose prompts have the same length."""
        import torch

        started = datetime.now(UTC)
        samples = [_Sample(request, self._model.device) for request in requests]
        limit = min(sampling.max_completion_tokens, self.max_model_tokens - len(requests[0].prompt_ids))
        active, cache = list(samples), None
        inputs_BT = torch.tensor([request.prompt_ids for request in requests], device=self._model.device)
        while active:
            with torch.no_grad():
                forward = self._model(input_ids=inputs_BT, past_key_values=cache, use_cache=True, logits_to_keep=1)
            logprobs_BV = sampling_logprobs(forward.logits[:, -1].float(), sampling)
            for sample, logprobs_V in zip(active, logprobs_BV, strict=True):
                sample.draw(logprobs_V, greedy=sampling.temperature == 0)
                sample.finish(self.end_ids, limit)
            going = [row for row, sample in enumerate(active) if not sample.finish_reason]
            active, cache = [active[row] for row in going], forward.past_key_values
            cache.batch_select_indices(torch.tensor(going, dtype=torch.long, device=self._model.device))
            inputs_BT = torch.tensor([[sample.ids[-1]] for sample in active], device=self._model.device)
        return [sample.completion(started) for sample in samples]

    def _require_open(self) -> None:
        if self._model is None:
            raise InfrastructureError("the transformers engine was closed. Ask shared_engine for a new one.")


class _Sample:
    """One completion while it grows, with its own random generator."""

    def __init__(self, request: GenerationRequest, device: Any) -> None:
        import torch

        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.finish_reason = ""
        self.finished_at = datetime.now(UTC)
        self._generator = torch.Generator(device=device).manual_seed(request.seed)

    def draw(self, logprobs_V: torch.Tensor, greedy: bool) -> None:
        import torch

        chosen = logprobs_V.argmax() if greedy else torch.multinomial(logprobs_V.exp(), 1, generator=self._generator)[0]
        self.ids.append(int(chosen))
        self.logprobs.append(float(logprobs_V[chosen]))

    def finish(self, end_ids: frozenset[int], limit: int) -> None:
        if self.ids[-1] in end_ids:
            self.finish_reason = "stop"
        elif len(self.ids) == limit:
            self.finish_reason = "length"
        self.finished_at = datetime.now(UTC)

    def completion(self, started: datetime) -> Completion:
        return Completion(tuple(self.ids), usable_logprobs(self.logprobs), self.finish_reason, started, self.finished_at)


def sampling_logprobs(logits_BV: torch.Tensor, sampling: SamplingParameters) -> torch.Tensor:
    """Logprobs of the distribution that is sampled from: after temperature and top-p, float32, -inf outside the nucleus.

    Temperature 0 is greedy; the logprobs are then those of temperature 1.
    """
    import torch

    if sampling.temperature == 0:
        return torch.log_softmax(logits_BV, dim=-1)
    logits_BV = logits_BV / sampling.temperature
    if sampling.top_p < 1:
        ascending_BV, order_BV = logits_BV.sort(dim=-1)
        outside_BV = ascending_BV.softmax(dim=-1).cumsum(dim=-1) <= 1 - sampling.top_p
        outside_BV[:, -1] = False  # the likeliest token always stays
        logits_BV = logits_BV.masked_fill(torch.zeros_like(outside_BV).scatter(-1, order_BV, outside_BV), float("-inf"))
    return torch.log_softmax(logits_BV, dim=-1)


def _batches(requests: Sequence[GenerationRequest]) -> Iterator[list[int]]:
    """Positions of requests with equally long prompts, up to BATCH_SIZE together."""
    by_length: dict[int, list[int]] = {}
    for position, request in enumerate(requests):
        by_length.setdefault(len(request.prompt_ids), []).append(position)
    for positions in by_length.values():
        for first in range(0, len(positions), BATCH_SIZE):
            yield positions[first : first + BATCH_SIZE]
