"""A tracking server that is away, silent or killed: training goes on, and nothing is lost or doubled afterwards."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from posttrain import tables
from posttrain.tracking import Tracker

mlflow = pytest.importorskip("mlflow")


def one_metric(iteration: int) -> object:
    return tables.from_rows(
        "METRICS", [{"iteration": iteration, "step": iteration, "name": "train/loss", "value": 1.0 - iteration / 10}]
    )


def free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_an_absent_server_costs_little_time_and_no_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracker = Tracker(f"http://trainer:hunter2@127.0.0.1:{free_port()}", "e", "absent-1", tmp_path)
    started = time.monotonic()
    tracker.start({"a": "1"})
    for iteration in range(5):
        tracker.log_iteration(iteration, one_metric(iteration))
    tracker.finish("FINISHED")
    assert time.monotonic() - started < 15  # MLflow alone would take minutes
    assert tracker.num_spooled == 8
    assert tracker.replay() == 0
    assert tracker.run_url() is None
    kept = (
        caplog.text
        + "".join(path.read_text() for path in tmp_path.iterdir())
        + " ".join(path.name for path in tmp_path.iterdir())
    )
    assert "training goes on" in caplog.text
    assert "hunter2" not in kept


def test_a_silent_server_is_given_up_and_then_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")  # the user's own wish is kept
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # accepts connections in the kernel and never answers
        tracker = Tracker(f"http://127.0.0.1:{listener.getsockname()[1]}", "e", "silent-1", tmp_path)
        started = time.monotonic()
        tracker.start({"a": "1"})
        first = time.monotonic() - started
        tracker.log_iteration(0, one_metric(0))
        second = time.monotonic() - started - first
    assert 1 <= first < 10
    assert second < 0.5
    assert tracker.num_spooled == 3


@contextmanager
def mlflow_server(directory: Path, port: int) -> Iterator[None]:
    command = [
        sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{directory}/mlflow.db",
        "--host", "127.0.0.1", "--port", str(port), "--workers", "1", "--artifacts-destination", str(directory / "artifacts"),
    ]  # fmt: skip
    environment = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    log = (directory / "server.log").open("ab")
    server = subprocess.Popen(command, env=environment, cwd=directory, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until_healthy(server, port, directory / "server.log")
        yield
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # the hard way: this is the outage
        server.wait()
        log.close()


def wait_until_healthy(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    for _ in range(600):
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    pytest.fail(f"the server did not come up: {log.read_text()}")


@pytest.mark.slow
def test_a_server_killed_in_the_middle_loses_and_doubles_nothing(tmp_path: Path) -> None:
    port, spool, report = free_port(), tmp_path / "spool", tmp_path / "report.html"
    uri = f"http://127.0.0.1:{port}"
    report.write_text("<p>report</p>")
    with mlflow_server(tmp_path, port):
        tracker = Tracker(uri, "outage", "outage-1", spool)
        tracker.start({"lr": "1e-3"})
        tracker.log_iteration(0, one_metric(0))
        assert tracker.num_spooled == 0
    for iteration in range(3):  # iteration 0 again: its task was retried
        tracker.log_iteration(iteration, one_metric(iteration))
    tracker.log_report(report)
    tracker.finish("FINISHED")
    assert tracker.num_spooled == 5
    with mlflow_server(tmp_path, port):
        other = Tracker(uri, "outage", "outage-1", spool)  # a later process takes over what waits
        assert other.replay() == 5
        assert other.num_spooled == 0
        client = mlflow.MlflowClient(uri, registry_uri=uri)
        experiment = client.get_experiment_by_name("outage").experiment_id
        runs = {run.info.run_name: run for run in client.search_runs([experiment])}
        parent = runs.pop("outage-1")
        assert sorted(runs) == ["iteration 000", "iteration 001", "iteration 002"]
        points = [(metric.step, metric.value) for metric in client.get_metric_history(parent.info.run_id, "train/loss")]
        assert points == [(0, 1.0), (1, 0.9), (2, 0.8)]
        for iteration, name in enumerate(sorted(runs)):
            assert len(client.get_metric_history(runs[name].info.run_id, "train/loss")) == 1, iteration
        assert parent.info.status == "FINISHED"
        assert [file.path for file in client.list_artifacts(parent.info.run_id) if file.path == "report.html"] == ["report.html"]
        assert other.run_url() == f"{uri}/#/experiments/{experiment}/runs/{parent.info.run_id}"
