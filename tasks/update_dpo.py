"""The DPO update on the train pool."""

from __future__ import annotations

from flytekit import task
from flytekit.types.directory import FlyteDirectory

from posttrain import dpo, policy
from posttrain.config_dpo import DpoLearnerSettings
from posttrain.events import EventRecorder
from posttrain.table_checks import list_lengths
from tasks import artifacts
from tasks.artifacts import PolicyDirectory, StateDirectory, TableFile
from tasks.caching import cached
from tasks.pools import TRAIN
from tasks.update import Updated

SELF = ""  # as `reference_hash`: the reference is the very policy that is trained


@task(cache=cached("update_dpo"), **TRAIN)
def update_dpo(
    policy_directory: PolicyDirectory,
    base: PolicyDirectory,
    state: StateDirectory,
    referenced: list[TableFile],
    reference_hash: str,
    settings: DpoLearnerSettings,
    iteration: int,
    part: int,
    num_parts: int,
) -> Updated:
    """Trains one part of the steps on pairs with stored reference logprobs; no reference is loaded."""
    directory, shards = artifacts.local_directory(policy_directory), artifacts.read_all(referenced, "REFERENCED")
    old_state = artifacts.local_directory(state)
    new_policy, new_state = artifacts.new_path("update_dpo", "policy"), artifacts.new_path("update_dpo", "state")
    events = EventRecorder("train", artifacts.device_name(), iteration)
    with artifacts.recoverable_faults(), events.phase("update") as phase:
        sides = ("chosen_ids", "rejected_ids")
        phase.tokens = sum(int(list_lengths(shard, side).sum()) for shard in shards for side in sides) // num_parts
        metrics = dpo.update_policy(
            directory,
            artifacts.local_directory(base) if settings.lora_rank else directory,
            None if (old_state / artifacts.NO_STATE).exists() else old_state,
            shards,
            settings,
            iteration=iteration,
            part=part,
            num_parts=num_parts,
            reference_hash=policy.policy_hash(directory) if reference_hash == SELF else reference_hash,
            output_policy=new_policy,
            output_state=new_state,
        )
    return Updated(
        FlyteDirectory(str(new_policy)),
        FlyteDirectory(str(new_state)),
        artifacts.write(metrics, "METRICS", "update_dpo"),
        artifacts.write(events.table(), "EVENTS", "update_dpo"),
    )
