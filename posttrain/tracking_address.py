"""Addresses of MLflow stores: which are accepted, which file of this machine one means, how a person opens it."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

from posttrain.errors import ConfigError
from posttrain.tracking_credentials import mask_credentials

STORES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")
_SQLITE = "sqlite:///"
_REMEDY = "For a file on this machine use sqlite:////absolute/path/mlflow.db."


def check_address(tracking_uri: str) -> None:
    """Raises ConfigError for a store that is none of ours, or that would be gone when the task ends."""
    scheme = urlsplit(tracking_uri).scheme.split("+")[0]
    if scheme not in STORES:
        raise ConfigError("tracking_uri", mask_credentials(tracking_uri), f"its scheme is none of {', '.join(STORES)}", _REMEDY)
    if scheme == "sqlite" and (sqlite_file(tracking_uri) is None or ":memory:" in tracking_uri):
        why = "it names no file, and a database in memory is gone when the task ends"
        raise ConfigError("tracking_uri", mask_credentials(tracking_uri), why, _REMEDY)


def sqlite_file(tracking_uri: str) -> Path | None:
    """The absolute path of a `sqlite:///…` store, None for every other store.

    As SQLAlchemy and with it `mlflow ui` read it: the path ends at `?`, and `%20` in it is a space.
    """
    path = unquote(tracking_uri.removeprefix(_SQLITE).partition("?")[0])
    return Path(path).absolute() if tracking_uri.startswith(_SQLITE) and path else None


def sqlite_address(path: Path) -> str:
    """The address of a SQLite file, whatever characters its path has."""
    return _SQLITE + str(path).replace("%", "%25").replace("?", "%3F")


def engine_address(tracking_uri: str) -> str:
    """The address for MLflow itself. With the driver named it does not make a directory of the path as it is spelled."""
    database = sqlite_file(tracking_uri)
    if database is None:
        return tracking_uri
    mark, query = tracking_uri.partition("?")[1:]
    return sqlite_address(database).replace("sqlite:", "sqlite+pysqlite:", 1) + mark + query


def store_key(tracking_uri: str) -> str:
    """The same for two spellings of one store; without its credentials, which may change."""
    database = sqlite_file(tracking_uri)
    shown = mask_credentials(tracking_uri) if database is None else sqlite_address(database)
    return hashlib.sha256(shown.encode()).hexdigest()[:12]


def mlflow_command(tracking_uri: str) -> str:
    """The shell command that opens the MLflow user interface of a store; credentials are masked."""
    database = sqlite_file(tracking_uri)
    if database is not None:
        return f"mlflow ui --backend-store-uri {shlex.quote(sqlite_address(database))}"
    shown = shlex.quote(mask_credentials(tracking_uri))
    return f"python -m webbrowser {shown}" if re.match("https?:", tracking_uri) else f"mlflow ui --backend-store-uri {shown}"


def default_store(workspace: Path) -> str:
    """`MLFLOW_TRACKING_URI`, or the database of a workspace."""
    return os.environ.get("MLFLOW_TRACKING_URI") or sqlite_address(workspace.absolute() / "mlflow.db")
