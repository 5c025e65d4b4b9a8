"""The hand-off of ROLLOUTS between tasks as an Arrow IPC file, beside JSON lines."""

from __future__ import annotations

import os
import random
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from bench.measure import Row, elapsed_s, require_equal, side_by_side
from posttrain import tables

NUM_ROWS, PROMPT_TOKENS, COMPLETION_TOKENS = 2048, 64, 256


def compare() -> list[Row]:
    """Write, flush to the disk, read and validate; the peer uses msgspec, a fast JSON library of the locked environment."""
    table = rollouts()
    with tempfile.TemporaryDirectory(prefix="posttrain-bench-") as scratch:
        arrow, lines = Path(scratch) / "rollouts.arrow", Path(scratch) / "rollouts.jsonl"
        require_equal("tables", through_arrow(table, arrow), through_json(table, lines))
        require_equal("tables", through_arrow(table, arrow), table)
        content = arrow.read_bytes()
        copy_s = min(elapsed_s(lambda: copy(content, Path(scratch) / "copy")) for _ in range(3))
        size = f"{len(content) / 2**20:.1f} MiB as Arrow, {lines.stat().st_size / 2**20:.1f} as JSON"
        row = side_by_side(
            f"hand-off: Arrow IPC file vs JSON lines (msgspec); {NUM_ROWS:,} rollouts of {COMPLETION_TOKENS} tokens",
            lambda: through_arrow(table, arrow),
            lambda: through_json(table, lines),
            limit=f"those bytes written, flushed and read: {copy_s:.2g} s ({size})",
        )
    return [row]


def rollouts() -> pa.Table:
    """Random rollouts, always the same."""
    chance = random.Random(0)
    started = datetime(2026, 1, 1, tzinfo=UTC)
    return tables.from_rows("ROLLOUTS", [rollout(row, chance, started) for row in range(NUM_ROWS)])


def rollout(row: int, chance: random.Random, started: datetime) -> dict[str, Any]:
    """One row; every token is a word of five letters."""
    return {
        "prompt_id": f"bench:{row // 8}",
        "sample_index": row % 8,
        "prompt_ids": [chance.randrange(150_000) for _ in range(PROMPT_TOKENS)],
        "completion_ids": [chance.randrange(150_000) for _ in range(COMPLETION_TOKENS)],
        "behavior_logprobs": [-chance.expovariate(2) for _ in range(COMPLETION_TOKENS)],
        "policy_versions": [{"version": 3, "num_tokens": COMPLETION_TOKENS}],
        "finish_reason": "length",
        "completion": " ".join("token" for _ in range(COMPLETION_TOKENS)),
        "seed": chance.getrandbits(63),
        "engine": "vllm",
        "started_at": started,
        "finished_at": started,
    }


def through_arrow(table: pa.Table, path: Path) -> pa.Table:
    """What one task writes and the next one reads."""
    return tables.read_table(tables.write_table(table, "ROLLOUTS", path), "ROLLOUTS")


def through_json(table: pa.Table, path: Path) -> pa.Table:
    """The same by JSON lines: one object a row, times as ISO text."""
    with path.open("wb") as sink:
        sink.write(msgspec.json.Encoder().encode_lines(table.to_pylist()))
        sink.flush()
        os.fsync(sink.fileno())
    rows = msgspec.json.Decoder().decode_lines(path.read_bytes())
    for row in rows:
        for name in ("started_at", "finished_at"):
            row[name] = datetime.fromisoformat(row[name])
    return tables.validate(pa.Table.from_pylist(rows, schema=tables.ROLLOUTS), "ROLLOUTS")


def copy(content: bytes, path: Path) -> bytes:
    """The bytes alone, to the disk and back."""
    with path.open("wb") as sink:
        sink.write(content)
        sink.flush()
        os.fsync(sink.fileno())
    return path.read_bytes()
