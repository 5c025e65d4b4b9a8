"""What must hold between the columns and rows of a table, beyond names and types.

The values of a list column are checked as one flat array: a shard may hold 30 million tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from posttrain.errors import ContractError

OUTCOMES = ("pass", "fail", "timeout", "unparseable", "error", "abstain")
UNJUDGED = ("error", "abstain")  # these carry no reward
FINISH_REASONS = ("stop", "length", "aborted")
# No sampler draws a token of probability e^-1000, which even float64 holds for 0: servers write such numbers (-9999) where
# JSON has no -infinity (vllm-project/vllm#4149).
SMALLEST_LOGPROB = -1000.0
MAX_LOGPROB = 1e-3  # 0, and what rounding adds to it
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


def _check_key(table: pa.Table, name: str, columns: list[str]) -> None:
    if table.select(columns).group_by(columns).aggregate([]).num_rows == table.num_rows:
        return
    seen: set[tuple[Any, ...]] = set()
    for row, key in enumerate(zip(*(table[column].to_pylist() for column in columns), strict=True)):
        if key in seen:
            raise ContractError(name, columns[-1], row_label(table, row), key, "the key appears twice")
        seen.add(key)


def _check_messages(table: pa.Table, name: str) -> None:
    _check_none(table, name, "messages", list_lengths(table, "messages") == 0, "the prompt has no messages")
    for part in ("role", "content"):
        wrong = _flat(table, "messages", part).is_null()
        _check_items(table, name, "messages", np.asarray(wrong), f"a message has no {part}")


def _check_sample_index(table: pa.Table, name: str) -> None:
    _check_none(table, name, "sample_index", table["sample_index"].to_numpy() < 0, "the sample index counts from 0")


def _check_errors(table: pa.Table, name: str) -> None:
    unjudged = np.asarray(pc.is_in(table["outcome"], value_set=pa.array(UNJUDGED)))
    rewarded = np.asarray(table["reward"].is_valid())
    _check_none(table, name, "reward", unjudged & rewarded, "a verifier that failed or abstained gives no reward")


def _check_parts(table: pa.Table, name: str) -> None:
    outcomes, rewards, weights = (_flat(table, "parts", field) for field in ("outcome", "reward", "weight"))
    unknown = pc.invert(pc.is_in(outcomes, value_set=pa.array(OUTCOMES)))
    _check_items(table, name, "parts", np.asarray(unknown), f"an outcome must be one of {', '.join(OUTCOMES)}")
    for numbers in (pc.fill_null(rewards, 0.0), weights):
        wrong = _missing_or_outside(numbers, -sys.float_info.max, sys.float_info.max)
        _check_items(table, name, "parts", wrong, "reward and weight must be finite; a reward may be null")


def _check_seconds(table: pa.Table, name: str) -> None:
    seconds = table["seconds"].to_numpy().astype(float)
    _check_none(table, name, "seconds", ~(np.isfinite(seconds) & (seconds >= 0)), "a duration must be finite and at least 0")


def _check_unjudged(table: pa.Table, name: str) -> None:
    known, unjudged = np.asarray(table["advantage"].is_valid()), np.asarray(table["reward"].is_null())
    _check_none(table, name, "advantage", known & unjudged, "a completion without a reward has no advantage")


def _check_answer(table: pa.Table, name: str, side: str) -> None:
    _check_token_ids(table, name, side)
    _check_none(table, name, side, list_lengths(table, side) == 0, "the answer has no tokens: nothing is learned from it")


def _check_sides(table: pa.Table, name: str) -> None:
    """No pair has twice the same answer; the answers are not empty."""
    sides = ("chosen_ids", "rejected_ids")
    lengths = [list_lengths(table, side) for side in sides]
    same = lengths[0] == lengths[1]
    if same.any():
        chosen, rejected = (
            _flat(table, side).to_numpy(zero_copy_only=False)[np.repeat(same, of)]
            for side, of in zip(sides, lengths, strict=True)
        )
        starts = np.cumsum(lengths[0][same]) - lengths[0][same]
        same[same] = np.logical_and.reduceat(chosen == rejected, starts)
    _check_none(table, name, "rejected_ids", same, "chosen and rejected are identical: nothing to prefer")


def _check_reference_logprob(table: pa.Table, name: str, column: str) -> None:
    values = table[column].to_numpy().astype(float)
    wrong = ~(np.isfinite(values) & (values <= MAX_LOGPROB))
    _check_none(table, name, column, wrong, "the reference logprob of an answer must be finite and at most 0")


def _check_computed(table: pa.Table, name: str) -> None:
    sides = ("reference_chosen_logprob", "reference_rejected_logprob")
    chosen, rejected = (table[column].to_numpy().astype(float) for column in sides)
    never = (chosen == 0) & (rejected == 0)  # a cache that was filled with zeros (allenai/open-instruct#1182)
    _check_none(table, name, sides[0], never, "both sides are exactly 0: the reference was never computed")


def _check_value(table: pa.Table, name: str) -> None:
    values = table["value"].to_numpy().astype(float)
    _check_none(table, name, "value", ~np.isfinite(values), "a metric must be finite; leave the point out instead")


def _check_finite_or_null(table: pa.Table, name: str, column: str) -> None:
    values, known = table[column].to_numpy().astype(float), np.asarray(table[column].is_valid())
    _check_none(table, name, column, known & ~np.isfinite(values), f"the {column} must be finite, or null")


def _check_member(table: pa.Table, name: str, column: str, allowed: Sequence[str]) -> None:
    wrong = pc.invert(pc.is_in(table[column], value_set=pa.array(allowed)))
    _check_none(table, name, column, np.asarray(wrong), f"the value must be one of {', '.join(allowed)}")


def _check_lengths(table: pa.Table, name: str, column: str) -> None:
    found, lengths = list_lengths(table, column), list_lengths(table, "completion_ids")
    for row in np.flatnonzero((found >= 0) & (found != lengths))[:1]:
        why = f"it has {found[row]} entries for a completion of {lengths[row]} tokens"
        raise ContractError(name, column, row_label(table, int(row)), None, why)


def _check_prompt_ids(table: pa.Table, name: str) -> None:
    _check_none(table, name, "prompt_ids", list_lengths(table, "prompt_ids") == 0, "the prompt has no tokens")
    _check_token_ids(table, name, "prompt_ids")


def _check_token_ids(table: pa.Table, name: str, column: str) -> None:
    wrong = _missing_or_outside(_flat(table, column), 0, np.inf)
    _check_items(table, name, column, wrong, "a token id must be an integer of 0 or more")


def _check_logprobs(table: pa.Table, name: str, column: str) -> None:
    wrong = _missing_or_outside(_flat(table, column), float(np.finfo(np.float32).min), MAX_LOGPROB)
    _check_items(table, name, column, wrong, "a logprob must be finite and at most 0")


def _check_sampled(table: pa.Table, name: str) -> None:
    """Of sampled tokens only: the reference may find a completion of another policy as unlikely as it likes."""
    wrong = _missing_or_outside(_flat(table, "behavior_logprobs"), SMALLEST_LOGPROB, np.inf)
    why = f"below {SMALLEST_LOGPROB:g} it is not a logprob but a sentinel: no sampler draws such a token; write null for the row"
    _check_items(table, name, "behavior_logprobs", wrong, why)


def _check_policy_versions(table: pa.Table, name: str) -> None:
    lengths = list_lengths(table, "completion_ids")
    for part in ("version", "num_tokens"):
        wrong = _missing_or_outside(_flat(table, "policy_versions", part), 0, np.inf)
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
    chunks = [pc.list_flatten(chunk) for chunk in table[column].chunks]
    if len(chunks) != 1:  # a single chunk, as most files have, is not copied
        chunks = [pa.concat_arrays(chunks) if chunks else pa.array([], table.schema.field(column).type.value_type)]
    return chunks[0] if part is None else pc.struct_field(chunks[0], part)


def _missing_or_outside(items: pa.Array, lowest: float, highest: float) -> np.ndarray | None:
    """For every item whether it is null, NaN or outside the bounds, bool of shape (num_items,); None when none is."""
    if items.null_count:
        return np.asarray(items.is_null())
    numbers = items.to_numpy(zero_copy_only=False)
    if not len(numbers) or (numbers.min() >= lowest and numbers.max() <= highest):  # without a temporary array; NaN fails both
        return None
    return ~((numbers >= lowest) & (numbers <= highest))


def _check_items(table: pa.Table, name: str, column: str, wrong: np.ndarray | None, why: str) -> None:
    """Raises for the first wrong item of a list column; `wrong` has one bool per item of all lists, or is None for no breach."""
    if wrong is None or not wrong.any():
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


@dataclass(frozen=True)
class Check:
    """One rule, and the columns that it needs: a table that was read without them is not asked."""

    columns: tuple[str, ...]
    run: Callable[[pa.Table, str], None]


def _key(*columns: str) -> Check:
    return Check(columns, partial(_check_key, columns=list(columns)))


def _of(check: Callable[..., None], column: str, *others: str) -> Check:
    """A rule of `column`, which the function takes by name."""
    return Check((column, *others), lambda table, name: check(table, name, column))


_PROMPT_IDS = Check(("prompt_ids",), _check_prompt_ids)
_ROLLOUTS = (
    _key("prompt_id", "sample_index"),
    Check(("sample_index",), _check_sample_index),
    _PROMPT_IDS,
    _of(_check_token_ids, "completion_ids"),
    _of(_check_lengths, "behavior_logprobs", "completion_ids"),
    _of(_check_logprobs, "behavior_logprobs"),
    Check(("behavior_logprobs",), _check_sampled),
    Check(("finish_reason",), lambda table, name: _check_member(table, name, "finish_reason", FINISH_REASONS)),
    Check(("policy_versions", "completion_ids"), _check_policy_versions),
)
_VERDICTS = (
    _key("prompt_id", "sample_index"),
    Check(("outcome",), lambda table, name: _check_member(table, name, "outcome", OUTCOMES)),
    _of(_check_finite_or_null, "reward"),
    Check(("outcome", "reward"), _check_errors),
    Check(("seconds",), _check_seconds),
    Check(("parts",), _check_parts),
)
_PREFERENCES = (
    _key("pair_id"),
    _PROMPT_IDS,
    _of(_check_answer, "chosen_ids"),
    _of(_check_answer, "rejected_ids"),
    Check(("chosen_ids", "rejected_ids"), _check_sides),
    _of(_check_finite_or_null, "margin"),
)
CHECKS: Mapping[str, tuple[Check, ...]] = {
    "PROMPTS": (_key("prompt_id"), _PROMPT_IDS, Check(("messages",), _check_messages)),
    "ROLLOUTS": _ROLLOUTS,
    "VERDICTS": _VERDICTS,
    "SCORED": (
        *_ROLLOUTS,
        *_VERDICTS[1:],
        _of(_check_finite_or_null, "advantage"),
        Check(("advantage", "reward"), _check_unjudged),
        _of(_check_lengths, "reference_logprobs", "completion_ids"),
        _of(_check_logprobs, "reference_logprobs"),
    ),
    "PREFERENCES": _PREFERENCES,
    "REFERENCED": (
        *_PREFERENCES,
        _of(_check_reference_logprob, "reference_chosen_logprob"),
        _of(_check_reference_logprob, "reference_rejected_logprob"),
        Check(("reference_chosen_logprob", "reference_rejected_logprob"), _check_computed),
    ),
    "METRICS": (Check(("value",), _check_value),),
}
