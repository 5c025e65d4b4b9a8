"""What must hold between the columns and rows of a table, beyond names and types."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from posttrain.errors import ContractError

OUTCOMES = ("pass", "fail", "timeout", "unparseable", "error")
FINISH_REASONS = ("stop", "length", "aborted")


def list_lengths(table: pa.Table, column: str) -> np.ndarray:
    """Lengths of a list column, int64 of shape (num_rows,); a null list counts -1."""
    return pc.fill_null(pc.list_value_length(table[column]), -1).to_numpy().astype(np.int64)


def row_label(table: pa.Table, row: int) -> str:
    """The row's number with its keys, as errors name it."""
    parts = [
        f"{column}={table[column][row].as_py()!r}" for column in ("prompt_id", "sample_index") if column in table.column_names
    ]
    return f"{row}" + (f" ({', '.join(parts)})" if parts else "")


def _check_prompts(table: pa.Table) -> None:
    _check_unique(table, "PROMPTS", ["prompt_id"])
    _check_none(table, "PROMPTS", "prompt_ids", list_lengths(table, "prompt_ids") == 0, "the prompt has no tokens")


def _check_rollouts(table: pa.Table, name: str = "ROLLOUTS") -> None:
    _check_unique(table, name, ["prompt_id", "sample_index"])
    lengths = list_lengths(table, "completion_ids")
    _check_lengths(table, name, "behavior_logprobs", lengths)
    _check_logprobs(table, name, "behavior_logprobs")
    _check_member(table, name, "finish_reason", FINISH_REASONS)
    for row, (runs, length) in enumerate(zip(table["policy_versions"].to_pylist(), lengths, strict=True)):
        if sum(run["num_tokens"] for run in runs) != length:
            why = f"the runs must cover the completion's {length} tokens"
            raise ContractError(name, "policy_versions", row_label(table, row), runs, why)


def _check_verdicts(table: pa.Table, name: str = "VERDICTS") -> None:
    _check_unique(table, name, ["prompt_id", "sample_index"])
    _check_member(table, name, "outcome", OUTCOMES)
    rewards = table["reward"].to_numpy()
    judged = np.asarray(table["reward"].is_valid())
    _check_none(table, name, "reward", judged & ~np.isfinite(rewards.astype(float)), "the reward must be finite, or null")
    errors = np.asarray(pc.equal(table["outcome"], "error"))
    _check_none(table, name, "reward", errors & judged, "a verifier error carries no reward")


def _check_scored(table: pa.Table) -> None:
    _check_rollouts(table, "SCORED")
    _check_verdicts(table, "SCORED")
    advantages = table["advantage"].to_numpy()
    known = np.asarray(table["advantage"].is_valid())
    _check_none(table, "SCORED", "advantage", known & ~np.isfinite(advantages.astype(float)), "the advantage must be finite")
    _check_lengths(table, "SCORED", "reference_logprobs", list_lengths(table, "completion_ids"))
    _check_logprobs(table, "SCORED", "reference_logprobs")


def _check_metrics(table: pa.Table) -> None:
    values = table["value"].to_numpy().astype(float)
    _check_none(table, "METRICS", "value", ~np.isfinite(values), "a metric must be finite; leave the point out instead")


def _check_unique(table: pa.Table, name: str, columns: list[str]) -> None:
    seen: set[tuple[Any, ...]] = set()
    for row, key in enumerate(zip(*(table[column].to_pylist() for column in columns), strict=True)):
        if key in seen:
            raise ContractError(name, columns[-1], row_label(table, row), key, "the key appears twice")
        seen.add(key)


def _check_member(table: pa.Table, name: str, column: str, allowed: Sequence[str]) -> None:
    wrong = pc.invert(pc.is_in(table[column], value_set=pa.array(allowed)))
    _check_none(table, name, column, np.asarray(wrong), f"the value must be one of {', '.join(allowed)}")


def _check_lengths(table: pa.Table, name: str, column: str, lengths: np.ndarray) -> None:
    found = list_lengths(table, column)
    for row in np.flatnonzero((found >= 0) & (found != lengths))[:1]:
        why = f"it has {found[row]} entries for a completion of {lengths[row]} tokens"
        raise ContractError(name, column, row_label(table, int(row)), None, why)


def _check_logprobs(table: pa.Table, name: str, column: str) -> None:
    for row, values in enumerate(table[column]):
        if not values.is_valid:
            continue
        flat = values.values
        numbers = flat.to_numpy(zero_copy_only=False)
        if flat.null_count or not np.all(np.isfinite(numbers)) or np.any(numbers > 1e-3):
            bad = next(v for v in flat.to_pylist() if v is None or not math.isfinite(v) or v > 1e-3)
            raise ContractError(name, column, row_label(table, row), bad, "a logprob must be finite and at most 0")


def _check_none(table: pa.Table, name: str, column: str, wrong: np.ndarray, why: str) -> None:
    for row in np.flatnonzero(wrong)[:1]:
        raise ContractError(name, column, row_label(table, int(row)), table[column][int(row)].as_py(), why)


CHECKS: Mapping[str, Callable[[pa.Table], None]] = {
    "PROMPTS": _check_prompts,
    "ROLLOUTS": _check_rollouts,
    "VERDICTS": _check_verdicts,
    "SCORED": _check_scored,
    "METRICS": _check_metrics,
}
