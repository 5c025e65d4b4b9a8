"""The hand-off of a token table between tasks as an Arrow IPC file, beside JSON lines and beside padded tensors in a pickle.

One task has SCORED in memory and writes it, flushed to the disk; the next one wants the columns of an update. Ours writes all
columns, validates on both sides and ends with views of the mapped file. As they are usually written the peers begin with the
table too and JSON ends with one; at their best they are spared that: they begin with Python rows or padded tensors that are
ready in memory, and msgspec decodes only the columns of the update. No peer checks anything; the pickle holds only those columns.
"""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import torch
from torch.nn.utils.rnn import pad_sequence

from bench.measure import Row, elapsed_s, require_equal, side_by_side
from posttrain import tables

NUM_ROWS, GROUP_SIZE, PROMPT_TOKENS = 4096, 8, 128
MEDIAN_TOKENS, SIGMA, MAX_TOKENS = 300, 0.8, 4096
VOCABULARY = 150_000
LIST_COLUMNS = ("prompt_ids", "completion_ids", "behavior_logprobs")
COLUMNS = (*LIST_COLUMNS, "advantage")
TIMES = ("started_at", "finished_at")
PADDING = -1

Lists = dict[str, list[np.ndarray]]


class UpdateRow(msgspec.Struct):
    """What msgspec decodes of a line: other fields are skipped, which is its fastest way."""

    prompt_ids: list[int]
    completion_ids: list[int]
    behavior_logprobs: list[float]
    advantage: float


@dataclass(frozen=True)
class Files:
    """Every hand-off writes a new file, as tasks do; overwriting would also pay for deleting the old one."""

    directory: Path
    paths: list[Path] = field(default_factory=list)

    def next(self) -> Path:
        """A path at which nothing is."""
        self.paths.append(self.directory / str(len(self.paths)))
        return self.paths[-1]

    def size_of_last(self, back: int) -> int:
        """Bytes of the file before last (2) or of the last one (1)."""
        return self.paths[-back].stat().st_size


def compare() -> list[Row]:
    """Ours beside each peer, the peer as it is usually written and at its best."""
    table = scored()
    lengths = np.diff(table["completion_ids"].chunk(0).offsets.to_numpy())
    title = f"{NUM_ROWS:,} rollouts, {lengths.mean():.0f} completion tokens in the mean, {lengths.max():,} at most"
    rows, small = as_rows(table), padded(table, np.int32, masks=False)
    with tempfile.TemporaryDirectory(prefix="posttrain-bench-") as scratch:
        files = Files(Path(scratch))
        peers: dict[str, Callable[[], Any]] = {
            "JSON lines, table to table (json)": lambda: through_json(table, files),
            "JSON lines at their best (msgspec, rows ready, typed and pruned)": lambda: through_msgspec(rows, files),
            "padded pickle (int64 ids and masks)": lambda: through_pickle(padded(table, np.int64, masks=True), files),
            "padded pickle at its best (padding ready, int32 ids, no masks)": lambda: through_pickle(small, files),
        }
        return [
            compare_with(f"hand-off: Arrow IPC file vs {name}; {title}", lambda: through_arrow(table, files), peer, files)
            for name, peer in peers.items()
        ]


def compare_with(name: str, ours: Callable[[], Any], peer: Callable[[], Any], files: Files) -> Row:
    """Equal arrays first, then the clock."""
    require_equal("the update's columns", as_lists(ours()), as_lists(peer()))
    num_bytes, peers_bytes = (files.size_of_last(back) for back in (2, 1))
    content = bytes(num_bytes)
    copy_s = min(elapsed_s(lambda: copy(content, files.next())) for _ in range(5))
    row = side_by_side(name, ours, peer, limit="")
    sizes = f"{num_bytes / 2**20:.0f} MiB, the peer's {peers_bytes / 2**20:.0f}"
    return replace(
        row, limit=f"our bytes written, flushed and read: {copy_s:.2g} s, so ours reaches {copy_s / row.ours:.0%} ({sizes})"
    )


def scored() -> pa.Table:
    """Random SCORED rows, always the same; lengths are lognormal, as those of real completions."""
    chance, started = np.random.default_rng(0), datetime(2026, 1, 1, tzinfo=UTC)
    lengths = np.clip(np.exp(chance.normal(np.log(MEDIAN_TOKENS), SIGMA, NUM_ROWS)).astype(int), 1, MAX_TOKENS).tolist()
    prompts = chance.integers(0, VOCABULARY, (NUM_ROWS // GROUP_SIZE, PROMPT_TOKENS), np.int32)
    rewards = chance.integers(0, 2, NUM_ROWS).astype(float).tolist()
    return tables.from_rows(
        "SCORED",
        (
            {
                "prompt_id": f"bench:{row // GROUP_SIZE}",
                "sample_index": row % GROUP_SIZE,
                "prompt_ids": prompts[row // GROUP_SIZE],
                "completion_ids": chance.integers(0, VOCABULARY, length, np.int32),
                "behavior_logprobs": -chance.exponential(0.5, length).astype(np.float32),
                "policy_versions": [{"version": 3, "num_tokens": length}],
                "finish_reason": "stop" if length < MAX_TOKENS else "length",
                "completion": " the" * length,
                "seed": row,
                "engine": "vllm",
                "started_at": started,
                "finished_at": started,
                "outcome": "pass" if reward else "fail",
                "reward": reward,
                "detail": "",
                "seconds": 0.1,
                "verifier": "code",
                "verifier_version": "1",
                "parts": [],
                "limits": "{}",
                "advantage": reward - 0.5,
            }
            for row, (length, reward) in enumerate(zip(lengths, rewards, strict=True))
        ),
    )


def as_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The table as Python rows that JSON can hold."""
    return [{**row, **{name: row[name].isoformat() for name in TIMES}} for row in table.to_pylist()]


def through_arrow(table: pa.Table, files: Files) -> dict[str, Any]:
    """What one task writes and the update reads: of each list column the flat values and where each list begins, not copied."""
    path = tables.write_table(table, "SCORED", files.next())
    read = tables.read_table(path, "SCORED", columns=COLUMNS)
    lists = {name: [(chunk.values.to_numpy(), chunk.offsets.to_numpy()) for chunk in read[name].chunks] for name in LIST_COLUMNS}
    return {**lists, "advantage": read["advantage"].to_numpy()}


def through_json(table: pa.Table, files: Files) -> pa.Table:
    """The same by the standard library: one object a row, and a table again."""
    path = files.next()
    flush(path, "".join(f"{json.dumps(row)}\n" for row in as_rows(table)).encode())
    with path.open("rb") as lines:
        rows = [json.loads(line) for line in lines]
    for row in rows:
        row.update({name: datetime.fromisoformat(row[name]) for name in TIMES})
    return pa.Table.from_pylist(rows, schema=tables.SCORED)


def through_msgspec(rows: list[dict[str, Any]], files: Files) -> Lists:
    """The same by a fast library."""
    path = files.next()
    flush(path, msgspec.json.Encoder().encode_lines(rows))
    read = msgspec.json.Decoder(UpdateRow).decode_lines(path.read_bytes())
    kinds = {"prompt_ids": np.int32, "completion_ids": np.int32, "behavior_logprobs": np.float32}
    lists = {name: [np.array(getattr(row, name), kind) for row in read] for name, kind in kinds.items()}
    return {**lists, "advantage": [np.array([row.advantage for row in read])]}


def through_pickle(tensors: dict[str, torch.Tensor], files: Files) -> dict[str, torch.Tensor]:
    """The same by pickle; what comes out stays padded."""
    path = files.next()
    with path.open("wb") as sink:
        pickle.dump(tensors, sink, protocol=pickle.HIGHEST_PROTOCOL)
        sink.flush()
        os.fsync(sink.fileno())
    with path.open("rb") as content:
        return pickle.load(content)  # noqa: S301 - our own file of a moment ago


def padded(table: pa.Table, ids: type[np.integer[Any]], *, masks: bool) -> dict[str, torch.Tensor]:
    """The update's columns as tensors padded to the longest row; `masks` as trainers keep them, else the padding marks itself."""
    tensors: dict[str, torch.Tensor] = {"advantage": torch.from_numpy(table["advantage"].to_numpy().copy())}
    for name in LIST_COLUMNS:
        kind = np.float32 if name == "behavior_logprobs" else ids
        lists = [torch.from_numpy(one.astype(kind)) for one in views(table[name])]
        tensors[name] = pad_sequence(lists, batch_first=True, padding_value=0 if name == "behavior_logprobs" else PADDING)
    if masks:
        tensors |= {f"{name}_mask": (tensors[name] != PADDING).to(torch.int64) for name in ("prompt_ids", "completion_ids")}
    return tensors


def views(column: pa.ChunkedArray) -> list[np.ndarray]:
    """The lists of a column."""
    return [one for chunk in column.chunks for one in np.split(chunk.values.to_numpy(), chunk.offsets.to_numpy()[1:-1])]


def as_lists(found: Any) -> dict[str, list[bytes]]:
    """Any side's result in one form that can be compared; outside the clock."""
    if isinstance(found, pa.Table):
        lists = {**{name: views(found[name]) for name in LIST_COLUMNS}, "advantage": [found["advantage"].to_numpy()]}
    elif isinstance(found["advantage"], torch.Tensor):
        lists = unpadded(found)
    elif isinstance(found["advantage"], np.ndarray):
        lists = {name: [one for values, ends in found[name] for one in np.split(values, ends[1:-1])] for name in LIST_COLUMNS}
        lists["advantage"] = [found["advantage"]]
    else:
        lists = found
    kinds = {"prompt_ids": np.int64, "completion_ids": np.int64, "behavior_logprobs": np.float32, "advantage": np.float64}
    return {name: [one.astype(kind).tobytes() for one in lists[name]] for name, kind in kinds.items()}


def unpadded(tensors: dict[str, torch.Tensor]) -> Lists:
    """The rows without what pads them."""
    masks = {name: (tensors[name] != PADDING).numpy() for name in ("prompt_ids", "completion_ids")}
    masks["behavior_logprobs"] = masks["completion_ids"]
    lists = {name: [row[mask] for row, mask in zip(tensors[name].numpy(), masks[name], strict=True)] for name in LIST_COLUMNS}
    return {**lists, "advantage": [tensors["advantage"].numpy()]}


def flush(path: Path, content: bytes) -> None:
    """Writes to the disk, not just to the system's memory."""
    with path.open("wb") as sink:
        sink.write(content)
        sink.flush()
        os.fsync(sink.fileno())


def copy(content: bytes, path: Path) -> bytes:
    """The bytes alone, to the disk and back."""
    flush(path, content)
    return path.read_bytes()
