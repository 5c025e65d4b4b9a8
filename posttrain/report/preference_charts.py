"""The figures of a run that learns from pairs. Each returns an `<svg>`, or an empty text when there is nothing to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from posttrain.report.curve import PAIR_ACCURACY, SAMPLED, Rate, rates
from posttrain.report.drawing import COLOURS, draw
from posttrain.report.plotting import HEIGHT, WIDTH, legend, percent_axis, plot_rates, thinned, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Line:
    """One quantity: by step in training, by iteration on held-out pairs."""

    label: str
    colour: str
    train: Mapping[int, float]
    held_out: list[Rate]


def logprob_drift(metrics: pa.Table) -> str:
    """Policy less reference of chosen and of rejected answers, in nats; the best pass rate as an upright line."""
    lines = [_line(metrics, f"{side}_logprob_drift", side, colour) for side, colour in _SIDES]
    steps = _last_steps(metrics)

    def plot(axes: Axes) -> None:
        axes.axhline(0, color=COLOURS["muted"], lw=1)
        sampled = rates(metrics, SAMPLED)
        if sampled:
            best = max(sampled, key=lambda rate: rate.value).iteration
            axes.axvline(steps.get(best, best), color=COLOURS["muted"], linestyle="--", lw=1.2, label="best pass rate")

    return _figure("drift", "logprob drift of chosen and rejected answers by step", lines, steps, plot)


def reward_margin(metrics: pa.Table) -> str:
    """beta × (drift of chosen − drift of rejected)."""
    lines = [_line(metrics, "reward_margin", "margin", "accent")]
    return _figure("margin", "reward margin by step", lines, _last_steps(metrics), lambda axes: None)


def pair_accuracy(metrics: pa.Table) -> str:
    """Share of pairs whose chosen answer has gained more than the rejected one."""
    lines = [_line(metrics, PAIR_ACCURACY.removeprefix("eval/"), "accuracy", "accent")]
    return _figure("accuracy", "pair accuracy by step", lines, _last_steps(metrics), percent_axis)


def implicit_rewards(metrics: pa.Table) -> str:
    """beta × drift of either side, in training."""
    lines = [_line(metrics, f"{side}_reward", side, colour) for side, colour in _SIDES]
    return _figure("implicit", "rewards of chosen and rejected answers by step", lines, _last_steps(metrics), lambda axes: None)


_SIDES = (("chosen", "accent"), ("rejected", "second"))


def _line(metrics: pa.Table, name: str, label: str, colour: str) -> Line:
    train = {
        row["step"]: row["value"] for row in metrics.to_pylist() if row["name"] == f"train/{name}" and row["step"] is not None
    }
    return Line(label, colour, dict(sorted(train.items())), rates(metrics, f"eval/{name}"))


def _figure(name: str, description: str, lines: list[Line], steps: Mapping[int, int], decorate: Callable[[Axes], None]) -> str:
    lines = [line for line in lines if line.train or line.held_out]
    if not lines:
        return ""
    unit = "optimiser step" if steps else "iteration"

    def plot(axes: Axes) -> None:
        decorate(axes)
        for line in lines:
            _plot(axes, line, steps)
        places = [
            *(step for line in lines for step in line.train),
            *(steps.get(r.iteration, r.iteration) for r in lines[0].held_out),
        ]
        whole_numbers(axes, unit, places)
        legend(axes)

    return draw(f"pairs-{name}", WIDTH, HEIGHT, description.replace("step", unit.removeprefix("optimiser ")), plot)


def _plot(axes: Axes, line: Line, steps: Mapping[int, int]) -> None:
    """Dots are held-out pairs; the thin line is training, named only where it is alone."""
    places = [steps.get(rate.iteration, rate.iteration) for rate in line.held_out]
    if line.train:
        label = "" if line.held_out else line.label
        axes.plot(*thinned(list(line.train), list(line.train.values())), color=COLOURS[line.colour], lw=1, alpha=0.6, label=label)
    plot_rates(axes, line.held_out, line.label, line.colour, places)


def _last_steps(metrics: pa.Table) -> dict[int, int]:
    """iteration → number of optimiser steps behind it (the first is step 0); empty when no step is recorded."""
    last: dict[int, int] = {}
    for row in metrics.to_pylist():
        if row["step"] is not None and row["name"].startswith("train/"):
            last[row["iteration"]] = max(row["step"], last.get(row["iteration"], row["step"]))
    if not last:
        return {}
    found, step = {0: 0}, 0
    for iteration in range(1, max(max(last), max(metrics["iteration"].to_pylist())) + 1):
        step = last[iteration] + 1 if iteration in last else step
        found[iteration] = step
    return found
