"""MLflow as the record of a run: one run for each execution, found by tag, and one nested run for each iteration.

Training never waits for the tracking server and never fails because of it. Every call first writes what it wants to a
spool on disk and then empties the spool in order; what the server cannot take now is taken at the next contact.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from posttrain import tables
from posttrain.errors import ConfigError
from posttrain.tracking_spool import Operation, OutageError, RefusedError, Spool
from posttrain.tracking_store import RunStore, json_text, sqlite_file
from posttrain.tracking_values import (
    iteration_points,
    mask_credentials,
    mean_ignoring_nan,
    mlflow_name,
    parameter_value,
    step_points,
)

__all__ = ["DatasetInfo", "Tracker", "mask_credentials", "mean_ignoring_nan", "mlflow_command", "mlflow_name"]

logger = logging.getLogger("posttrain.tracking")
STATUSES = ("FINISHED", "FAILED", "KILLED")
STORES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")
RETRY_AFTER_S = 30.0  # a server that was out of reach is left alone for so long, so that a loop of calls does not wait each time
MAX_SAMPLES = 100
MAX_SAMPLE_CHARACTERS = 4_000
LOCAL_ADDRESS = "http://127.0.0.1:5000"


@dataclass(frozen=True)
class DatasetInfo:
    """A data set that an execution read. `digest` identifies the content, `context` is training or evaluation."""

    name: str
    source: str
    digest: str
    num_rows: int
    context: str = "training"


class Tracker:
    """Records one execution. Processes with the same store, experiment, execution and spool share the same run."""

    def __init__(
        self, tracking_uri: str, experiment: str, execution: str, spool_directory: str | Path, run_name: str = ""
    ) -> None:
        """Contacts nobody yet.

        Raises:
            ConfigError: the store's address or the execution's name cannot be used.
        """
        _check_names(tracking_uri, execution)
        self._uri = tracking_uri
        key = hashlib.sha256("\n".join([mask_credentials(tracking_uri), experiment, execution]).encode()).hexdigest()[:12]
        self._spool = Spool(Path(spool_directory), f"{re.sub(r'[^A-Za-z0-9_.-]', '_', execution)}-{key}")
        self._store = RunStore(tracking_uri, experiment, execution, run_name or execution)
        self._silent_until = 0.0

    def start(self, parameters: Mapping[str, str], tags: Mapping[str, str] | None = None) -> None:
        """Opens the execution's run, or takes it up again, with flattened settings (`resolution.flatten`).

        Values are cut where servers would refuse or cut them; the whole is the artifact `settings-<hash>.json`, and its
        hash is the parameter `settings_sha256`. In a retry a changed parameter is kept as a tag beside the first value.
        """
        text = json_text({name: mask_credentials(value) for name, value in parameters.items()})
        digest = hashlib.sha256(text.encode()).hexdigest()
        values = {mlflow_name(name): parameter_value(value) for name, value in parameters.items()}
        shown = {name: mask_credentials(value) for name, value in (tags or {}).items()}
        self._submit("start", parameters=values | {"settings_sha256": digest}, tags=shown)
        self._submit("text", file=f"settings-{digest[:12]}.json", text=text)

    def log_iteration(self, iteration: int, metrics: pa.Table) -> None:
        """Logs METRICS rows of one iteration: by step in the iteration's nested run, as one point in the execution's run.

        May be called several times for one iteration, each metric with all its rows at once. A (metric, step) that the run
        already has is not logged again. In the execution's run counts (`num_…`) and times add up, other metrics are
        averaged over their rows.

        Raises:
            ContractError: the table is not METRICS.
            ValueError: a row belongs to another iteration.
        """
        others = set(tables.validate(metrics, "METRICS")["iteration"].to_pylist()) - {iteration}
        if others:
            raise ValueError(f"metrics of iteration {iteration} hold rows of iterations {sorted(others)}; log those on their own")
        points = {"step_points": step_points(metrics), "iteration_points": iteration_points(metrics)}
        self._submit("iteration", iteration=iteration, **points)

    def log_datasets(self, datasets: Sequence[DatasetInfo]) -> None:
        """Shows the data sets as inputs of the execution's run."""
        self._submit("datasets", datasets=[asdict(item) | {"source": mask_credentials(item.source)} for item in datasets])

    def log_samples(self, iteration: int, scored: pa.Table, prompts: Mapping[str, str] | None = None) -> None:
        """Shows the first 100 rows of a SCORED table as an MLflow table; `prompts` gives the text by prompt_id."""
        columns = ("prompt_id", "sample_index", "completion", "outcome", "reward", "advantage", "finish_reason", "detail")
        rows = tables.validate(scored, "SCORED").slice(0, MAX_SAMPLES).select(columns).to_pylist()
        header = ["iteration", "prompt", *columns]
        known = prompts or {}
        data = [[iteration, known.get(row["prompt_id"], ""), *row.values()] for row in rows]
        short = [[_shorten(value) for value in row] for row in data]
        self._submit("table", file=f"samples/iteration-{iteration:03d}.json", text=json_text({"columns": header, "data": short}))

    def log_report(self, path: str | Path) -> None:
        """Keeps the HTML report as an artifact; a later one of the same name replaces it."""
        self._submit("text", file=Path(path).name, text=Path(path).read_text(encoding="utf-8"))

    def register_policy(self, directory_uri: str, name: str, tags: Mapping[str, str]) -> None:
        """Makes a policy directory a version of the registered model `name`, once for each `policy_hash`.

        A tracking server takes only directories that it can reach itself (object store); a local SQLite store takes any.

        Raises:
            ConfigError: the name cannot be used, or `tags` lack `policy_hash`.
        """
        if not re.fullmatch(r"[^/:'\"]+", name):
            raise ConfigError(
                "tracking.register_as", name, "a registered name has no slash, colon or quote", "Choose another name."
            )
        if not re.fullmatch(r"[0-9A-Za-z:_-]+", tags.get("policy_hash", "")):
            raise ConfigError(
                "tags.policy_hash", tags.get("policy_hash"), "it identifies the version", "Pass policy_hash(directory)."
            )
        self._submit("register", source=directory_uri, name=name, tags=dict(tags))

    def finish(self, status: str) -> None:
        """Ends the execution's run as FINISHED, FAILED or KILLED. Tries the server even if it was just out of reach.

        Raises:
            ConfigError: another status.
        """
        if status not in STATUSES:
            raise ConfigError("status", status, f"a run ends as one of {', '.join(STATUSES)}", "Pass one of them.")
        self._silent_until = 0.0
        self._submit("finish", status=status)

    @property
    def num_spooled(self) -> int:
        """Operations that wait for the server."""
        return len(self._spool)

    def replay(self) -> int:
        """Sends what waits, also from earlier processes; returns how many operations were taken."""
        self._silent_until = 0.0
        before = len(self._spool)
        self._drain()
        return before - len(self._spool)

    def run_url(self) -> str | None:
        """Address of the execution's run in the MLflow user interface; None while the store is out of reach."""
        try:
            experiment_id, run_id = self._store.location()
        except (OutageError, RefusedError) as error:
            logger.warning("MLflow cannot say where the run is: %s", error)
            return None
        base = mask_credentials(self._uri).replace("***@", "") if self._uri.startswith("http") else LOCAL_ADDRESS
        return f"{base.rstrip('/')}/#/experiments/{experiment_id}/runs/{run_id}"

    def _submit(self, kind: str, **content: Any) -> None:
        operation: Operation = {"kind": kind, "time_ms": int(time.time() * 1000), **content}
        self._spool.append(operation)
        if time.monotonic() >= self._silent_until:
            self._drain()

    def _drain(self) -> None:
        try:
            self._spool.drain(self._store.apply)
        except OutageError as error:
            self._silent_until = time.monotonic() + RETRY_AFTER_S
            where = f"{len(self._spool)} operations wait in {self._spool.path}"
            logger.warning("MLflow at %s is out of reach, training goes on; %s (%s)", mask_credentials(self._uri), where, error)


def mlflow_command(tracking_uri: str) -> str:
    """The shell command that opens the MLflow user interface of a store; credentials are masked."""
    database = sqlite_file(tracking_uri)
    if database is not None:
        return f"mlflow ui --backend-store-uri {shlex.quote(f'sqlite:///{database}')}"
    shown = shlex.quote(mask_credentials(tracking_uri))
    return f"python -m webbrowser {shown}" if tracking_uri.startswith("http") else f"mlflow ui --backend-store-uri {shown}"


def _check_names(tracking_uri: str, execution: str) -> None:
    scheme = urlsplit(tracking_uri).scheme.split("+")[0]
    if scheme not in STORES:
        remedy = "For a file on this machine use sqlite:////absolute/path/mlflow.db."
        raise ConfigError("tracking_uri", mask_credentials(tracking_uri), f"its scheme is none of {', '.join(STORES)}", remedy)
    if not re.fullmatch(r"[\w:./-]+", execution):
        why = "the run is found by it; letters, digits and _ : . / - are allowed"
        raise ConfigError("execution", execution, why, "Pass the execution's name.")


def _shorten(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_SAMPLE_CHARACTERS:
        return f"{value[:MAX_SAMPLE_CHARACTERS]}… ({len(value)} characters)"
    return value
