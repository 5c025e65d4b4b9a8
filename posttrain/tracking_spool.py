"""Operations wait on disk until the tracking server has taken them: in order, none lost, none blocking the rest."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posttrain.tracking_values import mask_credentials

logger = logging.getLogger("posttrain.tracking")
Operation = dict[str, Any]


class RefusedError(Exception):
    """The server will never take this operation, so waiting does not help."""


class OutageError(Exception):
    """The server cannot be reached or is not able to answer now."""


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Holds an exclusive lock between processes of this machine; freed by the kernel when a process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


class Spool:
    """A queue in a JSON-lines file, shared by the processes of one execution.

    Operations are written first and taken out after they were applied. A process that dies in between leaves them to be
    applied again, so applying must be idempotent.
    """

    def __init__(self, directory: Path, key: str) -> None:
        self.path = directory / f"{key}.jsonl"
        self.refused_path = directory / f"{key}.refused.jsonl"
        self._lock_path = directory / f"{key}.lock"

    def __len__(self) -> int:
        return len(self.path.read_bytes().splitlines()) if self.path.exists() else 0

    def append(self, operation: Operation) -> None:
        """Adds one operation; it is on disk when this returns.

        Raises:
            OSError: the disk is full or not writable.
        """
        line = json.dumps(operation, allow_nan=False).encode() + b"\n"
        with file_lock(self._lock_path), self.path.open("ab+") as sink:
            if sink.tell():
                sink.seek(-1, os.SEEK_END)
                line = line if sink.read(1) == b"\n" else b"\n" + line  # a process died in the middle of a line
            sink.write(line)
            sink.flush()
            os.fsync(sink.fileno())

    def drain(self, apply: Callable[[Operation], None]) -> int:
        """Applies operations in order until none is left or the server is out of reach; returns how many were applied.

        A refused operation, or a line that cannot be read, is moved to `refused_path` and reported in the log.

        Raises:
            OutageError: the server is out of reach; this operation and those behind it wait.
        """
        with file_lock(self._lock_path):
            lines = self.path.read_bytes().splitlines() if self.path.exists() else []
            num_done = num_applied = 0
            try:
                for line in lines:
                    num_applied += self._apply(line, apply)
                    num_done += 1
            finally:
                self._keep(lines[num_done:])
            return num_applied

    def _apply(self, line: bytes, apply: Callable[[Operation], None]) -> bool:
        try:
            apply(json.loads(line))
        except (RefusedError, json.JSONDecodeError, UnicodeDecodeError) as error:
            reason = mask_credentials(str(error))
            logger.error("MLflow will not take an operation, moved to %s: %s", self.refused_path, reason)
            with self.refused_path.open("a") as sink:
                sink.write(json.dumps({"reason": reason, "operation": line.decode(errors="replace")}) + "\n")
            return False
        return True

    def _keep(self, lines: list[bytes]) -> None:
        if not lines:
            self.path.unlink(missing_ok=True)
            return
        aside = self.path.with_suffix(".part")
        aside.write_bytes(b"\n".join(lines) + b"\n")
        aside.replace(self.path)
