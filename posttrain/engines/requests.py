"""Checks that every engine makes before it samples, and what it may believe of the logprobs that come back."""

from __future__ import annotations

import math
from collections.abc import Sequence

from posttrain.engines.base import GenerationRequest
from posttrain.errors import EngineError

SENTINEL_LOGPROB = -9999.0  # what servers put where JSON has no -infinity (vllm-project/vllm#4149)


def check_requests(requests: Sequence[GenerationRequest], context_tokens: int, vocabulary_size: int) -> None:
    """Refuses prompts that an engine cannot take; nothing is truncated.

    Raises:
        EngineError: naming the prompt that is empty, longer than the context, or holds an id outside the vocabulary.
    """
    for request in requests:
        length = len(request.prompt_ids)
        if not 0 < length < context_tokens:
            raise EngineError(
                f"prompt {request.prompt_id!r} has {length} tokens; the engine's context of {context_tokens} takes 1 to "
                f"{context_tokens - 1} and one token of completion. Raise data.max_model_tokens or leave the prompt out."
            )
        if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < vocabulary_size:
            wrong = next(token for token in request.prompt_ids if not 0 <= token < vocabulary_size)
            raise EngineError(
                f"prompt {request.prompt_id!r} holds id {wrong}; the model's vocabulary has {vocabulary_size}. "
                "Encode the prompts with this policy's tokenizer."
            )


def usable_logprobs(values: Sequence[float | None]) -> tuple[float, ...] | None:
    """The logprobs of a whole completion, or None when one of them is no logprob (None, not finite, a sentinel)."""
    usable = [value for value in values if value is not None and math.isfinite(value) and value > SENTINEL_LOGPROB]
    return tuple(usable) if len(usable) == len(values) else None
