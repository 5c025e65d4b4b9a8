"""Operations wait on disk until the tracking server has taken them: in order, none lost, none blocking the rest."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posttrain.tracking_credentials import mask_credentials

logger = logging.getLogger("posttrain.tracking")
Operation = dict[str, Any]
REFUSED_ENDING = ".refused.jsonl"


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
    applied again, so applying must be idempotent. Where the file cannot be written they are kept in memory, for as long
    as this process lives.

    Two locks: one for the file, held for moments, and one for the right to talk to the server, which nobody waits for.
    """

    def __init__(self, directory: Path, key: str) -> None:
        self.path = directory / f"{key}.jsonl"
        self.refused_path = directory / f"{key}{REFUSED_ENDING}"
        self._lock_path = directory / f"{key}.lock"
        self._turn_path = directory / f"{key}.turn"
        self._unsaved: list[bytes] = []

    def __len__(self) -> int:
        try:
            return len(_lines(self._read())) + len(self._unsaved)
        except OSError:
            return len(self._unsaved)

    def append(self, operation: Operation) -> None:
        """Adds one operation; it is on disk when this returns, or an error in the log says why it is not."""
        line = json.dumps(operation, allow_nan=False).encode() + b"\n"
        first = not self._unsaved
        self._unsaved.append(line)
        try:
            self._save(b"".join(self._unsaved))
            self._unsaved.clear()
        except OSError as error:
            if first:
                logger.error("%s cannot be written (%s): operations for MLflow are kept in memory alone", self.path, error)

    def drain(self, apply: Callable[[Operation], None], limit_s: float) -> int:
        """Applies operations in order until none is left; returns how many were applied.

        A refused operation, or a line that cannot be read, is moved to `refused_path` and reported in the log. While
        another process drains, nothing is done: that process also takes what was added meanwhile.

        Raises:
            OutageError: the server is out of reach, or took more than `limit_s`; what is left waits.
            OSError: the spool cannot be read or written.
        """
        end, num_applied = time.monotonic() + limit_s, 0
        try:
            num_applied = self._drain_file(apply, end)
        except OSError as error:
            if not self._unsaved:
                raise
            logger.warning("%s cannot be sent (%s); what is in memory is", self.path, error)
        while self._unsaved:
            _check_time(end)
            num_applied += self._apply(self._unsaved[0], apply)
            del self._unsaved[0]
        return num_applied

    def _drain_file(self, apply: Callable[[Operation], None], end: float) -> int:
        num_applied = 0
        if self.path.exists():
            with self._turn() as turn:
                while turn is not None and (lines := self._waiting(turn)):
                    num_applied += self._drain_lines(lines, apply, end)
        return num_applied

    @contextmanager
    def _turn(self) -> Iterator[int | None]:
        """The descriptor that holds the right to talk to the server, None when another process has it."""
        with self._turn_path.open("a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
            else:
                yield handle.fileno()

    def _waiting(self, turn: int) -> list[bytes]:
        """All lines; gives the turn back when there are none, before anybody can add one and find the turn taken."""
        with file_lock(self._lock_path):
            lines = _lines(self._read())
            if not lines:
                self.path.unlink(missing_ok=True)
                fcntl.flock(turn, fcntl.LOCK_UN)
            return lines

    def _drain_lines(self, lines: list[bytes], apply: Callable[[Operation], None], end: float) -> int:
        num_done = num_applied = 0
        try:
            for line in lines:
                _check_time(end)
                num_applied += self._apply(line, apply)
                num_done += 1
        finally:
            self._forget(num_done)
        return num_applied

    def _apply(self, line: bytes, apply: Callable[[Operation], None]) -> bool:
        try:
            apply(_parse(line))
        except RefusedError as error:
            reason = mask_credentials(str(error))
            logger.error("MLflow will not take an operation, moved to %s: %s", self.refused_path, reason)
            with self.refused_path.open("a") as sink:
                sink.write(json.dumps({"reason": reason, "operation": line.decode(errors="replace").rstrip("\n")}) + "\n")
            return False
        return True

    def _save(self, lines: bytes) -> None:
        with file_lock(self._lock_path), self.path.open("ab+", buffering=0) as sink:
            size = sink.seek(0, os.SEEK_END)
            if size:
                sink.seek(-1, os.SEEK_END)
                lines = lines if sink.read(1) == b"\n" else b"\n" + lines  # a process died in the middle of a line
            if sink.write(lines) != len(lines):
                sink.truncate(size)
                raise OSError("the disk took a part of it, it is full")
            os.fsync(sink.fileno())

    def _forget(self, num_lines: int) -> None:
        """Takes the first lines out; what was added since they were read stays."""
        if not num_lines:
            return
        with file_lock(self._lock_path):
            aside = self.path.with_suffix(".part")
            aside.write_bytes(b"".join(line + b"\n" for line in _lines(self._read())[num_lines:]))
            aside.replace(self.path)

    def _read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return b""


def _lines(content: bytes) -> list[bytes]:
    return [line for line in content.split(b"\n") if line.strip()]


def _check_time(end: float) -> None:
    if time.monotonic() > end:
        raise OutageError("the server is slow")


def _parse(line: bytes) -> Operation:
    try:
        operation = json.loads(line)
    except (ValueError, RecursionError) as error:  # torn, not UTF-8, nested too deep
        raise RefusedError(f"the line cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(operation, dict):
        raise RefusedError("the line holds no operation")
    return operation  # pyright: ignore[reportUnknownVariableType]
