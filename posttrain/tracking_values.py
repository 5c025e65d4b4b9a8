"""What may be sent to MLflow: names it accepts, values it does not cut, no secrets, no NaN."""

from __future__ import annotations

import hashlib
import logging
import math
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from posttrain.tracking_credentials import mask_credentials

logger = logging.getLogger("posttrain.tracking")
MAX_NAME_CHARACTERS = 200  # MLflow allows 250; the rest is room for the prefix of a tag that holds the original
MAX_PARAMETER_CHARACTERS = 480  # limits of MLflow servers differ (500 to 6000): stay below the smallest
_ACCEPTED = re.compile(r"[A-Za-z0-9_\-. /]+")
_SPELLED_OUT = {"@": "_at_", "%": "_percent"}


def mlflow_name(name: str) -> str:
    """The name under which MLflow takes a metric or parameter: unchanged where it is accepted.

    A changed name carries six digits of the original's hash: two originals never meet in one name, and every process
    and every retry gives the same name without asking the others.
    """
    if _is_accepted(name):
        return name
    spelled = "".join(_SPELLED_OUT.get(character, character) for character in name)
    parts = [re.sub(r"[^A-Za-z0-9_\-. ]", "_", part).strip() for part in spelled.split("/")]
    cleaned = "/".join(part for part in parts if part.strip(".")) or "unnamed"
    return f"{cleaned[: MAX_NAME_CHARACTERS - 7]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def _is_accepted(name: str) -> bool:
    normal = posixpath.normpath(name) == name and not name.startswith((".", "/")) and name.strip() == name
    return normal and len(name) <= MAX_NAME_CHARACTERS and _ACCEPTED.fullmatch(name) is not None


def parameter_value(value: str) -> str:
    """The value without credentials; a long one is cut and ends with its length and hash, so that differences still show."""
    masked = mask_credentials(value)
    if len(masked) <= MAX_PARAMETER_CHARACTERS:
        return masked
    ending = f"… ({len(masked)} characters, sha256 {hashlib.sha256(masked.encode()).hexdigest()[:12]})"
    return masked[: MAX_PARAMETER_CHARACTERS - len(ending)] + ending


def mean_ignoring_nan(values: Iterable[float | None]) -> tuple[float, int] | None:
    """Mean and count of the values that are there; None (log no point) when all are NaN or missing."""
    present = [value for value in values if value is not None and not math.isnan(value)]
    if not present:
        return None
    mean = sum(present) / len(present)
    return (mean if math.isfinite(mean) else sum(value / len(present) for value in present), len(present))  # 1e308 twice


Point = dict[str, Any]  # name, step, value: what one metric row becomes


def step_points(metrics: pa.Table) -> list[Point]:
    """Points of an iteration's own run: at the optimiser step, or at the iteration where a row has no step."""
    grouped: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for row in metrics.to_pylist():
        step = row["iteration"] if row["step"] is None else row["step"]
        grouped[row["name"], step].append(row["value"])
    return _combined(grouped)


def iteration_points(metrics: pa.Table) -> list[Point]:
    """Points of the execution's run, one for each name and iteration: counts and times add up, others are averaged."""
    grouped: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for row in metrics.to_pylist():
        grouped[row["name"], row["iteration"]].append(row["value"])
    return _combined(grouped)


def _combined(grouped: Mapping[tuple[str, int], list[float]]) -> list[Point]:
    points: list[Point] = []
    for (name, step), values in grouped.items():
        mean = mean_ignoring_nan(values)
        value = sum(values) if _adds_up(name) or mean is None else mean[0]
        if math.isfinite(value):
            points.append({"name": name, "step": step, "value": value})
        else:
            logger.warning("%s at step %d is beyond what a float holds and is not logged", name, step)
    return points


def _adds_up(name: str) -> bool:
    return name.startswith("time/") or name.rsplit("/", 1)[-1].startswith("num_")
