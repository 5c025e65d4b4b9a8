"""A tracking server that is away, silent or killed: training goes on, and nothing is lost or doubled afterwards."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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


def test_a_silent_server_is_given_up_and_then_left_alone_by_every_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")  # the user's own wish is kept
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # accepts connections in the kernel and never answers
        uri = f"http://127.0.0.1:{listener.getsockname()[1]}"
        started = time.monotonic()
        Tracker(uri, "e", "silent-1", tmp_path).start({"a": "1"})
        first = time.monotonic() - started
        for iteration in range(5):
            tracker = Tracker(uri, "e", "silent-1", tmp_path)  # each task makes its own
            tracker.log_iteration(iteration, one_metric(iteration))
            assert tracker.run_url() is None
        Tracker(uri, "e", "silent-2", tmp_path).start({"a": "1"})  # so does the next run
        later = time.monotonic() - started - first
    assert 1 <= first < 10
    assert later < 1
    assert tracker.num_spooled == 7


class Proxy(BaseHTTPRequestHandler):
    """Answers everything with `status` and `body`: a proxy's page, or what MLflow itself says."""

    status, body = 0, b""

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "body", "num_waiting"),
    [
        (400, b"<html>Bad Request</html>", 2),
        (400, b'{"error": "bad request", "status": 400}', 2),
        (400, b'{"error_code": 400, "message": "bad request"}', 2),
        (200, b"<html>Please log in</html>", 2),
        (200, b"{}", 2),
        (502, b"", 2),
        (400, b'{"error_code": "INVALID_PARAMETER_VALUE", "message": "never"}', 0),
        (413, b"<html>Too Large</html>", 0),
    ],
)
def test_only_mlflow_itself_and_the_size_can_refuse_for_good(status: int, body: bytes, num_waiting: int, tmp_path: Path) -> None:
    handler = type("Answer", (Proxy,), {"status": status, "body": body})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tracker = Tracker(f"http://127.0.0.1:{server.server_port}", "e", "proxy-1", tmp_path)
        tracker.start({"a": "1"})
        server.shutdown()
    assert tracker.num_spooled == num_waiting
    assert len(list(tmp_path.glob("*.refused.jsonl"))) == (num_waiting == 0)


def test_a_database_that_cannot_be_opened_is_given_up_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("mlflow.store.tracking.sqlalchemy_store")  # its import is not what is measured
    (tmp_path / "directory.db").mkdir()
    (tmp_path / "file").write_text("no database " * 1000)
    started = time.monotonic()
    for uri in ("sqlite:///{}/directory.db", "sqlite:///{}/file/mlflow.db", "sqlite:///{}/file"):
        tracker = Tracker(uri.format(tmp_path), "e", "broken-1", tmp_path / "spool")
        tracker.start({"a": "1"})
        assert tracker.num_spooled == 2
    assert time.monotonic() - started < 10  # MLflow alone would take 102 s for each
    assert caplog.text.count("training goes on") == 3
    assert tracker.run_url() is None


def test_tracking_goes_on_without_a_usable_spool_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    tracker = Tracker(f"http://127.0.0.1:{free_port()}", "e", "nowhere-1", tmp_path / "file" / "spool")
    tracker.start({"a": "1"})
    tracker.log_iteration(0, one_metric(0))
    tracker.finish("FAILED")
    assert tracker.num_spooled == 4
    assert caplog.text.count("kept in memory alone") == 1


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
