"""Every stage of DPO as Flyte runs it on a cluster: one process for each task, tables and policies through S3."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posttrain import policy, resolution, sweep, tables
from posttrain.config_dpo import DpoSettings
from tasks.artifacts import PolicyDirectory, TableFile
from tasks.evaluate_pairs import evaluate_pairs
from tasks.preferences import prepare_preferences, reference_policy
from tasks.prepare import base_policy
from tasks.reference_pairs import reference_pairs
from tasks.update_dpo import update_dpo
from tests.execution_mode import Executor, s3_server
from workflows.dpo import dpo_loop, precompute_reference
from workflows.dpo_sweep import run_trials

pytestmark = pytest.mark.slow


@pytest.fixture
def executor() -> Iterator[Executor]:
    with s3_server() as endpoint:
        executor = Executor(endpoint)
        yield executor
        executor.close()


@pytest.fixture
def settings(tmp_path: Path) -> DpoSettings:
    rows = [{"prompt": f"add {n}; take 3:", "chosen": f"(x+{n})-3", "rejected": f"x-{n}-3"} for n in range(1, 9)]
    path = tmp_path / "my pairs äö.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    flat = {
        "data.model": "brackets", "data.preferences": str(path), "data.max_pair_tokens": 64,
        "learner.beta": 0.1, "learner.pairs_per_step": 4, "loop.num_iterations": 2, "data.evaluation_share": 0.3,
    }  # fmt: skip
    return resolution.resolve_as(DpoSettings, flat, "{learner: {pairs_per_microbatch: 2}}")


def prepare_in_flyte(executor: Executor, base: dict[str, Any], settings: DpoSettings) -> dict[str, Any]:
    given = {"data": settings.data, "verification": settings.verify, "num_shards": 2, "seed": 0}
    return executor.run(prepare_preferences, policy_directory=base["policy"], **given)


def test_a_part_of_training_runs_task_by_task_through_s3(executor: Executor, settings: DpoSettings) -> None:
    base = executor.run(base_policy, model="brackets", trust_remote_code=False, seed=0)
    reference = executor.run(reference_policy, policy_directory=base["policy"], reference="", trust_remote_code=False)
    prepared = prepare_in_flyte(executor, base, settings)
    shards = executor.to_python(prepared["shards"], list[TableFile])
    assert len(shards) == 2

    computed = executor.run(
        reference_pairs, pairs=shards[0], reference=reference["policy"], dtype="float32", trust_remote_code=False
    )
    referenced = executor.to_python(computed["referenced"], TableFile)
    table = tables.read_table(referenced.path, "REFERENCED")
    reference_hash = reference["hash"].scalar.primitive.string_value
    assert set(table["reference_hash"].to_pylist()) == {reference_hash}

    updated = executor.run(
        update_dpo, policy_directory=base["policy"], base=base["policy"], state=base["state"], referenced=[referenced],
        reference_hash=reference_hash, settings=settings.learner, iteration=1, part=1, num_parts=2,
    )  # fmt: skip
    assert policy.read_policy(Path(executor.to_python(updated["policy"], PolicyDirectory).path)).version == 1

    judged = executor.run(
        evaluate_pairs, policy_directory=updated["policy"], held_out=referenced, beta=0.1, dtype="float32",
        trust_remote_code=False, confidence=0.95, iteration=1,
    )  # fmt: skip
    names = tables.read_table(executor.to_python(judged["metrics"], TableFile).path, "METRICS")["name"].to_pylist()
    assert "eval/chosen_logprob_drift" in names


def test_the_graphs_have_one_reference_task_a_shard_and_none_in_training(executor: Executor, settings: DpoSettings) -> None:
    base = executor.run(base_policy, model="brackets", trust_remote_code=False, seed=0)
    prepared = prepare_in_flyte(executor, base, settings)
    precompute = executor.compile(
        precompute_reference, shards=prepared["shards"], evaluation=prepared["evaluation"], reference=base["policy"],
        dtype="float32", trust_remote_code=False,
    )  # fmt: skip
    assert [node.task_node.reference_id.name for node in precompute.nodes].count("tasks.reference_pairs.reference_pairs") == 3

    inputs = {
        "base": base["policy"], "state": base["state"], "reference_hash": "hash", "referenced": [], "reference_events": [],
        "held_out": prepared["evaluation"], "evaluation_prompts": prepared["evaluation_prompts"], "execution": "test",
    }  # fmt: skip
    graph = executor.compile(dpo_loop, settings=settings, **inputs)
    names = Counter(node.task_node.reference_id.name for node in graph.nodes)
    assert names["tasks.update_dpo.update_dpo"] == 2 and names["tasks.evaluate_pairs.evaluate_pairs"] == 3
    assert names["tasks.reference_pairs.reference_pairs"] == 0

    trials = sweep.trials(settings, {"betas": "0.1,0.2,0.5"}, "test")
    spec = executor.compile(run_trials, trials=trials, **inputs)
    assert [node.workflow_node.sub_workflow_ref.name for node in spec.nodes].count("workflows.dpo.train_dpo") == 3
