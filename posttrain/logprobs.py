"""Teacher-forced logprobs of recorded completions: the one kernel of learners, references, fingerprints and evaluation.

Rows are packed (posttrain.packing), so that a shared prompt is computed once and nothing is padding; the head is applied to
scored tokens only, in chunks (posttrain.logprob_head). Models that cannot be packed take the padded way and say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from posttrain import policy, tables
from posttrain.config import Dtype, LearnerSettings
from posttrain.grpo_rows import left_out_reasons
from posttrain.packing import MAX_PACK_TOKENS, Ids, Pack, pack_rows
from posttrain.progress import progress

if TYPE_CHECKING:
    from posttrain.logprob_head import TokenScores

Item = TypeVar("Item")


def token_logprobs(
    model: Any,
    prompt_ids: Sequence[Ids],
    completion_ids: Sequence[Ids],
    temperature: float,
    *,
    max_pack_tokens: int = MAX_PACK_TOKENS,
    description: str = "logprobs",
) -> list[np.ndarray]:
    """log p(token | prompt, tokens before) of every completion token, at `temperature`.

    Args:
        model: transformers causal language model or a PEFT model of one; its device and dtype (or autocast's) are used, its
            mode is left alone.
        prompt_ids: one non-empty list of ids for each row. Rows with equal prompts share its computation.
        completion_ids: one list of ids for each row, may be empty.
        max_pack_tokens: input tokens of one forward pass.
        description: what the progress bar says.

    Returns:
        float32 arrays in the order of the rows, each as long as its completion. The log-softmax is taken in float32.

    Raises:
        ValueError: a prompt is empty.
    """
    import torch

    results = [np.zeros(0, np.float32)] * len(prompt_ids)
    with torch.no_grad():  # not inference mode: what a model keeps for later may be needed in training
        for rows, scores in score_rows(
            model, prompt_ids, completion_ids, temperature, max_pack_tokens=max_pack_tokens, description=description
        ):
            bounds = np.cumsum([len(completion_ids[row]) for row in rows])[:-1]
            for row, values in zip(rows, np.split(scores.logprobs.cpu().numpy(), bounds), strict=True):
                results[row] = values.copy()
    return results


def score_rows(
    model: Any,
    prompt_ids: Sequence[Ids],
    completion_ids: Sequence[Ids],
    temperature: float,
    *,
    extras: Sequence[str] = (),
    max_pack_tokens: int = MAX_PACK_TOKENS,
    description: str | None = None,
) -> Iterator[tuple[Sequence[int], TokenScores]]:
    """The kernel in tensors: row numbers and the scores of their completions, row after row, one forward pass at a time.

    Logprobs carry a gradient where torch has gradients enabled; with gradient checkpointing, `packed_attention(model)` must
    be open over forward and backward. Rows without completion tokens do not appear.

    Args:
        extras: fields of TokenScores that are wanted besides the logprobs.

    Raises:
        ValueError: a prompt is empty.
    """
    rows = range(len(prompt_ids))
    packs = pack_rows(prompt_ids, completion_ids, max_pack_tokens)
    if not _can_pack(model):
        yield from _padded(model, rows, prompt_ids, completion_ids, temperature, extras, description)
        return
    for pack in _shown(packs, description):
        scores = _packed(model, pack, temperature, extras)
        if scores is None:
            yield from _padded(model, pack.rows, prompt_ids, completion_ids, temperature, extras, None)
        else:
            yield pack.rows, scores


def _can_pack(model: Any) -> bool:
    from posttrain.packed_model import why_not_packed

    return why_not_packed(model) is None


def _packed(model: Any, pack: Pack, temperature: float, extras: Sequence[str]) -> TokenScores | None:
    """None where this very pack cannot be computed; the log then says why."""
    from posttrain.packed_attention import PackingError
    from posttrain.packed_model import score_pack, warn_padded

    try:
        return score_pack(model, pack, temperature, extras)
    except PackingError as error:
        warn_padded(model, str(error))
        return None


def _padded(
    model: Any,
    rows: Sequence[int],
    prompt_ids: Sequence[Ids],
    completion_ids: Sequence[Ids],
    temperature: float,
    extras: Sequence[str],
    description: str | None,
) -> Iterator[tuple[Sequence[int], TokenScores]]:
    from posttrain.padded_logprobs import batch_rows, score_padded

    prompts, completions = ([column[row] for row in rows] for column in (prompt_ids, completion_ids))
    for batch in _shown(batch_rows(prompts, completions, model.config.vocab_size), description):
        members = [prompts[number] for number in batch], [completions[number] for number in batch]
        yield [rows[number] for number in batch], score_padded(model, *members, temperature, extras)


def _shown(items: Sequence[Item], description: str | None) -> Iterable[Item]:
    return progress(items, description, len(items), unit="batch") if description else items


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
        return token_logprobs(model, prompts, completions, settings.temperature, description="reference logprobs")
