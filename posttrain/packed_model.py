"""One pack through a transformers model, and whether a model can be computed that way at all."""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from posttrain.logprob_head import TokenScores, score_tokens
from posttrain.packed_attention import Layout, PackingError, is_packed, packed_attention
from posttrain.packing import Pack, pack_rows
from posttrain.padded_logprobs import score_padded

logger = logging.getLogger("posttrain")
# a logit is not hidden · weight + bias in models that set one of these
LOGIT_SETTINGS = ("final_logit_softcapping", "logit_scale", "output_multiplier", "lm_head_multiplier", "logits_scaling")
BOUNDED_ATTENTION = ("sliding_window", "attention_chunk_size")
FLOAT32_TOLERANCE, HALF_TOLERANCE = 1e-4, 0.25  # nats, mean over the probe: packed against padded
PROBE_PROMPTS = ((1, 2, 3), (4, 5, 6, 7, 8), (1, 2, 3), (4, 5, 6, 7, 8))
PROBE_COMPLETIONS = ((9, 1, 4, 7), (2, 8, 3), (6, 5), (3, 9, 2, 7, 1, 5))

_reasons: WeakKeyDictionary[Any, str | None] = WeakKeyDictionary()
_said: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def why_not_packed(model: Any) -> str | None:
    """None if packs give what the padded model gives, else the reason, which is also logged. Decided once for each model.

    The model is tried on a small fixed probe: every layer must ask for our attention, and the logprobs must agree.
    """
    if model not in _reasons:
        _reasons[model] = reason = _try(model)
        if reason is not None:
            warn_padded(model, reason)
    return _reasons[model]


def warn_padded(model: Any, reason: str) -> None:
    """Says once that rows are padded, which gives the same values but takes longer."""
    if reason not in (said := _said.setdefault(model, set())):
        said.add(reason)
        logger.warning("%s: rows are padded, not packed, because %s.", type(base_of(model)).__name__, reason)


def base_of(model: Any) -> Any:
    """The transformers model within a PEFT model."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def score_pack(model: Any, pack: Pack, temperature: float, extras: Collection[str] = ()) -> TokenScores:
    """Scores of a pack's tokens, with a gradient where torch has gradients enabled.

    Raises:
        PackingError: this call cannot be computed on a pack.
        ValueError: the model lacks an id of the pack; or gradient checkpointing is on and `packed_attention` is not open, so
            that `backward` would go wrong.
    """
    base = base_of(model)
    _check_call(base, pack)
    head = base.get_output_embeddings()
    _check_ids(pack, len(head.weight))
    ids, positions, scored, targets = (
        torch.from_numpy(x).to(base.device) for x in (pack.ids, pack.position_ids, pack.scored, pack.targets)
    )
    layout = Layout(pack, base.device)
    with nullcontext() if is_packed(base) else packed_attention(base):
        hidden_ND = _hidden(base, ids, positions, layout)
    if layout.num_calls != base.config.num_hidden_layers:
        raise PackingError(f"{layout.num_calls} of its {base.config.num_hidden_layers} layers use exchangeable attention")
    hidden_SD = hidden_ND.index_select(0, scored.to(hidden_ND.device)).to(head.weight.device)
    return score_tokens(hidden_SD, head.weight, head.bias, targets.to(head.weight.device), temperature, extras)


def _hidden(base: Any, ids: torch.Tensor, positions: torch.Tensor, layout: Layout) -> torch.Tensor:
    whole_mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=ids.device)  # transformers leaves 4-dimensional masks alone
    output = base.base_model(
        input_ids=ids[None], attention_mask=whole_mask, position_ids=positions[None], use_cache=False, packed_layout=layout
    )
    return output.last_hidden_state[0]


def _check_call(base: Any, pack: Pack) -> None:
    for name in BOUNDED_ATTENTION:
        bound = getattr(base.config, name, None)
        if bound and pack.num_positions > bound:
            raise PackingError(f"a row is longer than its {name} of {bound}")  # no length: each would be said anew
    if torch.is_grad_enabled() and base.training and base.is_gradient_checkpointing and not is_packed(base):
        raise ValueError(
            "gradient checkpointing computes layers again in backward: open packed_attention(model) around forward and backward."
        )


def _check_ids(pack: Pack, vocab_size: int) -> None:
    """The last id of a completion is never an input, so that no embedding would refuse it."""
    ids = np.concatenate([pack.ids, pack.targets])
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise ValueError(
            f"token ids reach from {ids.min()} to {ids.max()}, the model has 0 to {vocab_size - 1}: "
            "the rows were made with another tokenizer."
        )


def _unsupported(base: Any) -> str | None:
    config, head = base.config, base.get_output_embeddings()
    if config.get_text_config() is not config or config.is_encoder_decoder:
        return "it is more than a decoder of text"
    if type(head) is not torch.nn.Linear:
        return f"its head is a {type(head).__name__}, not a Linear"
    for name in LOGIT_SETTINGS:
        if getattr(config, name, None) not in (None, 1.0):
            return f"it transforms its logits ({name})"
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *(value for value in rope.values() if isinstance(value, dict))):  # some have one for each layer type
        if (rope_type := parameters.get("rope_type")) in ("dynamic", "longrope"):
            return f"its positions ({rope_type}) depend on the longest row of a batch"
    return None


def _try(model: Any) -> str | None:
    base = base_of(model)
    reason = _unsupported(base)
    if reason is not None:
        return reason
    was_training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), torch.autocast(base.device.type, enabled=False):
            return _probe(model)
    except PackingError as error:
        return str(error)
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        return f"the probe failed: {type(error).__name__}: {error}"
    finally:
        for module, training in was_training:  # parts may differ, such as a frozen one
            module.training = training


def _probe(model: Any) -> str | None:
    vocab_size = model.config.vocab_size
    prompts, completions = (
        [[token % vocab_size for token in row] for row in rows] for rows in (PROBE_PROMPTS, PROBE_COMPLETIONS)
    )
    (pack,) = pack_rows(prompts, completions)
    packed = score_pack(model, pack, 1.0).logprobs
    padded = score_padded(model, [prompts[row] for row in pack.rows], [completions[row] for row in pack.rows], 1.0).logprobs
    difference = (packed - padded).abs().mean().item()
    tolerance = FLOAT32_TOLERANCE if base_of(model).dtype == torch.float32 else HALF_TOLERANCE
    return None if difference <= tolerance else f"logprobs of packs are off by {difference:.3g} nats"
