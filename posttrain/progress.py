"""Progress of long work: a bar with rate and time left in a terminal, lines in a log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, Self, TypeVar

from tqdm import tqdm

Item = TypeVar("Item")
logger = logging.getLogger("posttrain")
LOG_EVERY_S = 10.0


class Progress:
    """How far a piece of work is; a context manager."""

    def __init__(self, description: str, total: int, unit: str) -> None:
        self._description, self._total, self._unit = description, total, unit
        self._bar = tqdm(desc=description, total=total, unit=unit, leave=False) if sys.stderr.isatty() else None
        self._started = self._reported = time.monotonic()
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: int = 1) -> None:
        """Says that `count` more units are done."""
        self._count += count
        if self._bar is not None:
            self._bar.update(count)
        elif time.monotonic() - self._reported >= LOG_EVERY_S:
            self._log()

    def _log(self) -> None:
        self._reported = time.monotonic()
        rate = self._count / (self._reported - self._started)
        left_s = (self._total - self._count) / rate
        logger.info(
            "%s: %d/%d %s, %.1f/s, %.0f s left", self._description, self._count, self._total, self._unit, rate, left_s
        )  # fmt: skip


def progress(items: Iterable[Item], description: str, total: int, unit: str = "row") -> Iterator[Item]:
    """Passes `items` through and shows how far the work is."""
    with Progress(description, total, unit) as shown:
        for item in items:
            yield item
            shown.advance()
