"""Applies spooled operations to MLflow. Each may be applied any number of times with the same result.

Runs are found by tag, never by an id that a crashed task would have taken with it, and nothing here uses MLflow's
process-wide active run.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeVar

from posttrain.tracking_address import sqlite_file
from posttrain.tracking_client import client_environment, connect
from posttrain.tracking_credentials import mask_credentials
from posttrain.tracking_spool import Operation, OutageError, RefusedError
from posttrain.tracking_values import Point, mlflow_name

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

logger = logging.getLogger("posttrain.tracking")
Item = TypeVar("Item")

EXECUTION_TAG = "posttrain.execution"
ITERATION_TAG = "posttrain.iteration"
KIND_TAG = "posttrain.kind"
METRIC_TAG = "posttrain.metric."
CHANGED_TAG = "posttrain.changed."
TABLES_TAG = "mlflow.loggedArtifacts"  # the user interface shows the tables that are listed in it
MAX_METRICS = 1000
MAX_PARAMETERS = 100
MAX_DIGEST_CHARACTERS = 36
TOO_LARGE = 413  # HTTP status

_REFUSALS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "MALFORMED_REQUEST", "NOT_IMPLEMENTED", "FEATURE_DISABLED")


class RunStore:
    """The runs of one execution in one MLflow experiment."""

    def __init__(self, tracking_uri: str, experiment: str, execution: str, run_name: str, parent_execution: str = "") -> None:
        self._uri, self._experiment, self._execution, self._run_name = tracking_uri, experiment, execution, run_name
        self._parent = RunStore(tracking_uri, experiment, parent_execution, parent_execution) if parent_execution else None
        self._client: MlflowClient | None = None
        self._run_ids: dict[int | None, str] = {}
        self._experiment_id = ""

    def apply(self, operation: Operation) -> None:
        """Applies one operation.

        Raises:
            OutageError: the store cannot be reached, is locked or failed; later it may work.
            RefusedError: MLflow rejects the operation itself.
        """
        try:
            with client_environment(self._uri):
                getattr(self, f"_apply_{operation['kind']}")(operation)
        except Exception as error:  # anything that MLflow, its drivers or its artifact store raise must not stop training
            self._run_ids.clear()
            self._experiment_id = ""
            reason = mask_credentials(f"{type(error).__name__}: {error}")
            raise (RefusedError(reason) if _is_refusal(error) else OutageError(reason)) from error

    def location(self) -> tuple[str, str]:
        """Experiment id and run id of the execution. Raises like `apply`."""
        self.apply({"kind": "touch"})
        return self._experiment_id, self._run_ids[None]

    def _apply_touch(self, operation: Operation) -> None:
        self._run_id(None, operation)

    def _apply_start(self, operation: Operation) -> None:
        run_id = self._run_id(None, operation)
        client = self._connect()
        run = client.get_run(run_id)
        if run.info.status != "RUNNING":
            client.update_run(run_id, status="RUNNING")  # the execution was retried or recovered
        self._log_parameters(run, operation["parameters"])
        for name, value in operation["tags"].items():
            client.set_tag(run_id, name, value)

    def _log_parameters(self, run: Run, parameters: dict[str, str]) -> None:
        from mlflow.entities import Param

        known = run.data.params
        changed = {name: value for name, value in parameters.items() if known.get(name, value) != value}
        for name, value in changed.items():
            logger.warning("parameter %s was %r in an earlier attempt and is %r now; kept as a tag", name, known[name], value)
            self._connect().set_tag(run.info.run_id, CHANGED_TAG + name, value)
        new = [Param(name, value) for name, value in parameters.items() if name not in known]
        for batch in _batches(new, MAX_PARAMETERS):
            self._connect().log_batch(run.info.run_id, params=batch)

    def _apply_iteration(self, operation: Operation) -> None:
        client, nested = self._connect(), self._run_id(operation["iteration"], operation)
        different = self._log_points(nested, operation["step_points"], operation["time_ms"])
        self._log_points(self._run_id(None, operation), operation["iteration_points"], operation["time_ms"])
        if client.get_run(nested).info.status != "FINISHED":
            client.set_terminated(nested, "FINISHED", end_time=operation["time_ms"])
        if different:
            where = f"iteration {operation['iteration']} has other values from an earlier attempt; those are kept"
            logger.warning("%s: %s", where, ", ".join(different[:10]))

    def _log_points(self, run_id: str, points: list[Point], time_ms: int) -> list[str]:
        """Logs each (metric, step) that the run does not have: MLflow would keep a second row beside the first.

        Returns those that the run has with another value.
        """
        from mlflow.entities import Metric

        client = self._connect()
        known = client.get_run(run_id).data.metrics
        different: list[str] = []
        by_name: defaultdict[str, list[Point]] = defaultdict(list)
        for point in points:
            by_name[point["name"]].append(point)
        fresh: list[Metric] = []
        for original, own in by_name.items():
            name = mlflow_name(original)
            steps = {metric.step: metric.value for metric in client.get_metric_history(run_id, name)} if name in known else {}
            different += [f"{name} at step {p['step']}" for p in own if steps.get(p["step"], p["value"]) != p["value"]]
            fresh += [Metric(name, point["value"], time_ms, point["step"]) for point in own if point["step"] not in steps]
            if name != original:
                client.set_tag(run_id, METRIC_TAG + name, original)
        for batch in _batches(fresh, MAX_METRICS):
            client.log_batch(run_id, metrics=batch)
        return different

    def _apply_datasets(self, operation: Operation) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs: list[DatasetInput] = []
        for item in operation["datasets"]:
            source = json.dumps({"uri": item["source"]})
            profile = json.dumps({"num_rows": item["num_rows"], "digest": item["digest"]})
            dataset = Dataset(item["name"], item["digest"][:MAX_DIGEST_CHARACTERS], "local", source, profile=profile)
            inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", item["context"])]))
        self._connect().log_inputs(self._run_id(None, operation), datasets=inputs)

    def _apply_text(self, operation: Operation) -> None:
        self._connect().log_text(self._run_id(None, operation), operation["text"], operation["file"])

    def _apply_table(self, operation: Operation) -> None:
        """Like `MlflowClient.log_table`, which would append the same rows again when the operation is repeated."""
        client, run_id = self._connect(), self._run_id(None, operation)
        client.log_text(run_id, operation["text"], operation["file"])
        listed = json.loads(client.get_run(run_id).data.tags.get(TABLES_TAG, "[]"))
        entry = {"path": operation["file"], "type": "table"}
        if entry not in listed:
            client.set_tag(run_id, TABLES_TAG, json.dumps([*listed, entry]))

    def _apply_register(self, operation: Operation) -> None:
        from mlflow.exceptions import MlflowException

        client, name, tags = self._connect(), operation["name"], operation["tags"]
        try:
            client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        same = f"name = '{name}' and tags.policy_hash = '{tags['policy_hash']}'"
        if not client.search_model_versions(same, max_results=1):
            client.create_model_version(name, operation["source"], run_id=self._run_id(None, operation), tags=tags)

    def _apply_finish(self, operation: Operation) -> None:
        self._connect().set_terminated(self._run_id(None, operation), operation["status"], end_time=operation["time_ms"])

    def _run_id(self, iteration: int | None, operation: Operation) -> str:
        if iteration not in self._run_ids:
            found = self._find(iteration)
            if found is None:
                self._create(iteration, operation.get("time_ms"))
                found = self._find(iteration)  # again: of two that were created at once on two machines the older counts
            if found is None:
                raise OutageError(f"MLflow does not show the run of execution {self._execution!r} that was just created")
            self._run_ids[iteration] = found
        return self._run_ids[iteration]

    def _find(self, iteration: int | None) -> str | None:
        tags = [f"tags.`{name}` = '{value}'" for name, value in self._identity(iteration).items()]
        runs = self._connect().search_runs(
            [self._find_experiment()],
            " and ".join(tags),
            max_results=1,
            order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
        )
        return runs[0].info.run_id if runs else None

    def _create(self, iteration: int | None, time_ms: int | None) -> None:
        tags, name = self._identity(iteration), self._run_name
        if iteration is not None:
            tags["mlflow.parentRunId"], name = self._run_id(None, {"time_ms": time_ms}), f"iteration {iteration:03d}"
        elif self._parent is not None:
            tags["mlflow.parentRunId"] = self._parent._run_id(None, {"time_ms": time_ms})
        self._connect().create_run(self._find_experiment(), start_time=time_ms, tags=tags, run_name=name)

    def _identity(self, iteration: int | None) -> dict[str, str]:
        if iteration is None:
            return {EXECUTION_TAG: self._execution, KIND_TAG: "execution"}
        return {EXECUTION_TAG: self._execution, KIND_TAG: "iteration", ITERATION_TAG: str(iteration)}

    def _find_experiment(self) -> str:
        if not self._experiment_id:
            client = self._connect()
            found = client.get_experiment_by_name(self._experiment)
            if found is None:
                self._experiment_id = self._create_experiment(client)
            else:
                if found.lifecycle_stage == "deleted":
                    client.restore_experiment(found.experiment_id)
                self._experiment_id = found.experiment_id
        return self._experiment_id

    def _create_experiment(self, client: MlflowClient) -> str:
        from mlflow.exceptions import MlflowException

        database = sqlite_file(self._uri)
        place = (database.parent / "mlartifacts" / mlflow_name(self._experiment)).as_uri() if database else None
        try:
            return client.create_experiment(self._experiment, artifact_location=place)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(self._experiment)
            if found is None:
                raise
            return found.experiment_id  # another execution was first

    def _connect(self) -> MlflowClient:
        if self._client is None:
            self._client = connect(self._uri)
        return self._client


def _is_refusal(error: Exception) -> bool:
    """Whether MLflow itself says that it will never take this, or it is too large. All else that a proxy says may pass."""
    from mlflow.exceptions import MlflowException, RestException

    if getattr(getattr(error, "response", None), "status_code", None) == TOO_LARGE or f"error code {TOO_LARGE} " in str(error):
        return True  # it would hold up everything behind it for good
    if isinstance(error, RestException):
        return error.json.get("error_code") in _REFUSALS
    if isinstance(error, MlflowException):  # a page that is not MLflow's JSON gets a code by its HTTP status
        return error.error_code in _REFUSALS and "API request to" not in str(error)
    if isinstance(error, (OSError, json.JSONDecodeError)):
        return False
    return isinstance(error, (TypeError, ValueError, KeyError, AttributeError))  # written by another version


def _batches(items: list[Item], size: int) -> list[list[Item]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def json_text(value: Any) -> str:
    """Readable JSON with sorted keys, the same for the same value."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
