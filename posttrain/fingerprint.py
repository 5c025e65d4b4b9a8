"""The fingerprint of a policy: logprobs of a fixed probe, which an engine must reproduce before it may generate.

It catches an engine that serves other weights than it claims: a reload that did nothing, a packed head that stayed old, a stale
prefix cache, a resume from the base model.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.errors import FingerprintError, PolicyError

PROBE_TOKENS = 34  # one more than a full block of 32 and its successor: the last logprob can be read through a prefix cache
FLOAT32_TOLERANCE = 1e-3  # nats; vLLM and transformers differ by 2e-6 on 0.1 M parameters, 5e-5 on 135 M
BFLOAT16_FLOORS = {"largest": 0.1, "mean": 0.02}  # nats, for policies whose own rounding noise is less
NOISE_FACTOR = 2.0  # two bfloat16 implementations round differently, by about as much as each is off
MOVED_NATS = 1e-4


@dataclass(frozen=True)
class Fingerprint:
    """Probe ids, and the logprobs (temperature 1, nats) of ids 1..n-1 given those before them.

    `logprobs` were computed in float32 and are what an engine is compared with. `bfloat16_logprobs` come from the same
    forward in bfloat16: their distance says how much that dtype alone explains, which differs from model to model (0.1 M
    parameters: up to 0.05 nats, SmolLM2 with 135 M: up to 1.9).
    """

    probe_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    bfloat16_logprobs: tuple[float, ...]


def compute_fingerprint(load: Callable[[str], Any], tokenizer: Any) -> Fingerprint:
    """Fingerprint of a transformers model by one forward in each dtype.

    Args:
        load: gives the model in the dtype of that name.

    Raises:
        PolicyError: a logprob is not finite, so the weights hold NaN or infinity.
    """
    model = load("float32")
    probe = choose_probe_ids(min(model.config.vocab_size, len(tokenizer)), tokenizer.all_special_ids, _context(model.config))
    logprobs = teacher_forced_logprobs(model, probe)
    del model  # only one of the two is in memory at a time
    rounded = teacher_forced_logprobs(load("bfloat16"), probe)
    if not all(math.isfinite(value) for value in (*logprobs, *rounded)):
        raise PolicyError(f"the probe's logprobs are not finite ({logprobs[:4]}…): the weights hold NaN or infinity.")
    return Fingerprint(tuple(probe), tuple(logprobs), tuple(rounded))


def choose_probe_ids(vocabulary_size: int, special_ids: Sequence[int], context_tokens: int = PROBE_TOKENS) -> list[int]:
    """Ids of the vocabulary without its special ones, chosen by hash: the same for every policy with that tokenizer.

    Raises:
        PolicyError: the vocabulary has nothing but special tokens.
    """
    special = set(special_ids)
    ordinary = [token for token in range(vocabulary_size) if token not in special]
    if not ordinary:
        raise PolicyError(f"a vocabulary of {vocabulary_size} holds nothing but special tokens: there is nothing to probe.")
    positions = range(min(PROBE_TOKENS, context_tokens))
    digests = [hashlib.sha256(f"posttrain probe {position}".encode()).digest() for position in positions]
    return [ordinary[int.from_bytes(digest[:8], "big") % len(ordinary)] for digest in digests]


def teacher_forced_logprobs(model: Any, sequence_ids: Sequence[int]) -> list[float]:
    """Logprobs (temperature 1, nats) of ids 1..n-1 of one sequence, taken in float32 whatever the model's dtype."""
    from posttrain.logprobs import token_logprobs

    was_training = model.training
    model.eval()
    try:
        return token_logprobs(model, [sequence_ids[:1]], [sequence_ids[1:]], 1.0)[0].tolist()
    finally:
        model.train(was_training)


def check_served(served: Sequence[float], fingerprint: Fingerprint, dtype: str, engine: str, source: str) -> float:
    """Largest difference (nats) between `served` logprobs and the recorded ones; a shorter `served` covers the probe's start.

    Raises:
        FingerprintError: a value is missing, or the largest or the mean difference is more than the dtype explains.
    """
    total = len(fingerprint.logprobs)
    if not 0 < len(served) <= total:
        raise FingerprintError(f"{engine}: {len(served)} probe logprobs, the fingerprint of {source} has {total}.")
    differences = _differences(served, fingerprint.logprobs)
    allowed = tolerances(fingerprint, dtype)
    for name, found in (("largest", max(differences)), ("mean", sum(differences) / len(differences))):
        if not found <= allowed[name]:
            raise FingerprintError(
                f"{engine} does not serve the policy of {source}: the {name} difference of the probe's logprobs is {found:.4g} "
                f"nats, {dtype} explains {allowed[name]:.4g}. Its weights or caches are stale; start a new engine."
            )
    return max(differences)


def tolerances(fingerprint: Fingerprint, dtype: str) -> dict[str, float]:
    """What `dtype` alone explains of the `largest` and the `mean` difference (nats)."""
    if dtype == "float32":
        return {"largest": FLOAT32_TOLERANCE, "mean": FLOAT32_TOLERANCE}
    noise = _differences(fingerprint.bfloat16_logprobs, fingerprint.logprobs)
    measured = {"largest": max(noise), "mean": sum(noise) / len(noise)}
    return {name: max(floor, NOISE_FACTOR * measured[name]) for name, floor in BFLOAT16_FLOORS.items()}


def must_move(old: Fingerprint, new: Fingerprint) -> bool:
    """Whether two policies differ so much that no weights can serve both with the same bits, in whatever dtype."""
    return old.probe_ids == new.probe_ids and max(_differences(old.logprobs, new.logprobs)) > MOVED_NATS


def _differences(some: Sequence[float], others: Sequence[float]) -> list[float]:
    """Absolute differences as far as the shorter goes; infinite where one is NaN, so that no comparison passes by accident."""
    differences = [abs(one - other) for one, other in zip(some, others, strict=False)]
    return [math.inf if math.isnan(value) else value for value in differences]


def _context(config: Any) -> int:
    return int(getattr(config, "max_position_embeddings", None) or PROBE_TOKENS)
