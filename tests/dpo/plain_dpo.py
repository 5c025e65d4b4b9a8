"""DPO computed plainly from the papers' formulas: one row at a time, whole logits, no padding. What TRL's losses must equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor
from torch.nn.functional import softplus

BETA = 0.1
SMOOTHING = 0.1


@dataclass(frozen=True)
class Sums:
    """Per pair, shape (num_pairs,): log-ratios to the reference of both sides, their raw parts, and the answers' lengths."""

    policy_chosen: Tensor
    policy_rejected: Tensor
    reference_chosen: Tensor
    reference_rejected: Tensor
    chosen_length: Tensor
    rejected_length: Tensor

    @property
    def chosen(self) -> Tensor:
        return self.policy_chosen - self.reference_chosen

    @property
    def rejected(self) -> Tensor:
        return self.policy_rejected - self.reference_rejected


def answer_logprob(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
    logits = model(input_ids=torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.float(), -1)[torch.arange(len(answer)), torch.tensor(list(answer))].sum()


def sums(model: Any, pairs: pa.Table) -> Sums:
    rows = pairs.to_pylist()
    policy = [
        torch.stack([answer_logprob(model, row["prompt_ids"], row[side]) for row in rows])
        for side in ("chosen_ids", "rejected_ids")
    ]
    stored = [torch.tensor([row[f"reference_{side}_logprob"] for row in rows]) for side in ("chosen", "rejected")]
    lengths = [torch.tensor([float(len(row[side])) for row in rows]) for side in ("chosen_ids", "rejected_ids")]
    return Sums(*policy, *stored, *lengths)


def log_sigmoid(x: Tensor) -> Tensor:
    return -softplus(-x)


def loss(name: str, s: Sums, smoothing: float = 0.0) -> Tensor:
    return LOSSES[name](s, smoothing).mean()


def _smoothed(x: Tensor, smoothing: float) -> Tensor:
    return -(1 - smoothing) * log_sigmoid(x) - smoothing * log_sigmoid(-x)


def _robust(s: Sums, smoothing: float) -> Tensor:
    x = BETA * (s.chosen - s.rejected)
    return (-(1 - smoothing) * log_sigmoid(x) + smoothing * log_sigmoid(-x)) / (1 - 2 * smoothing)


def _exo_pair(s: Sums, smoothing: float) -> Tensor:
    """KL of softmax(β·log-ratios) from the labels [1 − ε, ε] (arXiv 2402.00856, eq. 16)."""
    q = torch.softmax(BETA * torch.stack([s.chosen, s.rejected], -1), -1)
    return (q * (q.log() - torch.tensor([1 - smoothing, smoothing]).log())).sum(-1)


def _length_normalised(s: Sums) -> Tensor:
    return s.chosen / s.chosen_length - s.rejected / s.rejected_length


def _aot(s: Sums, smoothing: float) -> Tensor:
    policy = (s.policy_chosen - s.policy_rejected).sort().values
    reference = (s.reference_chosen - s.reference_rejected).sort().values
    return _smoothed(BETA * (policy - reference), smoothing)


def _discopop(s: Sums, _: float) -> Tensor:
    x = BETA * (s.chosen - s.rejected)
    modulation = torch.sigmoid(x / 0.05)
    return softplus(-x) * (1 - modulation) + torch.exp(-x) * modulation


LOSSES: Mapping[str, Any] = {
    "sigmoid": lambda s, smoothing: _smoothed(BETA * (s.chosen - s.rejected), smoothing),
    "hinge": lambda s, _: (1 - BETA * (s.chosen - s.rejected)).clamp(min=0),
    "ipo": lambda s, _: (_length_normalised(s) - 1 / (2 * BETA)) ** 2,
    "exo_pair": _exo_pair,
    "nca_pair": lambda s, _: softplus(-BETA * s.chosen) + softplus(BETA * s.chosen) / 2 + softplus(BETA * s.rejected) / 2,
    "robust": _robust,
    "bco_pair": lambda s, _: softplus(-BETA * s.chosen) + softplus(BETA * s.rejected),
    "sppo_hard": lambda s, _: (s.chosen - 1 / (2 * BETA)) ** 2 + (s.rejected + 1 / (2 * BETA)) ** 2,
    "aot": _aot,
    "aot_unpaired": lambda s, smoothing: _smoothed(BETA * (s.chosen.sort().values - s.rejected.sort().values), smoothing),
    "apo_zero": lambda s, _: torch.sigmoid(-BETA * s.chosen) + torch.sigmoid(BETA * s.rejected),
    "apo_down": lambda s, _: torch.sigmoid(BETA * s.chosen) + torch.sigmoid(-BETA * (s.chosen - s.rejected)),
    "discopop": _discopop,
    "sft": lambda s, _: -s.policy_chosen.sum() / s.chosen_length.sum(),
    "sigmoid_norm": lambda s, _: softplus(-BETA * _length_normalised(s)),
}
