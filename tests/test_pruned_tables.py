"""Reading some columns of a table: no copy, and every rule that needs no other column."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from posttrain import tables
from posttrain.errors import ContractError
from tests.learner.scored_tables import scored_row

UPDATE = ("prompt_ids", "completion_ids", "behavior_logprobs", "advantage")


def pair(**changes: Any) -> dict[str, Any]:
    row = {"pair_id": "a", "prompt_id": "p", "prompt_ids": [1], "chosen_ids": [3, 4], "rejected_ids": [3, 5], "source": "s"}
    return {**row, "margin": None, **changes}


def unchecked(table: pa.Table, path: Path, **columns: pa.Array) -> Path:
    """The table with other columns, written without our checks."""
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(place), values)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return path


def scored() -> pa.Table:
    return tables.from_rows("SCORED", [scored_row("p", n, [5, n, 2]) for n in range(4)])


def test_the_columns_come_in_the_order_of_the_schema_and_point_into_the_file(tmp_path: Path) -> None:
    table = tables.from_rows("SCORED", [scored_row("p", n, [5, n, 2] * 10_000) for n in range(4)])
    path = tables.write_table(table, "SCORED", tmp_path / "s.arrow")
    before = pa.total_allocated_bytes()
    read = tables.read_table(path, "SCORED", columns=UPDATE[::-1])
    values = read["completion_ids"].chunk(0).values.to_numpy(zero_copy_only=True)
    assert pa.total_allocated_bytes() - before < values.nbytes / 100  # the file's bytes are mapped, not allocated
    assert values.tolist() == [token for n in range(4) for token in [5, n, 2] * 10_000]
    assert not values.flags.writeable
    assert read.equals(table.select(UPDATE))


def test_a_rule_that_needs_only_these_columns_still_holds(tmp_path: Path) -> None:
    logprobs = pa.array([[-1.0, -1.0, -1.0]] * 3 + [[-1.0, float("nan"), -1.0]], tables.LOGPROBS)
    path = unchecked(scored(), tmp_path / "s.arrow", behavior_logprobs=logprobs)
    for columns in (UPDATE, ("behavior_logprobs",), None):
        with pytest.raises(ContractError, match=r"'behavior_logprobs', row 3.*\(item 1\)"):
            tables.read_table(path, "SCORED", columns=columns)
    assert tables.read_table(path, "SCORED", columns=["advantage"]).num_rows == 4
    short = pa.array([[-1.0] * 3] * 3 + [[-1.0]], tables.LOGPROBS)
    path = unchecked(scored(), tmp_path / "t.arrow", behavior_logprobs=short)
    with pytest.raises(ContractError, match="1 entries for a completion of 3 tokens"):
        tables.read_table(path, "SCORED", columns=UPDATE)


def test_a_column_that_is_missing_or_unknown_is_named(tmp_path: Path) -> None:
    path = tables.write_table(scored(), "SCORED", tmp_path / "s.arrow")
    with pytest.raises(ContractError, match="'advantages'.*not part of the table"):
        tables.read_table(path, "SCORED", columns=["advantages"])
    rollouts = tmp_path / "r.arrow"
    columns = scored().select(tables.ROLLOUTS.names)
    tables.write_table(columns, "ROLLOUTS", rollouts)
    with pytest.raises(ContractError, match="'advantage'.*missing"):
        tables.read_table(rollouts, "SCORED", columns=UPDATE)


@pytest.mark.parametrize(
    ("rows", "number"),
    [
        ([pair(), pair(pair_id="b", chosen_ids=[7], rejected_ids=[7])], 1),
        ([pair(chosen_ids=[3, 4], rejected_ids=[3, 4]), pair(pair_id="b")], 0),
        ([pair(chosen_ids=[3]), pair(pair_id="b", chosen_ids=[9] * 5, rejected_ids=[9] * 5), pair(pair_id="c")], 1),
    ],
)
def test_identical_sides_are_found_between_pairs_of_all_lengths(rows: list[dict[str, Any]], number: int) -> None:
    with pytest.raises(ContractError, match=f"'rejected_ids', row {number} .*identical"):
        tables.from_rows("PREFERENCES", rows)


def test_sides_that_are_equal_but_for_one_token_or_shifted_by_a_row_are_no_breach() -> None:
    rows = [pair(pair_id=f"{n}", chosen_ids=[5, 6, n], rejected_ids=[5, 6, n + 1]) for n in range(50)]
    table = tables.from_rows("PREFERENCES", [*rows, pair(chosen_ids=[1], rejected_ids=[1, 1])])
    assert table.num_rows == 51
    assert tables.validate(pa.concat_tables([table.slice(3, 7), table.slice(40)]), "PREFERENCES").num_rows == 18
    with pytest.raises(ContractError, match="'chosen_ids', row 1 .*no tokens"):
        tables.from_rows("PREFERENCES", [pair(), pair(pair_id="b", chosen_ids=[])])


def test_a_hundred_thousand_pairs_are_checked_in_a_moment() -> None:
    num_pairs, num_tokens = 100_000, 50
    ids = pa.LargeListArray.from_arrays(np.arange(num_pairs + 1) * num_tokens, np.arange(num_pairs * num_tokens, dtype=np.int32))
    other = pa.LargeListArray.from_arrays(
        np.arange(num_pairs + 1) * num_tokens, np.arange(1, num_pairs * num_tokens + 1, dtype=np.int32)
    )
    names = pa.array([f"{n}" for n in range(num_pairs)])
    columns = [names, names, ids, ids, other, names, pa.nulls(num_pairs, pa.float64())]
    table = pa.Table.from_arrays(columns, schema=tables.PREFERENCES)
    started = time.process_time()
    tables.validate(table, "PREFERENCES")
    assert time.process_time() - started < 2
