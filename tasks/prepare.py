"""Before the loop: the base policy, the prompts and the warm start."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from flytekit import task
from flytekit.types.directory import FlyteDirectory

from posttrain import brackets, policy, prompts, selection, sft, tables
from posttrain.config import DataSettings, LoopSettings, VerifySettings, WarmStartSettings
from posttrain.engines.served import check_context
from posttrain.events import EventRecorder
from tasks import artifacts
from tasks.artifacts import PolicyDirectory, StateDirectory, TableFile
from tasks.caching import cached
from tasks.pools import CPU, TRAIN

logger = logging.getLogger("posttrain")
BRACKETS = "brackets"


class Prepared(NamedTuple):
    prompts: TableFile
    evaluation_prompts: TableFile


class WarmStarted(NamedTuple):
    policy: PolicyDirectory
    metrics: TableFile
    events: TableFile


class Base(NamedTuple):
    policy: PolicyDirectory
    state: StateDirectory


# Not cached: a path or a hub id says nothing about its content. The outputs are hashed, so what follows is cached.
@task(**CPU)
def base_policy(model: str, trust_remote_code: bool, seed: int) -> Base:
    """Imports the model as policy version 0: a Hugging Face id, a directory, or the quick start's own small model."""
    directory = artifacts.new_path("base_policy", "policy")
    if model == BRACKETS:
        brackets.build_model(directory, seed)
    else:
        policy.import_policy(artifacts.fetch(model), directory, trust_remote_code)
    state = artifacts.new_path("base_policy", "state")
    state.mkdir()
    (state / artifacts.NO_STATE).write_text("no update yet\n", encoding="utf-8")
    return Base(FlyteDirectory(str(directory)), FlyteDirectory(str(state)))


@task(**CPU)
def prepare(policy_directory: PolicyDirectory, data: DataSettings, verification: VerifySettings, loop: LoopSettings) -> Prepared:
    """Tokenises training and held-out prompts and checks every answer against its verifier."""
    directory = artifacts.local_directory(policy_directory)
    check_context(directory, data.context_tokens)
    tokenizer = policy.load_tokenizer(directory, data.trust_remote_code)
    loaded, evaluation = (
        prompts.load_prompts(artifacts.fetch(text), tokenizer, data, field=field, source_name=text, verification=verification)
        for field, text in (("data.prompts", data.prompts), ("data.evaluation_prompts", data.evaluation_prompts))
    )
    training = prompts.hold_out(loaded, evaluation.table)
    report_rejected([*training.rejected, *evaluation.rejected])
    selection.check_enough(training.table, loop)
    return Prepared(
        artifacts.write(training.table, "PROMPTS", "prepare"), artifacts.write(evaluation.table, "PROMPTS", "prepare")
    )


@task(cache=cached("warm_start"), **TRAIN)
def warm_start(
    policy_directory: PolicyDirectory,
    settings: WarmStartSettings,
    system_prompt: str,
    trust_remote_code: bool,
    demonstrations_digest: str,
) -> WarmStarted:
    """Supervised fine-tuning on demonstrations. `demonstrations_digest` makes the content of a file part of the cache key."""
    events = EventRecorder("train", artifacts.device_name(), 0)
    output = artifacts.new_path("warm_start", "policy")
    local = settings.model_copy(update={"demonstrations": artifacts.fetch(settings.demonstrations)})
    data = DataSettings(system_prompt=system_prompt, trust_remote_code=trust_remote_code)
    with artifacts.recoverable_faults(), events.phase("warm_start"):
        metrics = sft.warm_start(artifacts.local_directory(policy_directory), data, local, output)
    files = artifacts.write(metrics, "METRICS", "warm_start"), artifacts.write(events.table(), "EVENTS", "warm_start")
    return WarmStarted(FlyteDirectory(str(output)), *files)


@task(**CPU)
def no_warm_start(policy_directory: PolicyDirectory) -> WarmStarted:
    """The base policy as it is."""
    files = (artifacts.write(tables.empty(name), name, "no_warm_start") for name in ("METRICS", "EVENTS"))
    return WarmStarted(FlyteDirectory(artifacts.local_directory(policy_directory).as_posix()), *files)


def report_rejected(rejected: Sequence[prompts.RejectedPrompt]) -> None:
    """Names every prompt that is left out, one line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for prompt in rejected:
        by_reason.setdefault(prompt.reason, []).append(prompt.prompt_id)
    for reason, prompt_ids in by_reason.items():
        logger.warning("%d prompts are left out, %s: %s", len(prompt_ids), reason, ", ".join(prompt_ids))
