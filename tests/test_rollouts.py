"""Prompts to ROLLOUTS, and the numbers that describe them."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from posttrain import tables
from posttrain.engines.base import SamplingParameters
from posttrain.engines.transformers_engine import TransformersEngine
from posttrain.errors import EngineError
from posttrain.policy import load_tokenizer
from posttrain.rollouts import generate_rollouts, rollout_metrics
from posttrain.seeds import sample_seed
from tests.tiny_models import EOS_ID, build_tiny_policy

SAMPLED = SamplingParameters(temperature=1.0, top_p=1.0, max_completion_tokens=10)
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_policy(tmp_path_factory.mktemp("policies") / "policy", version=3)


@pytest.fixture(scope="module")
def engine(policy: Path) -> TransformersEngine:
    return TransformersEngine(policy, dtype="float32", max_model_tokens=32)


def prompts(*all_ids: list[int]) -> pa.Table:
    same = {"messages": [{"role": "user", "content": "?"}], "verifier": "exact", "answer": "1", "source": "test"}
    rows = [{"prompt_id": f"p{number}", "prompt_ids": ids, **same} for number, ids in enumerate(all_ids)]
    return tables.from_rows("PROMPTS", rows)


def generate(engine: TransformersEngine, policy: Path, table: pa.Table, **changes: Any) -> pa.Table:
    arguments = {"group_size": 4, "run_seed": 7, "iteration": 2, "tokenizer": load_tokenizer(policy), **changes}
    return generate_rollouts(engine, table, arguments.pop("sampling", SAMPLED), **arguments)


def test_rows_hold_the_prompt_the_samples_and_where_they_came_from(engine: TransformersEngine, policy: Path) -> None:
    rollouts = generate(engine, policy, prompts([5, 6, 7], [8, 9]))
    assert tables.keys(rollouts) == [(f"p{prompt}", sample) for prompt in range(2) for sample in range(4)]
    for row in rollouts.to_pylist():
        assert row["prompt_ids"] == ([5, 6, 7] if row["prompt_id"] == "p0" else [8, 9])
        assert row["policy_versions"] == [{"version": 3, "num_tokens": len(row["completion_ids"])}]
        assert row["seed"] == sample_seed(7, 2, row["prompt_id"], row["sample_index"])
        assert row["engine"] == "transformers" and row["started_at"] <= row["finished_at"]
        assert (row["finish_reason"] == "stop") == (row["completion_ids"][-1] == EOS_ID)
        assert not row["completion"].endswith("</s>")


def test_logprobs_are_those_of_the_sampled_ids(engine: TransformersEngine, policy: Path) -> None:
    for row in generate(engine, policy, prompts([5, 6, 7])).to_pylist():
        forced = engine.sequence_logprobs(row["prompt_ids"] + row["completion_ids"])
        assert row["behavior_logprobs"] == pytest.approx(forced[len(row["prompt_ids"]) - 1 :], abs=1e-4)


def test_samples_differ_in_a_group_and_repeat_in_any_batching(engine: TransformersEngine, policy: Path) -> None:
    whole = generate(engine, policy, prompts([5, 6, 7], [5, 6, 7]), group_size=8)
    ids = whole["completion_ids"].to_pylist()
    assert len({tuple(one) for one in ids}) == 16  # also between two prompts of the same text
    alone = generate(engine, policy, prompts([5, 6, 7], [5, 6, 7]).slice(1), group_size=8)
    assert alone["completion_ids"].to_pylist() == ids[8:]
    for change in ({"run_seed": 8}, {"iteration": 3}):
        other = generate(engine, policy, prompts([5, 6, 7], [5, 6, 7]), group_size=8, **change)
        assert not {tuple(one) for one in ids} & {tuple(one) for one in other["completion_ids"].to_pylist()}


def test_no_prompts_give_no_rows_and_a_long_prompt_is_named(engine: TransformersEngine, policy: Path) -> None:
    empty = generate(engine, policy, tables.empty("PROMPTS"))
    assert empty.num_rows == 0 and empty.schema == tables.ROLLOUTS
    assert rollout_metrics(empty, 0)["name"].to_pylist() == ["rollout/num_completions"]
    with pytest.raises(EngineError, match="'p1' has 32 tokens"):
        generate(engine, policy, prompts([5], [5] * 32))


def test_an_iteration_of_duplicates_raises_the_alarm(
    engine: TransformersEngine, policy: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "posttrain"):
        generate(engine, policy, prompts([5, 6], [7]))
        generate(engine, policy, prompts([5, 6], [7]), sampling=SamplingParameters(0.0, 1.0, 6))  # greedy: as it should be
        assert not caplog.records
        monkeypatch.setattr("posttrain.rollouts.sample_seed", lambda *parts: 1)
        rollouts = generate(engine, policy, prompts([5, 6], [7]))
    assert "all 8 completions repeat the first of their group" in caplog.text
    assert metrics(rollouts)["rollout/share_duplicates"] == 6 / 8


def test_metrics_by_hand() -> None:
    rows = [
        ("p0", 0, [5, 6, EOS_ID], "stop", (0, 2)),
        ("p0", 1, [5, 6, EOS_ID], "stop", (0, 3)),
        ("p1", 0, [5, 6, 7, 8, 9], "length", (1, 4)),
        ("p1", 1, [5], "aborted", (10, 12)),
    ]
    rollouts = tables.from_rows("ROLLOUTS", [row(*values, missing=number == 3) for number, values in enumerate(rows)])
    assert metrics(rollouts) == {
        "rollout/num_completions": 4,
        "rollout/num_tokens": 12,
        "rollout/mean_completion_tokens": 3,
        "rollout/max_completion_tokens": 5,
        "rollout/share_truncated": 0.25,
        "rollout/share_aborted": 0.25,
        "rollout/share_duplicates": 0.25,
        "rollout/num_missing_logprobs": 1,
        "rollout/tokens_per_s": 12 / 6,  # busy from 0 to 4 and from 10 to 12
    }
    assert set(rollout_metrics(rollouts, 5)["iteration"].to_pylist()) == {5}


def metrics(rollouts: pa.Table) -> dict[str, float]:
    table = rollout_metrics(rollouts, 5)
    return dict(zip(table["name"].to_pylist(), table["value"].to_pylist(), strict=True))


def row(
    prompt_id: str, sample_index: int, ids: list[int], reason: str, seconds: tuple[int, int], missing: bool
) -> dict[str, Any]:
    return {
        "prompt_id": prompt_id,
        "sample_index": sample_index,
        "prompt_ids": [5],
        "completion_ids": ids,
        "behavior_logprobs": None if missing else [-1.0] * len(ids),
        "policy_versions": [{"version": 0, "num_tokens": len(ids)}],
        "finish_reason": reason,
        "completion": "",
        "seed": 1,
        "engine": "vllm",
        "started_at": START + timedelta(seconds=seconds[0]),
        "finished_at": START + timedelta(seconds=seconds[1]),
    }
