"""MLflow on a real SQLite store: one run an execution, nothing twice, nothing lost, nothing secret."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from posttrain import config, resolution, tables
from posttrain.errors import ConfigError, ContractError
from posttrain.tracking import DatasetInfo, Tracker, mean_ignoring_nan, mlflow_command, mlflow_name
from posttrain.tracking_address import default_store, sqlite_file, store_key
from posttrain.tracking_replay import waiting_spools

mlflow = pytest.importorskip("mlflow")
PARAMETERS = resolution.flatten(config.GrpoSettings())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One SQLite store for the module: making its schema takes seconds. Every test has an execution of its own."""
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"


@pytest.fixture
def client(store: str) -> Iterator[Any]:
    yield mlflow.MlflowClient(store, registry_uri=store)


def metrics_table(iteration: int, rows: list[tuple[int | None, str, float]]) -> pa.Table:
    named = [{"iteration": iteration, "step": step, "name": name, "value": value} for step, name, value in rows]
    return tables.from_rows("METRICS", named)


def runs_of(client: Any, execution: str, kind: str) -> list[Any]:
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    wanted = f"tags.`posttrain.execution` = '{execution}' and tags.`posttrain.kind` = '{kind}'"
    return list(client.search_runs(experiments, wanted))


def history(client: Any, run: Any, name: str) -> list[tuple[int, float]]:
    return [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]


def load_table(client: Any, run: Any, name: str) -> Any:
    """As a user reads it; MLflow looks for tables in the process-wide store."""
    mlflow.set_tracking_uri(client.tracking_uri)
    try:
        return client.load_table(run.info.experiment_id, name, [run.info.run_id])
    finally:
        mlflow.set_tracking_uri(None)


def artifact_text(client: Any, run: Any, name: str, tmp_path: Path) -> str:
    return Path(client.download_artifacts(run.info.run_id, name, str(tmp_path))).read_text()


def test_processes_of_an_execution_share_one_run_with_a_nested_run_for_each_iteration(
    store: str, client: Any, tmp_path: Path
) -> None:
    Tracker(store, "shape", "shape-1", tmp_path, "my run").start(PARAMETERS, tags={"git": "abc"})
    for iteration in range(2):  # each task is a process of its own, so each makes its own tracker
        rows = [
            (2 * iteration, "train/loss", 1.0),
            (2 * iteration + 1, "train/loss", 0.5),
            (None, "eval/pass_at_1", 0.2 + iteration),
        ]
        Tracker(store, "shape", "shape-1", tmp_path).log_iteration(iteration, metrics_table(iteration, rows))
    Tracker(store, "shape", "shape-1", tmp_path).finish("FINISHED")
    (parent,) = runs_of(client, "shape-1", "execution")
    nested = {run.data.tags["posttrain.iteration"]: run for run in runs_of(client, "shape-1", "iteration")}
    assert (parent.info.run_name, parent.info.status, parent.data.tags["git"]) == ("my run", "FINISHED", "abc")
    assert parent.data.params["loop.num_iterations"] == "10"
    assert set(nested) == {"0", "1"}
    assert {run.data.tags["mlflow.parentRunId"] for run in nested.values()} == {parent.info.run_id}
    assert {run.info.status for run in nested.values()} == {"FINISHED"}
    assert history(client, nested["1"], "train/loss") == [(2, 1.0), (3, 0.5)]
    assert history(client, parent, "train/loss") == [(0, 0.75), (1, 0.75)]
    assert history(client, parent, "eval/pass_at_1") == [(0, 0.2), (1, 1.2)]


def test_counts_and_times_add_up_in_the_execution_run_and_rates_are_averaged(store: str, client: Any, tmp_path: Path) -> None:
    rows = [
        (None, "verify/num_pass", 3.0),
        (None, "verify/num_pass", 4.0),
        (None, "time/generate", 1.5),
        (None, "time/generate", 2.0),
    ]
    Tracker(store, "sums", "sums-1", tmp_path).log_iteration(
        5, metrics_table(5, [*rows, (0, "train/kl", 0.1), (1, "train/kl", 0.3)])
    )
    (parent,) = runs_of(client, "sums-1", "execution")
    assert parent.data.metrics == {"verify/num_pass": 7.0, "time/generate": 3.5, "train/kl": pytest.approx(0.2)}
    assert history(client, parent, "verify/num_pass") == [(5, 7.0)]


def test_b37_long_parameters_stay_distinct_and_complete(store: str, client: Any, tmp_path: Path) -> None:
    base = {f"section.field_{number}": str(number) for number in range(149)}
    for execution, ending in (("long-1", "a"), ("long-2", "b")):
        Tracker(store, "long", execution, tmp_path).start(base | {"data.template": "x" * 6999 + ending})
    runs = [runs_of(client, execution, "execution")[0] for execution in ("long-1", "long-2")]
    for run, ending in zip(runs, "ab", strict=True):
        assert len(run.data.params) == 151
        assert base.items() <= run.data.params.items()
        digest = run.data.params["settings_sha256"]
        saved = json.loads(artifact_text(client, run, f"settings-{digest[:12]}.json", tmp_path))
        assert saved["data.template"] == "x" * 6999 + ending
    assert runs[0].data.params["settings_sha256"] != runs[1].data.params["settings_sha256"]
    assert runs[0].data.params["data.template"] != runs[1].data.params["data.template"]


HARD_NAMES = [
    "pass@8",
    "pass_8",
    "timing(s)/gen",
    "timing[s]/gen",
    "acc%",
    "a,b",
    "a;b",
    "../x",
    "a//b",
    "a/b",
    "",
    " ",
    ".",
    "/",
    "größe",
    "n" * 300,
    "n" * 301,
]


def test_b38_hard_metric_names_are_logged_under_distinct_names_with_the_mapping(store: str, client: Any, tmp_path: Path) -> None:
    rows = [(0, name, float(number)) for number, name in enumerate(HARD_NAMES)]
    tracker = Tracker(store, "names", "names-1", tmp_path)
    tracker.log_iteration(0, metrics_table(0, rows))
    assert tracker.num_spooled == 0
    for kind in ("execution", "iteration"):
        (run,) = runs_of(client, "names-1", kind)
        prefix = "posttrain.metric."
        originals = {tag.removeprefix(prefix): value for tag, value in run.data.tags.items() if tag.startswith(prefix)}
        logged = {originals.get(name, name): value for name, value in run.data.metrics.items()}
        assert logged == {name: float(number) for number, name in enumerate(HARD_NAMES)}
        assert {"pass_8", "a/b"} <= set(run.data.metrics)  # acceptable names stay as they are


@pytest.mark.parametrize("name", ["eval/pass_at_1", "train/clip_ratio/high_mean", "time/generate", "a.b-c d"])
def test_acceptable_names_are_unchanged(name: str) -> None:
    assert mlflow_name(name) == name


def test_b35_nan_is_left_out_of_a_mean_and_an_empty_window_logs_no_point(store: str, client: Any, tmp_path: Path) -> None:
    nan = float("nan")
    assert mean_ignoring_nan([0.5, nan, nan, 0.8]) == (pytest.approx(0.65), 2)
    assert mean_ignoring_nan([nan, None]) is None
    windows = {"rollout/mixed": [0.5, nan, nan, 0.8], "rollout/silent": [nan, nan]}
    means = {name: mean_ignoring_nan(values) for name, values in windows.items()}
    rows = [(0, name, mean[0]) for name, mean in means.items() if mean is not None]
    Tracker(store, "nan", "nan-1", tmp_path).log_iteration(0, metrics_table(0, rows))
    assert runs_of(client, "nan-1", "execution")[0].data.metrics == {"rollout/mixed": pytest.approx(0.65)}
    with pytest.raises(ContractError, match="finite"):
        Tracker(store, "nan", "nan-1", tmp_path).log_iteration(0, pa.Table.from_pylist(
            [{"iteration": 0, "step": 0, "name": "train/loss", "value": nan}], schema=tables.METRICS))  # fmt: skip


def test_b60_a_retry_logs_each_step_once_and_may_change_a_parameter(
    store: str, client: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Tracker(store, "retry", "retry-1", tmp_path)
    first.start({"resume_from": "", "lr": "1e-3"})
    first.log_iteration(0, metrics_table(0, [(step, "train/loss", 1 / step) for step in range(1, 8)]))
    first.finish("FAILED")
    assert [run.info.status for run in runs_of(client, "retry-1", "execution")] == ["FAILED"]
    second = Tracker(store, "retry", "retry-1", tmp_path)
    second.start({"resume_from": "step-4", "lr": "1e-3"})
    assert [run.info.status for run in runs_of(client, "retry-1", "execution")] == ["RUNNING"]
    values = {step: 1 / step for step in range(5, 11)} | {6: 9.0}  # step 6 came out differently the second time
    second.log_iteration(0, metrics_table(0, [(step, "train/loss", value) for step, value in values.items()]))
    second.finish("FINISHED")
    (parent,), (nested,) = runs_of(client, "retry-1", "execution"), runs_of(client, "retry-1", "iteration")
    assert history(client, nested, "train/loss") == [(step, 1 / step) for step in range(1, 11)]
    assert nested.data.metrics["train/loss"] == 0.1
    assert parent.info.status == "FINISHED"
    assert parent.data.params["resume_from"] == ""
    assert parent.data.tags["posttrain.changed.resume_from"] == "step-4"
    assert "iteration 0 has other values from an earlier attempt; those are kept: train/loss at step 6" in caplog.text
    assert (second.num_spooled, list(tmp_path.glob("*.refused.jsonl"))) == (0, [])


def test_an_operation_that_is_applied_again_after_a_crash_changes_nothing(store: str, client: Any, tmp_path: Path) -> None:
    """A process can die after the store took an operation and before the spool forgot it: then all come again."""
    away = Tracker(
        "http://127.0.0.1:9", "again", "again-1", tmp_path / "away"
    )  # nobody listens there: everything stays in the spool
    away.start(PARAMETERS)
    away.log_iteration(0, metrics_table(0, [(0, "train/loss", 1.0), (None, "eval/pass@1", 0.5)]))
    away.log_datasets([DatasetInfo("train", "hub:x", "d" * 64, 10), DatasetInfo("held out", "hub:y", "e" * 64, 5, "evaluation")])
    away.log_samples(0, scored_table(3))
    away.register_policy("s3://bucket/policy", "again-model", {"policy_hash": "abc123"})
    away.finish("FINISHED")
    (spooled,) = (tmp_path / "away").glob("*.jsonl")
    tracker = Tracker(store, "again", "again-1", tmp_path / "here")
    for _ in range(3):
        (tmp_path / "here").mkdir(exist_ok=True)
        tracker._spool.path.write_bytes(spooled.read_bytes())  # pyright: ignore[reportPrivateUsage]
        assert tracker.replay() == 7
    (parent,), (nested,) = runs_of(client, "again-1", "execution"), runs_of(client, "again-1", "iteration")
    assert history(client, nested, "train/loss") == [(0, 1.0)]
    assert history(client, parent, mlflow_name("eval/pass@1")) == [(0, 0.5)]
    assert sorted(item.dataset.name for item in parent.inputs.dataset_inputs) == ["held out", "train"]
    assert len(load_table(client, parent, "samples/iteration-000.json")) == 3
    assert len(client.search_model_versions("name = 'again-model'")) == 1
    assert parent.info.status == "FINISHED"


def scored_table(num_rows: int, completion: str = "x + 1") -> pa.Table:
    now = datetime(2025, 1, 1, tzinfo=UTC)
    row = {
        "prompt_ids": [1], "completion_ids": [2, 3], "behavior_logprobs": [-0.1, -0.2],
        "policy_versions": [{"version": 0, "num_tokens": 2}],
        "finish_reason": "stop", "completion": completion, "seed": 1, "engine": "vllm", "started_at": now, "finished_at": now,
        "outcome": "pass", "reward": 1.0, "detail": "", "seconds": 0.1, "verifier": "exact", "verifier_version": "1",
        "parts": [], "limits": "{}",
        "advantage": 0.5, "reference_logprobs": None,
    }  # fmt: skip
    return tables.from_rows("SCORED", [row | {"prompt_id": f"p{number}", "sample_index": 0} for number in range(num_rows)])


def test_samples_are_an_mlflow_table_of_bounded_size(store: str, client: Any, tmp_path: Path) -> None:
    Tracker(store, "samples", "samples-1", tmp_path).log_samples(
        2, scored_table(150, "é\x00" + "A" * 1_000_000), {"p0": "add 9:"}
    )
    (parent,) = runs_of(client, "samples-1", "execution")
    table = load_table(client, parent, "samples/iteration-002.json")
    assert (len(table), table["prompt"][0], table["reward"][0], table["iteration"][0]) == (100, "add 9:", 1.0, 2)
    assert table["completion"][0].startswith("é\x00AAA")
    assert table["completion"][0].endswith("… (1000002 characters)")
    assert json.loads(parent.data.tags["mlflow.loggedArtifacts"]) == [{"path": "samples/iteration-002.json", "type": "table"}]


def test_report_is_an_artifact_and_a_later_one_replaces_it(store: str, client: Any, tmp_path: Path) -> None:
    tracker, report = Tracker(store, "report", "report-1", tmp_path / "spool"), tmp_path / "report.html"
    for text in ("<p>first 🎉</p>", "<p>second</p>"):
        report.write_text(text)
        tracker.log_report(report)
    (parent,) = runs_of(client, "report-1", "execution")
    assert artifact_text(client, parent, "report.html", tmp_path / "spool") == "<p>second</p>"


def test_a_policy_hash_becomes_one_model_version_with_its_lineage(store: str, client: Any, tmp_path: Path) -> None:
    tracker = Tracker(store, "registry", "registry-1", tmp_path / "spool")
    policy = tmp_path / "policy"
    policy.mkdir()
    for digest in ("sha-a", "sha-a", "sha-b"):
        tracker.register_policy(policy.as_uri(), "registry-model", {"policy_hash": digest, "iteration": "4"})
    versions = client.search_model_versions("name = 'registry-model'")
    assert sorted(version.tags["policy_hash"] for version in versions) == ["sha-a", "sha-b"]
    assert {version.source for version in versions} == {policy.as_uri()}
    assert {version.run_id for version in versions} == {runs_of(client, "registry-1", "execution")[0].info.run_id}
    assert versions[0].tags["iteration"] == "4"


@pytest.mark.parametrize(
    ("name", "tags"), [("a/b", {"policy_hash": "x"}), ("a'b", {"policy_hash": "x"}), ("ok", {}), ("ok", {"policy_hash": "x' or"})]
)
def test_a_registration_that_cannot_work_is_refused_at_once(name: str, tags: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Tracker("sqlite:///never.db", "e", "x", tmp_path).register_policy("file:///p", name, tags)


def test_a_refused_operation_and_a_torn_line_are_put_aside_and_the_rest_goes_on(
    store: str, client: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Tracker(store, "refused", "refused-1", tmp_path)
    tracker.log_datasets([DatasetInfo("n" * 600, "hub:x", "d", 1)])  # MLflow allows 500 characters
    with tracker._spool.path.open("a") as spool:  # pyright: ignore[reportPrivateUsage]
        spool.write('{"kind": "iter')  # a process died here
    tracker.log_iteration(0, metrics_table(0, [(0, "train/loss", 1.0)]))
    assert tracker.num_spooled == 0
    (refused,) = tmp_path.glob("*.refused.jsonl")
    assert [json.loads(line)["operation"][:17] for line in refused.read_text().splitlines()] == [
        '{"kind": "dataset',
        '{"kind": "iter',
    ]
    assert caplog.text.count("MLflow will not take an operation") == 2
    assert runs_of(client, "refused-1", "iteration")[0].data.metrics == {"train/loss": 1.0}


def test_points_that_no_float_holds_are_left_out_and_the_others_logged(store: str, client: Any, tmp_path: Path) -> None:
    names = ("verify/num_pass", "train/loss", "train/kl")
    rows = [(None, name, 1e308) for name in names for _ in range(2)]
    Tracker(store, "large", "large-1", tmp_path).log_iteration(0, metrics_table(0, rows))
    (parent,) = runs_of(client, "large-1", "execution")
    assert parent.data.metrics == {"train/loss": 1e308, "train/kl": 1e308}


def test_a_start_sends_what_other_executions_of_the_store_left_behind(store: str, client: Any, tmp_path: Path) -> None:
    for execution in ("left-1", "left-2"):  # runs that ended while the store was away
        left = Tracker(store, "left", execution, tmp_path, f"name of {execution}")
        left._silence.begin()  # pyright: ignore[reportPrivateUsage]
        left.start({"a": execution})
    other = Tracker("http://127.0.0.1:9", "left", "elsewhere-1", tmp_path)
    other.log_iteration(0, metrics_table(0, [(0, "train/loss", 1.0)]))
    (tmp_path / "unreadable.jsonl").write_text("[" * 100_000 + "\n5\n{}\n")
    Tracker(store, "left", "none", tmp_path)._silence.end()  # pyright: ignore[reportPrivateUsage]
    Tracker(store, "left", "left-3", tmp_path).start({"a": "left-3"})
    for number in (1, 2):
        (run,) = runs_of(client, f"left-{number}", "execution")
        assert (run.info.run_name, run.data.params["a"]) == (f"name of left-{number}", f"left-{number}")
    assert len(waiting_spools(tmp_path)) == 2
    assert other.num_spooled == 1


def test_the_replay_command_sends_a_workspace(store: str, client: Any, tmp_path: Path) -> None:
    left = Tracker(store, "command", "command-1", tmp_path / "spool")
    left._silence.begin()  # pyright: ignore[reportPrivateUsage]
    left.start({"a": "1"})
    environment = os.environ | {"MLFLOW_TRACKING_URI": store, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "posttrain.tracking_replay", str(tmp_path)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, left.num_spooled) == (0, 0), ended.stderr
    assert "sent 2 operations" in ended.stderr
    assert not left._silence.holds()  # pyright: ignore[reportPrivateUsage]
    assert len(runs_of(client, "command-1", "execution")) == 1


def test_a_run_deleted_by_hand_is_made_again_and_a_deleted_experiment_restored(store: str, client: Any, tmp_path: Path) -> None:
    Tracker(store, "deleted", "deleted-1", tmp_path).start({"a": "1"})
    (run,) = runs_of(client, "deleted-1", "execution")
    client.delete_run(run.info.run_id)
    Tracker(store, "deleted", "deleted-1", tmp_path).start({"a": "1"})
    (again,) = runs_of(client, "deleted-1", "execution")
    assert again.info.run_id != run.info.run_id
    client.delete_experiment(run.info.experiment_id)
    Tracker(store, "deleted", "deleted-2", tmp_path).start({"a": "1"})
    assert len(runs_of(client, "deleted-2", "execution")) == 1


def test_mlflow_leaves_no_traces_in_the_process_or_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    uri = "sqlite:///data/with%20space 100%25%3F/mlflow.db?timeout=30"
    tracker = Tracker(uri, "traces", "traces-1", tmp_path / "spool")
    tracker.start({"a": "1"})
    assert tracker.num_spooled == 0
    assert dict(os.environ) == before
    assert mlflow.active_run() is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "spool"]
    (place,) = (tmp_path / "data").iterdir()
    assert (place.name, (place / "mlflow.db").is_file()) == ("with space 100%?", True)
    assert list((place / "mlartifacts").rglob("settings-*.json"))


def test_the_database_of_a_workspace_has_an_address_whatever_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert sqlite_file(default_store(Path("/w %20ü#1?x"))) == Path("/w %20ü#1?x/mlflow.db")
    assert (
        store_key("sqlite:////a%20b/x.db?timeout=3") == store_key("sqlite:////a b/x.db") != store_key("sqlite:////a%2520b/x.db")
    )
    assert store_key("http://me:one@host") == store_key("http://me:two@host") != store_key("http://host")


def test_wrong_names_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its scheme is none of") as refused:
        Tracker("htp://user:hunter2@host", "e", "x", tmp_path)
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ConfigError, match="the run is found by it"):
        Tracker("sqlite:///x.db", "e", "it's", tmp_path)
    for gone in ("sqlite://", "sqlite:///", "sqlite:///:memory:"):
        with pytest.raises(ConfigError, match="in memory is gone"):
            Tracker(gone, "e", "x", tmp_path)
    tracker = Tracker("sqlite:///x.db", "e", "x", tmp_path)
    with pytest.raises(ConfigError, match="FINISHED, FAILED, KILLED"):
        tracker.finish("DONE")
    with pytest.raises(ValueError, match=r"hold rows of iterations \[4\]"):
        tracker.log_iteration(3, metrics_table(4, [(0, "train/loss", 1.0)]))


def test_credentials_are_masked_wherever_text_is_kept(store: str, client: Any, tmp_path: Path) -> None:
    tracker = Tracker(store, "secret", "secret-1", tmp_path / "spool", run_name="of https://me:p4ss@host")
    tracker.start({"data.prompts": "https://me:p4ss@host/data.jsonl"}, tags={"source": "https://me:p4ss@host"})
    tracker.log_datasets([DatasetInfo("https://me:p4ss@host/d", "https://host/data.jsonl?token=p4ss", "x", 1)])
    (parent,) = runs_of(client, "secret-1", "execution")
    dataset = parent.inputs.dataset_inputs[0].dataset
    kept = json.dumps([parent.info.run_name, parent.data.params, parent.data.tags, dataset.name, dataset.source])
    digest = parent.data.params["settings_sha256"][:12]
    assert "p4ss" not in kept + artifact_text(client, parent, f"settings-{digest}.json", tmp_path)
    assert parent.data.params["data.prompts"] == "https://***@host/data.jsonl"
    assert (dataset.name, json.loads(dataset.source)["uri"]) == ("https://***@host/d", "https://host/data.jsonl?token=***")


def test_the_command_and_the_address_open_the_run(store: str, client: Any, tmp_path: Path) -> None:
    tracker = Tracker(store, "open", "open-1", tmp_path)
    tracker.start({"a": "1"})
    (run,) = runs_of(client, "open-1", "execution")
    assert tracker.run_url() == f"http://127.0.0.1:5000/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
    assert mlflow_command("sqlite:////a b/mlflow.db") == "mlflow ui --backend-store-uri 'sqlite:////a b/mlflow.db'"
    assert mlflow_command("sqlite:///x.db") == f"mlflow ui --backend-store-uri sqlite:///{Path.cwd()}/x.db"
    assert mlflow_command("https://me:p4ss@host") == "python -m webbrowser 'https://***@host'"


FOUR_AT_ONCE = """
import sys, time
from pathlib import Path
from posttrain import tables
from posttrain.tracking import Tracker
store, execution, spool, start_at = sys.argv[1:]
import mlflow
time.sleep(max(0, float(start_at) - time.time()))
tracker = Tracker(store, "together", execution, Path(spool))
tracker.start({"execution": execution})
for iteration in range(10):
    steps = range(20 * iteration, 20 * iteration + 20)
    rows = [{"iteration": iteration, "step": step, "name": "train/loss", "value": 1 / (step + 1)} for step in steps]
    tracker.log_iteration(iteration, tables.from_rows("METRICS", rows))
tracker.finish("FINISHED")
print(tracker.num_spooled)
"""


@pytest.mark.slow
def test_b39_four_processes_start_at_once_on_a_fresh_store(tmp_path: Path) -> None:
    store, start_at = f"sqlite:///{tmp_path}/fresh/mlflow.db", time.time() + 5
    commands = [
        [sys.executable, "-c", FOUR_AT_ONCE, store, f"together-{number}", str(tmp_path), str(start_at)] for number in range(4)
    ]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    children = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    outputs = [child.communicate(timeout=240) for child in children]
    assert [child.returncode for child in children] == [0] * 4, outputs
    assert [out.strip() for out, _ in outputs] == ["0"] * 4
    client = mlflow.MlflowClient(store, registry_uri=store)
    for number in range(4):
        assert len(runs_of(client, f"together-{number}", "execution")) == 1
        nested = runs_of(client, f"together-{number}", "iteration")
        points = [point for run in nested for point in history(client, run, "train/loss")]
        assert sorted(points) == [(step, 1 / (step + 1)) for step in range(200)]


@pytest.fixture(autouse=True)
def quiet_sql(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
