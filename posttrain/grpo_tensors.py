"""Recorded rows → the padded tensors that TRL's loss reads. Masks come from recorded lengths, never from token values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from posttrain.config import ImportanceCorrection
from posttrain.grpo_rows import TrainingRow

SEQUENCE_CORRECTIONS = (ImportanceCorrection.sequence_truncate, ImportanceCorrection.sequence_mask)


def pad_rows(rows: Sequence[TrainingRow], pad_id: int, device: Any) -> dict[str, Any]:
    """Prompts padded on the left, completions on the right.

    Returns:
        prompt_ids, prompt_mask int64 (B, P); completion_ids, completion_mask int64 (B, T); advantages float32 (B,).
        The pad id may also be a real token (EOS, or inside a prompt): only the masks say what is padding.
    """
    import torch

    prompts = [row.prompt_ids for row in rows]
    completions = [row.completion_ids for row in rows]
    return {
        "prompt_ids": _pad(prompts, pad_id, np.int64, device, left=True),
        "prompt_mask": _pad([np.ones_like(ids) for ids in prompts], 0, np.int64, device, left=True),
        "completion_ids": _pad(completions, pad_id, np.int64, device),
        "completion_mask": _pad([np.ones_like(ids) for ids in completions], 0, np.int64, device),
        "advantages": torch.tensor([row.advantage for row in rows], dtype=torch.float32, device=device),
    }


def pad_logprobs(values: Sequence[np.ndarray], device: Any) -> Any:
    """Per-token logprobs of each row → float32 (B, T), 0 in the padding, as TRL's own logprobs have there."""
    return _pad(values, 0.0, np.float32, device)


def log_importance(old_BT: Any, behavior_BT: Any, mask_BT: Any, correction: ImportanceCorrection) -> Any:
    """log of the uncapped importance weight π_old / π_behavior: (B, T) for a token correction, (B, 1) for a sequence's."""
    difference_BT = (old_BT - behavior_BT) * mask_BT
    if correction in SEQUENCE_CORRECTIONS:
        return difference_BT.sum(-1, keepdim=True)
    return difference_BT


def cap_importance(log_weight: Any, correction: ImportanceCorrection, cap: float) -> Any:
    """Importance weights of the decoupled loss (AReaL, arXiv 2505.24298), kept bounded by C = `cap`.

    `truncate` gives min(w, C), `mask` gives w where w <= C and 0 elsewhere. Same shape as `log_weight`.
    """
    weight = log_weight.exp()
    if correction in (ImportanceCorrection.token_mask, ImportanceCorrection.sequence_mask):
        return weight.masked_fill(weight > cap, 0.0)
    return weight.clamp(max=cap)


def _pad(values: Sequence[np.ndarray], padding: float, dtype: Any, device: Any, left: bool = False) -> Any:
    import torch

    width = max(len(value) for value in values)
    padded = np.full((len(values), width), padding, dtype)
    for row, value in enumerate(values):
        if left:
            padded[row, width - len(value) :] = value
        else:
            padded[row, : len(value)] = value
    return torch.from_numpy(padded).to(device)
