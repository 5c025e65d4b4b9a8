"""Teacher-forced logprobs of recorded completions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from posttrain import policy, tables
from posttrain.config import Dtype, LearnerSettings
from posttrain.grpo_rows import left_out_reasons
from posttrain.progress import progress

MAX_BATCH_TOKENS = 16_384
MAX_BATCH_LOGITS = 1 << 26  # float32 values that exist at once: 256 MiB

Ids = Sequence[int] | np.ndarray


def token_logprobs(model: Any, prompt_ids: Sequence[Ids], completion_ids: Sequence[Ids], temperature: float) -> list[np.ndarray]:
    """log p(token | prompt, tokens before) of every completion token, at `temperature`.

    Rows are padded on the right, so positions count from 0 and causality hides the padding; the log-softmax is taken in
    float32, and the head is applied from the first completion position on.

    Args:
        model: transformers causal language model; its device and dtype are used, its mode is left alone.
        prompt_ids: one non-empty list of ids for each row.
        completion_ids: one list of ids for each row, may be empty.

    Returns:
        float32 arrays in the order of the rows, each as long as its completion.
    """
    results = [np.zeros(0, np.float32)] * len(prompt_ids)
    for rows in _batches([len(ids) for ids in prompt_ids], [len(ids) for ids in completion_ids], model.config.vocab_size):
        values = _batch_logprobs(model, [prompt_ids[row] for row in rows], [completion_ids[row] for row in rows], temperature)
        for row, value in zip(rows, values, strict=True):
            results[row] = value
    return results


def add_reference_logprobs(scored: pa.Table, reference_directory: Path, settings: LearnerSettings) -> pa.Table:
    """SCORED with `reference_logprobs` on the rows that will be trained on; the others stay null.

    With kl_coef 0 the table comes back unchanged and no model is loaded.

    Raises:
        ContractError: the table breaks its contract.
        PolicyError: the reference directory is incomplete or altered.
    """
    tables.validate(scored, "SCORED")
    kept = [row for row, reason in enumerate(left_out_reasons(scored, settings)) if reason is None]
    if not settings.kl_coef or not kept:
        return scored
    values: list[np.ndarray | None] = [None] * scored.num_rows
    prompts, completions = (scored[name].take(kept).to_pylist() for name in ("prompt_ids", "completion_ids"))
    for row, logprobs in zip(kept, _reference_logprobs(reference_directory, prompts, completions, settings), strict=True):
        values[row] = logprobs
    column = scored.schema.get_field_index("reference_logprobs")
    return tables.validate(scored.set_column(column, tables.SCORED.field(column), pa.array(values, tables.LOGPROBS)), "SCORED")


def _reference_logprobs(
    directory: Path, prompts: Sequence[Ids], completions: Sequence[Ids], settings: LearnerSettings
) -> list[np.ndarray]:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = policy.load_model(directory, Dtype.float32.value, settings.trust_remote_code).to(device)
    with torch.autocast(device, torch.bfloat16, enabled=settings.dtype is Dtype.bfloat16):  # as the learner computes
        return token_logprobs(model, prompts, completions, settings.temperature)


def _batches(prompt_lengths: Sequence[int], completion_lengths: Sequence[int], vocab_size: int) -> Iterator[list[int]]:
    """Row numbers of each batch: rows of like length together, bounded in tokens and in logits."""
    pending = sorted(
        (row for row, length in enumerate(completion_lengths) if length),
        key=lambda row: (prompt_lengths[row], completion_lengths[row]),
    )
    batches: list[list[int]] = [[]]
    for row in pending:
        grown = [*batches[-1], row]
        width = max(prompt_lengths[item] + completion_lengths[item] for item in grown)
        scored_width = width - min(prompt_lengths[item] for item in grown) + 1
        fits = len(grown) * width <= MAX_BATCH_TOKENS and len(grown) * scored_width * vocab_size <= MAX_BATCH_LOGITS
        if fits or not batches[-1]:
            batches[-1] = grown
        else:
            batches.append([row])
    if pending:
        yield from progress(batches, "reference logprobs", len(batches), unit="batch")


def _batch_logprobs(model: Any, prompts: Sequence[Ids], completions: Sequence[Ids], temperature: float) -> list[np.ndarray]:
    import torch

    lengths = [(len(prompt), len(completion)) for prompt, completion in zip(prompts, completions, strict=True)]
    width, first = max(p + c for p, c in lengths), min(p for p, _ in lengths) - 1
    padded, real = np.zeros((len(lengths), width), np.int64), np.zeros((len(lengths), width), np.int64)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        padded[row, : sum(lengths[row])] = [*prompt, *completion]
        real[row, : sum(lengths[row])] = 1
    ids_BT, mask_BT = (torch.from_numpy(array).to(model.device) for array in (padded, real))
    with torch.inference_mode():
        keep = torch.arange(first, width - 1, device=model.device)  # the logits at t score the token at t + 1
        logits_BTV = model(input_ids=ids_BT, attention_mask=mask_BT, logits_to_keep=keep, use_cache=False).logits
        all_BTV = torch.log_softmax(logits_BTV.float() / temperature, dim=-1)
        picked_BT = all_BTV.gather(-1, ids_BT[:, first + 1 :, None])[..., 0].cpu().numpy()
    return [picked_BT[row, p - 1 - first : p - 1 - first + c].copy() for row, (p, c) in enumerate(lengths)]
