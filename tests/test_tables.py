"""Contracts between tasks: types by schema, breaches by row, files that are complete or absent."""

from __future__ import annotations

import itertools
import resource
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from posttrain import tables
from posttrain.errors import ContractError

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def rollout(**changes: Any) -> dict[str, Any]:
    row = {
        "prompt_id": "p",
        "sample_index": 0,
        "prompt_ids": [1, 2],
        "completion_ids": [3, 4],
        "behavior_logprobs": [-0.5, -1.0],
        "policy_versions": [{"version": 0, "num_tokens": 2}],
        "finish_reason": "stop",
        "completion": "ab",
        "seed": 7,
        "engine": "vllm",
        "started_at": NOW,
        "finished_at": NOW,
    }
    return row | changes


def verdict(**changes: Any) -> dict[str, Any]:
    row = {
        "prompt_id": "p",
        "sample_index": 0,
        "outcome": "pass",
        "reward": 1.0,
        "detail": "",
        "seconds": 0.1,
        "verifier": "exact",
        "verifier_version": "1",
    }
    return row | changes


def test_rewards_are_floats_whatever_the_first_row_holds() -> None:
    table = tables.from_rows("VERDICTS", [verdict(reward=1), verdict(sample_index=1, reward=0.5)])
    assert table["reward"].to_pylist() == [1.0, 0.5]
    assert table.schema.field("reward").type == pa.float64()


def test_a_key_absent_from_a_row_is_null_not_a_lost_column() -> None:
    rows = [{"iteration": 1, "name": "a", "value": 1.0}, {"iteration": 1, "step": 3, "name": "b", "value": 2.0}]
    assert tables.from_rows("METRICS", rows)["step"].to_pylist() == [None, 3]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("sample_index", 0.5),
        ("sample_index", True),
        ("seed", 2**63),
        ("completion_ids", [1.5, 2]),
        ("completion_ids", [2**31, 1]),
        ("seed", "seven"),
        ("completion", 5),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_column_and_row(column: str, value: Any) -> None:
    with pytest.raises(ContractError) as error:
        tables.from_rows("ROLLOUTS", [rollout(), rollout(sample_index=1) | {column: value}])
    assert column in str(error.value) and "row 1" in str(error.value)


def test_a_number_without_an_exact_float_is_refused() -> None:
    with pytest.raises(ContractError, match="no exact float64"):
        tables.from_rows("VERDICTS", [verdict(reward=2**53 + 1)])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"behavior_logprobs": [-0.5]}, "1 entries for a completion of 2 tokens"),
        ({"behavior_logprobs": [-0.5, float("nan")]}, "must be finite"),
        ({"behavior_logprobs": [-0.5, float("-inf")]}, "must be finite"),
        ({"behavior_logprobs": [-0.5, 0.5]}, "at most 0"),
        ({"policy_versions": [{"version": 0, "num_tokens": 1}]}, "must cover"),
        ({"finish_reason": "eos"}, "must be one of"),
        ({"completion": None}, "null where one is required"),
    ],
)
def test_a_breach_names_table_column_row_and_reason(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ContractError) as error:
        tables.from_rows("ROLLOUTS", [rollout(), rollout(prompt_id="q", **change)])
    message = str(error.value)
    assert why in message and "ROLLOUTS" in message and next(iter(change)) in message and "'q'" in message


def test_a_completion_without_usable_logprobs_is_allowed_as_null() -> None:
    assert tables.from_rows("ROLLOUTS", [rollout(behavior_logprobs=None)]).num_rows == 1


def test_keys_are_unique_and_an_error_has_no_reward() -> None:
    with pytest.raises(ContractError, match="twice"):
        tables.from_rows("ROLLOUTS", [rollout(), rollout()])
    with pytest.raises(ContractError, match="no reward"):
        tables.from_rows("VERDICTS", [verdict(outcome="error", reward=0.0)])


def test_unknown_missing_and_mistyped_columns_are_named() -> None:
    good = tables.from_rows("VERDICTS", [verdict()])
    with pytest.raises(ContractError, match="'extra'"):
        tables.from_rows("VERDICTS", [verdict(extra=1)])
    with pytest.raises(ContractError, match="'outcome'.*missing"):
        tables.validate(good.drop_columns(["outcome"]), "VERDICTS")
    position = good.column_names.index("detail")
    with pytest.raises(ContractError, match="'detail'.*the type is string"):
        tables.validate(good.set_column(position, "detail", good["detail"].cast(pa.string())), "VERDICTS")


HOSTILE = ["", "émoji 🙂‍↔️", "\x00\x01\x1b[31m", "x" * 1_000_000, "\u202eright to left", "line\r\nline\u2028"]


def test_any_text_survives_the_file(tmp_path: Path) -> None:
    rows = [rollout(sample_index=n, completion=text) for n, text in enumerate(HOSTILE)]
    path = tables.write_table(tables.from_rows("ROLLOUTS", rows), "ROLLOUTS", tmp_path / "a.arrow")
    assert tables.read_table(path, "ROLLOUTS")["completion"].to_pylist() == HOSTILE


def test_an_empty_shard_keeps_the_schema_in_any_order(tmp_path: Path) -> None:
    full = tables.from_rows("VERDICTS", [verdict(reward=None, outcome="error")])
    files = [
        tables.write_table(table, "VERDICTS", tmp_path / f"{n}.arrow") for n, table in enumerate([tables.empty("VERDICTS"), full])
    ]
    for order in itertools.permutations(files):
        assert tables.concat("VERDICTS", [tables.read_table(path, "VERDICTS") for path in order]).num_rows == 1
    assert tables.concat("VERDICTS", []).schema == tables.VERDICTS


def test_a_large_table_is_written_in_batches_of_bounded_size(tmp_path: Path) -> None:
    table = tables.from_rows("ROLLOUTS", [rollout(sample_index=n, completion="y" * 1000) for n in range(100)])
    path = tables.write_table(table, "ROLLOUTS", tmp_path / "a.arrow", max_batch_bytes=20_000)
    with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_file(source)
        assert reader.num_record_batches > 3
        assert reader.read_all().equals(table)


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    path = tables.write_table(tables.from_rows("VERDICTS", [verdict()]), "VERDICTS", tmp_path / "a.arrow")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ContractError, match=r"a\.arrow.*|not a complete Arrow"):
        tables.read_table(path, "VERDICTS")
    with pytest.raises(ContractError, match="has gone"):
        tables.read_table(tmp_path / "none.arrow", "VERDICTS")


def test_a_full_disk_leaves_the_old_file_and_no_half_written_one(tmp_path: Path) -> None:
    small = tables.from_rows("ROLLOUTS", [rollout()])
    path = tables.write_table(small, "ROLLOUTS", tmp_path / "a.arrow")
    big = tables.from_rows("ROLLOUTS", [rollout(completion="z" * 500_000)])
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            tables.write_table(big, "ROLLOUTS", path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.arrow"]
    assert tables.read_table(path, "ROLLOUTS").equals(small)


def test_the_content_hash_ignores_clocks_and_sees_everything_else() -> None:
    base = tables.content_hash(tables.from_rows("ROLLOUTS", [rollout()]))
    assert base == tables.content_hash(tables.from_rows("ROLLOUTS", [rollout(started_at=datetime(2027, 1, 1, tzinfo=UTC))]))
    for change in ({"completion": "b"}, {"behavior_logprobs": [-0.5, -1.1]}, {"seed": 8}, {"completion_ids": [3, 5]}):
        assert base != tables.content_hash(tables.from_rows("ROLLOUTS", [rollout(**change)]))


def test_the_content_hash_does_not_depend_on_chunks() -> None:
    rows = [rollout(sample_index=n) for n in range(4)]
    whole = tables.from_rows("ROLLOUTS", rows)
    parts = pa.concat_tables([tables.from_rows("ROLLOUTS", rows[:1]), tables.from_rows("ROLLOUTS", rows[1:])])
    assert tables.content_hash(whole) == tables.content_hash(parts)
