"""The DPO update as one call: a policy, its trainer state and pairs with stored reference logprobs in; the next policy out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from posttrain import lora, policy
from posttrain.config import Dtype
from posttrain.config_dpo import DpoLearnerSettings
from posttrain.dpo_learner import DpoLearner
from posttrain.dpo_rows import sorted_pairs
from posttrain.errors import PolicyError
from posttrain.pair_logprobs import check_vocabulary
from posttrain.successor import write_successor
from posttrain.trainer_state import TrainerState, load_trainer_state

ALGORITHM = "dpo"


def update_policy(
    policy_directory: Path,
    base_directory: Path,
    state_directory: Path | None,
    referenced: Sequence[pa.Table],
    settings: DpoLearnerSettings,
    *,
    iteration: int,
    part: int,
    num_parts: int,
    reference_hash: str,
    output_policy: Path,
    output_state: Path,
) -> pa.Table:
    """Trains the policy on one part of the steps and writes its successor (version + 1). No reference model is loaded.

    The whole training takes ceil(pairs / pairs_per_step) steps an epoch; its parts one after the other, each with the policy and
    state of the one before, give bit for bit what one call with a single part gives.

    Args:
        base_directory: with lora_rank > 0 the policy that the adapter belongs to, whose weights stay frozen; else not read.
        state_directory: trainer state that the previous part or iteration left; None starts with a fresh optimiser.
        referenced: REFERENCED tables, one for each shard; neither their order nor their rows' matters.
        iteration: what metrics and policy.json carry.
        part: which part of the steps, 1 to `num_parts`.
        reference_hash: policy hash of the frozen reference; every row's must equal it.

    Returns:
        METRICS (`train/…`): per optimiser step, counted over all iterations from 0, and per iteration (step null).

    Raises:
        PolicyError: policy, base or state is incomplete, altered or of another model; the state is not of the policy's iteration;
            an adapter belongs to another base.
        ContractError: a table breaks its contract, a pair appears twice, or its logprobs are missing or of another reference.
        ConfigError: there is no such part, the state lacks steps of the parts before it, or a decaying schedule is too short.
        TrainingError: loss or gradient is not finite; nothing is written.
        InfrastructureError: policy or state cannot be written; then neither is there.
    """
    pairs = sorted_pairs(referenced, reference_hash)
    manifest = policy.read_manifest(policy_directory)
    learner = _load_learner(policy_directory, base_directory, state_directory, settings)
    check_vocabulary(pairs, learner.model, policy_directory)
    metrics = learner.update(pairs, iteration, part, num_parts)
    add_files = _merge_adapter(learner, base_directory) if settings.lora_rank else None
    write_successor(
        learner.model,
        learner.tokenizer,
        learner.state,
        manifest,
        algorithm=ALGORITHM,
        iteration=iteration,
        output_policy=output_policy,
        output_state=output_state,
        add_files=add_files,
    )
    return metrics


def _merge_adapter(learner: DpoLearner, base_directory: Path) -> Callable[[Path], None]:
    """Folds the adapter into the weights; what it returns writes the adapter itself beside them."""
    adapter = lora.take_adapter(learner.model)
    return partial(lora.write_adapter, adapter, policy.policy_hash(base_directory))


def _load_learner(
    policy_directory: Path, base_directory: Path, state_directory: Path | None, settings: DpoLearnerSettings
) -> DpoLearner:
    import torch

    trust = settings.trust_remote_code
    if settings.lora_rank:
        model, trained = lora.load_adapted(policy_directory, base_directory, settings), lora.TRAINED
    else:
        # float32 master weights whatever the compute dtype: small steps would vanish in bfloat16
        model, trained = policy.load_model(policy_directory, Dtype.float32.value, trust), None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    learner = DpoLearner(model.to(device), policy.load_tokenizer(policy_directory, trust), settings, trained)
    if state_directory is not None:
        state = load_trainer_state(state_directory, learner.shapes)
        _check_same_iteration(state, state_directory, policy_directory)
        learner.resume(state)
    return learner


def _check_same_iteration(state: TrainerState, state_directory: Path, policy_directory: Path) -> None:
    of_policy = policy.read_manifest(policy_directory).iteration
    if state.cursor.iteration != of_policy:
        raise PolicyError(
            f"{state_directory}: trainer state of iteration {state.cursor.iteration}, {policy_directory} is of iteration "
            f"{of_policy}. Pass the two outputs of one update."
        )
