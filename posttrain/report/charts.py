"""The figures of the report. Each returns an `<svg>`, or an empty text when there is nothing to draw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from posttrain.report.curve import GREEDY, SAMPLED, Rate, rates
from posttrain.report.drawing import COLOURS, draw
from posttrain.report.plotting import (
    HEIGHT,
    WIDTH,
    drawable,
    legend,
    percent_axis,
    percent_text,
    plot_rates,
    thinned,
    whole_numbers,
)
from posttrain.report.samples import safe_label
from posttrain.table_checks import OUTCOMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMALL_WIDTH, SMALL_HEIGHT = 340, 200
NUM_BINS = 12
TRAIN_WORDS = ("loss", "kl", "clip", "entropy", "grad_norm", "importance")


def learning_curve(metrics: pa.Table) -> str:
    """Held-out pass rates by iteration with their intervals, and the largest pass@k."""
    sampled, greedy, best_of = rates(metrics, SAMPLED), rates(metrics, GREEDY), _largest_pass_at(metrics)
    if not sampled and not greedy:
        return ""

    def plot(axes: Axes) -> None:
        plot_rates(axes, sampled, "sampled", "accent")
        plot_rates(axes, greedy, "greedy", "second")
        if best_of:
            k, curve = best_of
            axes.plot(
                [r.iteration for r in curve],
                drawable([r.value for r in curve]),
                "--",
                color=COLOURS["muted"],
                lw=1.2,
                label=f"any of {k}",
            )
        percent_axis(axes)
        whole_numbers(axes, "iteration", [rate.iteration for rate in sampled or greedy])
        legend(axes)

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
        percent_axis(axes)
        whole_numbers(axes, "iteration", list(counts))
        legend(axes)

    return draw("outcomes", WIDTH, HEIGHT, "outcomes by iteration", plot)


def reward_distribution(samples: Mapping[int, pa.Table]) -> str:
    """How rewards are spread in each iteration: darker where more completions lie, and the mean as a line."""
    rewards = {k: drawable([r for r in scored["reward"].to_pylist() if r is not None]) for k, scored in sorted(samples.items())}
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
        whole_numbers(axes, "iteration", list(rewards))
        legend(axes)

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
        axes.yaxis.set_major_formatter(percent_text)
        axes.set_ylim(bottom=0)
        legend(axes)

    return draw("lengths", WIDTH, HEIGHT, "distribution of completion lengths", plot)


def train_metrics(metrics: pa.Table) -> list[tuple[str, str]]:
    """(name, svg) of loss, KL, clip fraction and a few more, by optimiser step, or by iteration where a value has no step."""
    series: defaultdict[str, dict[int, float]] = defaultdict(dict)
    by_iteration: set[str] = set()
    for row in metrics.to_pylist():
        if row["name"].startswith("train/"):
            series[row["name"]][row["iteration"] if row["step"] is None else row["step"]] = row["value"]
            if row["step"] is None:
                by_iteration.add(row["name"])
    names: list[str] = []
    for word in TRAIN_WORDS:
        found = sorted((name for name in series if word in name and name not in names), key=lambda name: (len(name), name))
        names += found[:1]
    return [(name, _small(name, series[name], "iteration" if name in by_iteration else "optimiser step")) for name in names]


def _small(name: str, values: Mapping[int, float], unit: str) -> str:
    steps, heights = thinned(sorted(values), [values[step] for step in sorted(values)])

    def plot(axes: Axes) -> None:
        axes.plot(steps, heights, color=COLOURS["accent"], lw=1.6, marker="o" if len(steps) < 30 else "", markersize=3)
        whole_numbers(axes, unit, steps)

    description = f"{safe_label(name)} by {unit.removeprefix('optimiser ')}"
    return draw("".join(c if c.isalnum() else "-" for c in name), SMALL_WIDTH, SMALL_HEIGHT, description, plot)


def _largest_pass_at(metrics: pa.Table) -> tuple[int, list[Rate]] | None:
    names = {name for name in metrics["name"].to_pylist() if name.startswith("eval/pass_at_")}
    sizes = [int(size) for size in (name.removeprefix("eval/pass_at_") for name in names) if size.isdigit()]
    k = max(sizes, default=1)
    return (k, rates(metrics, f"eval/pass_at_{k}")) if k > 1 else None


def _count(outcomes: list[Any]) -> dict[str, int]:
    return {outcome: outcomes.count(outcome) for outcome in OUTCOMES}
