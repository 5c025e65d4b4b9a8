"""A connection to MLflow that fails soon: MLflow's own retries would hold training for minutes."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from posttrain.tracking_address import engine_address, sqlite_address, sqlite_file
from posttrain.tracking_spool import OutageError, file_lock

if TYPE_CHECKING:
    from mlflow import MlflowClient

_ENVIRONMENT = {
    # 10 s at worst for a server that does not answer, instead of MLflow's 7 retries of 120 s; a request that is sent
    # again after its answer was lost would also log its points twice
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "PGCONNECT_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


@contextmanager
def client_environment(tracking_uri: str) -> Iterator[None]:
    """Short waits for our calls alone; what the user has set stays."""
    wanted = dict(_ENVIRONMENT)
    database = sqlite_file(tracking_uri)
    if database is not None:
        wanted["_MLFLOW_SERVER_ARTIFACT_ROOT"] = (database.parent / "mlartifacts").as_uri()  # not ./mlruns wherever we stand
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def connect(tracking_uri: str) -> MlflowClient:
    """A client of the store; a SQLite store is made when it is not there.

    Raises:
        OutageError: the database cannot be opened.
    """
    for noisy in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    database = sqlite_file(tracking_uri)
    if database is not None:
        _make_schema(database)
    return _open(engine_address(tracking_uri))


def _make_schema(database: Path) -> None:
    """Makes a new SQLite store, by one process at a time and aside: two at once, or one killed halfway, break it for good."""
    with file_lock(database.with_name(f".{database.name}.lock")):
        if not database.exists():
            aside = database.with_name(f".{database.name}.part")
            aside.unlink(missing_ok=True)
            _open(engine_address(sqlite_address(aside))).search_experiments(max_results=1)
            aside.replace(database)
        _open(engine_address(sqlite_address(database)))  # an older store is brought up to date


def _open(address: str) -> MlflowClient:
    from mlflow import MlflowClient

    if not address.startswith("http") and not address.startswith("databricks"):
        _try_database(address)
    return MlflowClient(address, registry_uri=address)


def _try_database(address: str) -> None:
    """Does once what MLflow does ten times, 102 s in all, before it says that a database cannot be opened."""
    from sqlalchemy import create_engine, inspect

    try:
        engine = create_engine(address)
        try:
            inspect(engine)
        finally:
            engine.dispose()
    except Exception as error:  # whatever the driver raises
        raise OutageError(f"the database cannot be opened: {type(error).__name__}: {error}") from error
