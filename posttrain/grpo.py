"""The GRPO update as one call: a policy, its trainer state and scored rollouts in; the next policy and state out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from posttrain import policy, tables
from posttrain.config import Dtype, LearnerSettings
from posttrain.grpo_learner import Learner
from posttrain.successor import write_successor
from posttrain.trainer_state import load_trainer_state

ALGORITHM = "grpo"


def update_policy(
    policy_directory: Path,
    state_directory: Path | None,
    scored: Sequence[pa.Table],
    settings: LearnerSettings,
    *,
    iteration: int,
    output_policy: Path,
    output_state: Path,
) -> pa.Table:
    """Trains the policy on the scored rollouts of one iteration and writes its successor (version + 1).

    Args:
        state_directory: trainer state that the previous update left; None starts with a fresh optimiser.
        scored: SCORED tables, one for each shard; their order does not matter.

    Returns:
        METRICS (`train/…`): per optimiser step, counted over all iterations from 0, and per iteration (step null).

    Raises:
        PolicyError: policy or state is incomplete, altered or of another model.
        ContractError: a table breaks its contract, a row appears twice, or reference logprobs are missing.
        TrainingError: loss or gradient is not finite; nothing is written.
        InfrastructureError: policy or state cannot be written; then neither is there.
    """
    rows = tables.validate(tables.concat("SCORED", scored), "SCORED")  # again as a whole: a key may repeat across shards
    manifest = policy.read_manifest(policy_directory)
    learner = _load_learner(policy_directory, state_directory, settings)
    metrics = learner.update(rows, iteration)
    write_successor(
        learner.model,
        learner.tokenizer,
        learner.state,
        manifest,
        algorithm=ALGORITHM,
        iteration=iteration,
        output_policy=output_policy,
        output_state=output_state,
    )
    return metrics


def _load_learner(policy_directory: Path, state_directory: Path | None, settings: LearnerSettings) -> Learner:
    import torch

    # float32 master weights whatever the compute dtype: small steps would vanish in bfloat16
    trust = settings.trust_remote_code
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = policy.load_model(policy_directory, Dtype.float32.value, trust).to(device)
    learner = Learner(model, policy.load_tokenizer(policy_directory, trust), settings)
    if state_directory is not None:
        learner.resume(load_trainer_state(state_directory, learner.shapes))
    return learner
