"""The whole workflow on real parts: vLLM samples, the sandbox judges, TRL updates, MLflow records."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import mlflow
import pyarrow as pa
import pytest
from flytekit.types.file import FlyteFile
from mlflow.entities import Run

from posttrain import policy, tables
from posttrain.config import EvaluationSettings
from posttrain.errors import TrainingError
from tasks import artifacts
from tasks.evaluate import evaluate
from workflows.grpo import grpo

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "prompts": "brackets?size=200", "evaluation_prompts": "brackets?size=50&seed=1000001", "prompts_per_iteration": 16,
    "num_shards": 2, "seed": 1,
}  # fmt: skip


class Finished(NamedTuple):
    execution: str
    policy: Path
    report: Path
    pass_rate: float
    workspace: Path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_policy: Path) -> Any:
    monkeypatch.setenv("POSTTRAIN_WORKSPACE", str(tmp_path))
    artifacts.execution_name.cache_clear()

    def run(**inputs: Any) -> Finished:
        result = grpo(**{**SMALL, "model": str(warm_policy), **inputs})
        report = Path(os.fspath(result.report))
        return Finished(report.parent.name, Path(os.fspath(result.policy)), report, result.pass_rate, tmp_path)

    return run


def runs(workspace: Path) -> tuple[Run, dict[int, Run]]:
    """The parent run and the nested runs by iteration."""
    client = mlflow.MlflowClient(f"sqlite:///{workspace}/mlflow.db")
    found = client.search_runs([client.get_experiment_by_name("posttrain").experiment_id])
    children = {int(run.data.tags["posttrain.iteration"]): run for run in found if "mlflow.parentRunId" in run.data.tags}
    (parent,) = [run for run in found if "mlflow.parentRunId" not in run.data.tags]
    assert {run.data.tags["mlflow.parentRunId"] for run in children.values()} <= {parent.info.run_id}
    return parent, children


def scored(workspace: Path) -> list[pa.Table]:
    files = sorted((workspace / "artifacts" / "reference_logprobs").glob("*/scored.arrow"), key=lambda path: path.stat().st_mtime)
    return [tables.read_table(path, "SCORED") for path in files]


def metric(workspace: Path, name: str) -> dict[int, float]:
    files = (workspace / "artifacts" / "record").glob("*/metrics.arrow")
    rows = [row for path in files for row in tables.read_table(path, "METRICS").to_pylist() if row["name"] == name]
    return {row["iteration"]: row["value"] for row in sorted(rows, key=lambda row: (row["iteration"], row["step"] or 0))}


def test_grpo_learns_and_everything_is_recorded(run: Any) -> None:
    done = run(num_iterations=4, overrides="{evaluation: {every: 4}, tracking: {keep_last: 1, register_as: brackets}}")

    rates = metric(done.workspace, "eval/pass_at_1")
    assert rates[4] >= rates[0] + 0.25 and done.pass_rate == rates[4]  # the verifier removes what the demonstrations taught
    assert policy.read_policy(done.policy).iteration == 4

    shards = scored(done.workspace)
    assert len(shards) == 4 * 2
    versions = [{run["version"] for runs in shard["policy_versions"].to_pylist() for run in runs} for shard in shards]
    first = min(versions[0])
    assert versions == [{first + iteration} for iteration in range(4) for _ in range(2)]  # synchronous: always the newest

    parent, children = runs(done.workspace)
    assert parent.info.status == "FINISHED" and set(children) == {0, 1, 2, 3, 4}
    assert parent.data.params["rollout.group_size"] == "8"
    assert parent.data.metrics["eval/pass_at_1"] == pytest.approx(rates[4])
    assert {area.partition("/")[0] for area in children[4].data.metrics} == {"rollout", "verify", "train", "eval", "time"}
    assert {item.dataset.name for item in parent.inputs.dataset_inputs} == {"brackets"}
    assert mlflow.MlflowClient(f"sqlite:///{done.workspace}/mlflow.db").get_model_version("brackets", "1")

    kept = sorted(path.name for path in (done.report.parent / "checkpoints").iterdir())
    assert kept == ["iteration-000004"]
    page = done.report.read_text(encoding="utf-8")
    assert "<svg" in page and "http://" not in page.replace("http://www.w3.org", "").replace("http://127.0.0.1", "")


def test_staleness_is_an_edge_and_the_loss_corrects_for_it(run: Any) -> None:
    done = run(num_iterations=3, staleness=1, num_shards=1, overrides="{evaluation: {every: 3, num_samples: 1, pass_at: [1]}}")
    versions = [
        min(run["version"] for runs in shard["policy_versions"].to_pylist() for run in runs) for shard in scored(done.workspace)
    ]
    base = versions[0]
    assert versions == [base, base, base + 1]  # iterations 1 and 2 sample from the base policy, 3 from policy 1
    gap = metric(done.workspace, "train/behavior_gap_mean")
    assert gap[1] < 1e-4 < 1e-3 < gap[3]
    assert metric(done.workspace, "train/importance_ratio_max")[3] > 1.01


def test_a_reached_target_ends_sampling_and_training(run: Any) -> None:
    done = run(
        num_iterations=4, num_shards=1, target_pass_rate=0.05, overrides="{evaluation: {every: 1, num_samples: 1, pass_at: [1]}}"
    )
    assert scored(done.workspace) == []  # the warm start already passes 5 %
    assert not (done.report.parent / "checkpoints").exists() or not list((done.report.parent / "checkpoints").iterdir())
    assert runs(done.workspace)[0].info.status == "FINISHED"
    assert set(metric(done.workspace, "eval/pass_at_1")) == {0}


def test_a_run_that_has_stopped_stays_stopped(tmp_path: Path) -> None:
    """With staleness an iteration may be on its way when the target is reached; a lower rate of its own is no restart."""
    verdict = {"prompt_id": "p", "sample_index": 0, "outcome": "fail", "reward": 0.0, "detail": "", "seconds": 0.0}
    table = tables.from_rows("VERDICTS", [verdict | {"verifier": "exact", "verifier_version": "1", "parts": [], "limits": "{}"}])
    file = FlyteFile(str(tables.write_table(table, "VERDICTS", tmp_path / "verdicts.arrow")))
    settings = EvaluationSettings(num_samples=1, pass_at=[1])
    stops = [
        evaluate(sampled=file, greedy=file, settings=settings, target_pass_rate=0.9, stopped_before=stopped, iteration=1).stop
        for stopped in (False, True)
    ]
    assert stops == [False, True]


def test_kl_uses_stored_reference_logprobs(run: Any) -> None:
    done = run(num_iterations=2, num_shards=1, kl_coef=0.05, overrides="{evaluation: {every: 2, num_samples: 1, pass_at: [1]}}")
    shards = scored(done.workspace)
    trained = [row for shard in shards for row in shard.to_pylist() if row["advantage"]]
    assert trained and all(row["reference_logprobs"] is not None for row in trained)
    first = [row for row in shards[0].to_pylist() if row["advantage"]]
    for row in first:  # the first rollouts come from the reference itself
        assert row["reference_logprobs"] == pytest.approx(row["behavior_logprobs"], abs=1e-4)
    assert metric(done.workspace, "train/kl")[2] > 0


def test_a_diverged_update_stops_before_a_checkpoint_and_the_run_is_failed(run: Any, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="prompt_id"):
        run(num_iterations=1, num_shards=1, learning_rate=1e30, overrides="{evaluation: {num_samples: 1, pass_at: [1]}}")
    assert not list(tmp_path.glob("runs/*/checkpoints/*"))
    assert not list((tmp_path / "artifacts" / "update").glob("*/policy"))
    assert runs(tmp_path)[0].info.status == "FAILED"


def test_a_prompt_set_without_usable_prompts_is_refused(run: Any, tmp_path: Path) -> None:
    rows = [{"prompt": "add 1; " * 200, "answer": {"mode": "expression", "variable": "x", "inputs": [1], "outputs": [2]}}]
    path = tmp_path / "my prompts äöü.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    with pytest.raises(Exception, match="1 .*(rejected|left out)"):
        run(prompts=str(path))
