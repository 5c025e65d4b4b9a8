"""METRICS of verification: outcomes and rewards, of the whole and of every part of a weighted sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from posttrain.table_checks import OUTCOMES
from posttrain.tables import from_rows, validate
from posttrain.verify.requests import first_equal


def verdict_metrics(verdicts: pa.Table, iteration: int) -> pa.Table:
    """METRICS of a VERDICTS table: counts and shares of outcomes, mean reward of judged rows, rows without reward, seconds.

    Each part of a weighted sum has its own under `verify/<part>/…`; its reward is that before the weight.
    """
    outcomes = validate(verdicts, "VERDICTS")["outcome"].to_pylist()
    rewards = verdicts["reward"].drop_null().to_numpy()
    seconds = verdicts["seconds"].to_numpy()
    values: dict[str, float] = {"num_rollouts": len(outcomes), "num_unjudged": verdicts["reward"].null_count}
    values |= {f"num_{outcome}": outcomes.count(outcome) for outcome in OUTCOMES}
    if outcomes:
        values |= {f"{outcome}_share": outcomes.count(outcome) / len(outcomes) for outcome in OUTCOMES}
        values |= {"seconds_mean": seconds.mean(), "seconds_max": seconds.max()}
    if len(rewards):
        values["reward_mean"] = rewards.mean()
    return _table(values | _part_metrics(verdicts["parts"].to_pylist()), iteration)


def copied_metrics(rollouts: pa.Table, iteration: int) -> pa.Table:
    """METRICS: how many rollouts took the verdict of an equal one of their prompt, which was judged once."""
    copied = sum(first != row for row, first in enumerate(first_equal(rollouts)))
    return _table({"num_copied": copied}, iteration)


def _part_metrics(rows: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, float]:
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for parts in rows:
        for part in parts:
            by_name.setdefault(part["name"], []).append(part)
    values: dict[str, float] = {}
    for name, parts in by_name.items():
        outcomes = [part["outcome"] for part in parts]
        rewards = [part["reward"] for part in parts if part["reward"] is not None]
        values |= {f"{name}/num_{outcome}": outcomes.count(outcome) for outcome in ("error", "abstain")}
        values[f"{name}/pass_share"] = outcomes.count("pass") / len(outcomes)
        if rewards:
            values[f"{name}/reward_mean"] = float(np.mean(rewards))
    return values


def _table(values: Mapping[str, float], iteration: int) -> pa.Table:
    rows = [{"iteration": iteration, "name": f"verify/{name}", "value": float(value)} for name, value in values.items()]
    return from_rows("METRICS", rows)
