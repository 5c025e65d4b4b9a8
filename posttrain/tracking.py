"""MLflow as the record of a run: one run for each execution, found by tag, and one nested run for each iteration.

Training never waits for the tracking server and never fails because of it. Every call first writes what it wants to a
spool on disk and then empties the spool in order; what the server cannot take now is taken at the next contact.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from posttrain import tables
from posttrain.errors import ConfigError
from posttrain.tracking_address import check_address, mlflow_command, store_key
from posttrain.tracking_credentials import mask_credentials
from posttrain.tracking_replay import replay_spools
from posttrain.tracking_silence import Silence
from posttrain.tracking_spool import Operation, OutageError, RefusedError, Spool
from posttrain.tracking_store import RunStore, json_text
from posttrain.tracking_values import iteration_points, mean_ignoring_nan, mlflow_name, parameter_value, step_points

__all__ = ["DatasetInfo", "Tracker", "mask_credentials", "mean_ignoring_nan", "mlflow_command", "mlflow_name"]

logger = logging.getLogger("posttrain.tracking")
STATUSES = ("FINISHED", "FAILED", "KILLED")
CONTACT_S = 30.0  # of sending in one go while training waits; a slow server gets the rest later
LAST_CONTACT_S = 120.0
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
        self,
        tracking_uri: str,
        experiment: str,
        execution: str,
        spool_directory: str | Path,
        run_name: str = "",
        parent_execution: str = "",
    ) -> None:
        """Contacts nobody yet.

        Args:
            parent_execution: execution in the same experiment whose run this one is nested in; it is made where it is missing.

        Raises:
            ConfigError: the store's address or the execution's name cannot be used.
        """
        check_address(tracking_uri)
        _check_execution(execution)
        store, shown = store_key(tracking_uri), mask_credentials(run_name or execution)
        self._uri, self._directory = tracking_uri, Path(spool_directory)
        self._run = {"store": store, "experiment": experiment, "execution": execution, "run_name": shown}
        if parent_execution:
            _check_execution(parent_execution)
            self._run["parent_execution"] = parent_execution
        key = hashlib.sha256("\n".join([store, experiment, execution]).encode()).hexdigest()[:12]
        self._spool = Spool(self._directory, f"{re.sub(r'[^A-Za-z0-9_.-]', '_', execution)[:100]}-{key}")
        self._store = RunStore(tracking_uri, experiment, execution, shown, parent_execution)
        self._silence = Silence.of(self._directory, store)

    def start(self, parameters: Mapping[str, str], tags: Mapping[str, str] | None = None) -> None:
        """Opens the execution's run, or takes it up again, with flattened settings (`resolution.flatten`).

        Values are cut where servers would refuse or cut them; the whole is the artifact `settings-<hash>.json`, and its
        hash is the parameter `settings_sha256`. In a retry a changed parameter is kept as a tag beside the first value.
        Also sends what other executions with the same store and spool directory have left behind.
        """
        text = json_text({name: mask_credentials(value) for name, value in parameters.items()})
        digest = hashlib.sha256(text.encode()).hexdigest()
        values = {mlflow_name(name): parameter_value(value) for name, value in parameters.items()}
        shown = {name: mask_credentials(value) for name, value in (tags or {}).items()}
        self._submit("start", parameters=values | {"settings_sha256": digest}, tags=shown)
        self._submit("text", file=f"settings-{digest[:12]}.json", text=text)
        if not self._silence.holds():
            self._contact(lambda: replay_spools(self._uri, self._directory, CONTACT_S))

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
        shown = [{"name": mask_credentials(item.name), "source": mask_credentials(item.source)} for item in datasets]
        self._submit("datasets", datasets=[asdict(item) | masked for item, masked in zip(datasets, shown, strict=True)])

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
        shown = {tag: mask_credentials(value) for tag, value in tags.items()}
        self._submit("register", source=directory_uri, name=name, tags=shown)

    def finish(self, status: str) -> None:
        """Ends the execution's run as FINISHED, FAILED or KILLED. Tries the server even if it was just out of reach.

        Raises:
            ConfigError: another status.
        """
        if status not in STATUSES:
            raise ConfigError("status", status, f"a run ends as one of {', '.join(STATUSES)}", "Pass one of them.")
        self._append("finish", status=status)
        self._drain(LAST_CONTACT_S)

    @property
    def num_spooled(self) -> int:
        """Operations that wait for the server."""
        return len(self._spool)

    def replay(self) -> int:
        """Sends what waits, also from earlier processes; returns how many operations were taken."""
        return self._drain(LAST_CONTACT_S)

    def run_url(self) -> str | None:
        """Address of the execution's run in the MLflow user interface; None while the store is out of reach."""
        if self._silence.holds():
            return None
        try:
            experiment_id, run_id = self._store.location()
        except (OutageError, RefusedError) as error:
            logger.warning("MLflow cannot say where the run is: %s", error)
            return None
        base = mask_credentials(self._uri).replace("***@", "") if self._uri.startswith("http") else LOCAL_ADDRESS
        return f"{base.rstrip('/')}/#/experiments/{experiment_id}/runs/{run_id}"

    def _submit(self, kind: str, **content: Any) -> None:
        self._append(kind, **content)
        if not self._silence.holds():
            self._drain(CONTACT_S)

    def _append(self, kind: str, **content: Any) -> None:
        operation: Operation = {"kind": kind, "time_ms": int(time.time() * 1000), "run": self._run, **content}
        self._spool.append(operation)

    def _drain(self, limit_s: float) -> int:
        return self._contact(lambda: self._spool.drain(self._store.apply, limit_s))

    def _contact(self, send: Callable[[], int]) -> int:
        """Returns how many operations the store took; after a failure it is left alone for a while."""
        try:
            num_applied = send()
        except (OutageError, OSError) as error:
            silence = f"it is left alone for {self._silence.begin():.0f} s"
            where = f"{self.num_spooled} operations wait in {self._spool.path}"
            reason = mask_credentials(str(error))
            uri = mask_credentials(self._uri)
            logger.warning("MLflow at %s is out of reach, training goes on; %s, %s (%s)", uri, where, silence, reason)
            return 0
        if num_applied:
            self._silence.end()
        return num_applied


def _check_execution(execution: str) -> None:
    if not re.fullmatch(r"[\w:./-]+", execution):
        why = "the run is found by it; letters, digits and _ : . / - are allowed"
        raise ConfigError("execution", execution, why, "Pass the execution's name.")


def _shorten(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_SAMPLE_CHARACTERS:
        return f"{value[:MAX_SAMPLE_CHARACTERS]}… ({len(value)} characters)"
    return value
