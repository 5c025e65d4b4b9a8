"""The fingerprint of a policy: logprobs of a fixed probe, which an engine must reproduce before it may generate.

It catches an engine that serves other weights than it claims: a reload that did nothing, a packed head that stayed old, a stale
prefix cache, a resume from the base model.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from posttrain.errors import FingerprintError, PolicyError

if TYPE_CHECKING:
    import torch

PROBE_TOKENS = 34  # one more than a full block of 32 and its successor: the last logprob can be read through a prefix cache
TOLERANCE_NATS = {"float32": 1e-3, "bfloat16": 0.1}  # largest difference that the dtype alone explains


@dataclass(frozen=True)
class Fingerprint:
    """Probe ids, and the float32 logprobs (temperature 1, nats) of ids 1..n-1 given those before them."""

    probe_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def compute_fingerprint(model: torch.nn.Module, tokenizer: Any) -> Fingerprint:
    """Fingerprint of a float32 `model` by one plain transformers forward.

    Raises:
        PolicyError: a logprob is not finite, so the weights hold NaN or infinity.
    """
    import torch

    config: Any = model.config
    probe = choose_probe_ids(min(config.vocab_size, len(tokenizer)), tokenizer.all_special_ids, _context(config))
    logprobs = teacher_forced_logprobs(model, probe)
    if not torch.isfinite(torch.tensor(logprobs)).all():
        raise PolicyError(f"the probe's logprobs are not finite ({logprobs[:4]}…): the weights hold NaN or infinity.")
    return Fingerprint(tuple(probe), tuple(logprobs))


def choose_probe_ids(vocabulary_size: int, special_ids: Sequence[int], context_tokens: int = PROBE_TOKENS) -> list[int]:
    """Ids of the vocabulary without its special ones, chosen by hash: the same for every policy with that tokenizer.

    Raises:
        PolicyError: the vocabulary has nothing but special tokens.
    """
    special = set(special_ids)
    ordinary = [token for token in range(vocabulary_size) if token not in special]
    if not ordinary:
        raise PolicyError(f"a vocabulary of {vocabulary_size} holds nothing but special tokens: there is nothing to probe.")
    digests = (hashlib.sha256(f"posttrain probe {position}".encode()).digest() for position in range(min(PROBE_TOKENS, context_tokens)))
    return [ordinary[int.from_bytes(digest[:8], "big") % len(ordinary)] for digest in digests]


def teacher_forced_logprobs(model: Any, sequence_ids: Sequence[int]) -> list[float]:
    """Logprobs (temperature 1, nats) of ids 1..n-1 of one sequence, taken in float32 whatever the model's dtype."""
    import torch

    ids_1T = torch.tensor([list(sequence_ids)], device=model.device)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits_1TV = model(input_ids=ids_1T, use_cache=False).logits.float()
    finally:
        model.train(was_training)
    logprobs_TV = torch.log_softmax(logits_1TV[0, :-1], dim=-1)
    return logprobs_TV.gather(-1, ids_1T[0, 1:, None])[:, 0].tolist()


def check_served(served: Sequence[float], fingerprint: Fingerprint, dtype: str, engine: str, source: str) -> float:
    """Largest difference (nats) between `served` logprobs and the recorded ones; a shorter `served` covers the probe's start.

    Raises:
        FingerprintError: a value is missing or differs by more than the dtype explains.
    """
    recorded = fingerprint.logprobs[: len(served)]
    if not served or len(recorded) != len(served):
        raise FingerprintError(f"{engine}: {len(served)} probe logprobs for a fingerprint of {len(fingerprint.logprobs)} ({source}).")
    differences = [abs(one - other) for one, other in zip(served, recorded, strict=True)]
    largest = max(differences, key=lambda value: math.inf if math.isnan(value) else value)
    if not largest <= TOLERANCE_NATS[dtype]:
        raise FingerprintError(
            f"{engine} does not serve the policy of {source}: probe logprobs differ by up to {largest:.4g} nats "
            f"(tolerance {TOLERANCE_NATS[dtype]:g} for {dtype}; served {served[differences.index(largest)]:.4f}, "
            f"recorded {recorded[differences.index(largest)]:.4f}). Its weights or caches are stale; start a new engine."
        )
    return largest


def _context(config: Any) -> int:
    return int(getattr(config, "max_position_embeddings", None) or PROBE_TOKENS)
