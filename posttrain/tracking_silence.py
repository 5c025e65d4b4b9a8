"""A store that was out of reach is left alone for a while, by every process that shares the spool directory."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

FIRST_SILENCE_S = 30.0
LONGEST_SILENCE_S = 900.0


class Silence:
    """Until when a store is left alone. Kept in a file, since every task of a run is a process of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._own = (0.0, 0)  # for a directory that cannot be written

    @classmethod
    def of(cls, directory: Path, store: str) -> Silence:
        """Of the store with this key (`store_key`), for all that share a spool directory."""
        return cls(directory / f"{store}.silence")

    def holds(self) -> bool:
        """Whether to leave the store alone now."""
        until, _ = self._read()
        return 0 < until - time.time() <= LONGEST_SILENCE_S  # farther away: the clock was set back

    def begin(self) -> float:
        """After a failure: twice as long as the time before; returns the seconds."""
        failures = self._read()[1] + 1
        length_s = min(LONGEST_SILENCE_S, FIRST_SILENCE_S * 2 ** min(failures - 1, 20))
        until = (time.time() + length_s, failures)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(until))
            self._own = (0.0, 0)
        except OSError:  # the spool, in the same directory, has reported it
            self._own = until
        return length_s

    def end(self) -> None:
        """After a success."""
        self._own = (0.0, 0)
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _read(self) -> tuple[float, int]:
        try:
            until, failures = json.loads(self._path.read_text())
            return max((float(until), int(failures)), self._own)
        except (OSError, ValueError, TypeError, OverflowError, RecursionError):  # none, or torn by a process that died
            return self._own
