"""Pairs out of a policy's own verified rollouts: a fixed dataset that `dpo` takes as its `preferences`."""

from __future__ import annotations

from typing import NamedTuple

from flytekit import dynamic, workflow

from posttrain.config import EngineName
from posttrain.config_dpo import IterativeDpoSettings
from tasks.artifacts import PolicyDirectory, TableFile
from tasks.launch_dpo import launch_preferences
from tasks.pools import COMPILER
from tasks.preferences import publish_preferences
from workflows.iterative_dpo import pairs_of_shard, prepare_sampling
from workflows.local_branches import outside_branch


class CollectedPreferences(NamedTuple):
    policy: PolicyDirectory
    preferences: TableFile


@dynamic(**COMPILER)
def collect_all_pairs(policy_directory: PolicyDirectory, prompts: TableFile, settings: IterativeDpoSettings) -> list[TableFile]:
    """One chain for each shard of the prompts."""
    with outside_branch():
        made = [pairs_of_shard(policy_directory, prompts, settings, 1, shard)[0] for shard in range(settings.loop.num_shards)]
    return [item.preferences for item in made]


@workflow
def collect_preferences(
    run_name: str = "",
    model: str = "brackets",
    prompts: str = "brackets?size=1024",
    verifier: str = "code",
    demonstrations: str = "",
    engine: EngineName = EngineName.vllm,
    num_prompts: int = 512,
    group_size: int = 8,
    num_shards: int = 2,
    temperature: float = 1.0,
    max_prompt_tokens: int = 64,
    max_completion_tokens: int = 48,
    seed: int = 0,
    overrides: str = "",
) -> CollectedPreferences:
    """The best completion of every prompt against its worst, judged by a verifier.

    Args:
        run_name: name of the data set's folder in the workspace.
        model: policy that samples: Hugging Face id, local directory or object store URL.
        prompts: dataset id, .parquet or .jsonl file, or a generator such as reasoning_gym:chain_sum?size=1000.
        verifier: exact, last_number, maths, reasoning_gym, code, format, judge or your own (docs/verification.md).
        demonstrations: supervised warm start before sampling; empty for none.
        engine: what generates.
        num_prompts: prompts that are sampled.
        group_size: completions for each prompt.
        num_shards: parallel chains.
        temperature: sampling temperature.
        max_prompt_tokens: longer prompts are reported and left out.
        max_completion_tokens: length cap of a completion.
        seed: seed of everything random.
        overrides: YAML or JSON for every other setting, for example {pairs: {max_pairs_per_prompt: 2}}.
    """
    inputs = locals()  # the flat inputs are exactly those of `launch_preferences`
    launched = launch_preferences(**inputs)
    ready = prepare_sampling(
        settings=launched.settings,
        has_demonstrations=launched.has_demonstrations,
        demonstrations_digest=launched.demonstrations_digest,
    )
    made = collect_all_pairs(policy_directory=ready.policy, prompts=ready.prompts, settings=launched.settings)
    published = publish_preferences(pairs=made, policy_directory=ready.policy, execution=launched.execution)
    return CollectedPreferences(ready.policy, published)
