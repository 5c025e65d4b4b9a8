"""Averages that a NaN cannot wipe out, and their METRICS rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class WeightedMeans:
    """Means of values that arrive one microbatch at a time; a NaN is left out together with its weight."""

    totals: dict[str, float] = field(default_factory=dict[str, float])
    weights: dict[str, float] = field(default_factory=dict[str, float])

    def add(self, name: str, value: float, weight: float) -> None:
        """Adds one value that stands for `weight` tokens or rows."""
        if not math.isnan(value) and weight > 0:
            self.totals[name] = self.totals.get(name, 0.0) + value * weight
            self.weights[name] = self.weights.get(name, 0.0) + weight

    def means(self) -> dict[str, float]:
        """The mean of every name that has at least one value."""
        return {name: total / self.weights[name] for name, total in self.totals.items()}


def metric_rows(values: Mapping[str, float], iteration: int, step: int | None) -> list[dict[str, Any]]:
    """Rows of METRICS; values that are not finite are left out."""
    return [
        {"iteration": iteration, "step": step, "name": name, "value": value}
        for name, value in values.items()
        if math.isfinite(value)
    ]
