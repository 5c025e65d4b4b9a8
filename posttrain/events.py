"""When each pool worked on what: intervals for the timeline, the ledger and the `time/…` metrics."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from posttrain import tables


@dataclass
class Phase:
    """The running interval; set `tokens` to what was generated or trained in it."""

    tokens: int = 0


class EventRecorder:
    """Collects the intervals of one task on one device."""

    def __init__(self, pool: str, device: str, iteration: int, shard: int | None = None, execution: str | None = None) -> None:
        self._labels = {"execution": execution, "iteration": iteration, "pool": pool, "device": device, "shard": shard}
        self._rows: list[dict[str, Any]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        """Records the body as one interval, also when it raises.

        The start is wall-clock time (UTC), comparable between machines; the length is measured by the monotonic
        clock, so that a corrected system clock cannot make it negative.
        """
        phase, started_at, started = Phase(), datetime.now(UTC), time.monotonic()
        try:
            yield phase
        finally:
            finished_at = started_at + timedelta(seconds=time.monotonic() - started)
            interval = {"phase": name, "started_at": started_at, "finished_at": finished_at, "tokens": phase.tokens}
            self._rows.append(self._labels | interval)

    def table(self) -> pa.Table:
        """EVENTS, one row for each finished phase in the order they finished."""
        return tables.from_rows("EVENTS", self._rows)


def in_iteration(events: pa.Table, iteration: int) -> pa.Table:
    """The same intervals as a part of `iteration`: a task that is cached by content alone does not know which one asks."""
    column = events.schema.get_field_index("iteration")
    values = pa.array([iteration] * events.num_rows, pa.int32())
    return events.set_column(column, tables.EVENTS.field(column), values)


def durations(events: pa.Table) -> pa.Table:
    """METRICS `time/<phase>`: seconds of all intervals of a phase in an iteration, added over devices and shards.

    Raises:
        ContractError: the table is not EVENTS.
    """
    seconds: defaultdict[tuple[int, str], float] = defaultdict(float)
    for event in tables.validate(events, "EVENTS").to_pylist():
        length = event["finished_at"] - event["started_at"]
        seconds[event["iteration"], event["phase"]] += length.total_seconds()
    rows = [
        {"iteration": iteration, "step": None, "name": f"time/{phase}", "value": value}
        for (iteration, phase), value in sorted(seconds.items())
    ]
    return tables.from_rows("METRICS", rows)
