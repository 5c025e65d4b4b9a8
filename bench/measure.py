"""Two ways to do one thing, timed side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

REPEATS = 3


@dataclass(frozen=True)
class Row:
    """One line of the table. `ratio` says how many times as fast ours is: the median of the repeats, and their range.

    `ours` and `peer` are medians in `unit`; `limit` is what the machine itself allows, measured in the same run.
    """

    name: str
    ours: float
    peer: float
    ratio: float
    ratio_range: tuple[float, float]
    unit: str
    limit: str


def side_by_side(
    name: str, ours: Callable[[], Any], peer: Callable[[], Any], *, limit: str, num_items: int = 0, item: str = ""
) -> Row:
    """Times both REPEATS times; who goes first alternates, so that a slow spell of the machine meets both.

    Args:
        num_items: what one call handles; the row then says items a second, else seconds.
        item: what is counted, for example `programs`.
    """
    seconds: dict[Callable[[], Any], list[float]] = {ours: [], peer: []}
    for repeat in range(REPEATS):
        for work in (ours, peer) if repeat % 2 == 0 else (peer, ours):
            seconds[work].append(elapsed_s(work))
    ratios = [peer_s / our_s for our_s, peer_s in zip(seconds[ours], seconds[peer], strict=True)]
    shown = [num_items / median if num_items else median for median in map(statistics.median, (seconds[ours], seconds[peer]))]
    unit = f"{item}/s" if num_items else "s"
    return Row(name, shown[0], shown[1], statistics.median(ratios), (min(ratios), max(ratios)), unit, limit)


def elapsed_s(work: Callable[[], Any]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def require_equal(what: str, ours: Any, peer: Any) -> None:
    """Raises ValueError when the two sides do not do the same work: there is then nothing to compare."""
    if ours != peer:
        raise ValueError(f"{what}: ours and the peer's differ, so their speeds cannot be compared.")
