"""Rewards of a group → advantages. A completion that was not judged has no place in its group's baseline."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from posttrain import tables
from posttrain.config import AdvantageBaseline, AdvantageScaling, AdvantageSettings
from posttrain.errors import ContractError

EPSILON = 1e-4  # added to every standard deviation, as TRL does
MAX_REWARD = 1e100  # sums and squares of such rewards are still finite
MAX_NAMED_ROWS = 8


def score(rollouts: pa.Table, verdicts: pa.Table, settings: AdvantageSettings) -> pa.Table:
    """Joins verdicts to rollouts by (prompt_id, sample_index) and adds advantages.

    Returns:
        SCORED in the order of `rollouts`; `advantage` is null where `reward` is null, `reference_logprobs` is all null.
        With `scaling=batch` the advantages are only centred: the update divides them by `batch_scale`, because only
        the update sees the whole batch.

    Raises:
        ContractError: either table breaks its contract, a key has no counterpart in the other table, or a reward is
            beyond ±1e100.
    """
    tables.validate(rollouts, "ROLLOUTS")
    tables.validate(verdicts, "VERDICTS")
    joined = verdicts.take(pa.array(_matching_rows(tables.keys(rollouts), tables.keys(verdicts)), pa.int64()))
    _check_rewards(joined)
    rewards = joined["reward"].to_pylist()
    advantages = compute_advantages(rewards, rollouts["prompt_id"].to_pylist(), settings)
    columns = {name: rollouts[name] for name in rollouts.column_names}
    columns.update({name: joined[name] for name in joined.column_names if name not in columns})
    columns["advantage"] = pa.chunked_array([pa.array(advantages, pa.float64())])
    columns["reference_logprobs"] = pa.chunked_array([pa.nulls(rollouts.num_rows, tables.LOGPROBS)])
    return tables.validate(pa.table([columns[name] for name in tables.SCORED.names], schema=tables.SCORED), "SCORED")


def compute_advantages(
    rewards: Sequence[float | None], groups: Sequence[Hashable], settings: AdvantageSettings
) -> list[float | None]:
    """One advantage for each reward; None stays None and counts neither in the mean nor in the standard deviation.

    mean: A = r − mean(group). leave_one_out (RLOO): A = r − mean(the others) = n/(n−1) × the former, n judged samples.
    scaling=group divides by the group's unbiased standard deviation + 1e-4 (GRPO, arXiv 2402.03300, eq. 4).
    Equal rewards give exactly 0, and so does a group with a single judged sample.
    """
    members: dict[Hashable, list[int]] = {}
    for row, (reward, group) in enumerate(zip(rewards, groups, strict=True)):
        if reward is not None:
            members.setdefault(group, []).append(row)
    advantages: list[float | None] = [None] * len(rewards)
    for rows in members.values():
        judged = [reward for reward in (rewards[row] for row in rows) if reward is not None]
        for row, advantage in zip(rows, _group_advantages(judged, settings), strict=True):
            advantages[row] = advantage
    return advantages


def batch_scale(scored: pa.Table) -> float:
    """What `scaling=batch` divides by: the unbiased standard deviation of every judged reward, + 1e-4."""
    rewards = pc.drop_null(scored["reward"]).to_pylist()
    return _standard_deviation(rewards) + EPSILON


def num_trainable_groups(verdicts: pa.Table) -> int:
    """Groups of VERDICTS or SCORED in which two rewards differ: elsewhere every advantage is 0, and there is no gradient."""
    rewards: dict[str, set[float]] = {}
    for prompt_id, reward in zip(verdicts["prompt_id"].to_pylist(), verdicts["reward"].to_pylist(), strict=True):
        rewards.setdefault(prompt_id, set()).update(() if reward is None else (reward,))
    return sum(len(group) > 1 for group in rewards.values())


def group_metrics(scored: pa.Table, iteration: int) -> pa.Table:
    """METRICS: how many groups carry a signal, and how many were not judged at all."""
    groups = _advantages_by_group(scored)
    judged = {name: [value for value in values if value is not None] for name, values in groups.items()}
    values = {
        "train/num_groups": len(groups),
        "train/num_zero_variance_groups": sum(bool(known) and not any(known) for known in judged.values()),
        "train/num_unjudged_groups": sum(not known for known in judged.values()),
    }
    return tables.from_rows("METRICS", _metric_rows(values, iteration))


def _check_rewards(verdicts: pa.Table) -> None:
    pairs = zip(tables.keys(verdicts), verdicts["reward"].to_pylist(), strict=True)
    huge = [(key, reward) for key, reward in pairs if reward is not None and abs(reward) > MAX_REWARD]
    if huge:
        named = ", ".join(str(key) for key, _ in huge[:MAX_NAMED_ROWS]) + (" …" if len(huge) > MAX_NAMED_ROWS else "")
        why = f"beyond ±{MAX_REWARD:g} the mean and deviation of a group overflow"
        raise ContractError("VERDICTS", "reward", named, huge[0][1], why, "Scale the verifier's rewards down.")


def _group_advantages(rewards: Sequence[float], settings: AdvantageSettings) -> list[float]:
    if min(rewards) == max(rewards):  # a mean of equal floats can differ from them in the last bit
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if settings.baseline is AdvantageBaseline.leave_one_out:
        centred = [value * len(rewards) / (len(rewards) - 1) for value in centred]
    if settings.scaling is AdvantageScaling.group:
        scale = _standard_deviation(rewards) + EPSILON
        return [value / scale for value in centred]
    return centred


def _standard_deviation(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _matching_rows(wanted: Sequence[tuple[str, int]], found: Sequence[tuple[str, int]]) -> list[int]:
    rows = {key: row for row, key in enumerate(found)}
    for key in wanted:
        if key not in rows:
            raise ContractError("VERDICTS", "prompt_id", None, key, "a rollout has no verdict", "Verify every completion.")
    for key in rows.keys() - set(wanted):
        raise ContractError("VERDICTS", "prompt_id", None, key, "a verdict belongs to no rollout", "Pair tables of one shard.")
    return [rows[key] for key in wanted]


def _advantages_by_group(scored: pa.Table) -> dict[str, list[float | None]]:
    groups: dict[str, list[float | None]] = {}
    for name, advantage in zip(scored["prompt_id"].to_pylist(), scored["advantage"].to_pylist(), strict=True):
        groups.setdefault(name, []).append(advantage)
    return groups


def _metric_rows(values: Mapping[str, float], iteration: int) -> Iterable[dict[str, object]]:
    return [{"iteration": iteration, "step": None, "name": name, "value": value} for name, value in values.items()]
