"""Contracts between tasks: types by schema, breaches by row, files that are complete or absent."""

from __future__ import annotations

import itertools
import resource
import signal
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from posttrain import tables
from posttrain.errors import ContractError
from posttrain.table_checks import check_groups

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
        "parts": [],
        "limits": "{}",
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


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64])
def test_integers_of_any_width_are_token_ids(kind: type[np.integer[Any]]) -> None:
    for ids in (np.array([3, 100], kind), [kind(3), kind(100)]):
        assert tables.from_rows("ROLLOUTS", [rollout(completion_ids=ids)])["completion_ids"].to_pylist() == [[3, 100]]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("completion_ids", np.array([5.5, 6], np.float32)),
        ("completion_ids", np.array([5.5, 6])),
        ("completion_ids", [np.float32(5.5), 6]),
        ("prompt_ids", [np.float16(1)]),
        ("completion_ids", np.array([2**31 + 5, 6])),
        ("completion_ids", np.array([2**63 + 5, 6], np.uint64)),
        ("completion_ids", np.array([True, False])),
        ("completion_ids", [np.True_, 6]),
        ("completion_ids", [Decimal("5.5"), 6]),
        ("completion_ids", ["5", "6"]),
        ("completion_ids", "56"),
        ("completion_ids", 5),
        ("behavior_logprobs", [True, -1.0]),
        ("sample_index", np.float32(0.5)),
        ("sample_index", Decimal("0.5")),
        ("sample_index", np.True_),
        ("seed", float("nan")),
        ("policy_versions", [{"version": 0.5, "num_tokens": 2}]),
        ("policy_versions", [{"version": 0, "num_tokens": np.float32(2.5)}]),
        ("policy_versions", [2]),
    ],
)
def test_nothing_is_cut_to_an_integer(column: str, value: Any) -> None:
    with pytest.raises(ContractError, match=rf"column '{column}', row 1 .*does not fit"):
        tables.from_rows("ROLLOUTS", [rollout(), rollout(sample_index=1) | {column: value}])


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
        ({"behavior_logprobs": [-0.5, None]}, "must be finite and at most 0 (item 1)"),
        ({"behavior_logprobs": [-0.5, -9999.0]}, "below -1000 it is not a logprob but a sentinel"),
        ({"completion_ids": [3, None]}, "0 or more (item 1)"),
        ({"completion_ids": [3, -3]}, "0 or more (item 1)"),
        ({"prompt_ids": [None, 1]}, "0 or more (item 0)"),
        ({"prompt_ids": [1, -1]}, "0 or more (item 1)"),
        ({"prompt_ids": []}, "the prompt has no tokens"),
        ({"sample_index": -1}, "counts from 0"),
        ({"policy_versions": [{"version": 0, "num_tokens": 1}]}, "must cover"),
        ({"policy_versions": []}, "must cover"),
        ({"policy_versions": [{"version": 0, "num_tokens": None}]}, "num_tokens must be an integer of 0 or more (item 0)"),
        ({"policy_versions": [{"version": 0, "num_tokens": 2}, {"num_tokens": 0}]}, "version must be an integer of 0 or more"),
        ({"policy_versions": [None]}, "must be an integer"),
        ({"policy_versions": [{"version": 0, "num_tokens": 5}, {"version": 0, "num_tokens": -3}]}, "(item 1)"),
        ({"finish_reason": "eos"}, "must be one of"),
        ({"completion": None}, "null where one is required"),
    ],
)
def test_a_breach_names_table_column_row_and_reason(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ContractError) as error:
        tables.from_rows("ROLLOUTS", [rollout(), rollout(prompt_id="q", **change)])
    message = str(error.value)
    assert why in message and "ROLLOUTS" in message and next(iter(change)) in message and "'q'" in message


def test_a_completion_without_usable_logprobs_is_allowed_as_null_and_shifts_no_row() -> None:
    rows = [rollout(behavior_logprobs=None), rollout(sample_index=1), rollout(sample_index=2, behavior_logprobs=None)]
    assert tables.from_rows("ROLLOUTS", rows).num_rows == 3
    with pytest.raises(ContractError, match=r"row 3 .*\(item 1\) \(value 0.5\)"):
        tables.from_rows("ROLLOUTS", [*rows, rollout(sample_index=3, behavior_logprobs=[-1, 0.5])])


def test_an_empty_completion_is_one_run_of_no_tokens_between_others() -> None:
    empty = rollout(completion_ids=[], behavior_logprobs=[], policy_versions=[{"version": 0, "num_tokens": 0}])
    split = rollout(sample_index=2, policy_versions=[{"version": version, "num_tokens": 1} for version in (0, 1)])
    rows = [empty, rollout(sample_index=1), split]
    assert tables.from_rows("ROLLOUTS", rows).num_rows == 3
    with pytest.raises(ContractError, match=r"row 1 .*cover the completion's 2 tokens"):
        tables.from_rows("ROLLOUTS", [empty, rollout(sample_index=1, policy_versions=empty["policy_versions"]), split])


def test_a_breach_is_found_in_slices_and_chunks() -> None:
    rows = [rollout(sample_index=n, prompt_ids=[1] * (n + 1)) for n in range(6)]
    whole = tables.from_rows("ROLLOUTS", rows)
    bad = whole.set_column(2, whole.schema.field(2), pa.array([*([[1]] * 4), [1, 2, -7], [1]], tables.TOKEN_IDS))
    for table in (bad.slice(2), pa.concat_tables([whole.slice(0, 2), bad.slice(4)])):
        with pytest.raises(ContractError, match=r"'prompt_ids', row 2 \(prompt_id='p', sample_index=4\).*item 2.*value -7"):
            tables.validate(table, "ROLLOUTS")


def scored(**changes: Any) -> dict[str, Any]:
    return rollout() | verdict() | {"advantage": 0.5, "reference_logprobs": [-1.0, -2000.0]} | changes


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"seconds": float("nan")}, "finite and at least 0"),
        ({"seconds": -0.1}, "finite and at least 0"),
        ({"seconds": float("inf")}, "finite and at least 0"),
        ({"reward": None, "outcome": "error"}, "a completion without a reward has no advantage"),
        ({"advantage": float("inf")}, "must be finite"),
        ({"prompt_ids": []}, "the prompt has no tokens"),
        ({"reference_logprobs": [-1.0, float("-inf")]}, "must be finite"),
    ],
)
def test_a_breach_of_a_judged_completion_is_named(change: dict[str, Any], why: str) -> None:
    assert tables.from_rows("SCORED", [scored()]).num_rows == 1
    with pytest.raises(ContractError, match=f"SCORED.*row 0.*{why}"):
        tables.from_rows("SCORED", [scored(**change)])


@pytest.mark.parametrize("messages", [[], [{"role": "user"}], [{"content": "?"}]])
def test_a_prompt_without_messages_role_or_content_is_refused(messages: list[dict[str, str]]) -> None:
    row = {"prompt_id": "p", "messages": messages, "prompt_ids": [1], "verifier": "exact", "answer": "1", "source": "s"}
    with pytest.raises(ContractError, match="'messages', row 0.*has no"):
        tables.from_rows("PROMPTS", [row])


def test_a_group_has_each_sample_once() -> None:
    rows = [rollout(prompt_id=prompt, sample_index=n) for prompt in "ab" for n in range(3)]
    check_groups(tables.from_rows("ROLLOUTS", rows), 3)
    check_groups(tables.from_rows("ROLLOUTS", rows[::-1]), 3)
    check_groups(tables.empty("ROLLOUTS"), 3)
    with pytest.raises(ContractError, match="row 3 .*prompt_id='b'.*incomplete: 3 rows"):
        check_groups(tables.from_rows("ROLLOUTS", rows[:5]), 3)
    with pytest.raises(ContractError, match="row 2 .*a group of 2 is 0 to 1.*value 2"):
        check_groups(tables.from_rows("ROLLOUTS", rows), 2)


@pytest.mark.slow
def test_a_shard_of_thirty_million_tokens_is_checked_in_seconds() -> None:
    num_rows, num_tokens = 8192, 4096
    one = tables.from_rows("SCORED", [scored(completion_ids=[1] * num_tokens, behavior_logprobs=None, reference_logprobs=None,
        policy_versions=[{"version": n, "num_tokens": num_tokens // 8} for n in range(8)])])  # fmt: skip
    table = one.take(pa.array(np.zeros(num_rows, np.int64)))
    offsets = np.arange(num_rows + 1) * num_tokens
    logprobs = pa.LargeListArray.from_arrays(offsets, np.full(num_rows * num_tokens, -0.5, np.float32))
    for column, values in (
        ("sample_index", pa.array(np.arange(num_rows, dtype=np.int32))),
        ("behavior_logprobs", logprobs),
        ("reference_logprobs", logprobs),
    ):
        position = table.schema.get_field_index(column)
        table = table.set_column(position, table.schema.field(position), values)
    started = time.process_time()
    tables.validate(table, "SCORED")
    assert time.process_time() - started < 5


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
    with pytest.raises(ContractError, match=r"not a complete Arrow.*a\.arrow"):
        tables.read_table(path, "VERDICTS")
    with pytest.raises(ContractError, match="not a complete Arrow"):
        tables.read_table(tmp_path, "VERDICTS")
    with pytest.raises(ContractError, match="has gone"):
        tables.read_table(tmp_path / "none.arrow", "VERDICTS")


def test_any_flipped_byte_gives_a_valid_table_or_a_contract_error(tmp_path: Path) -> None:
    rows = [rollout(sample_index=n, completion="text" * n) for n in range(3)]
    path = tables.write_table(tables.from_rows("ROLLOUTS", rows), "ROLLOUTS", tmp_path / "a.arrow")
    whole, num_refused = path.read_bytes(), 0
    for position in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            tables.read_table(path, "ROLLOUTS")["completion"].to_pylist()
        except ContractError:
            num_refused += 1
    assert num_refused > 100


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


def test_equal_tables_have_equal_hashes_whatever_lies_under_nulls_and_outside_slices() -> None:
    judged = verdict(outcome="error", reward=None)
    table = tables.from_rows("VERDICTS", [judged, verdict(sample_index=1), judged | {"sample_index": 2}])
    position = table.schema.get_field_index("reward")
    buffers = table["reward"].combine_chunks().buffers()
    garbage = pa.Array.from_buffers(pa.float64(), 3, [buffers[0], pa.py_buffer(np.array([7.0, 1.0, 9.0]))])
    assert table.set_column(position, table.schema.field(position), garbage).equals(table)
    variants = [
        table.set_column(position, table.schema.field(position), garbage),
        pa.concat_tables([table, table]).combine_chunks().slice(3),
        pa.concat_tables([table.slice(0, 1), table.slice(1, 1), table.slice(2)]),
        table.replace_schema_metadata({"a": "b"}),
    ]
    assert {tables.content_hash(variant) for variant in variants} == {tables.content_hash(table)}
    rollouts = tables.from_rows("ROLLOUTS", [rollout(sample_index=n, behavior_logprobs=None) for n in range(9)])
    under = pa.LargeListArray.from_arrays(np.arange(10) * 2, pa.array([-5.0] * 18, pa.float32()), mask=pa.array([True] * 9))
    position = rollouts.schema.get_field_index("behavior_logprobs")
    hidden = rollouts.set_column(position, rollouts.schema.field(position), under)
    assert hidden.equals(rollouts)
    assert tables.content_hash(hidden) == tables.content_hash(rollouts)
    assert tables.content_hash(rollouts.slice(2, 3)) == tables.content_hash(rollouts.take([2, 3, 4]))
    assert tables.content_hash(rollouts.slice(2, 3)) != tables.content_hash(rollouts.slice(1, 3))


def test_the_content_hash_does_not_depend_on_chunks() -> None:
    rows = [rollout(sample_index=n) for n in range(4)]
    whole = tables.from_rows("ROLLOUTS", rows)
    parts = pa.concat_tables([tables.from_rows("ROLLOUTS", rows[:1]), tables.from_rows("ROLLOUTS", rows[1:])])
    assert tables.content_hash(whole) == tables.content_hash(parts)
