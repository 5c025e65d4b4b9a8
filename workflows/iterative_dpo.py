"""Iterative DPO: exploration given back to DPO. Verified rollouts become pairs, again and again."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from flytekit import conditional, dynamic, workflow
from flytekit.types.file import FlyteFile

from posttrain.config import EngineName
from posttrain.config_dpo import DpoLoss, IterativeDpoSettings
from tasks.artifacts import PolicyDirectory, StateDirectory, TableFile
from tasks.checkpoint import NOT_EVALUATED, checkpoint
from tasks.launch_dpo import launch_iterative_dpo
from tasks.pools import COMPILER
from tasks.preferences import make_preferences
from tasks.prepare import base_policy, no_warm_start, prepare, warm_start
from tasks.record import record
from tasks.record_dpo import mark_iterative_dpo_failed, start_iterative_dpo
from tasks.reference_pairs import reference_pairs
from tasks.report_dpo import report_iterative_dpo
from tasks.update_dpo import SELF, update_dpo
from workflows.collect import evaluate_policy, sample_and_verify, select
from workflows.local_branches import outside_branch


class Pairs(NamedTuple):
    preferences: list[TableFile]
    referenced: list[TableFile]
    scored: list[TableFile]
    metrics: list[TableFile]
    events: list[TableFile]


class PreparedSampling(NamedTuple):
    policy: PolicyDirectory
    state: StateDirectory
    prompts: TableFile
    evaluation_prompts: TableFile
    warm_start_metrics: TableFile
    warm_start_events: TableFile


class TrainedIteratively(NamedTuple):
    policy: PolicyDirectory
    metrics: list[TableFile]
    events: list[TableFile]
    samples: list[TableFile]
    pass_rate: float


class IterativeDpoResult(NamedTuple):
    policy: PolicyDirectory
    report: FlyteFile
    pass_rate: float


@dynamic(**COMPILER)
def collect_pairs(policy_directory: PolicyDirectory, prompts: TableFile, settings: IterativeDpoSettings, iteration: int) -> Pairs:
    """One chain for each shard: rollouts → verify → preferences → reference; no shard waits for another."""
    learner = settings.learner
    chains: list[tuple[Any, Any, list[Any]]] = []
    with outside_branch():
        for shard in range(settings.loop.num_shards):
            made, events = pairs_of_shard(policy_directory, prompts, settings, iteration, shard)
            computed = reference_pairs(
                pairs=made.preferences,
                reference=policy_directory,
                dtype=learner.dtype.value,
                trust_remote_code=learner.trust_remote_code,
            )
            chains.append((made, computed.referenced, [*events, computed.events]))
    return Pairs(
        [made.preferences for made, _, _ in chains],
        [referenced for _, referenced, _ in chains],
        [made.scored for made, _, _ in chains],
        [made.metrics for made, _, _ in chains],
        [event for _, _, events in chains for event in events],
    )


def pairs_of_shard(
    policy_directory: Any, prompts: FlyteFile, settings: IterativeDpoSettings, iteration: int, shard: int
) -> tuple[Any, list[Any]]:
    """Wires rollouts → verify → preferences; returns what the last one makes and the events of all three."""
    chosen = select(prompts, settings.loop, iteration, shard)
    sampled, judged = sample_and_verify(policy_directory, chosen, settings.rollout, settings.verify, iteration, shard)
    made = make_preferences(
        rollouts=sampled.rollouts, verdicts=judged.verdicts, settings=settings.pairs, iteration=iteration, shard=shard
    )
    return made, [sampled.events, judged.events, made.events]


@dynamic(**COMPILER)
def iterative_dpo_loop(
    base: PolicyDirectory,
    state: StateDirectory,
    prompts: TableFile,
    evaluation_prompts: TableFile,
    warm_start_metrics: TableFile,
    warm_start_events: TableFile,
    settings: IterativeDpoSettings,
    execution: str,
) -> TrainedIteratively:
    """Iteration i makes pairs with policy i − 1, which is also their frozen reference, and learns policy i from them."""
    newest, num_iterations = (base, state), settings.loop.num_iterations
    evaluate_at = partial(
        evaluate_policy,
        prompts=evaluation_prompts,
        rollout=settings.rollout,
        verification=settings.verify,
        evaluation=settings.evaluation,
        target_pass_rate=0.0,
        stop=False,
        stopped_before=False,
        last_pass_rate=0.0,
    )
    record_at = partial(record, settings=settings.tracking, execution=execution, prompts=prompts)
    with outside_branch():
        last = evaluate_at(policy_directory=base, iteration=0)
        before = [[warm_start_metrics, last.metrics]], [[warm_start_events], last.events]
        recorded = [record_at(iteration=0, scored=[], metrics=before[0], task_events=before[1])]
        for iteration in range(1, num_iterations + 1):
            collected = collect_pairs(policy_directory=newest[0], prompts=prompts, settings=settings, iteration=iteration)
            updated = update_dpo(
                policy_directory=newest[0],
                base=base,
                state=newest[1],
                referenced=collected.referenced,
                reference_hash=SELF,
                settings=settings.learner,
                iteration=iteration,
                part=1,
                num_parts=1,
            )
            newest = updated.policy, updated.state
            metrics, events, pass_rate = (
                [[updated.metrics], collected.metrics],
                [collected.events, [updated.events]],
                NOT_EVALUATED,
            )
            if iteration % settings.evaluation.every == 0 or iteration == num_iterations:
                last = evaluate_at(policy_directory=updated.policy, iteration=iteration)
                metrics, events, pass_rate = [*metrics, [last.metrics]], [*events, last.events], last.pass_rate
            checkpoint(
                policy_directory=updated.policy,
                state=updated.state,
                settings=settings.tracking,
                execution=execution,
                iteration=iteration,
                pass_rate=pass_rate,
            )
            recorded.append(record_at(iteration=iteration, scored=collected.scored, metrics=metrics, task_events=events))
    return TrainedIteratively(
        newest[0],
        [item.metrics for item in recorded],
        [item.events for item in recorded],
        [item.samples for item in recorded],
        last.pass_rate,
    )


@workflow
def prepare_sampling(settings: IterativeDpoSettings, has_demonstrations: bool, demonstrations_digest: str) -> PreparedSampling:
    """The policy, warm-started where there are demonstrations, and its prompts."""
    base = base_policy(model=settings.data.model, trust_remote_code=settings.data.trust_remote_code, seed=settings.loop.seed)
    prepared = prepare(policy_directory=base.policy, data=settings.data, verification=settings.verify, loop=settings.loop)
    started = (
        conditional("warm_start")
        .if_(has_demonstrations.is_true())
        .then(
            warm_start(
                policy_directory=base.policy,
                settings=settings.warm_start,
                system_prompt=settings.data.system_prompt,
                trust_remote_code=settings.data.trust_remote_code,
                demonstrations_digest=demonstrations_digest,
            )
        )
        .else_()
        .then(no_warm_start(policy_directory=base.policy))
    )
    return PreparedSampling(
        started.policy, base.state, prepared.prompts, prepared.evaluation_prompts, started.metrics, started.events
    )


@workflow(on_failure=mark_iterative_dpo_failed)
def run_iterative_dpo(
    settings: IterativeDpoSettings, execution: str, has_demonstrations: bool, demonstrations_digest: str
) -> IterativeDpoResult:
    """From resolved settings to policy and report; a failure ends the MLflow run as FAILED."""
    ready = prepare_sampling(
        settings=settings, has_demonstrations=has_demonstrations, demonstrations_digest=demonstrations_digest
    )
    started_run = start_iterative_dpo(
        settings=settings, execution=execution, prompts=ready.prompts, evaluation_prompts=ready.evaluation_prompts
    )
    trained = iterative_dpo_loop(
        base=ready.policy,
        state=ready.state,
        prompts=ready.prompts,
        evaluation_prompts=ready.evaluation_prompts,
        warm_start_metrics=ready.warm_start_metrics,
        warm_start_events=ready.warm_start_events,
        settings=settings,
        execution=started_run,
    )
    finished = report_iterative_dpo(
        settings=settings,
        execution=started_run,
        metrics=trained.metrics,
        task_events=trained.events,
        samples=trained.samples,
        prompts=ready.prompts,
    )
    return IterativeDpoResult(trained.policy, finished, trained.pass_rate)


@workflow
def iterative_dpo(
    run_name: str = "",
    experiment: str = "posttrain",
    model: str = "brackets",
    prompts: str = "brackets?size=1024",
    evaluation_prompts: str = "brackets?size=100&seed=1000001",
    verifier: str = "code",
    demonstrations: str = "",
    engine: EngineName = EngineName.vllm,
    num_iterations: int = 4,
    prompts_per_iteration: int = 64,
    group_size: int = 8,
    num_shards: int = 2,
    temperature: float = 1.0,
    loss_type: DpoLoss = DpoLoss.sigmoid,
    beta: float = 0.5,
    nll_coef: float = 1.0,
    learning_rate: float = 2e-4,
    num_epochs: int = 4,
    pairs_per_step: int = 32,
    lora_rank: int = 0,
    max_prompt_tokens: int = 64,
    max_completion_tokens: int = 48,
    seed: int = 0,
    overrides: str = "",
) -> IterativeDpoResult:
    """Rollouts, verdicts, pairs, reference and DPO update, again and again.

    Args:
        run_name: name of the run in MLflow.
        experiment: MLflow experiment.
        model: Hugging Face id, local directory or object store URL; `brackets` is the quick start's small model.
        prompts: dataset id, .parquet or .jsonl file, or a generator such as reasoning_gym:chain_sum?size=1000.
        evaluation_prompts: held-out prompts, same forms.
        verifier: exact, last_number, maths, reasoning_gym, code, format, judge or your own (docs/verification.md).
        demonstrations: supervised warm start before the first iteration; empty for none.
        engine: what generates.
        num_iterations: sample, verify, pair, update cycles.
        prompts_per_iteration: prompts sampled in one iteration.
        group_size: completions for each prompt; the best is paired with the worst.
        num_shards: parallel chains in one iteration.
        temperature: sampling temperature.
        loss_type: DPO loss of TRL.
        beta: strength of the tie to the reference, which is the policy that made the pairs.
        nll_coef: weight of the NLL of chosen tokens; keeps them likely.
        learning_rate: peak learning rate.
        num_epochs: passes over an iteration's pairs.
        pairs_per_step: pairs in one optimiser step.
        lora_rank: rank of the LoRA adapter; 0 trains the weights themselves.
        max_prompt_tokens: longer prompts are reported and left out.
        max_completion_tokens: length cap of a completion.
        seed: seed of everything random.
        overrides: YAML or JSON for every other setting, for example {pairs: {max_pairs_per_prompt: 2}}.
    """
    inputs = locals()  # the flat inputs are exactly those of `launch_iterative_dpo`
    launched = launch_iterative_dpo(**inputs)
    result = run_iterative_dpo(
        settings=launched.settings,
        execution=launched.execution,
        has_demonstrations=launched.has_demonstrations,
        demonstrations_digest=launched.demonstrations_digest,
    )
    return IterativeDpoResult(result.policy, result.report, result.pass_rate)
