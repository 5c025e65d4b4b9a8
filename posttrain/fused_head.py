"""TRL's fused head replaced by the packed kernel: one hook for every trainer of TRL that asks for logprobs that way.

Importing it imports TRL (seconds): import it inside functions.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from posttrain.logprob_head import TokenScores
from posttrain.packed_attention import PackingError, packed_attention
from posttrain.packed_model import base_of, score_pack, warn_padded, why_not_packed
from posttrain.packing import Pack, pack_rows

NEEDED = {"input_ids", "attention_mask", "labels"}
UNDERSTOOD = NEEDED | {"use_cache", "num_items_in_batch"}
IGNORED_LABEL = -100


@contextmanager
def packed_head(model: Any, *, temperature: float, outputs: Sequence[str]) -> Iterator[None]:
    """Inside, `model(input_ids=…, attention_mask=…, labels=…, fused_lm_head=True)` runs the packed kernel.

    Enter it after the trainer's construction (TRL has then patched `model.forward`) and leave it after `train()`:

        trainer = SomeTrainer(model, …)
        with packed_head(model, temperature=1.0, outputs=("log_probs", "entropy", "mean_logits", "is_top1")):
            trainer.train()

    Rows of one call that share a prompt share its computation; a row's prompt ends where its first label does not ignore.
    Padding is wherever the attention mask is 0, on either side. The same call gives the same bits, with or without gradient.
    All other calls, and models that cannot be packed, go where they went before; the log then says why.

    Args:
        model: transformers causal language model, or a PEFT model of one.
        temperature: what TRL's own head was given.
        outputs: the per-token fields of TRL's FusedCausalLMOutput that the trainer reads; only log_probs has a gradient.
    """
    if why_not_packed(model) is not None:
        yield
        return
    base = base_of(model)
    had_forward, before = "forward" in base.__dict__, base.forward
    base.forward = _forward(model, before, temperature, outputs)
    try:
        with packed_attention(base):
            yield
    finally:
        if had_forward:
            base.forward = before
        else:
            del base.forward


def _forward(model: Any, before: Callable[..., Any], temperature: float, outputs: Sequence[str]) -> Callable[..., Any]:
    extras = [name for name in outputs if name != "log_probs"]

    @functools.wraps(before)  # generation reads the signature
    def forward(*args: Any, fused_lm_head: bool = False, **kwargs: Any) -> Any:
        if not fused_lm_head:
            return before(*args, **kwargs)
        batch = _read(args, kwargs, base_of(model).config)
        if batch is not None:
            try:
                (pack,) = pack_rows(batch.prompts, batch.completions, sys.maxsize)
                return batch.output(pack, score_pack(model, pack, temperature, extras), kwargs.get("num_items_in_batch"))
            except PackingError as error:
                warn_padded(model, str(error))
        return before(*args, fused_lm_head=True, **kwargs)

    return forward


@dataclass(frozen=True)
class _Batch:
    """Rows of a padded batch. `columns` are those of each completion's tokens, `scored` says which of them have a label."""

    prompts: Sequence[np.ndarray]
    completions: Sequence[np.ndarray]
    columns: Sequence[np.ndarray]
    scored: Sequence[np.ndarray]
    label_mask: torch.Tensor

    def output(self, pack: Pack, scores: TokenScores, num_items_in_batch: Any) -> Any:
        """The scores in the places of the padded batch, zero where there is no label."""
        from trl.trainer.utils import FusedCausalLMOutput

        width = self.label_mask.shape[1]
        places = np.concatenate([row * width + self.columns[row] - 1 for row in pack.rows])
        wanted = np.flatnonzero(np.concatenate([self.scored[row] for row in pack.rows]))
        device = scores.logprobs.device
        places_I, wanted_I = (torch.from_numpy(index).to(device) for index in (places[wanted], wanted))

        def spread(values: torch.Tensor | None) -> torch.Tensor | None:
            if values is None:
                return None
            flat = torch.zeros(self.label_mask.numel(), dtype=values.dtype, device=device)
            return flat.index_copy(0, places_I, values.index_select(0, wanted_I)).view(self.label_mask.shape)

        log_probs = spread(scores.logprobs)
        assert log_probs is not None
        return FusedCausalLMOutput(
            loss=-log_probs.sum() / (len(wanted) if num_items_in_batch is None else num_items_in_batch),
            log_probs=log_probs,
            entropy=spread(scores.entropy),
            log_sum_sq_probs=spread(scores.log_sum_sq_probs),
            mean_logits=spread(scores.mean_logits),
            is_top1=spread(scores.is_top1),
            label_mask=self.label_mask,
        )


def _read(args: Sequence[Any], kwargs: Mapping[str, Any], config: Any) -> _Batch | None:
    """The batch of a call, or None for one that only TRL understands, or that has no label at all."""
    given = {name for name, value in kwargs.items() if value is not None}
    if args or not NEEDED <= given <= UNDERSTOOD or getattr(config, "output_router_logits", False):
        return None
    label_mask = kwargs["labels"][:, 1:] != IGNORED_LABEL
    ids, real, labelled = (
        x.cpu().numpy() for x in (kwargs["input_ids"], kwargs["attention_mask"] != 0, kwargs["labels"] != IGNORED_LABEL)
    )
    rows = [_split(*row) for row in zip(ids, real, labelled, strict=True)]
    prompts, completions, columns, scored = zip(*rows, strict=True)
    return _Batch(prompts, completions, columns, scored, label_mask) if any(map(len, completions)) else None


def _split(ids: np.ndarray, real: np.ndarray, labelled: np.ndarray) -> tuple[np.ndarray, ...]:
    """Prompt ids, completion ids, the completion's columns, and which of them have a label; the first token predicts only."""
    columns = np.flatnonzero(real)
    with_label = np.flatnonzero(labelled[columns[1:]]) + 1
    first, end = (with_label[0], with_label[-1] + 1) if len(with_label) else (len(columns), len(columns))
    completion = columns[first:end]
    return ids[columns[:first]], ids[completion], completion, labelled[completion]
