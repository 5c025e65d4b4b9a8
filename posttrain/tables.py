"""The Arrow schema of every table, and the checks that each must pass.

A table is passed between tasks as one Arrow IPC file. Token ids are the truth from sampler to loss; text is for
verifiers and people. Columns that can pass 2 GiB in a shard use the 64-bit `large_` types (apache/arrow#44164).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from posttrain.errors import ContractError
from posttrain.table_checks import CHECKS, KEY_COLUMNS, row_label
from posttrain.table_values import to_column

TOKEN_IDS = pa.large_list(pa.int32())
LOGPROBS = pa.large_list(pa.float32())
TIMESTAMP = pa.timestamp("us", tz="UTC")
MESSAGES = pa.large_list(pa.struct([("role", pa.string()), ("content", pa.large_string())]))
PARTS = pa.large_list(
    pa.struct([("name", pa.string()), ("outcome", pa.string()), ("reward", pa.float64()), ("weight", pa.float64())])
)
VERSION_RUNS = pa.large_list(pa.struct([("version", pa.int32()), ("num_tokens", pa.int32())]))


def _field(name: str, kind: pa.DataType, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


_KEYS = [_field("prompt_id", pa.string()), _field("sample_index", pa.int32())]
_ROLLOUT_COLUMNS = [
    *_KEYS,
    _field("prompt_ids", TOKEN_IDS),
    _field("completion_ids", TOKEN_IDS),
    # null as a whole when the sampler reported no usable value for some token: the row is then not trained on
    _field("behavior_logprobs", LOGPROBS, nullable=True),
    _field("policy_versions", VERSION_RUNS),
    _field("finish_reason", pa.string()),
    _field("completion", pa.large_string()),
    _field("seed", pa.int64()),
    _field("engine", pa.string()),
    _field("started_at", TIMESTAMP),
    _field("finished_at", TIMESTAMP),
]
_VERDICT_COLUMNS = [
    _field("outcome", pa.string()),
    _field("reward", pa.float64(), nullable=True),
    _field("detail", pa.large_string()),
    _field("seconds", pa.float64()),
    _field("verifier", pa.string()),
    _field("verifier_version", pa.string()),
    # what each verifier of a weighted sum said; empty for a single verifier
    _field("parts", PARTS),
    # JSON object of what bounded the verdict, names with units
    _field("limits", pa.string()),
]

PROMPTS = pa.schema(
    [
        _field("prompt_id", pa.string()),
        _field("messages", MESSAGES),
        _field("prompt_ids", TOKEN_IDS),
        _field("verifier", pa.string()),
        _field("answer", pa.large_string()),
        _field("source", pa.string()),
    ]
)
ROLLOUTS = pa.schema(_ROLLOUT_COLUMNS)
# all of ROLLOUTS that a verdict can depend on; of the ids their number alone
JUDGED_COLUMNS = ("prompt_id", "sample_index", "completion_ids", "finish_reason", "completion")
VERDICTS = pa.schema([*_KEYS, *_VERDICT_COLUMNS])
SCORED = pa.schema(
    [
        *_ROLLOUT_COLUMNS,
        *_VERDICT_COLUMNS,
        # null when the completion was not judged: it has no place in the group's baseline
        _field("advantage", pa.float64(), nullable=True),
        _field("reference_logprobs", LOGPROBS, nullable=True),
    ]
)
_PREFERENCE_COLUMNS = [
    _field("pair_id", pa.string()),
    _field("prompt_id", pa.string()),
    _field("prompt_ids", TOKEN_IDS),
    _field("chosen_ids", TOKEN_IDS),
    _field("rejected_ids", TOKEN_IDS),
    _field("source", pa.string()),
    # by how much the chosen side was judged better; null where the dataset does not say
    _field("margin", pa.float64(), nullable=True),
]
PREFERENCES = pa.schema(_PREFERENCE_COLUMNS)
REFERENCED = pa.schema(
    [
        *_PREFERENCE_COLUMNS,
        # sums over the tokens of a side, in nats at temperature 1
        _field("reference_chosen_logprob", pa.float64()),
        _field("reference_rejected_logprob", pa.float64()),
        # policy hash of the reference that computed them
        _field("reference_hash", pa.string()),
    ]
)
EVENTS = pa.schema(
    [
        _field("execution", pa.string(), nullable=True),
        _field("iteration", pa.int32()),
        _field("pool", pa.string()),
        _field("device", pa.string()),
        _field("phase", pa.string()),
        _field("started_at", TIMESTAMP),
        _field("finished_at", TIMESTAMP),
        _field("tokens", pa.int64()),
        _field("shard", pa.int32(), nullable=True),
    ]
)
METRICS = pa.schema(
    [
        _field("iteration", pa.int32()),
        _field("step", pa.int32(), nullable=True),
        _field("name", pa.string()),
        _field("value", pa.float64()),
    ]
)

# No content: measurements of a run, and where a prompt was read from. Two runs with equal ids, logprobs and verdicts are equal.
_NOT_CONTENT = frozenset({"started_at", "finished_at", "seconds", "source"})

SCHEMAS: Mapping[str, pa.Schema] = {
    "PROMPTS": PROMPTS,
    "ROLLOUTS": ROLLOUTS,
    "VERDICTS": VERDICTS,
    "SCORED": SCORED,
    "PREFERENCES": PREFERENCES,
    "REFERENCED": REFERENCED,
    "EVENTS": EVENTS,
    "METRICS": METRICS,
}


def from_rows(name: str, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Builds a table of schema `name` from row dictionaries and validates it.

    Every value is converted by the schema's own type, never by the type of the first row: an integer reward becomes
    1.0, a fraction in an integer column is an error (apache/arrow#35584), a missing key is null (apache/arrow#40124).

    Raises:
        ContractError: an unknown column, a value that does not fit its type, or a breach that `validate` finds.
    """
    schema = SCHEMAS[name]
    listed = list(rows)
    for number, row in enumerate(listed):
        for key in row.keys() - set(schema.names):
            raise ContractError(name, key, _row_name(listed, number), row[key], "the column is not part of the table")
    columns = [_column(name, field, [row.get(field.name) for row in listed], listed) for field in schema]
    return validate(pa.Table.from_arrays(columns, schema=schema), name)


def empty(name: str) -> pa.Table:
    """A table of schema `name` with no rows."""
    return SCHEMAS[name].empty_table()


def validate(table: pa.Table, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Checks that `table` keeps the contract `name` and returns it.

    Args:
        columns: where the table was read without the others; then the rules that need no other column are checked.

    Raises:
        ContractError: naming table, column, row and value of the first breach.
    """
    schema = _pruned(name, columns)
    _check_columns(table, name, schema)
    for field in schema:
        if not field.nullable and table[field.name].null_count:
            row = pc.index(pc.is_null(table[field.name]), True).as_py()
            raise ContractError(name, field.name, row_label(table, row), None, "the value is null where one is required")
    for check in CHECKS.get(name, ()):
        if set(check.columns) <= set(table.column_names):
            check.run(table, name)
    return table


def concat(name: str, tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of all tables in order; with none, an empty table that keeps the schema."""
    return pa.concat_tables([validate(table, name) for table in tables]) if tables else empty(name)


def write_table(
    table: pa.Table, name: str, path: str | Path, max_batch_bytes: int = 64 << 20, columns: Sequence[str] | None = None
) -> Path:
    """Validates `table` and writes it as an Arrow IPC file, aside first and then renamed: never a half-written shard.

    Args:
        columns: the columns to write, where not all are wanted.

    Raises:
        ContractError: the table breaks its contract.
        OSError: the disk is full or not writable; nothing is left at `path`.
    """
    if columns is not None:
        table = table.select([column for column in table.column_names if column in columns])
    validate(table, name, columns)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    rows_per_batch = max(1, int(max_batch_bytes / max(1, table.nbytes / max(1, table.num_rows))))
    try:
        with pa.OSFile(str(aside), "wb") as sink:
            with pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table, max_chunksize=rows_per_batch)
            os.fsync(sink.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def read_table(path: str | Path, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Memory-maps an Arrow IPC file and validates it as a table `name`. Nothing is copied.

    Args:
        columns: the columns to read, in the order of the schema whatever the order here; the others are neither read nor checked.

    Raises:
        ContractError: the file is missing, is not an Arrow file, or its table breaks the contract.
    """
    schema = _pruned(name, columns)
    try:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
        if columns is not None:  # of a mapped file no byte of the others is touched; Arrow's own `included_fields` copies
            table = table.select([name for name in table.column_names if name in schema.names])
        table.validate(full=True)  # offsets that point outside the file would crash the process
    except FileNotFoundError as error:
        raise ContractError(name, None, None, str(path), "the file has gone", "Run again: the task makes it anew.") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        why = f"not a complete Arrow IPC file ({error})"
        raise ContractError(name, None, None, str(path), why, "Delete the file and run again.") from error
    return validate(table, name, columns)


def content_hash(table: pa.Table) -> str:
    """sha256 (hex) of schema and values: equal for equal tables, whatever lies under their nulls or outside their slices.

    The measured columns (clock times, seconds) and the source of a prompt do not count.
    """
    kept = table.select([column for column in table.column_names if column not in _NOT_CONTENT]).replace_schema_metadata(None)
    # `take` writes every buffer anew: one chunk, no offset, and zeros where a value is null
    rows = kept.take(pa.array(range(kept.num_rows), type=pa.int64())).combine_chunks()
    digest = pa.BufferOutputStream()
    with pa.ipc.new_stream(digest, rows.schema) as writer:
        writer.write_table(rows)
    return hashlib.sha256(digest.getvalue()).hexdigest()


def keys(table: pa.Table) -> list[tuple[str, int]]:
    """The (prompt_id, sample_index) of every row of ROLLOUTS, VERDICTS or SCORED."""
    return list(zip(table["prompt_id"].to_pylist(), table["sample_index"].to_pylist(), strict=True))


def _pruned(name: str, columns: Sequence[str] | None) -> pa.Schema:
    """The schema of the table, or of these columns of it."""
    schema = SCHEMAS[name]
    for column in columns or ():
        if column not in schema.names:
            raise ContractError(name, column, None, None, "the column is not part of the table")
    return schema if columns is None else pa.schema([field for field in schema if field.name in columns])


def _column(name: str, field: pa.Field, values: list[Any], rows: Sequence[Mapping[str, Any]]) -> pa.Array:
    try:
        return to_column(field.type, values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as whole:
        for number, value in enumerate(values):
            try:
                to_column(field.type, [value])
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                why = f"the value does not fit {field.type} ({error})"
                raise ContractError(name, field.name, _row_name(rows, number), value, why) from error
        raise ContractError(name, field.name, None, None, f"the column does not fit {field.type} ({whole})") from whole


def _check_columns(table: pa.Table, name: str, schema: pa.Schema) -> None:
    for missing in [column for column in schema.names if column not in table.column_names]:
        raise ContractError(name, missing, None, None, "the column is missing")
    for extra in [column for column in table.column_names if column not in schema.names]:
        raise ContractError(name, extra, None, None, "the column is not part of the table")
    for field in schema:
        if table.schema.field(field.name).type != field.type:
            found = table.schema.field(field.name).type
            raise ContractError(name, field.name, None, None, f"the type is {found}, the contract says {field.type}")
    if table.column_names != schema.names:
        raise ContractError(name, None, None, table.column_names, f"the columns must stand in the order {schema.names}")


def _row_name(rows: Sequence[Mapping[str, Any]], row: int) -> str:
    parts = [f"{column}={rows[row][column]!r}" for column in KEY_COLUMNS if column in rows[row]]
    return f"{row}" + (f" ({', '.join(parts)})" if parts else "")
