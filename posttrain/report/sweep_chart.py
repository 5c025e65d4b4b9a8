"""The curves of several runs in one figure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa

from posttrain.report.curve import PAIR_ACCURACY, Rate, rates, values_by_iteration
from posttrain.report.drawing import COLOURS, SERIES, draw
from posttrain.report.plotting import drawable, legend, percent_axis, plot_rates, whole_numbers
from posttrain.report.samples import safe_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 760, 380
COMPLETIONS = "rollout/num_completions"
LABEL_CHARACTERS = 48


def completions_spent(metrics: pa.Table) -> dict[int, int]:
    """iteration → completions generated for training up to its end; empty for a run that generates none."""
    counts = {iteration: value for iteration, value in values_by_iteration(metrics, COMPLETIONS).items() if value}
    return {0: 0, **dict(zip(counts, (int(total) for total in accumulate(counts.values())), strict=True))} if counts else {}


def spent_by(metrics: pa.Table, iteration: int) -> int:
    """Completions spent by the end of `iteration`."""
    return max((total for number, total in completions_spent(metrics).items() if number <= iteration), default=0)


def trial_curves(runs: Mapping[str, pa.Table], name: str) -> str:
    """METRICS `name` of every run, best last value first in the legend; without any value an empty text.

    Over completions spent where every run has them, over iterations otherwise. Beyond the colours there are, curves are grey.
    """
    curves = {label: curve for label, metrics in runs.items() if (curve := rates(metrics, name))}
    if not curves:
        return ""
    by_completions = all(completions_spent(runs[label]) for label in curves)
    ranked = sorted(curves, key=lambda label: -curves[label][-1].value)
    description = f"{'pair accuracy' if name == PAIR_ACCURACY else 'held-out pass rate'} of every trial"

    def plot(axes: Axes) -> None:
        for number, label in reversed(list(enumerate(ranked))):
            places = [float(spent_by(runs[label], r.iteration) if by_completions else r.iteration) for r in curves[label]]
            _plot(axes, curves[label], places, label, number)
        percent_axis(axes)
        every = [rate.iteration for curve in curves.values() for rate in curve]
        whole_numbers(axes, "completions spent" if by_completions else "iteration", every)
        legend(axes, num_columns=2)

    return draw("trials", WIDTH, HEIGHT, description, plot)


def _plot(axes: Axes, curve: list[Rate], places: list[float], label: str, rank: int) -> None:
    if rank < len(SERIES) - 1:
        plot_rates(axes, curve, safe_label(label[:LABEL_CHARACTERS]), SERIES[rank], places)
    else:
        axes.plot(places, drawable([rate.value for rate in curve]), color=COLOURS[SERIES[-1]], lw=1.2, alpha=0.7)
