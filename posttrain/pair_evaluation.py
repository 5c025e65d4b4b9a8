"""What a policy thinks of held-out pairs: how often it prefers the chosen side, by how much, and how far it has drifted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from posttrain import tables
from posttrain.config_base import Dtype
from posttrain.evaluation import bootstrap_interval, wilson_interval
from posttrain.pair_logprobs import pair_logprobs


def evaluate_pairs(
    policy_directory: Path,
    referenced: pa.Table,
    *,
    beta: float,
    dtype: Dtype,
    trust_remote_code: bool,
    confidence: float,
    iteration: int,
) -> pa.Table:
    """METRICS of one evaluation; no rows for no pairs.

    With the reward of a side β · (policy logprob − reference logprob), sums over its tokens:
    `eval/pair_accuracy`, the share of pairs whose chosen reward is higher, with `_low` and `_high` (Wilson). Equal rewards
    count one half: a policy that is its reference then stands at chance, as it also does where rounding parts the two.
    `eval/reward_margin`, the mean of chosen − rejected reward, with `_low` and `_high` (bootstrap over pairs; the margin itself
    where all pairs have the same).
    `eval/chosen_logprob_drift` and `eval/rejected_logprob_drift`, means of policy − reference in nats for an answer.
    `eval/num_pairs`.

    Raises:
        ContractError: the table breaks its contract.
        PolicyError: the policy is incomplete or altered, lacks an id of the pairs, or gives a logprob that is not finite.
    """
    tables.validate(referenced, "REFERENCED")
    if not referenced.num_rows:
        return tables.empty("METRICS")
    found = pair_logprobs(referenced, policy_directory, dtype, trust_remote_code, "held-out pairs")
    stored = (referenced[f"reference_{side}_logprob"].to_numpy() for side in ("chosen", "rejected"))
    chosen_drift, rejected_drift = (policy - reference for policy, reference in zip(found, stored, strict=True))
    margins = beta * (chosen_drift - rejected_drift)
    num_right = float(np.sum(margins > 0) + np.sum(margins == 0) / 2)
    accuracy_low, accuracy_high = wilson_interval(num_right, len(margins), confidence)
    margin_low, margin_high = _margin_interval(margins, confidence)
    values = {
        "eval/pair_accuracy": num_right / len(margins),
        "eval/pair_accuracy_low": accuracy_low,
        "eval/pair_accuracy_high": accuracy_high,
        "eval/reward_margin": float(margins.mean()),
        "eval/reward_margin_low": margin_low,
        "eval/reward_margin_high": margin_high,
        "eval/chosen_logprob_drift": float(chosen_drift.mean()),
        "eval/rejected_logprob_drift": float(rejected_drift.mean()),
        "eval/num_pairs": float(len(margins)),
    }
    rows = [{"iteration": iteration, "step": None, "name": name, "value": value} for name, value in values.items()]
    return tables.from_rows("METRICS", rows)


def _margin_interval(margins: np.ndarray, confidence: float) -> tuple[float, float]:
    if np.all(margins == margins[0]):  # resampling shows no spread, and Wilson's interval is for rates
        return float(margins[0]), float(margins[0])
    return bootstrap_interval(margins.tolist(), confidence)
