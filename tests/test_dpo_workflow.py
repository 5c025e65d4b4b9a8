"""DPO as a whole on real parts: verified rollouts become pairs, TRL updates, MLflow records; sweep and iterative DPO too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import mlflow
import pytest

from posttrain import policy, tables
from tasks import artifacts
from workflows.collect_preferences import collect_preferences
from workflows.dpo import dpo
from workflows.dpo_sweep import dpo_sweep
from workflows.iterative_dpo import iterative_dpo

pytestmark = pytest.mark.slow

EVALUATION = "brackets?size=40&seed=1000001"
LIMITS: dict[str, Any] = {"max_prompt_tokens": 64, "max_completion_tokens": 48}
TRAINING: dict[str, Any] = {**LIMITS, "max_pair_tokens": 112, "beta": 0.5, "nll_coef": 1.0, "learning_rate": 2e-4, "seed": 1}


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory, warm_policy: Path) -> tuple[Path, Path]:
    """Policy and PREFERENCES of 96 prompts × 8 verified rollouts."""
    workspace = tmp_path_factory.mktemp("collect")
    before = os.environ["POSTTRAIN_WORKSPACE"]
    os.environ["POSTTRAIN_WORKSPACE"] = str(workspace)
    try:
        collect_preferences(run_name="pairs", model=str(warm_policy), num_prompts=96, seed=1, **LIMITS)
    finally:
        os.environ["POSTTRAIN_WORKSPACE"] = before
    return workspace / "preferences" / "pairs" / "policy", workspace / "preferences" / "pairs" / "preferences.arrow"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POSTTRAIN_WORKSPACE", str(tmp_path))
    artifacts.execution_name.cache_clear()
    return tmp_path


def metric(workspace: Path, name: str) -> list[float]:
    """Values in the order in which they were recorded."""
    files = sorted((workspace / "artifacts" / "record").glob("*/metrics.arrow"), key=lambda path: path.stat().st_mtime)
    return [row["value"] for path in files for row in tables.read_table(path, "METRICS").to_pylist() if row["name"] == name]


def test_pairs_come_from_verified_rollouts(collected: tuple[Path, Path]) -> None:
    table = tables.read_table(collected[1], "PREFERENCES")
    assert 60 <= table.num_rows <= 96  # most groups hold a right and a wrong completion
    assert set(table["margin"].to_pylist()) == {1.0}


def test_dpo_learns_and_everything_is_recorded(collected: tuple[Path, Path], workspace: Path) -> None:
    model, pairs = collected
    result = dpo(
        model=str(model),
        preferences=str(pairs),
        evaluation_prompts=EVALUATION,
        num_epochs=8,
        num_iterations=2,
        overrides="{evaluation: {num_samples: 2, pass_at: [1]}}",
        **TRAINING,
    )

    rates = metric(workspace, "eval/pass_at_1")
    assert len(rates) == 3 and rates[-1] >= rates[0] + 0.2 and result.pass_rate == rates[-1]
    drift = metric(workspace, "eval/chosen_logprob_drift")
    assert drift[0] == pytest.approx(0, abs=1e-4)  # before training the policy is its reference
    assert metric(workspace, "eval/pair_accuracy")[-1] == result.pair_accuracy > 0.5
    assert policy.read_policy(Path(os.fspath(result.policy))).algorithm == "dpo"
    page = Path(os.fspath(result.report)).read_text()
    assert "DPO" in page and "reference" in page

    client = mlflow.MlflowClient(f"sqlite:///{workspace}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("posttrain").experiment_id])
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert parent.info.status == "FINISHED" and parent.data.params["learner.nll_coef"] == "1.0"


def test_a_sweep_computes_the_reference_once_and_compares_its_trials(collected: tuple[Path, Path], workspace: Path) -> None:
    model, pairs = collected
    inputs = {name: value for name, value in TRAINING.items() if name not in ("beta", "nll_coef", "learning_rate")}
    result = dpo_sweep(
        model=str(model), preferences=str(pairs), betas="0.1,0.5", loss_types="sigmoid,ipo", learning_rates="2e-4",
        num_iterations=1, num_shards=3, run_name="night", **inputs,
    )  # fmt: skip

    assert len(list((workspace / "artifacts" / "reference_pairs").glob("*/referenced.arrow"))) == 4  # three shards, one held out
    assert len(result.policies) == 4
    client = mlflow.MlflowClient(f"sqlite:///{workspace}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("posttrain").experiment_id])
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    trials = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert parent.info.run_name == "night" and parent.info.status == "FINISHED"
    assert {(run.data.params["learner.loss_type"], run.data.params["learner.beta"]) for run in trials} == {
        ("sigmoid", "0.1"), ("sigmoid", "0.5"), ("ipo", "0.1"), ("ipo", "0.5"),
    }  # fmt: skip
    assert "ipo" in Path(os.fspath(result.report)).read_text()


def test_iterative_dpo_raises_the_pass_rate(workspace: Path, warm_policy: Path) -> None:
    result = iterative_dpo(
        model=str(warm_policy), prompts="brackets?size=200", evaluation_prompts=EVALUATION, num_iterations=2,
        prompts_per_iteration=64, overrides="{evaluation: {every: 2, num_samples: 2, pass_at: [1]}}", seed=1,
    )  # fmt: skip

    rates = metric(workspace, "eval/pass_at_1")
    assert rates[-1] >= rates[0] + 0.2 and result.pass_rate == rates[-1]
    assert metric(workspace, "rollout/num_completions") == [512.0, 512.0]
    assert policy.read_policy(Path(os.fspath(result.policy))).iteration == 2
