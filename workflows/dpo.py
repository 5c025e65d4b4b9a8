"""DPO as a graph: a policy, a frozen reference that leaves the loop through a precompute, and a fixed dataset."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from flytekit import dynamic, workflow
from flytekit.types.file import FlyteFile

from posttrain.config import EngineName
from posttrain.config_dpo import DpoLoss, DpoSettings
from tasks.artifacts import PolicyDirectory, StateDirectory, TableFile
from tasks.checkpoint import NOT_EVALUATED, checkpoint
from tasks.evaluate_pairs import evaluate_pairs
from tasks.launch_dpo import launch_dpo
from tasks.plan import plan_dpo
from tasks.pools import COMPILER
from tasks.preferences import prepare_preferences, reference_policy
from tasks.prepare import base_policy
from tasks.record import record
from tasks.record_dpo import mark_dpo_failed, start_dpo
from tasks.reference_pairs import reference_pairs
from tasks.report_dpo import report_dpo
from tasks.update_dpo import update_dpo
from workflows.collect import evaluate_policy
from workflows.local_branches import outside_branch


class Referenced(NamedTuple):
    referenced: list[TableFile]
    held_out: TableFile
    events: list[TableFile]


class PreparedDpo(NamedTuple):
    base: PolicyDirectory
    state: StateDirectory
    reference_hash: str
    referenced: list[TableFile]
    held_out: TableFile
    evaluation_prompts: TableFile
    reference_events: list[TableFile]


class TrainedDpo(NamedTuple):
    policy: PolicyDirectory
    metrics: list[TableFile]
    events: list[TableFile]
    pair_accuracy: float
    pass_rate: float


class DpoResult(NamedTuple):
    policy: PolicyDirectory
    report: FlyteFile
    metrics: list[TableFile]
    pair_accuracy: float
    pass_rate: float


@dynamic(**COMPILER)
def precompute_reference(
    shards: list[TableFile], evaluation: TableFile, reference: PolicyDirectory, dtype: str, trust_remote_code: bool
) -> Referenced:
    """One cached task for each shard, and one for the held-out pairs."""
    compute = partial(reference_pairs, reference=reference, dtype=dtype, trust_remote_code=trust_remote_code)
    with outside_branch():
        done = [compute(pairs=shard) for shard in shards]
        held_out = compute(pairs=evaluation)
    return Referenced([item.referenced for item in done], held_out.referenced, [*(item.events for item in done), held_out.events])


@workflow
def prepare_dpo(settings: DpoSettings) -> PreparedDpo:
    """Policy, reference and dataset: everything that the training of this dataset needs, whatever its loss."""
    base = base_policy(model=settings.data.model, trust_remote_code=settings.data.trust_remote_code, seed=settings.loop.seed)
    reference = reference_policy(
        policy_directory=base.policy, reference=settings.data.reference, trust_remote_code=settings.data.trust_remote_code
    )
    pairs = prepare_preferences(
        policy_directory=base.policy,
        data=settings.data,
        verification=settings.verify,
        num_shards=settings.loop.num_shards,
        seed=settings.loop.seed,
    )
    plan_dpo(policy_directory=base.policy, shards=pairs.shards, settings=settings.learner)
    computed = precompute_reference(
        shards=pairs.shards,
        evaluation=pairs.evaluation,
        reference=reference.policy,
        dtype=settings.learner.dtype,
        trust_remote_code=settings.data.trust_remote_code,
    )
    return PreparedDpo(
        base.policy, base.state, reference.hash, computed.referenced, computed.held_out, pairs.evaluation_prompts, computed.events
    )


@dynamic(**COMPILER)
def dpo_loop(
    base: PolicyDirectory,
    state: StateDirectory,
    reference_hash: str,
    referenced: list[TableFile],
    held_out: TableFile,
    evaluation_prompts: TableFile,
    reference_events: list[TableFile],
    settings: DpoSettings,
    execution: str,
) -> TrainedDpo:
    """Part i of the steps makes policy i; each is evaluated and is a checkpoint."""
    num_parts, newest = settings.loop.num_iterations, (base, state)
    evaluate = partial(_evaluate, held_out=held_out, prompts=evaluation_prompts, settings=settings)
    record_at = partial(record, settings=settings.tracking, execution=execution, prompts=evaluation_prompts, scored=[])
    with outside_branch():
        metrics, events, accuracy, pass_rate = evaluate(base, iteration=0)
        recorded = [record_at(iteration=0, metrics=[metrics], task_events=[*events, reference_events])]
        for iteration in range(1, num_parts + 1):
            updated = update_dpo(
                policy_directory=newest[0],
                base=base,
                state=newest[1],
                referenced=referenced,
                reference_hash=reference_hash,
                settings=settings.learner,
                iteration=iteration,
                part=iteration,
                num_parts=num_parts,
            )
            newest = updated.policy, updated.state
            metrics, events, score = [], [], NOT_EVALUATED
            if iteration % settings.evaluation.every == 0 or iteration == num_parts:
                metrics, events, accuracy, pass_rate = evaluate(updated.policy, iteration=iteration)
                score = pass_rate if settings.data.evaluation_prompts else accuracy
            checkpoint(
                policy_directory=updated.policy,
                state=updated.state,
                settings=settings.tracking,
                execution=execution,
                iteration=iteration,
                pass_rate=score,
            )
            recorded.append(
                record_at(iteration=iteration, metrics=[[updated.metrics], metrics], task_events=[*events, [updated.events]])
            )
    return TrainedDpo(newest[0], [item.metrics for item in recorded], [item.events for item in recorded], accuracy, pass_rate)


def _evaluate(
    policy_directory: Any, held_out: Any, prompts: Any, settings: DpoSettings, iteration: int
) -> tuple[list[Any], list[Any], Any, Any]:
    """Wires the evaluation on held-out pairs and, where there are prompts, by generation and verification."""
    learner, evaluation = settings.learner, settings.evaluation
    on_pairs = evaluate_pairs(
        policy_directory=policy_directory,
        held_out=held_out,
        beta=learner.beta,
        dtype=learner.dtype.value,
        trust_remote_code=learner.trust_remote_code,
        confidence=evaluation.confidence,
        iteration=iteration,
    )
    if not settings.data.evaluation_prompts:
        return [on_pairs.metrics], [[on_pairs.events]], on_pairs.pair_accuracy, NOT_EVALUATED
    generated = evaluate_policy(
        policy_directory=policy_directory,
        prompts=prompts,
        rollout=settings.rollout,
        verification=settings.verify,
        evaluation=evaluation,
        target_pass_rate=0.0,
        iteration=iteration,
        stop=False,
        stopped_before=False,
        last_pass_rate=0.0,
    )
    metrics, events = [on_pairs.metrics, generated.metrics], [[on_pairs.events], generated.events]
    return metrics, events, on_pairs.pair_accuracy, generated.pass_rate


@workflow(on_failure=mark_dpo_failed)
def train_dpo(
    base: PolicyDirectory,
    state: StateDirectory,
    reference_hash: str,
    referenced: list[TableFile],
    held_out: TableFile,
    evaluation_prompts: TableFile,
    reference_events: list[TableFile],
    settings: DpoSettings,
    execution: str,
) -> DpoResult:
    """From pairs with reference logprobs to policy and report; a failure ends the MLflow run as FAILED."""
    started_run = start_dpo(
        settings=settings,
        execution=execution,
        referenced=referenced,
        held_out=held_out,
        evaluation_prompts=evaluation_prompts,
        reference_hash=reference_hash,
    )
    trained = dpo_loop(
        base=base,
        state=state,
        reference_hash=reference_hash,
        referenced=referenced,
        held_out=held_out,
        evaluation_prompts=evaluation_prompts,
        reference_events=reference_events,
        settings=settings,
        execution=started_run,
    )
    finished = report_dpo(
        base=base,
        referenced=referenced,
        settings=settings,
        execution=started_run,
        metrics=trained.metrics,
        task_events=trained.events,
    )
    return DpoResult(trained.policy, finished, trained.metrics, trained.pair_accuracy, trained.pass_rate)


@workflow
def dpo(
    model: str,
    preferences: str,
    run_name: str = "",
    experiment: str = "posttrain",
    reference: str = "",
    evaluation_preferences: str = "",
    evaluation_prompts: str = "",
    verifier: str = "code",
    engine: EngineName = EngineName.vllm,
    loss_type: DpoLoss = DpoLoss.sigmoid,
    beta: float = 0.1,
    nll_coef: float = 0.0,
    learning_rate: float = 1e-6,
    num_epochs: int = 1,
    num_iterations: int = 4,
    num_shards: int = 2,
    pairs_per_step: int = 32,
    lora_rank: int = 0,
    max_pair_tokens: int = 1024,
    max_prompt_tokens: int = 512,
    max_completion_tokens: int = 512,
    seed: int = 0,
    overrides: str = "",
) -> DpoResult:
    """Direct preference optimisation with a precomputed reference.

    Args:
        model: policy before training: Hugging Face id, local directory or object store URL.
        preferences: pairs: dataset id, .parquet or .jsonl file, or an .arrow table PREFERENCES.
        run_name: name of the run in MLflow.
        experiment: MLflow experiment.
        reference: frozen reference, same forms as model; empty is the policy before training.
        evaluation_preferences: held-out pairs, same forms as preferences; empty holds out a tenth of the prompts.
        evaluation_prompts: held-out prompts to generate for and verify; empty for none.
        verifier: exact, last_number, maths, reasoning_gym, code, format, judge or your own (docs/verification.md).
        engine: what generates.
        loss_type: DPO loss of TRL.
        beta: strength of the tie to the reference.
        nll_coef: weight of the NLL of chosen tokens; keeps them likely.
        learning_rate: peak learning rate.
        num_epochs: passes over the pairs.
        num_iterations: parts that training is cut into; each ends with an evaluation and a checkpoint.
        num_shards: parallel tasks of the reference precompute.
        pairs_per_step: pairs in one optimiser step.
        lora_rank: rank of the LoRA adapter; 0 trains the weights themselves.
        max_pair_tokens: prompt and one answer; a longer answer loses its end.
        max_prompt_tokens: longer evaluation prompts are reported and left out.
        max_completion_tokens: length cap of a generated completion.
        seed: seed of everything random.
        overrides: YAML or JSON for every other setting, for example {learner: {label_smoothing: 0.1}}.
    """
    inputs = locals()  # the flat inputs are exactly those of `launch_dpo`
    launched = launch_dpo(**inputs)
    prepared = prepare_dpo(settings=launched.settings)
    result = train_dpo(
        base=prepared.base,
        state=prepared.state,
        reference_hash=prepared.reference_hash,
        referenced=prepared.referenced,
        held_out=prepared.held_out,
        evaluation_prompts=prepared.evaluation_prompts,
        reference_events=prepared.reference_events,
        settings=launched.settings,
        execution=launched.execution,
    )
    return DpoResult(result.policy, result.report, result.metrics, result.pair_accuracy, result.pass_rate)
