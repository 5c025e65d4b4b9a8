"""GRPO in plain PyTorch, one row at a time and without padding: the independent computation that TRL is compared with.

Closed forms: GRPO arXiv 2402.03300, Dr. GRPO 2503.20783, DAPO 2503.14476, GSPO 2507.18071, CISPO 2506.13585, SAPO 2511.20347,
and TRL 1.16's documentation for luspo and vespo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from posttrain.config import ImportanceCorrection, LearnerSettings, LossType
from posttrain.grpo_rows import Microbatch, TrainingRow

Key = tuple[str, int]


def row_logprobs(model: Any, row: TrainingRow, temperature: float) -> torch.Tensor:
    ids = torch.tensor([*row.prompt_ids, *row.completion_ids])
    logits = model(input_ids=ids[None]).logits[0, len(row.prompt_ids) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1)[torch.arange(len(row.completion_ids)), ids[len(row.prompt_ids) :]]


def importance_weight(old: torch.Tensor, row: TrainingRow, settings: LearnerSettings) -> torch.Tensor:
    difference, cap = old - torch.tensor(row.behavior_logprobs), settings.importance_cap
    match settings.importance_correction:
        case ImportanceCorrection.none:
            return torch.ones_like(old)
        case ImportanceCorrection.token_truncate:
            return torch.minimum(difference.exp(), torch.tensor(cap))
        case ImportanceCorrection.token_mask:
            return torch.where(difference.exp() <= cap, difference.exp(), 0.0)
        case ImportanceCorrection.sequence_truncate:
            return torch.minimum(difference.sum().exp(), torch.tensor(cap)).expand_as(old)
        case ImportanceCorrection.sequence_mask:
            whole = difference.sum().exp()
            return torch.where(whole <= cap, whole, 0.0).expand_as(old)


def token_losses(logprobs: torch.Tensor, old: torch.Tensor, row: TrainingRow, settings: LearnerSettings) -> torch.Tensor:
    advantage, weight = row.advantage, importance_weight(old, row, settings)
    ratio = (logprobs - old).exp()
    if settings.importance_level == "sequence":
        ratio = (logprobs - old).mean().exp().expand_as(logprobs)
    match settings.loss_type:
        case LossType.cispo:
            losses = -torch.clamp(ratio, max=1 + settings.clip_high).detach() * advantage * logprobs * weight
        case LossType.sapo:
            temperature = 1.0 if advantage > 0 else 1.05
            losses = -4 / temperature * torch.sigmoid(temperature * (ratio - 1)) * advantage * weight
        case LossType.vespo:
            k, rate = (2.0, 3.0) if advantage >= 0 else (3.0, 2.0)
            whole = ((logprobs - old).sum() + weight.log().sum()).exp().detach()
            losses = -torch.exp(rate * (1 - whole)) * whole**k * advantage * logprobs
        case _:
            clipped = torch.clamp(ratio, 1 - settings.clip_low, 1 + settings.clip_high)
            losses = -torch.minimum(ratio * advantage, clipped * advantage) * weight
    if settings.kl_coef:
        distance = torch.tensor(row.reference_logprobs) - logprobs
        losses = losses + settings.kl_coef * (distance.exp() - distance - 1)
    return losses


def step_loss(losses: Sequence[torch.Tensor], settings: LearnerSettings) -> torch.Tensor:
    num_tokens = sum(len(row) for row in losses)
    match settings.loss_type:
        case LossType.grpo | LossType.sapo:
            return torch.stack([row.mean() for row in losses]).mean()
        case LossType.luspo:
            return torch.stack([row.sum() for row in losses]).mean()
        case LossType.dr_grpo:
            return torch.cat(list(losses)).sum() / (len(losses) * settings.max_completion_tokens)
        case LossType.dapo | LossType.bnpo | LossType.cispo | LossType.vespo:
            return torch.cat(list(losses)).sum() / num_tokens


def train_plainly(model: Any, epochs: Sequence[Sequence[Microbatch]], settings: LearnerSettings) -> list[Mapping[str, float]]:
    """Loss and gradient norm of every optimiser step; `model` is trained in place."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(settings.adam_beta1, settings.adam_beta2), weight_decay=0.0
    )
    rows = {row.key: row for microbatch in epochs[0] for row in microbatch.rows}
    with torch.no_grad():
        old = {key: row_logprobs(model, row, settings.temperature) for key, row in rows.items()}
    steps: dict[int, list[TrainingRow]] = {}
    for epoch in epochs:
        for microbatch in epoch:
            steps.setdefault(microbatch.step, []).extend(microbatch.rows)
    found: list[Mapping[str, float]] = []
    for step_rows in steps.values():
        losses = [token_losses(row_logprobs(model, row, settings.temperature), old[row.key], row, settings) for row in step_rows]
        loss = step_loss(losses, settings)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.step()
        found.append({"train/loss": loss.item(), "train/grad_norm": norm.item()})
    return found
