"""The figures of the report. Each returns an `<svg>`, or an empty text when there is nothing to draw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from posttrain.report.curve import GREEDY, SAMPLED, Rate, rates
from posttrain.report.drawing import COLOURS, draw
from posttrain.report.samples import safe_label
from posttrain.table_checks import OUTCOMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 520, 290
SMALL_WIDTH, SMALL_HEIGHT = 340, 200
NUM_BINS = 12
MAX_POINTS = 300
LARGEST = 1e300  # no axis can reach from -1e308 to 1e308: their difference is no float
TRAIN_WORDS = ("loss", "kl", "clip", "entropy", "grad_norm", "importance")


def learning_curve(metrics: pa.Table) -> str:
    """Held-out pass rates by iteration with their intervals, and the largest pass@k."""
    sampled, greedy, best_of = rates(metrics, SAMPLED), rates(metrics, GREEDY), _largest_pass_at(metrics)
    if not sampled and not greedy:
        return ""

    def plot(axes: Axes) -> None:
        _plot_rates(axes, sampled, "sampled", "accent")
        _plot_rates(axes, greedy, "greedy", "second")
        if best_of:
            k, curve = best_of
            axes.plot(
                [r.iteration for r in curve],
                _drawable([r.value for r in curve]),
                "--",
                color=COLOURS["muted"],
                lw=1.2,
                label=f"any of {k}",
            )
        _percent_axis(axes)
        _whole_numbers(axes, "iteration", [rate.iteration for rate in sampled or greedy])
        _legend(axes)

    return draw("learning", WIDTH, HEIGHT, "held-out pass rate by iteration", plot)


def outcome_shares(samples: Mapping[int, pa.Table]) -> str:
    """Share of each outcome among the completions of an iteration, stacked."""
    counts = {
        iteration: _count(scored["outcome"].to_pylist()) for iteration, scored in sorted(samples.items()) if scored.num_rows
    }
    if not counts:
        return ""

    def plot(axes: Axes) -> None:
        bottom = np.zeros(len(counts))
        for outcome in OUTCOMES:
            shares = np.array([count[outcome] / max(1, sum(count.values())) for count in counts.values()])
            if shares.any():
                axes.bar(list(counts), shares, bottom=bottom, width=0.82, color=COLOURS[outcome], label=outcome)
                bottom += shares
        _percent_axis(axes)
        _whole_numbers(axes, "iteration", list(counts))
        _legend(axes)

    return draw("outcomes", WIDTH, HEIGHT, "outcomes by iteration", plot)


def reward_distribution(samples: Mapping[int, pa.Table]) -> str:
    """How rewards are spread in each iteration: darker where more completions lie, and the mean as a line."""
    rewards = {k: _drawable([r for r in scored["reward"].to_pylist() if r is not None]) for k, scored in sorted(samples.items())}
    rewards = {k: values for k, values in rewards.items() if values.size}
    if not rewards:
        return ""
    every = np.concatenate(list(rewards.values()))
    edges = np.linspace(min(0.0, every.min()), max(1.0, every.max()), NUM_BINS + 1)
    height = float(edges[1] - edges[0])

    def plot(axes: Axes) -> None:
        for iteration, values in rewards.items():
            shares = np.histogram(values, bins=edges)[0] / values.size
            for low, share in zip(edges[:-1], shares, strict=True):
                if share:
                    alpha = 0.12 + 0.78 * float(share)
                    axes.bar(iteration, height * 0.94, bottom=float(low), width=0.82, color=COLOURS["accent"], alpha=alpha, lw=0)
        means = [float(values.mean()) for values in rewards.values()]
        axes.plot(list(rewards), means, "o-", color=COLOURS["second"], markersize=4, label="mean reward")
        axes.set_ylim(float(edges[0]) - height / 4, float(edges[-1]) + height / 4)
        _whole_numbers(axes, "iteration", list(rewards))
        _legend(axes)

    return draw("rewards", WIDTH, HEIGHT, "distribution of rewards by iteration", plot)


def completion_lengths(samples: Mapping[int, pa.Table]) -> str:
    """Tokens of a completion in the first and in the last iteration; dashed lines are the medians."""
    lengths = {k: np.array([len(ids) for ids in scored["completion_ids"].to_pylist()]) for k, scored in sorted(samples.items())}
    lengths = {k: values for k, values in lengths.items() if values.size}
    if not lengths:
        return ""
    shown = sorted({min(lengths), max(lengths)})
    longest = max(int(values.max()) for values in lengths.values())
    edges = np.linspace(0, longest + 1, min(longest + 1, 40) + 1)

    def plot(axes: Axes) -> None:
        for iteration, colour in zip(shown, ("second", "accent"), strict=False):
            values = lengths[iteration]
            shares = np.histogram(values, bins=edges)[0] / values.size
            axes.stairs(shares, edges, fill=True, color=COLOURS[colour], alpha=0.22, lw=0)
            axes.stairs(shares, edges, color=COLOURS[colour], lw=1.5, label=f"iteration {iteration}")
            axes.axvline(float(np.median(values)), color=COLOURS[colour], linestyle="--", lw=1.2)
        axes.set_xlabel("tokens")
        axes.yaxis.set_major_formatter(_percent_text)
        axes.set_ylim(bottom=0)
        _legend(axes)

    return draw("lengths", WIDTH, HEIGHT, "distribution of completion lengths", plot)


def train_metrics(metrics: pa.Table) -> list[tuple[str, str]]:
    """(name, svg) of loss, KL, clip fraction and a few more, over optimiser steps."""
    series: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for row in metrics.to_pylist():
        if row["name"].startswith("train/"):
            series[row["name"]][row["iteration"] if row["step"] is None else row["step"]] = row["value"]
    names: list[str] = []
    for word in TRAIN_WORDS:
        found = sorted((name for name in series if word in name and name not in names), key=lambda name: (len(name), name))
        names += found[:1]
    return [(name, _small(name, series[name])) for name in names]


def _small(name: str, values: Mapping[int, float]) -> str:
    steps, heights = _thinned(np.array(sorted(values)), _drawable([values[step] for step in sorted(values)]))

    def plot(axes: Axes) -> None:
        axes.plot(steps, heights, color=COLOURS["accent"], lw=1.6, marker="o" if len(steps) < 30 else "", markersize=3)
        _whole_numbers(axes, "optimiser step", steps)

    return draw("".join(c if c.isalnum() else "-" for c in name), SMALL_WIDTH, SMALL_HEIGHT, f"{safe_label(name)} by step", plot)


def _drawable(values: Sequence[float]) -> np.ndarray:
    return np.clip(np.array(values, dtype=float), -LARGEST, LARGEST)


def _thinned(steps: np.ndarray, values: np.ndarray) -> tuple[list[float], list[float]]:
    """Means of neighbours where there are more points than a figure can show."""
    parts = min(MAX_POINTS, len(steps))
    step_means = [float(part.mean()) for part in np.array_split(steps, parts)]
    return step_means, [float(part.mean()) for part in np.array_split(values, parts)]


def _plot_rates(axes: Axes, curve: list[Rate], label: str, colour: str) -> None:
    if not curve:
        return
    iterations = [rate.iteration for rate in curve]
    lows, highs = _drawable([rate.low for rate in curve]), _drawable([rate.high for rate in curve])
    if len(curve) == 1:
        axes.vlines(iterations, lows, highs, color=COLOURS[colour], alpha=0.35, lw=6)
    axes.fill_between(iterations, lows, highs, color=COLOURS[colour], alpha=0.16, lw=0)
    axes.plot(iterations, _drawable([rate.value for rate in curve]), "o-", color=COLOURS[colour], markersize=4, label=label)


def _largest_pass_at(metrics: pa.Table) -> tuple[int, list[Rate]] | None:
    names = {name for name in metrics["name"].to_pylist() if name.startswith("eval/pass_at_")}
    sizes = [int(size) for size in (name.removeprefix("eval/pass_at_") for name in names) if size.isdigit()]
    k = max(sizes, default=1)
    return (k, rates(metrics, f"eval/pass_at_{k}")) if k > 1 else None


def _count(outcomes: list[Any]) -> dict[str, int]:
    return {outcome: outcomes.count(outcome) for outcome in OUTCOMES}


def _percent_text(value: float, _: object = None) -> str:
    return f"{value * 100:.0f} %"


def _percent_axis(axes: Axes) -> None:
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.set_major_formatter(_percent_text)


def _whole_numbers(axes: Axes, label: str, places: Sequence[float]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    if len(set(places)) == 1:
        axes.set_xlim(places[0] - 1, places[0] + 1)
        axes.set_xticks([places[0]])


def _legend(axes: Axes) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=5, borderaxespad=0.2, handlelength=1.2, columnspacing=1.4)
