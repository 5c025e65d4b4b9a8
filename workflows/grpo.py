"""GRPO as a graph: sample, verify, update, again and again."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from flytekit import conditional, dynamic, workflow
from flytekit.types.file import FlyteFile

from posttrain.config import EngineName, GrpoSettings, LearnerSettings, LossType
from tasks.artifacts import PolicyDirectory, StateDirectory, TableFile
from tasks.branches import keep_policy
from tasks.checkpoint import NOT_EVALUATED, checkpoint
from tasks.launch import launch
from tasks.pools import COMPILER
from tasks.prepare import base_policy, no_warm_start, prepare, warm_start
from tasks.record import mark_failed, record, start_tracking
from tasks.report import report
from tasks.update import update
from workflows.collect import collect, evaluate_policy
from workflows.local_branches import outside_branch


class Trained(NamedTuple):
    policy: PolicyDirectory
    metrics: list[TableFile]
    events: list[TableFile]
    samples: list[TableFile]
    pass_rate: float


class GrpoResult(NamedTuple):
    policy: PolicyDirectory
    report: FlyteFile
    pass_rate: float


@dynamic(**COMPILER)
def grpo_loop(
    base: PolicyDirectory,
    state: StateDirectory,
    prompts: TableFile,
    evaluation_prompts: TableFile,
    warm_start_metrics: TableFile,
    warm_start_events: TableFile,
    settings: GrpoSettings,
    execution: str,
) -> Trained:
    """Iteration i samples from policy i − 1 − staleness and makes policy i; that edge is all there is to asynchrony."""
    loop, policies, states = settings.loop, [base], [state]
    evaluate_at = partial(
        evaluate_policy,
        prompts=evaluation_prompts,
        rollout=settings.rollout,
        verification=settings.verify,
        evaluation=settings.evaluation,
        target_pass_rate=loop.target_pass_rate,
    )
    record_at = partial(record, settings=settings.tracking, execution=execution, prompts=prompts)
    with outside_branch():
        last = evaluate_at(policy_directory=base, iteration=0, stop=False, stopped_before=False, last_pass_rate=0.0)
        before = [[warm_start_metrics, last.metrics]], [[warm_start_events], last.events]
        recorded = [record_at(iteration=0, scored=[], metrics=before[0], task_events=before[1])]
        evaluated = {0: last}
        for iteration in range(1, loop.num_iterations + 1):
            sampler = max(0, iteration - 1 - loop.staleness)
            # Without a target there is no edge from an evaluation to the next rollouts.
            stop = evaluated[max(n for n in evaluated if n <= sampler)].stop if loop.target_pass_rate > 0 else False
            collected = collect(
                policy_directory=policies[sampler],
                reference=base,
                prompts=prompts,
                settings=settings,
                iteration=iteration,
                stop=stop,
            )
            updated = _update_unless_stopped(policies[-1], states[-1], collected, settings.learner, iteration)
            policies.append(updated.policy)
            states.append(updated.state)
            metrics, events, pass_rate = [[updated.metrics]], [collected.events, [updated.events]], NOT_EVALUATED
            if iteration % settings.evaluation.every == 0 or iteration == loop.num_iterations:
                last = evaluate_at(
                    policy_directory=updated.policy,
                    iteration=iteration,
                    stop=collected.stopped,
                    stopped_before=last.stop,
                    last_pass_rate=last.pass_rate,
                )
                evaluated[iteration] = last
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
    return Trained(
        policies[-1],
        [item.metrics for item in recorded],
        [item.events for item in recorded],
        [item.samples for item in recorded],
        last.pass_rate,
    )


def _update_unless_stopped(policy_directory: Any, state: Any, collected: Any, learner: LearnerSettings, iteration: int) -> Any:
    """Wires the update, or what stands in for it once the target is reached."""
    return (
        conditional(f"update_{iteration}")
        .if_(collected.stopped.is_true())
        .then(keep_policy(policy_directory=policy_directory, state=state))
        .else_()
        .then(
            update(policy_directory=policy_directory, state=state, scored=collected.scored, settings=learner, iteration=iteration)
        )
    )


@workflow(on_failure=mark_failed)
def run_grpo(settings: GrpoSettings, execution: str, has_demonstrations: bool, demonstrations_digest: str) -> GrpoResult:
    """From resolved settings to policy and report; a failure ends the MLflow run as FAILED."""
    base = base_policy(model=settings.data.model, trust_remote_code=settings.data.trust_remote_code, seed=settings.loop.seed)
    prepared = prepare(policy_directory=base.policy, data=settings.data, verification=settings.verify, loop=settings.loop)
    started_run = start_tracking(
        settings=settings, execution=execution, prompts=prepared.prompts, evaluation_prompts=prepared.evaluation_prompts
    )
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
    trained = grpo_loop(
        base=started.policy,
        state=base.state,
        prompts=prepared.prompts,
        evaluation_prompts=prepared.evaluation_prompts,
        warm_start_metrics=started.metrics,
        warm_start_events=started.events,
        settings=settings,
        execution=started_run,
    )
    finished = report(
        settings=settings,
        execution=started_run,
        metrics=trained.metrics,
        task_events=trained.events,
        samples=trained.samples,
        prompts=prepared.prompts,
    )
    return GrpoResult(trained.policy, finished, trained.pass_rate)


@workflow
def grpo(
    run_name: str = "",
    experiment: str = "posttrain",
    model: str = "brackets",
    prompts: str = "brackets?size=1024",
    evaluation_prompts: str = "brackets?size=100&seed=1000001",
    verifier: str = "code",
    demonstrations: str = "",
    engine: EngineName = EngineName.vllm,
    num_iterations: int = 10,
    prompts_per_iteration: int = 32,
    group_size: int = 8,
    num_shards: int = 2,
    staleness: int = 0,
    temperature: float = 1.0,
    max_prompt_tokens: int = 64,
    max_completion_tokens: int = 48,
    loss_type: LossType = LossType.dapo,
    learning_rate: float = 4e-4,
    kl_coef: float = 0.0,
    target_pass_rate: float = 0.0,
    seed: int = 0,
    overrides: str = "",
) -> GrpoResult:
    """Group relative policy optimisation with recorded rollouts.

    Args:
        run_name: name of the run in MLflow.
        experiment: MLflow experiment.
        model: Hugging Face id, local directory or object store URL; `brackets` is the quick start's small model.
        prompts: dataset id, .parquet or .jsonl file, or a generator such as reasoning_gym:chain_sum?size=1000.
        evaluation_prompts: held-out prompts, same forms.
        verifier: exact, last_number, maths, reasoning_gym, code, format, judge or your own (docs/verification.md).
        demonstrations: supervised warm start before GRPO; empty for none.
        engine: what generates.
        num_iterations: sample, verify, update cycles.
        prompts_per_iteration: prompts sampled in one iteration.
        group_size: completions for each prompt.
        num_shards: parallel chains in one iteration.
        staleness: rollouts use the policy of so many iterations before; 0 is synchronous.
        temperature: sampling temperature.
        max_prompt_tokens: longer prompts are reported and left out.
        max_completion_tokens: length cap of a completion.
        loss_type: GRPO loss of TRL.
        learning_rate: peak learning rate.
        kl_coef: weight of the KL term against the base policy; 0 needs no reference.
        target_pass_rate: stop when sampled pass@1 on the held-out prompts reaches it; 0 never stops.
        seed: seed of everything random.
        overrides: YAML or JSON for every other setting, for example {learner: {clip_high: 0.3}}.
    """
    inputs = locals()  # the flat inputs are exactly those of `launch`
    launched = launch(**inputs)
    result = run_grpo(
        settings=launched.settings,
        execution=launched.execution,
        has_demonstrations=launched.has_demonstrations,
        demonstrations_digest=launched.demonstrations_digest,
    )
    return GrpoResult(result.policy, result.report, result.pass_rate)
