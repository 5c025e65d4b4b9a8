"""Pairs: read from a data set, or made from verified rollouts."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from flytekit import task
from flytekit.types.directory import FlyteDirectory

from posttrain import advantages, policy, preference_pairs, preferences, prompts, tables
from posttrain.config import AdvantageSettings, VerifySettings
from posttrain.config_dpo import PairSettings, PreferenceData
from posttrain.engines.served import check_context
from posttrain.events import EventRecorder
from tasks import artifacts
from tasks.artifacts import PolicyDirectory, TableFile
from tasks.caching import cached
from tasks.pools import CPU
from tasks.prepare import report_rejected
from tasks.workspace import workspace

logger = logging.getLogger("posttrain")
NUM_NAMED = 20


class Reference(NamedTuple):
    policy: PolicyDirectory
    hash: str


class PreparedPairs(NamedTuple):
    shards: list[TableFile]
    evaluation: TableFile
    evaluation_prompts: TableFile


class Paired(NamedTuple):
    preferences: TableFile
    scored: TableFile
    metrics: TableFile
    events: TableFile


@task(**CPU)
def reference_policy(policy_directory: PolicyDirectory, reference: str, trust_remote_code: bool) -> Reference:
    """The frozen reference: the policy before training, unless another one is named.

    Raises:
        PolicyError: the reference has another tokenizer than the policy.
    """
    directory = artifacts.local_directory(policy_directory)
    if reference:
        output = artifacts.new_path("reference_policy", "policy")
        policy.import_policy(artifacts.fetch(reference), output, trust_remote_code)
        preferences.check_same_tokenizer(directory, output, trust_remote_code)
        directory = output
    return Reference(FlyteDirectory(str(directory)), policy.policy_hash(directory))


@task(**CPU)
def prepare_preferences(
    policy_directory: PolicyDirectory, data: PreferenceData, verification: VerifySettings, num_shards: int, seed: int
) -> PreparedPairs:
    """Tokenises the pairs, holds some out by prompt, and cuts the rest into shards; reports every pair left out.

    No prompt that is evaluated on is trained on, be it one of pairs or one to generate for.
    """
    directory = artifacts.local_directory(policy_directory)
    check_context(directory, data.max_pair_tokens)
    tokenizer = policy.load_tokenizer(directory, data.trust_remote_code)
    loaded = preferences.load_preferences(
        artifacts.fetch(data.preferences), tokenizer, data, field="data.preferences", source_name=data.preferences
    )
    evaluation_prompts = _evaluation_prompts(directory, tokenizer, data, verification)
    training = preferences.without_held_out(loaded, evaluation_prompts)
    if data.evaluation_preferences:
        source = artifacts.fetch(data.evaluation_preferences)
        held_out = preferences.load_preferences(
            source, tokenizer, data, field="data.evaluation_preferences", source_name=data.evaluation_preferences
        )
        report_left_out(held_out.rejected)
        training, evaluation = preferences.without_held_out(training, held_out.table), held_out.table
    else:
        training, evaluation = preferences.hold_out_pairs(training, data.evaluation_share, seed)
    report_left_out(training.rejected)
    if not evaluation.num_rows:
        logger.warning("no pair is held out of so few prompts: accuracy and margin are not measured; give evaluation_preferences")
    shards = preferences.shard_pairs(training.table, num_shards)
    return PreparedPairs(
        [artifacts.write(shard, "PREFERENCES", "prepare_preferences") for shard in shards],
        artifacts.write(evaluation, "PREFERENCES", "prepare_preferences"),
        artifacts.write(evaluation_prompts, "PROMPTS", "prepare_preferences"),
    )


@task(cache=cached("make_preferences"), **CPU)
def make_preferences(rollouts: TableFile, verdicts: TableFile, settings: PairSettings, iteration: int, shard: int) -> Paired:
    """Verified rollouts of one shard → pairs: the best completion of a prompt against its worst."""
    sampled, judged = artifacts.read(rollouts, "ROLLOUTS"), artifacts.read(verdicts, "VERDICTS")
    events = EventRecorder("cpu", f"cpu x{os.cpu_count()}", iteration, shard)
    with events.phase("pair"):
        found = preference_pairs.pairs_from_rollouts(sampled, judged, settings, iteration=iteration)
    num_groups = len(set(sampled["prompt_id"].to_pylist()))
    return Paired(
        artifacts.write(found.table, "PREFERENCES", "make_preferences"),
        artifacts.write(advantages.score(sampled, judged, AdvantageSettings()), "SCORED", "make_preferences"),
        artifacts.write(preference_pairs.pair_metrics(found, num_groups, iteration), "METRICS", "make_preferences"),
        artifacts.write(events.table(), "EVENTS", "make_preferences"),
    )


@task(**CPU)
def publish_preferences(pairs: list[TableFile], policy_directory: PolicyDirectory, execution: str) -> TableFile:
    """All shards as one table, which `dpo` takes as its `preferences`, beside the policy that they came from."""
    table = tables.concat("PREFERENCES", artifacts.read_all(pairs, "PREFERENCES"))
    directory = workspace() / "preferences" / execution
    path = tables.write_table(table, "PREFERENCES", directory / "preferences.arrow")
    link = directory / "policy"
    link.unlink(missing_ok=True)
    link.symlink_to(artifacts.local_directory(policy_directory), target_is_directory=True)
    logger.info("%d pairs: %s\ntheir policy: %s", table.num_rows, path, link)
    return artifacts.write(table, "PREFERENCES", "publish_preferences")


def report_left_out(rejected: Sequence[preferences.RejectedPair]) -> None:
    """Names the pairs that are left out, one line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for pair in rejected:
        by_reason.setdefault(pair.reason, []).append(pair.pair_id)
    for reason, ids in by_reason.items():
        more = f" and {len(ids) - NUM_NAMED} more" if len(ids) > NUM_NAMED else ""
        logger.warning("%d pairs are left out, %s: %s%s", len(ids), reason, ", ".join(ids[:NUM_NAMED]), more)


def _evaluation_prompts(directory: Path, tokenizer: Any, data: PreferenceData, verification: VerifySettings) -> pa.Table:
    """The PROMPTS to generate for; an empty table when there are none."""
    if not data.evaluation_prompts:
        return tables.empty("PROMPTS")
    check_context(directory, data.context_tokens)
    source = artifacts.fetch(data.evaluation_prompts)
    loaded = prompts.load_prompts(
        source, tokenizer, data, field="data.evaluation_prompts", source_name=data.evaluation_prompts, verification=verification
    )
    report_rejected(loaded.rejected)
    return loaded.table
