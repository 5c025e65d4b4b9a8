"""A sweep over DPO's loss, beta and learning rate: one reference precompute, one nested MLflow run for each trial."""

from __future__ import annotations

from typing import NamedTuple

from flytekit import dynamic, workflow
from flytekit.types.file import FlyteFile

from posttrain import sweep
from posttrain.config import EngineName
from posttrain.config_dpo import DpoSettings
from tasks.artifacts import PolicyDirectory, StateDirectory, TableFile
from tasks.launch_dpo import launch_dpo_sweep
from tasks.pools import COMPILER
from tasks.record_dpo import mark_sweep_failed, start_sweep
from tasks.report_dpo import report_sweep
from workflows.dpo import prepare_dpo, train_dpo
from workflows.local_branches import outside_branch


class SweepResult(NamedTuple):
    policies: list[PolicyDirectory]
    report: FlyteFile


class TrialsDone(NamedTuple):
    policies: list[PolicyDirectory]
    metrics: list[list[TableFile]]


@dynamic(**COMPILER)
def run_trials(
    base: PolicyDirectory,
    state: StateDirectory,
    reference_hash: str,
    referenced: list[TableFile],
    held_out: TableFile,
    evaluation_prompts: TableFile,
    reference_events: list[TableFile],
    trials: list[DpoSettings],
    execution: str,
) -> TrialsDone:
    """All trials on the same pairs with the same reference logprobs."""
    with outside_branch():
        done = [
            train_dpo(
                base=base,
                state=state,
                reference_hash=reference_hash,
                referenced=referenced,
                held_out=held_out,
                evaluation_prompts=evaluation_prompts,
                reference_events=reference_events,
                settings=settings,
                execution=sweep.trial_execution(settings),
            )
            for settings in trials
        ]
    return TrialsDone([trial.policy for trial in done], [trial.metrics for trial in done])


@workflow(on_failure=mark_sweep_failed)
def run_sweep(settings: DpoSettings, trials: list[DpoSettings], execution: str) -> SweepResult:
    """From resolved trials to their comparison; a failure ends the sweep's MLflow run as FAILED."""
    prepared = prepare_dpo(settings=settings)
    started_run = start_sweep(settings=settings, execution=execution, trials=trials)
    done = run_trials(
        base=prepared.base,
        state=prepared.state,
        reference_hash=prepared.reference_hash,
        referenced=prepared.referenced,
        held_out=prepared.held_out,
        evaluation_prompts=prepared.evaluation_prompts,
        reference_events=prepared.reference_events,
        trials=trials,
        execution=started_run,
    )
    finished = report_sweep(
        settings=settings, trials=trials, execution=started_run, metrics=done.metrics, reference_events=prepared.reference_events
    )
    return SweepResult(done.policies, finished)


@workflow
def dpo_sweep(
    model: str,
    preferences: str,
    loss_types: str = "sigmoid",
    betas: str = "0.1,0.5",
    learning_rates: str = "1e-6",
    nll_coefs: str = "0",
    run_name: str = "",
    experiment: str = "posttrain",
    reference: str = "",
    evaluation_preferences: str = "",
    evaluation_prompts: str = "",
    verifier: str = "code",
    engine: EngineName = EngineName.vllm,
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
) -> SweepResult:
    """Every combination of the listed values, on one dataset and one reference precompute.

    Args:
        model: policy before training: Hugging Face id, local directory or object store URL.
        preferences: pairs: dataset id, .parquet or .jsonl file, or an .arrow table PREFERENCES.
        loss_types: DPO losses of TRL with commas between, as in sigmoid,ipo.
        betas: values of beta with commas between.
        learning_rates: peak learning rates with commas between.
        nll_coefs: weights of the NLL of chosen tokens with commas between.
        run_name: name of the sweep in MLflow.
        experiment: MLflow experiment.
        reference: frozen reference, same forms as model; empty is the policy before training.
        evaluation_preferences: held-out pairs, same forms as preferences; empty holds out a tenth of the prompts.
        evaluation_prompts: held-out prompts to generate for and verify; empty for none.
        verifier: exact, last_number, maths, reasoning_gym, code, format, judge or your own (docs/verification.md).
        engine: what generates.
        num_epochs: passes over the pairs.
        num_iterations: parts that training is cut into; each ends with an evaluation and a checkpoint.
        num_shards: parallel tasks of the reference precompute.
        pairs_per_step: pairs in one optimiser step.
        lora_rank: rank of the LoRA adapter; 0 trains the weights themselves.
        max_pair_tokens: prompt and one answer; a longer answer loses its end.
        max_prompt_tokens: longer evaluation prompts are reported and left out.
        max_completion_tokens: length cap of a generated completion.
        seed: seed of everything random.
        overrides: YAML or JSON for every other setting.
    """
    inputs = locals()  # the flat inputs are exactly those of `launch_dpo_sweep`
    launched = launch_dpo_sweep(**inputs)
    result = run_sweep(settings=launched.settings, trials=launched.trials, execution=launched.execution)
    return SweepResult(result.policies, result.report)
