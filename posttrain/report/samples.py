"""A dozen completions worth reading, and hostile text made harmless and visible."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import pyarrow as pa

from posttrain.table_checks import UNJUDGED

NUM_EACH = 3
HEAD_CHARACTERS, TAIL_CHARACTERS = 2_000, 400
_COLUMNS = ("prompt_id", "sample_index", "completion", "finish_reason", "outcome", "reward", "advantage", "detail")
_HIDDEN = ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")  # controls, bidirectional marks, private use, line separators
_HARMLESS = "\n\t\u200d"  # the joiner holds emoji together
Row = dict[str, Any]


def choose(samples: Mapping[int, pa.Table]) -> list[tuple[str, list[Row]]]:
    """(heading, rows) for best, worst, truncated, timed out and not judged; recent iterations first, no row twice.

    A row is SCORED's readable columns with `iteration` and `num_tokens`.
    """
    samples = {iteration: scored for iteration, scored in samples.items() if scored.num_rows}
    if not samples:
        return []
    latest = _rows(max(samples), samples[max(samples)])
    judged = [row for row in latest if row["reward"] is not None]
    whole = [row for row in judged if row["finish_reason"] != "length" and row["outcome"] != "timeout"]
    rewards = [row["reward"] for row in whole]
    best = [row for row in whole if row["reward"] > min(rewards)] or whole
    worst = [row for row in whole if row["reward"] < max(rewards)]
    chosen: set[tuple[int, str, int]] = set()
    return [
        ("Best", _take(sorted(best, key=lambda row: (-row["reward"], -_lead(row), row["num_tokens"], _key(row))), chosen)),
        ("Worst", _take(sorted(worst, key=lambda row: (row["reward"], _lead(row), -row["num_tokens"], _key(row))), chosen)),
        ("Truncated", _take(_recent(samples, lambda row: row["finish_reason"] == "length"), chosen)),
        ("Timed out", _take(_recent(samples, lambda row: row["outcome"] == "timeout"), chosen)),
        ("Not judged", _take(_recent(samples, lambda row: row["outcome"] in UNJUDGED), chosen)),
    ]


def _lead(row: Row) -> float:
    """The advantage: of completions with equal rewards the one that teaches more is worth more attention."""
    return row["advantage"] or 0.0


def _rows(iteration: int, scored: pa.Table) -> list[Row]:
    lengths = [len(ids) for ids in scored["completion_ids"].to_pylist()]
    rows: list[Row] = scored.select(_COLUMNS).to_pylist()
    return [row | {"iteration": iteration, "num_tokens": length} for row, length in zip(rows, lengths, strict=True)]


def _recent(samples: Mapping[int, pa.Table], wanted: Callable[[Row], bool]) -> list[Row]:
    found: list[Row] = []
    for iteration in sorted(samples, reverse=True):
        found += [row for row in _rows(iteration, samples[iteration]) if wanted(row)]
        if len(found) >= 4 * NUM_EACH:
            break
    return found


def _take(rows: list[Row], chosen: set[tuple[int, str, int]]) -> list[Row]:
    """The first rows that were not chosen before, one for each prompt while there are enough prompts."""
    taken: list[Row] = []
    for one_each in (True, False):
        for row in rows:
            prompts = {other["prompt_id"] for other in taken}
            if len(taken) < NUM_EACH and _key(row) not in chosen and not (one_each and row["prompt_id"] in prompts):
                taken.append(row)
                chosen.add(_key(row))
    return taken


def _key(row: Row) -> tuple[int, str, int]:
    return row["iteration"], row["prompt_id"], row["sample_index"]


def safe_html(text: str) -> str:
    """HTML of untrusted text: cut with a note, escaped, with characters that hide or reorder text shown by code point."""
    if len(text) > HEAD_CHARACTERS + TAIL_CHARACTERS:
        left_out = f"… {len(text) - HEAD_CHARACTERS - TAIL_CHARACTERS:,} of {len(text):,} characters left out …"
        return f"{_visible(text[:HEAD_CHARACTERS])}<em>{left_out}</em>{_visible(text[-TAIL_CHARACTERS:])}"
    return _visible(text)


def safe_label(text: str) -> str:
    """Untrusted text for a figure, on one line: not escaped, with hidden characters shown by code point."""
    return "".join(f"U+{ord(character):04X}" if _is_hidden(character) or character in "\n\t" else character for character in text)


def _visible(text: str) -> str:
    return "".join(f"<i>U+{ord(character):04X}</i>" if _is_hidden(character) else escape(character) for character in text)


def _is_hidden(character: str) -> bool:
    return character not in _HARMLESS and unicodedata.category(character) in _HIDDEN
