"""Grades that a judge has given, kept by what it was asked: in memory, and in one SQLite file that runs share.

The file is `judge.sqlite` in POSTTRAIN_CACHE, or without it in `cache` of the workspace. Many processes may use it at once. A
file that is no database is set aside; one that cannot be written or read costs a warning and the grades, nothing else.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from posttrain.verify.judge_prompt import Grade

logger = logging.getLogger("posttrain")
CACHE_VARIABLE = "POSTTRAIN_CACHE"
_BUSY_S = 30.0
_TABLE = "CREATE TABLE IF NOT EXISTS grades (key TEXT PRIMARY KEY, score REAL NOT NULL, reason TEXT NOT NULL)"


def cache_file() -> Path:
    """Where grades are kept on this machine."""
    workspace = Path(os.environ.get("POSTTRAIN_WORKSPACE", "workspace"))
    return Path(os.environ.get(CACHE_VARIABLE) or workspace / "cache").absolute() / "judge.sqlite"


class GradeCache:
    """A context manager; thread-safe, and safe beside other processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._grades: dict[str, Grade] = {}
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        try:
            self._database = self._open()
        except (OSError, sqlite3.Error) as error:
            self._give_up(error)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._lock:
            if self._database is not None:
                self._database.close()
            self._database = None

    def get(self, key: str) -> Grade | None:
        """The grade kept under `key`, or None."""
        with self._lock:
            if key not in self._grades:
                row = self._on_disk(
                    lambda file: file.execute("SELECT score, reason FROM grades WHERE key = ?", (key,)).fetchone()
                )
                if row is None or not _is_grade(row):
                    return None
                self._grades[key] = Grade(*row)
            return self._grades[key]

    def put(self, key: str, grade: Grade) -> None:
        """Keeps `grade` under `key`."""
        with self._lock:
            self._grades[key] = grade
            row = (key, grade.score, grade.reason)
            self._on_disk(lambda file: file.execute("INSERT OR REPLACE INTO grades VALUES (?, ?, ?)", row))

    def _on_disk(self, action: Callable[[sqlite3.Connection], Any]) -> Any:
        if self._database is None:
            return None
        try:
            return action(self._database)
        except sqlite3.Error as error:
            self._database.close()
            self._database = None
            self._give_up(error)
            return None

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return _connect(self._path)
        except sqlite3.OperationalError:  # locked, read-only, no space: nothing that a fresh file would repair
            raise
        except sqlite3.DatabaseError as error:
            aside = self._path.with_suffix(".unreadable")
            os.replace(self._path, aside)
            logger.warning("%s is no database (%s): set aside as %s, and begun anew", self._path, error, aside.name)
            return _connect(self._path)

    def _give_up(self, error: Exception) -> None:
        logger.warning("%s cannot be used (%s): this run keeps the judge's grades in memory only", self._path, error)


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        database.execute(_TABLE)
    except sqlite3.Error:
        database.close()
        raise
    return database


def _is_grade(row: tuple[Any, Any]) -> bool:
    """Whether what others may have written is a grade."""
    score, reason = row
    return isinstance(score, float) and 0 <= score <= 1 and isinstance(reason, str)
