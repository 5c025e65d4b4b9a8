"""Where the time went: phases by pool and device over wall-clock time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from posttrain.report.curve import percent
from posttrain.report.drawing import COLOURS, SERIES, draw
from posttrain.report.samples import safe_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, ROW_HEIGHT, MARGIN = 1060, 26, 84
MAX_ROWS = 24
PAUSE_S = 600  # nothing works for so long: interrupted and resumed
NUM_PIXELS = 1_000  # intervals of a phase closer than one of these pixels are drawn as one
MAX_INTERVALS = 3_000  # beyond it wider gaps are closed too, so that the page stays small
NUM_NAMED_PHASES = 4
Interval = tuple[float, float]


def phase_seconds(events: pa.Table) -> dict[str, float]:
    """Seconds of each phase added over all devices, the largest first."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for event in events.to_pylist():
        seconds[event["phase"]] += (event["finished_at"] - event["started_at"]).total_seconds()
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def wall_seconds(events: pa.Table) -> float:
    """From the first start to the last end without pauses; 0 without events."""
    rows = _times(events)
    return Clock(rows).at(max(finished for _, finished in rows)) if rows else 0.0


class Clock:
    """Seconds since the first start, in which a pause takes no time: a run that was resumed did not work in between."""

    def __init__(self, times: Sequence[tuple[datetime, datetime]]) -> None:
        self.start = self._end = min(started for started, _ in times)
        self.pauses: list[tuple[datetime, float]] = []  # its end, its seconds
        for started, finished in sorted(times):
            if (started - self._end).total_seconds() > PAUSE_S:
                self.pauses.append((started, (started - self._end).total_seconds()))
            self._end = max(self._end, finished)

    def at(self, moment: datetime) -> float:
        """Seconds of work until `moment`, which lies in no pause."""
        paused = sum(seconds for ended, seconds in self.pauses if ended <= moment)
        return (moment - self.start).total_seconds() - paused


def _times(events: pa.Table) -> list[tuple[datetime, datetime]]:
    columns = (events[name].to_pylist() for name in ("started_at", "finished_at"))
    return list(zip(*columns, strict=True))


def describe_time(events: pa.Table) -> str:
    """`2 min 5 s in all; device time: rollout 61 % (1 min 16 s), …`, the largest phases by name."""
    seconds = phase_seconds(events)
    total = sum(seconds.values())
    if not total:
        return ""
    named = [
        f"{phase} {percent(value / total)} ({duration_text(value)})" for phase, value in list(seconds.items())[:NUM_NAMED_PHASES]
    ]
    rest = (
        ["the rest " + duration_text(sum(list(seconds.values())[NUM_NAMED_PHASES:]))] if len(seconds) > NUM_NAMED_PHASES else []
    )
    span = f"{duration_text(wall_seconds(events))} from first to last{_without_pauses(events)}"
    return f"{span}; busy time: " + ", ".join(named + rest)


def _without_pauses(events: pa.Table) -> str:
    pauses = Clock(_times(events)).pauses
    if not pauses:
        return ""
    counted = "a pause" if len(pauses) == 1 else f"{len(pauses)} pauses"
    return f", without {counted} of {duration_text(sum(seconds for _, seconds in pauses))} (dashed below)"


def duration_text(seconds: float) -> str:
    """Two units at most: 0.4 s, 38 s, 2 min 5 s, 3 h 12 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def timeline(events: pa.Table) -> str:
    """An `<svg>` with one row for each pool and device; empty without events."""
    total = wall_seconds(events)
    if not total:
        return ""
    clock = Clock(_times(events))
    rows = _rows(events, total, clock)
    phases = list(phase_seconds(events))
    colours = {phase: COLOURS[SERIES[min(number, len(SERIES) - 1)]] for number, phase in enumerate(phases)}

    def plot(axes: Axes) -> None:
        for number, row in enumerate(rows.values()):
            for phase, intervals in row.items():
                axes.broken_barh(intervals, (number - 0.38, 0.76), facecolors=colours[phase], linewidth=0)
        for ended, _ in clock.pauses:
            axes.axvline(clock.at(ended), color=COLOURS["muted"], linestyle="--", lw=1.2)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(0, total)
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.set_axisbelow(True)
        axes.xaxis.set_major_formatter(lambda value, _: duration_text(value) if value else "0")
        _legend(axes, colours)

    return draw("timeline", WIDTH, MARGIN + ROW_HEIGHT * len(rows), "phases by pool over time", plot)


def _rows(events: pa.Table, total: float, clock: Clock) -> dict[str, dict[str, list[Interval]]]:
    """Row name → phase → intervals (start, length) in seconds; the busiest rows when there are too many."""
    listed = events.to_pylist()
    found: defaultdict[str, defaultdict[str, list[Interval]]] = defaultdict(lambda: defaultdict(list))
    for event in sorted(listed, key=lambda event: event["started_at"]):
        began = clock.at(event["started_at"])
        length = (event["finished_at"] - event["started_at"]).total_seconds()
        found[_row_name(event)][event["phase"]].append((began, length))
    gap = total / NUM_PIXELS
    merged = _merge_rows(found, gap)
    while sum(len(intervals) for row in merged.values() for intervals in row.values()) > MAX_INTERVALS:
        gap *= 2
        merged = _merge_rows(found, gap)
    busiest = sorted(merged, key=lambda name: -sum(length for row in merged[name].values() for _, length in row))[:MAX_ROWS]
    return {name: merged[name] for name in sorted(busiest)}


def _merge_rows(rows: Mapping[str, Mapping[str, list[Interval]]], gap: float) -> dict[str, dict[str, list[Interval]]]:
    return {name: {phase: _merge(intervals, gap) for phase, intervals in row.items()} for name, row in rows.items()}


def _row_name(event: dict[str, Any]) -> str:
    name = event["pool"] if event["device"] in ("", event["pool"]) else f"{event['pool']} · {event['device']}"
    return safe_label(name if len(name) <= 32 else name[:31] + "…")


def _merge(intervals: list[Interval], gap: float) -> list[Interval]:
    merged: list[Interval] = []
    for began, length in intervals:
        length = max(length, gap)  # a short phase stays visible
        if merged and began <= merged[-1][0] + merged[-1][1] + gap:
            first = merged[-1][0]
            merged[-1] = (first, max(merged[-1][1], began + length - first))
        else:
            merged.append((began, length))
    return merged


def _legend(axes: Axes, colours: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    named = dict(list(colours.items())[: len(SERIES) - 1])
    handles = [Patch(color=colour, label=safe_label(phase[:40])) for phase, colour in named.items()]
    if len(colours) > len(named):
        handles.append(Patch(color=COLOURS[SERIES[-1]], label="other"))
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=6, borderaxespad=0.2, handlelength=1)
