"""Runs nested in another execution's run: a sweep and its trials."""

from __future__ import annotations

from pathlib import Path

import mlflow

from posttrain import tables
from posttrain.tracking import Tracker


def test_a_trial_is_nested_in_the_sweep_and_its_iterations_in_the_trial(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    trial = Tracker(uri, "sweeps", "night.beta-0.1", tmp_path / "spool", "beta-0.1", parent_execution="night")
    trial.start({"learner.beta": "0.1"})  # before the sweep itself: a cluster may record in any order
    trial.log_iteration(1, tables.from_rows("METRICS", [{"iteration": 1, "step": None, "name": "train/loss", "value": 0.5}]))
    Tracker(uri, "sweeps", "night", tmp_path / "spool", "night").start({"data.model": "policy"})

    client = mlflow.MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("sweeps").experiment_id])
    by_name = {run.info.run_name: run for run in runs}
    parents = {name: run.data.tags.get("mlflow.parentRunId") for name, run in by_name.items()}
    assert parents == {"night": None, "beta-0.1": by_name["night"].info.run_id, "iteration 001": by_name["beta-0.1"].info.run_id}
    assert by_name["night"].data.params["data.model"] == "policy"
