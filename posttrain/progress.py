"""Progress of long work: a bar with rate and time left in a terminal, lines in a log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")
logger = logging.getLogger("posttrain")
LOG_EVERY_S = 10.0


def progress(items: Iterable[Item], description: str, total: int, unit: str = "row") -> Iterator[Item]:
    """Passes `items` through and shows how far the work is."""
    if sys.stderr.isatty():
        yield from tqdm(items, desc=description, total=total, unit=unit, leave=False)
        return
    started = reported = time.monotonic()
    for count, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - reported >= LOG_EVERY_S:
            rate = count / (now - started)
            logger.info("%s: %d/%d %s, %.1f/s, %.0f s left", description, count, total, unit, rate, (total - count) / rate)
            reported = now
