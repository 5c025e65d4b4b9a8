"""Pairs of any source → the PREFERENCES table: encoded once, ids kept, each side within its own budget."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from posttrain import tables
from posttrain.config_dpo import PreferenceData
from posttrain.errors import ConfigError, ContractError, PolicyError
from posttrain.preference_encoding import ID_COLUMNS, PairEncoder, digest, fit
from posttrain.preference_sources import LeftOut, RawPair, RejectedPair, read_pairs
from posttrain.table_checks import list_lengths
from posttrain.tracking_credentials import mask_credentials

ARROW = ".arrow"
ROWS_PER_CHUNK = 1024

DUPLICATE = "the same pair stands before it"
CONTRADICTED = "another pair prefers the other way round"
HELD_OUT = "the same prompt is held out for evaluation"


@dataclass(frozen=True)
class LoadedPreferences:
    """The PREFERENCES table and every pair that is not in it."""

    table: pa.Table
    rejected: tuple[RejectedPair, ...]


def load_preferences(
    source: str, tokenizer: Any, data: PreferenceData, *, field: str, source_name: str | None = None
) -> LoadedPreferences:
    """Reads `source`, encodes every pair and leaves out what nothing can be learned from.

    Sources:
        The path of a .jsonl or .parquet file, or a Hugging Face dataset id or directory with the options `split` (train),
        `config`, `prompt_column`, `chosen_column` and `rejected_column`. A row has `chosen` and `rejected`, texts or lists of
        messages, and perhaps `prompt`; without it the prompt is what both begin with. Optional columns: `pair_id`, `prompt_id`,
        `source`, and `margin` or `score_chosen` and `score_rejected`, whose difference it then is.
        The path of an .arrow file: a table PREFERENCES, whose ids are taken as they are.

    A conversation is encoded by the chat template, after `data.system_prompt` unless it has a system message of its own; its
    answer is one assistant's message, less a `<think>` that the generation prompt writes already, and ends with the template's
    end-of-turn token. Plain text is encoded as it stands, with
    the tokenizer's BOS, and ends with EOS. Neither is doubled. A plain text without a prompt begins with BOS alone.

    Truncation: each side has its own budget of `data.max_pair_tokens` less the prompt. A longer answer loses its end, and then
    has no end token. The prompt is never cut: one that leaves no room is rejected.

    Rejected, each with its reason: identical sides, also those that truncation or the tokenizer makes identical; an empty
    answer; one with an end token inside; a prompt without room; an answer of several messages; text that is not Unicode;
    every repetition of an earlier pair; and both directions of pairs that contradict each other (A over B and B over A for
    one prompt).

    Args:
        field: the setting that `source` comes from, which errors name.
        source_name: what errors, the column `source` and the ids of rows without one call the source: the user's own text where
            `source` is a local copy of it. Credentials in it are masked.

    Raises:
        ConfigError: an unusable source or option, or no pair left (says how many were rejected and why).
        ContractError: a row of another shape, a pair_id that occurs twice, or ids outside the tokenizer's vocabulary.
        InfrastructureError: the dataset host cannot be reached.
    """
    name = mask_credentials(source_name or source)
    pairs = _Pairs(tokenizer, data, name)
    if source.endswith(ARROW):
        for row in _read_arrow(field, source, name):
            pairs.add_encoded(row)
    else:
        for pair in read_pairs(field, source, name):
            pairs.add(pair)
    loaded = pairs.finish()
    if not loaded.table.num_rows:
        raise ConfigError(field, name, f"no pair is left{_why(loaded.rejected)}", "Give pairs, or raise data.max_pair_tokens.")
    return loaded


def hold_out_pairs(loaded: LoadedPreferences, evaluation_share: float, seed: int) -> tuple[LoadedPreferences, pa.Table]:
    """Training and evaluation pairs, split by prompt: none is on both sides, whatever its prompt_id.

    A keyed hash of the prompt's ids decides, so a prompt stays on its side when rows are added. Of few prompts none may be held
    out, so that evaluation is empty; training never is.
    """
    numbers = [_fraction(seed, ids) for ids in _rows_of_ids(loaded.table, "prompt_ids")]
    last = max(numbers, default=0.0)
    held_out = [number < evaluation_share and number != last for number in numbers]
    training = loaded.table.filter(pa.array([not one for one in held_out], pa.bool_()))
    return LoadedPreferences(training, loaded.rejected), loaded.table.filter(pa.array(held_out, pa.bool_()))


def without_held_out(loaded: LoadedPreferences, evaluation: pa.Table) -> LoadedPreferences:
    """`loaded` without pairs whose prompt ids also occur in `evaluation` (PREFERENCES or PROMPTS); they join the rejected ones.

    Raises:
        ConfigError: no training pair is left.
    """
    held_out = {ids.tobytes() for ids in _rows_of_ids(evaluation, "prompt_ids")}
    overlaps = [ids.tobytes() in held_out for ids in _rows_of_ids(loaded.table, "prompt_ids")]
    pair_ids = loaded.table.filter(pa.array(overlaps, pa.bool_()))["pair_id"].to_pylist()
    rejected = (*loaded.rejected, *(RejectedPair(pair_id, HELD_OUT) for pair_id in pair_ids))
    table = loaded.table.filter(pa.array([not overlap for overlap in overlaps], pa.bool_()))
    if not table.num_rows:
        raise ConfigError("data.preferences", None, f"no pair is left{_why(rejected)}", "Evaluate on other prompts.")
    return LoadedPreferences(table, rejected)


def shard_pairs(table: pa.Table, num_shards: int) -> list[pa.Table]:
    """`num_shards` contiguous parts of about as many tokens each, in order; some are empty when there are few rows.

    Raises:
        ConfigError: fewer than one shard.
    """
    if num_shards < 1:
        raise ConfigError("loop.num_shards", num_shards, "at least one shard is needed", "Set it to 1 or more.")
    ends = np.cumsum(sum((list_lengths(table, column) for column in ID_COLUMNS), np.zeros(table.num_rows, np.int64)))
    total = int(ends[-1]) if len(ends) else 0
    middles = np.concatenate([[0], ends])[:-1] + ends  # twice the middle of each row: a row goes to the part that holds it
    bounds = np.searchsorted(middles, [2 * total * part / num_shards for part in range(1, num_shards)]).tolist()
    edges = [0, *bounds, table.num_rows]
    return [table.slice(start, end - start) for start, end in itertools.pairwise(edges)]


def check_same_tokenizer(policy_directory: Path, reference_directory: Path, trust_remote_code: bool) -> None:
    """Checks that ids mean the same to policy and reference: vocabulary, BOS, EOS and chat template. Padding is never scored.

    Raises:
        PolicyError: they differ; names both directories and the first difference.
    """
    from posttrain.policy import load_tokenizer

    policy, reference = (load_tokenizer(path, trust_remote_code) for path in (policy_directory, reference_directory))
    difference = _first_difference(policy, reference)
    if difference:
        raise PolicyError(
            f"the tokenizers of the policy {policy_directory} and the reference {reference_directory} differ: {difference}. "
            "The reference would score other texts than the policy learns: take a reference of the policy's own family."
        )


def _first_difference(policy: Any, reference: Any) -> str:
    tokens, other_tokens = ({number: token for token, number in one.get_vocab().items()} for one in (policy, reference))
    for number in sorted(tokens.keys() | other_tokens.keys()):
        if tokens.get(number) != other_tokens.get(number):
            return f"id {number} is {tokens.get(number)!r} to the policy and {other_tokens.get(number)!r} to the reference"
    for name in ("bos_token_id", "eos_token_id", "chat_template"):
        if getattr(policy, name) != getattr(reference, name):
            return f"{name} is {getattr(policy, name)!r} to the policy and {getattr(reference, name)!r} to the reference"
    return ""


class _Pairs:
    """The pairs of a source as they come in: chunks of the table, reasons of the rejected, and what was seen."""

    def __init__(self, tokenizer: Any, data: PreferenceData, source_name: str) -> None:
        self._encoder, self._source_name = PairEncoder(tokenizer, data), source_name
        self._num_ids, self._limit = len(tokenizer), data.max_pair_tokens
        self._chunks: list[pa.Table] = []
        self._rows: list[dict[str, Any]] = []
        self._rejected: list[RejectedPair] = []
        self._kept: dict[tuple[bytes, bytes, bytes], str] = {}  # hashes of prompt, better and worse side → pair_id
        self._pair_ids: set[str] = set()

    def add(self, pair: RawPair | RejectedPair) -> None:
        """Encodes a pair and keeps it, unless there is a reason not to."""
        self._check_id(pair.pair_id)
        if isinstance(pair, RejectedPair):
            self._rejected.append(pair)
            return
        try:
            self._keep(self._encoder.encode(pair))
        except LeftOut as reason:
            self._rejected.append(RejectedPair(pair.pair_id, str(reason)))

    def add_encoded(self, row: dict[str, Any]) -> None:
        """The same for a row of PREFERENCES."""
        self._check_id(row["pair_id"])
        for column in ID_COLUMNS:
            if max(row[column]) >= self._num_ids:
                why = f"the tokenizer has only {self._num_ids} ids: the pairs were made with another"
                remedy = "Give the pairs as text, or the model that they were made with."
                raise ContractError(self._source_name, column, f"pair_id={row['pair_id']!r}", max(row[column]), why, remedy)
        try:
            self._keep(fit(row, self._limit))
        except LeftOut as reason:
            self._rejected.append(RejectedPair(row["pair_id"], str(reason)))

    def finish(self) -> LoadedPreferences:
        """Everything together, without the pairs that contradict each other."""
        self._flush()
        contradicted = [(prompt, worse, better) in self._kept for prompt, better, worse in self._kept]
        table = pa.concat_tables(self._chunks) if self._chunks else tables.empty("PREFERENCES")
        rejected = [
            RejectedPair(pair_id, CONTRADICTED)
            for pair_id, is_contradicted in zip(self._kept.values(), contradicted, strict=True)
            if is_contradicted
        ]
        kept = table.filter(pa.array([not one for one in contradicted], pa.bool_()))
        return LoadedPreferences(tables.validate(kept, "PREFERENCES"), (*self._rejected, *rejected))

    def _check_id(self, pair_id: str) -> None:
        if pair_id in self._pair_ids:
            raise ContractError(self._source_name, "pair_id", None, pair_id, "the id occurs twice", "Make the ids distinct.")
        self._pair_ids.add(pair_id)

    def _keep(self, row: dict[str, Any]) -> None:
        prompt, better, worse = (digest(row[column]) for column in ID_COLUMNS)
        if (prompt, better, worse) in self._kept:
            raise LeftOut(DUPLICATE)
        self._kept[prompt, better, worse] = row["pair_id"]
        self._rows.append(row)
        if len(self._rows) == ROWS_PER_CHUNK:
            self._flush()

    def _flush(self) -> None:
        """Lists of Python numbers take ten times the memory of a table: only a chunk of rows is ever held in them."""
        if self._rows:
            self._chunks.append(tables.from_rows("PREFERENCES", self._rows))
            self._rows = []


def _read_arrow(field: str, source: str, name: str) -> Iterator[dict[str, Any]]:
    if not Path(source).is_file():
        raise ConfigError(field, name, "there is no such file", "Give the path of a .jsonl, .parquet or .arrow file.")
    for batch in tables.read_table(source, "PREFERENCES").to_batches(max_chunksize=ROWS_PER_CHUNK):
        yield from batch.to_pylist()


def _rows_of_ids(table: pa.Table, column: str) -> Iterator[np.ndarray]:
    """The token ids of every row, int32; no copy."""
    for chunk in table[column].chunks:
        values, offsets = chunk.values.to_numpy(zero_copy_only=False), chunk.offsets.to_numpy()
        for start, end in itertools.pairwise(offsets):
            yield values[start:end]


def _fraction(seed: int, prompt_ids: np.ndarray) -> float:
    """A number in [0, 1) that follows from seed and prompt alone."""
    digest = hashlib.sha256(f"{seed}:".encode() + prompt_ids.tobytes()).digest()
    return int.from_bytes(digest[:6]) / 2**48


def _why(rejected: Sequence[RejectedPair]) -> str:
    if not rejected:
        return ": the source is empty"
    counts: Iterable[tuple[str, int]] = Counter(pair.reason for pair in rejected).most_common()
    return f": all {len(rejected)} were rejected ({'; '.join(f'{count} × {reason}' for reason, count in counts)})"
