"""Runs of different algorithms beside each other at equal numbers of completions spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from posttrain.report.curve import GREEDY, SAMPLED, Rate, percent, rates
from posttrain.report.sweep_chart import spent_by
from posttrain.report.text_table import aligned


class Point(NamedTuple):
    """One evaluation: completions generated for training until then, sampled pass rate with its interval, greedy pass rate."""

    completions_spent: int
    sampled: float
    low: float
    high: float
    greedy: float | None


class Run(NamedTuple):
    name: str
    points: Sequence[Point]


def run_of(name: str, metrics: pa.Table) -> Run:
    """The evaluations in a run's METRICS."""
    greedy = {rate.iteration: rate.value for rate in rates(metrics, GREEDY)}
    return Run(
        name,
        [
            Point(spent_by(metrics, rate.iteration), rate.value, rate.low, rate.high, greedy.get(rate.iteration))
            for rate in rates(metrics, SAMPLED)
        ],
    )


def compare_runs_text(runs: Sequence[Run]) -> str:
    """A line for each number of completions at which some run was evaluated, and what may be concluded at the largest shared one.

    A cell is the run's last evaluation within that budget: sampled pass rate with its interval, and the greedy one. `·` stands
    where the run has not been evaluated anew since the line above.
    """
    runs = [Run(name, sorted(Point(*point) for point in points)) for name, points in runs if points]
    if not runs:
        return "no evaluation yet"
    budgets = sorted({point.completions_spent for run in runs for point in run.points})
    rows = [[f"{budget:,}", *(_cell(run, budget) for run in runs)] for budget in budgets]
    table = aligned(["completions spent", *(run.name for run in runs)], rows)
    return f"{table}\n{_conclusion(runs)}"


def _cell(run: Run, budget: int) -> str:
    point = _within(run, budget)
    if point is None or point.completions_spent != budget:
        return "·" if point else "-"
    return _text(point)


def _text(point: Point) -> str:
    greedy = "" if point.greedy is None else f", greedy {percent(point.greedy)}"
    return f"{_rate(point)}{greedy}"


def _rate(point: Point) -> Rate:
    return Rate(0, point.sampled, point.low, point.high)


def _within(run: Run, budget: int) -> Point | None:
    return max((point for point in run.points if point.completions_spent <= budget), default=None)


def _conclusion(runs: Sequence[Run]) -> str:
    shared = min(run.points[-1].completions_spent for run in runs)
    found = {run.name: point for run in runs if (point := _within(run, shared))}
    if len(found) < len(runs) or len(runs) < 2:
        return "There is no number of completions at which the runs can be compared."
    ranked = sorted(found, key=lambda name: -found[name].sampled)
    best = ranked[0]
    shown = ", ".join(f"{name} {_text(found[name])} (after {found[name].completions_spent:,})" for name in ranked)
    apart = [name for name in ranked[1:] if found[name].high < found[best].low]
    verdict = f"{best} is ahead of {' and '.join(apart)}" if apart else "the differences lie within the intervals"
    return f"With at most {shared:,} completions: {shown}; {verdict}."
