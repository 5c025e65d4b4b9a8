"""Logprobs of whole answers: both sides of every pair under one model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from posttrain import policy
from posttrain.config_base import Dtype
from posttrain.errors import PolicyError
from posttrain.logprobs import token_logprobs
from posttrain.table_checks import list_lengths, row_label

SIDES = ("chosen_ids", "rejected_ids")
MAX_NAMED_PAIRS = 8


def pair_logprobs(
    pairs: pa.Table, directory: Path, dtype: Dtype, trust_remote_code: bool, description: str
) -> tuple[np.ndarray, np.ndarray]:
    """Sums of the token logprobs (nats, temperature 1) of the chosen and of the rejected answers, float64 of shape (num_pairs,).

    The two sides of a pair share the computation of their prompt.

    Args:
        pairs: PREFERENCES or REFERENCED, not empty.
        directory: the policy.
        dtype: what is computed in; the weights are held in float32, as the learner holds them.

    Raises:
        PolicyError: the policy is incomplete or altered, lacks an id of the pairs, or gives a logprob that is not finite.
    """
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = policy.load_model(directory, Dtype.float32.value, trust_remote_code).to(device)
    check_vocabulary(pairs, model, directory)
    prompts, chosen, rejected = (id_lists(pairs, name) for name in ("prompt_ids", *SIDES))
    with torch.autocast(device, torch.bfloat16, enabled=dtype is Dtype.bfloat16):  # as the learner computes
        found = token_logprobs(model, prompts * 2, chosen + rejected, 1.0, description=description)
    sums = np.array([values.sum(dtype=np.float64) for values in found]).reshape(2, -1)
    _check_finite(pairs, sums, directory)
    return sums[0], sums[1]


def id_lists(table: pa.Table, column: str) -> list[np.ndarray]:
    """The token ids of each row, views of one int32 array."""
    flat = pc.list_flatten(table[column]).to_numpy()
    return np.split(flat, np.cumsum(list_lengths(table, column))[:-1])


def check_vocabulary(pairs: pa.Table, model: Any, directory: Path) -> None:
    """Raises PolicyError, which names the pair, for an id that the model has no row for."""
    vocab_size: int = model.config.vocab_size
    for column in ("prompt_ids", *SIDES):
        largest = pc.max(pc.list_flatten(pairs[column])).as_py()
        if largest is not None and largest >= vocab_size:
            row = next(row for row, ids in enumerate(id_lists(pairs, column)) if (ids >= vocab_size).any())
            raise PolicyError(
                f"{directory}: pair {row_label(pairs, row)} has the id {largest} in {column}, the model {vocab_size} ids. "
                "The pairs were made with another tokenizer: prepare them with this policy's."
            )


def _check_finite(pairs: pa.Table, sums: np.ndarray, directory: Path) -> None:
    broken = np.flatnonzero(~np.isfinite(sums).all(axis=0))
    if len(broken):
        named = ", ".join(repr(pairs["pair_id"][int(row)].as_py()) for row in broken[:MAX_NAMED_PAIRS])
        more = f" and {len(broken) - MAX_NAMED_PAIRS} more" if len(broken) > MAX_NAMED_PAIRS else ""
        raise PolicyError(
            f"{directory}: the logprobs of pairs (pair_id) {named}{more} are not finite. "
            "The weights are broken, or overflow in this dtype: try float32."
        )
