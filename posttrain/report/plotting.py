"""What the figures share: sizes, axes, bands, and values that can be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from posttrain.report.curve import Rate
from posttrain.report.drawing import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 520, 290
MAX_POINTS = 300
LARGEST = 1e300  # no axis can reach from -1e308 to 1e308: their difference is no float


def drawable(values: Sequence[float]) -> np.ndarray:
    """The values within what an axis can hold."""
    return np.clip(np.array(values, dtype=float), -LARGEST, LARGEST)


def thinned(steps: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Means of neighbours where there are more points than a figure can show."""
    parts = max(1, min(MAX_POINTS, len(steps)))
    step_means = [float(part.mean()) for part in np.array_split(np.array(steps, dtype=float), parts)]
    return step_means, [float(part.mean()) for part in np.array_split(drawable(values), parts)]


def plot_rates(axes: Axes, curve: Sequence[Rate], label: str, colour: str, places: Sequence[float] | None = None) -> None:
    """A line with dots and its interval as a band, over `places` or over the iterations."""
    if not curve:
        return
    x = [rate.iteration for rate in curve] if places is None else places
    lows, highs = drawable([rate.low for rate in curve]), drawable([rate.high for rate in curve])
    if len(curve) == 1:
        axes.vlines(x, lows, highs, color=COLOURS[colour], alpha=0.35, lw=6)
    axes.fill_between(x, lows, highs, color=COLOURS[colour], alpha=0.16, lw=0)
    axes.plot(x, drawable([rate.value for rate in curve]), "o-", color=COLOURS[colour], markersize=4, label=label)


def percent_text(value: float, _: object = None) -> str:
    """0.25 → 25 %, for an axis."""
    return f"{value * 100:.0f} %"


def percent_axis(axes: Axes) -> None:
    """From 0 to 100 %."""
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.set_major_formatter(percent_text)


def whole_numbers(axes: Axes, label: str, places: Sequence[float]) -> None:
    """An axis of iterations or steps."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    if len(set(places)) == 1:
        axes.set_xlim(places[0] - 1, places[0] + 1)
        axes.set_xticks([places[0]])


def legend(axes: Axes, num_columns: int = 5) -> None:
    """Above the figure, from the left."""
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=num_columns, borderaxespad=0.2, handlelength=1.2, columnspacing=1.4
    )
