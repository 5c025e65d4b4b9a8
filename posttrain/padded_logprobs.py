"""The plain way to logprobs, for models that cannot be packed: right-padded batches and whole logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from posttrain.logprob_head import TokenScores
from posttrain.packing import Ids

MAX_BATCH_TOKENS = 16_384
MAX_BATCH_LOGITS = 1 << 26  # float32 values that exist at once: 256 MiB


def batch_rows(prompt_ids: Sequence[Ids], completion_ids: Sequence[Ids], vocab_size: int) -> list[list[int]]:
    """Row numbers of each batch: rows of like length together, bounded in tokens and in logits; rows without tokens in none."""
    lengths = [(len(prompt), len(completion)) for prompt, completion in zip(prompt_ids, completion_ids, strict=True)]
    batches: list[list[int]] = []
    for row in sorted((row for row, (_, tokens) in enumerate(lengths) if tokens), key=lambda row: lengths[row]):
        grown = [*batches[-1], row] if batches else [row]
        width = max(sum(lengths[item]) for item in grown)
        scored_width = width - min(lengths[item][0] for item in grown) + 1
        if batches and len(grown) * width <= MAX_BATCH_TOKENS and len(grown) * scored_width * vocab_size <= MAX_BATCH_LOGITS:
            batches[-1] = grown
        else:
            batches.append([row])
    return batches


def score_padded(
    model: Any, prompts: Sequence[Ids], completions: Sequence[Ids], temperature: float, extras: Sequence[str] = ()
) -> TokenScores:
    """Scores of the completions' tokens, row after row, by one forward of the whole model.

    Rows are padded on the right, so positions count from 0 and causality hides the padding; the log-softmax is taken in
    float32, and the head is applied from the first completion position on.
    """
    import torch

    lengths = [(len(prompt), len(completion)) for prompt, completion in zip(prompts, completions, strict=True)]
    width, first = max(p + c for p, c in lengths), min(p for p, _ in lengths) - 1
    padded, real = np.zeros((len(lengths), width), np.int64), np.zeros((len(lengths), width), np.int64)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        padded[row, : sum(lengths[row])] = [*prompt, *completion]
        real[row, : sum(lengths[row])] = 1
    ids_BT, mask_BT = (torch.from_numpy(array).to(model.device) for array in (padded, real))
    keep = torch.arange(first, width - 1, device=model.device)  # the logits at t score the token at t + 1
    logits_BTV = model(input_ids=ids_BT, attention_mask=mask_BT, logits_to_keep=keep, use_cache=False).logits
    scored = list(_scored(lengths, first))
    rows, steps = (torch.tensor(column, device=model.device) for column in zip(*scored, strict=True))
    logits_SV = logits_BTV[rows, steps].float() / temperature
    return _scores(logits_SV, ids_BT[rows, steps + first + 1], extras)


def _scored(lengths: Sequence[tuple[int, int]], first: int) -> Iterator[tuple[int, int]]:
    for row, (prompt, completion) in enumerate(lengths):
        for step in range(completion):
            yield row, prompt - 1 - first + step


def _scores(logits_SV: Any, targets_S: Any, extras: Sequence[str]) -> TokenScores:
    import torch

    logprobs_SV = torch.log_softmax(logits_SV, -1)
    with torch.no_grad():
        probabilities_SV = logprobs_SV.exp()
        everything = {
            "entropy": -(probabilities_SV * logprobs_SV).sum(-1),
            "mean_logits": logits_SV.mean(-1),
            "is_top1": logits_SV.argmax(-1) == targets_S,
            "log_sum_sq_probs": probabilities_SV.square().sum(-1).log(),
        }
    return TokenScores(logprobs_SV.gather(-1, targets_S[:, None])[:, 0], **{name: everything[name] for name in extras})
