"""The output head on scored tokens alone, one tile at a time: logits of [tokens, vocabulary] never exist whole.

A tile is some tokens by a part of the vocabulary: wide enough for matrix products at full speed, small enough to stay near
the cores. The parts' log-sum-exps are combined at the end, lse = log Σ_k exp(lse_k), so no running maximum is kept.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch

TILE_TOKENS = {"cpu": 1024, "cuda": 4096}
TILE_BYTES = {"cpu": 32 << 20, "cuda": 256 << 20}  # of float32 logits
EXTRAS = ("entropy", "is_top1", "log_sum_sq_probs")


@dataclass(frozen=True)
class TokenScores:
    """Values (S,) of the scored tokens at the temperature; only `logprobs` carry a gradient. Not asked for: None.

    logprobs (nats), entropy of the next-token distribution (nats), log_sum_sq_probs (log Σ p²) and mean_logits (over the
    vocabulary, divided by the temperature) are float32; is_top1 says whether the target is the likeliest token.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor | None = None
    mean_logits: torch.Tensor | None = None
    is_top1: torch.Tensor | None = None
    log_sum_sq_probs: torch.Tensor | None = None


def score_tokens(
    hidden_SD: torch.Tensor,
    weight_VD: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_S: torch.Tensor,
    temperature: float,
    extras: Collection[str] = (),
) -> TokenScores:
    """log-softmax of hidden · weightᵀ + bias at `temperature`, at the targets; float32 whatever the inputs' dtype.

    Under autocast the product is taken in autocast's dtype, as a linear layer would.

    Args:
        extras: names of the other fields of TokenScores that are wanted.
    """
    logprobs, *others = _HeadFunction.apply(hidden_SD, weight_VD, bias_V, targets_S, temperature, frozenset(extras))
    mean_logits = None
    if "mean_logits" in extras:
        with torch.no_grad(), torch.autocast(hidden_SD.device.type, enabled=False):
            mean_logits = hidden_SD.float() @ weight_VD.mean(0, dtype=torch.float32)
            mean_logits = (mean_logits if bias_V is None else mean_logits + bias_V.float().mean()) / temperature
    return TokenScores(logprobs, mean_logits=mean_logits, **dict(zip(EXTRAS, others, strict=True)))


class _HeadFunction(torch.autograd.Function):
    """Forward keeps one log-sum-exp for each token; backward computes the tiles again.

    With g the gradient of the logprobs and p the probabilities, d logits = g/T · (1[target] − p): the gradients of hidden and
    weight are products with p, scaled on the smaller side, plus one row of the other for each target.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        temperature: float,
        extras: frozenset[str],
    ) -> tuple[torch.Tensor | None, ...]:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        head = _Head(weight, bias, dtype, temperature)
        results = {
            name: torch.empty(len(targets), dtype=torch.bool if name == "is_top1" else torch.float32, device=hidden.device)
            for name in ("logprobs", "lse", *(extra for extra in EXTRAS if extra in extras))
        }
        with torch.autocast(device, enabled=False):
            for chunk in head.token_chunks(len(targets)):
                for name, values in _chunk_scores(head, hidden[chunk], targets[chunk], extras).items():
                    results[name][chunk] = values
        ctx.save_for_backward(hidden, weight, bias, targets, results.pop("lse"))
        ctx.dtype, ctx.temperature = dtype, temperature
        others = [results.get(name) for name in EXTRAS]
        ctx.mark_non_differentiable(*(values for values in others if values is not None))
        return results["logprobs"], *others

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, lse = ctx.saved_tensors
        head = _Head(weight, bias, ctx.dtype, ctx.temperature)
        sums = [
            torch.zeros(x.shape, dtype=torch.float32, device=x.device) if wanted else None
            for x, wanted in zip((hidden, weight, bias), ctx.needs_input_grad[:3], strict=True)
        ]
        with torch.autocast(hidden.device.type, enabled=False):
            for chunk in head.token_chunks(len(targets)):
                scale = (grads[0][chunk] / ctx.temperature)[:, None]
                _chunk_gradients(head, hidden[chunk], targets[chunk], lse[chunk], scale, (chunk, sums))
        total = (None if x is None else x.to(like.dtype) for x, like in zip(sums, (hidden, weight, bias), strict=True))
        return *total, None, None, None


@dataclass(frozen=True)
class _Head:
    weight: torch.Tensor
    bias: torch.Tensor | None
    dtype: torch.dtype
    temperature: float
    _memory: dict[str, torch.Tensor] = field(default_factory=dict)  # one tile, used again and again: fresh pages are slow

    def token_chunks(self, num_tokens: int) -> list[slice]:
        return _even_slices(num_tokens, TILE_TOKENS.get(self.weight.device.type, TILE_TOKENS["cuda"]))

    def vocabulary_parts(self, num_tokens: int) -> list[slice]:
        tile_bytes = TILE_BYTES.get(self.weight.device.type, TILE_BYTES["cuda"])
        return _even_slices(len(self.weight), tile_bytes // (4 * num_tokens))

    def buffer(self, name: str, num_tokens: int, part: slice) -> torch.Tensor:
        """Float32 (num_tokens, part); what stood in the last one of that name is lost."""
        size = num_tokens * (part.stop - part.start)
        if name not in self._memory or self._memory[name].numel() < size:
            self._memory[name] = torch.empty(size, dtype=torch.float32, device=self.weight.device)
        return self._memory[name][:size].view(num_tokens, -1)

    def logits(self, hidden: torch.Tensor, part: slice) -> torch.Tensor:
        """Float32 logits over a part of the vocabulary, divided by the temperature, in the buffer."""
        logits = self.buffer("logits", len(hidden), part)
        weight = self.weight[part].to(self.dtype)
        if self.dtype == torch.float32:
            torch.mm(hidden.float(), weight.t(), out=logits)
        else:
            logits.copy_(hidden.to(self.dtype) @ weight.t())
        if self.bias is not None:
            logits.add_(self.bias[part].to(self.dtype))
        return logits if self.temperature == 1 else logits.div_(self.temperature)


def _even_slices(total: int, most: int) -> list[slice]:
    size = math.ceil(total / max(1, math.ceil(total / max(1, most))))
    return [slice(start, min(start + size, total)) for start in range(0, total, max(1, size))]


def _chunk_scores(head: _Head, hidden: torch.Tensor, targets: torch.Tensor, extras: Collection[str]) -> dict[str, torch.Tensor]:
    """logprobs, lse and what is in `extras`, from what each part of the vocabulary (K) says of each token."""
    target_logits = hidden.new_full((len(hidden),), torch.nan, dtype=torch.float32)  # stays where no part holds the target
    columns: dict[str, list[torch.Tensor]] = {}
    for part in head.vocabulary_parts(len(hidden)):
        logits = head.logits(hidden, part)
        here = (targets >= part.start) & (targets < part.stop)
        picked = logits.gather(-1, (targets - part.start).clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
        target_logits = torch.where(here, picked, target_logits)
        for name, values in _part_statistics(head, logits, part, extras).items():
            columns.setdefault(name, []).append(values)
    parts = {name: torch.stack(values) for name, values in columns.items()}
    lse = torch.logsumexp(parts["lse"], 0)
    log_share = parts["lse"] - lse  # of the probability that stands in each part
    share = log_share.exp()
    scores = {"logprobs": target_logits - lse, "lse": lse}
    if "is_top1" in extras:
        winner = parts["highest"].argmax(0, keepdim=True)
        scores["is_top1"] = parts["likeliest"].gather(0, winner)[0] == targets
    if "entropy" in extras:
        scores["entropy"] = (share * (parts["entropy"] - log_share)).sum(0)
    if "log_sum_sq_probs" in extras:
        scores["log_sum_sq_probs"] = (share.square() * parts["sum_sq"]).sum(0).log()
    return scores


def _part_statistics(head: _Head, logits: torch.Tensor, part: slice, extras: Collection[str]) -> dict[str, torch.Tensor]:
    """lse, highest logit and its id, entropy and Σ p² of one part as if it were all; the logits are overwritten."""
    found: dict[str, torch.Tensor] = {}
    if "is_top1" in extras:
        found["highest"], index = logits.max(-1)
        found["likeliest"] = index + part.start
    # read off the highest logit: a far lower one would cost the digits, and one of -inf says nothing
    highest = found["highest"] if "highest" in found else logits.amax(-1)
    logprobs = torch.log_softmax(logits, -1, out=logits)
    found["lse"] = highest - logprobs.amax(-1)
    if "entropy" in extras or "log_sum_sq_probs" in extras:
        probabilities = torch.exp(logprobs, out=head.buffer("probabilities", len(logits), part))
        found["entropy"] = -logprobs.mul_(probabilities).sum(-1)
        found["sum_sq"] = torch.linalg.vector_norm(probabilities, dim=-1).square()
    return found


def _chunk_gradients(
    head: _Head,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    lse: torch.Tensor,
    scale: torch.Tensor,
    into: tuple[slice, list[torch.Tensor | None]],
) -> None:
    """Adds the gradients of one chunk of tokens to the sums for hidden, weight and bias."""
    chunk, (grad_hidden, grad_weight, grad_bias) = into
    scaled_hidden = hidden.float() * scale
    expected = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)  # Σ_v p_v · weight_v
    for part in head.vocabulary_parts(len(hidden)):
        probabilities = head.logits(hidden, part).sub_(lse[:, None]).exp_()
        if grad_hidden is not None:
            _add_product(expected, probabilities, head.weight[part], head.dtype)
        if grad_weight is not None:
            _add_product(grad_weight[part], probabilities.t(), -scaled_hidden, head.dtype)
        if grad_bias is not None:
            grad_bias[part] -= (probabilities * scale).sum(0)
    if grad_hidden is not None:
        grad_hidden[chunk] = (head.weight[targets].float() - expected) * scale
    if grad_weight is not None:
        grad_weight.index_add_(0, targets, scaled_hidden)
    if grad_bias is not None:
        grad_bias.index_add_(0, targets, scale[:, 0])


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> None:
    """total += left · right, summed in float32 also where the product is one of shorter numbers."""
    if total.is_cuda and dtype != torch.float32:
        torch.addmm(total, left.to(dtype), right.to(dtype), out_dtype=torch.float32, out=total)
    else:
        total.addmm_(left, right.float())
