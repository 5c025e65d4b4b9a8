"""What must hold between the columns and rows of a table, beyond names and types.

The values of a list column are checked as one flat array: a shard may hold 30 million tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from posttrain.errors import ContractError

OUTCOMES = ("pass", "fail", "timeout", "unparseable", "error")
FINISH_REASONS = ("stop", "length", "aborted")
# No sampler draws a token of probability e^-1000, which even float64 holds for 0: servers write such numbers (-9999) where
# JSON has no -infinity (vllm-project/vllm#4149).
SMALLEST_LOGPROB = -1000.0
KEY_COLUMNS = ("pair_id", "prompt_id", "sample_index")


def list_lengths(table: pa.Table, column: str) -> np.ndarray:
    """Lengths of a list column, int64 of shape (num_rows,); a null list counts -1."""
    return pc.fill_null(pc.list_value_length(table[column]), -1).to_numpy().astype(np.int64)


def row_label(table: pa.Table, row: int) -> str:
    """The row's number with its keys, as errors name it."""
    parts = [f"{column}={table[column][row].as_py()!r}" for column in KEY_COLUMNS if column in table.column_names]
    return f"{row}" + (f" ({', '.join(parts)})" if parts else "")


def check_groups(rollouts: pa.Table, group_size: int) -> None:
    """Checks that every prompt of a valid ROLLOUTS table has the samples 0 to group_size - 1, each once.

    Raises:
        ContractError: names the first row of a prompt with other samples.
    """
    why = f"a sample index of a group of {group_size} is 0 to {group_size - 1}"
    indices = rollouts["sample_index"].to_numpy()
    _check_none(rollouts, "ROLLOUTS", "sample_index", (indices < 0) | (indices >= group_size), why)
    prompt_ids = rollouts["prompt_id"].to_pylist()
    counts = {item["values"]: item["counts"] for item in pc.value_counts(rollouts["prompt_id"]).to_pylist()}
    incomplete = np.array([counts[prompt_id] != group_size for prompt_id in prompt_ids], dtype=bool)
    _check_none(rollouts, "ROLLOUTS", "prompt_id", incomplete, f"the prompt's group is incomplete: {group_size} rows are wanted")


def _check_prompts(table: pa.Table) -> None:
    _check_unique(table, "PROMPTS", ["prompt_id"])
    _check_prompt_ids(table, "PROMPTS")
    _check_none(table, "PROMPTS", "messages", list_lengths(table, "messages") == 0, "the prompt has no messages")
    for part in ("role", "content"):
        wrong = _flat(table, "messages", part).is_null()
        _check_items(table, "PROMPTS", "messages", np.asarray(wrong), f"a message has no {part}")


def _check_rollouts(table: pa.Table, name: str = "ROLLOUTS") -> None:
    _check_unique(table, name, ["prompt_id", "sample_index"])
    _check_none(table, name, "sample_index", table["sample_index"].to_numpy() < 0, "the sample index counts from 0")
    _check_prompt_ids(table, name)
    _check_token_ids(table, name, "completion_ids")
    lengths = list_lengths(table, "completion_ids")
    _check_lengths(table, name, "behavior_logprobs", lengths)
    _check_logprobs(table, name, "behavior_logprobs")
    _check_sampled(table, name)
    _check_member(table, name, "finish_reason", FINISH_REASONS)
    _check_policy_versions(table, name, lengths)


def _check_verdicts(table: pa.Table, name: str = "VERDICTS") -> None:
    _check_unique(table, name, ["prompt_id", "sample_index"])
    _check_member(table, name, "outcome", OUTCOMES)
    rewards = table["reward"].to_numpy()
    judged = np.asarray(table["reward"].is_valid())
    _check_none(table, name, "reward", judged & ~np.isfinite(rewards.astype(float)), "the reward must be finite, or null")
    errors = np.asarray(pc.equal(table["outcome"], "error"))
    _check_none(table, name, "reward", errors & judged, "a verifier error carries no reward")
    seconds = table["seconds"].to_numpy().astype(float)
    _check_none(table, name, "seconds", ~(np.isfinite(seconds) & (seconds >= 0)), "a duration must be finite and at least 0")


def _check_scored(table: pa.Table) -> None:
    _check_rollouts(table, "SCORED")
    _check_verdicts(table, "SCORED")
    advantages = table["advantage"].to_numpy()
    known = np.asarray(table["advantage"].is_valid())
    _check_none(table, "SCORED", "advantage", known & ~np.isfinite(advantages.astype(float)), "the advantage must be finite")
    unjudged = np.asarray(table["reward"].is_null())
    _check_none(table, "SCORED", "advantage", known & unjudged, "a completion without a reward has no advantage")
    _check_lengths(table, "SCORED", "reference_logprobs", list_lengths(table, "completion_ids"))
    _check_logprobs(table, "SCORED", "reference_logprobs")


def _check_preferences(table: pa.Table, name: str = "PREFERENCES") -> None:
    _check_unique(table, name, ["pair_id"])
    _check_prompt_ids(table, name)
    for side in ("chosen_ids", "rejected_ids"):
        _check_token_ids(table, name, side)
        _check_none(table, name, side, list_lengths(table, side) == 0, "the answer has no tokens: nothing is learned from it")
    same = [chosen == rejected for chosen, rejected in zip(table["chosen_ids"], table["rejected_ids"], strict=True)]
    _check_none(table, name, "rejected_ids", np.array(same, dtype=bool), "chosen and rejected are identical: nothing to prefer")
    margins = table["margin"].to_numpy().astype(float)
    known = np.asarray(table["margin"].is_valid())
    _check_none(table, name, "margin", known & ~np.isfinite(margins), "the margin must be finite, or null")


def _check_referenced(table: pa.Table) -> None:
    _check_preferences(table, "REFERENCED")
    sides = ("reference_chosen_logprob", "reference_rejected_logprob")
    chosen, rejected = (table[column].to_numpy().astype(float) for column in sides)
    for column, values in zip(sides, (chosen, rejected), strict=True):
        wrong = ~(np.isfinite(values) & (values <= 1e-3))
        _check_none(table, "REFERENCED", column, wrong, "the reference logprob of an answer must be finite and at most 0")
    never = (chosen == 0) & (rejected == 0)  # a cache that was filled with zeros (allenai/open-instruct#1182)
    _check_none(table, "REFERENCED", sides[0], never, "both sides are exactly 0: the reference was never computed")


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


def _check_prompt_ids(table: pa.Table, name: str) -> None:
    _check_none(table, name, "prompt_ids", list_lengths(table, "prompt_ids") == 0, "the prompt has no tokens")
    _check_token_ids(table, name, "prompt_ids")


def _check_token_ids(table: pa.Table, name: str, column: str) -> None:
    ids = _flat(table, column)
    _check_items(table, name, column, _missing_or(ids, lambda numbers: numbers < 0), "a token id must be an integer of 0 or more")


def _check_logprobs(table: pa.Table, name: str, column: str) -> None:
    wrong = _missing_or(_flat(table, column), lambda numbers: ~(np.isfinite(numbers) & (numbers <= 1e-3)))
    _check_items(table, name, column, wrong, "a logprob must be finite and at most 0")


def _check_sampled(table: pa.Table, name: str) -> None:
    """Of sampled tokens only: the reference may find a completion of another policy as unlikely as it likes."""
    numbers = _flat(table, "behavior_logprobs").to_numpy(zero_copy_only=False)
    why = f"below {SMALLEST_LOGPROB:g} it is not a logprob but a sentinel: no sampler draws such a token; write null for the row"
    _check_items(table, name, "behavior_logprobs", numbers < SMALLEST_LOGPROB, why)


def _check_policy_versions(table: pa.Table, name: str, lengths: np.ndarray) -> None:
    for part in ("version", "num_tokens"):
        wrong = _missing_or(_flat(table, "policy_versions", part), lambda numbers: numbers < 0)
        _check_items(table, name, "policy_versions", wrong, f"{part} must be an integer of 0 or more")
    num_tokens = _flat(table, "policy_versions", "num_tokens").to_numpy(zero_copy_only=False)
    before = np.concatenate([[0], np.cumsum(num_tokens, dtype=np.int64)])
    ends = np.cumsum(list_lengths(table, "policy_versions"))
    covered = np.diff(before[ends], prepend=0)
    for row in np.flatnonzero(covered != lengths)[:1]:
        why = f"the runs must cover the completion's {lengths[row]} tokens"
        runs = table["policy_versions"][int(row)].as_py()
        raise ContractError(name, "policy_versions", row_label(table, int(row)), runs, why)


def _flat(table: pa.Table, column: str, part: str | None = None) -> pa.Array:
    """The items of all lists of a column in one array, or of one field of these items; a null list has none."""
    items = pc.list_flatten(table[column].combine_chunks())
    return items if part is None else pc.struct_field(items, part)


def _missing_or(items: pa.Array, is_wrong: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """For every item whether it is null or wrong; bool of shape (num_items,)."""
    if items.null_count:
        return np.asarray(items.is_null())
    return is_wrong(items.to_numpy(zero_copy_only=False))


def _check_items(table: pa.Table, name: str, column: str, wrong: np.ndarray, why: str) -> None:
    """Raises for the first wrong item of a list column; `wrong` has one bool per item of all lists."""
    if not wrong.any():
        return
    item = int(wrong.argmax())
    ends = np.cumsum(np.maximum(list_lengths(table, column), 0))
    row = int(np.searchsorted(ends, item, side="right"))
    values = table[column][row].as_py()
    place = item - int(ends[row]) + len(values)
    raise ContractError(name, column, row_label(table, row), values[place], f"{why} (item {place})")


def _check_none(table: pa.Table, name: str, column: str, wrong: np.ndarray, why: str) -> None:
    for row in np.flatnonzero(wrong)[:1]:
        raise ContractError(name, column, row_label(table, int(row)), table[column][int(row)].as_py(), why)


CHECKS: Mapping[str, Callable[[pa.Table], None]] = {
    "PROMPTS": _check_prompts,
    "ROLLOUTS": _check_rollouts,
    "VERDICTS": _check_verdicts,
    "SCORED": _check_scored,
    "PREFERENCES": _check_preferences,
    "REFERENCED": _check_referenced,
    "METRICS": _check_metrics,
}
