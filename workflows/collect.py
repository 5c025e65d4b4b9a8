"""One iteration's data: per shard rollouts → verify → refill → reference, and the evaluation of a policy."""

from __future__ import annotations

from typing import Any

from flytekit import conditional, dynamic
from flytekit.types.file import FlyteFile

from posttrain import selection, tables
from posttrain.config import EvaluationSettings, GrpoSettings, LoopSettings, RolloutSettings, VerifySettings
from posttrain.verify.registry import verifier_versions
from tasks import artifacts
from tasks.artifacts import PolicyDirectory, TableFile
from tasks.branches import Collected, Refilled, no_refill
from tasks.evaluate import PolicyEvaluated, evaluate
from tasks.pools import COMPILER
from tasks.reference import reference_logprobs
from tasks.rollouts import rollouts
from tasks.verify import verify
from workflows.local_branches import outside_branch


@dynamic(**COMPILER)
def collect(
    policy_directory: PolicyDirectory,
    reference: PolicyDirectory,
    prompts: TableFile,
    settings: GrpoSettings,
    iteration: int,
    stop: bool,
) -> Collected:
    """One chain for each shard; no shard waits for another. Nothing when the target is reached."""
    shards = range(0 if stop else settings.loop.num_shards)
    with outside_branch():
        chains = [_collect_shard(policy_directory, reference, prompts, settings, iteration, shard) for shard in shards]
    return Collected([scored for scored, _ in chains], [event for _, events in chains for event in events], stop)


@dynamic(**COMPILER)
def refill(
    policy_directory: PolicyDirectory,
    prompts: TableFile,
    settings: GrpoSettings,
    iteration: int,
    shard: int,
    refill_round: int,
    num_missing_groups: int,
) -> Refilled:
    """Rollouts and verdicts of further prompts, in the place of groups that teach nothing."""
    with outside_branch():
        chosen = select(prompts, settings.loop, iteration, shard, refill_round, num_missing_groups)
        sampled, judged = sample_and_verify(
            policy_directory, chosen, settings.rollout, settings.verify, iteration, shard, num_wanted_groups=num_missing_groups
        )
    return Refilled(sampled.rollouts, judged.verdicts, sampled.events, judged.events, judged.num_missing_groups)


@dynamic(**COMPILER)
def evaluate_policy(
    policy_directory: PolicyDirectory,
    prompts: TableFile,
    rollout: RolloutSettings,
    verification: VerifySettings,
    evaluation: EvaluationSettings,
    target_pass_rate: float,
    iteration: int,
    stop: bool,
    stopped_before: bool,
    last_pass_rate: float,
) -> PolicyEvaluated:
    """Sampled and greedy completions of the held-out prompts, judged; when the run has stopped, the last result."""
    if stop:
        return PolicyEvaluated(artifacts.write(tables.empty("METRICS"), "METRICS", "evaluate_policy"), [], last_pass_rate, stop)
    with outside_branch():
        several, one = (rollout.model_copy(update={"group_size": size}) for size in (evaluation.num_samples, 1))
        sampled, sampled_verdicts = sample_and_verify(
            policy_directory, prompts, several, verification, iteration, EVALUATION_SHARD
        )
        greedy, greedy_verdicts = sample_and_verify(
            policy_directory, prompts, one, verification, iteration, EVALUATION_SHARD, greedy=True
        )
        summary = evaluate(
            sampled=sampled_verdicts.verdicts,
            greedy=greedy_verdicts.verdicts,
            settings=evaluation,
            target_pass_rate=target_pass_rate,
            stopped_before=stopped_before,
            iteration=iteration,
        )
    events = [sampled.events, sampled_verdicts.events, greedy.events, greedy_verdicts.events]
    return PolicyEvaluated(summary.metrics, events, summary.pass_rate, summary.stop)


EVALUATION_SHARD = -1  # names the events of an evaluation; seeds come from the prompts, which no training shard has


def _collect_shard(
    policy_directory: Any, reference: Any, prompts: FlyteFile, settings: GrpoSettings, iteration: int, shard: int
) -> tuple[Any, list[Any]]:
    """Wires the chain of one shard; returns its SCORED table and the events of its tasks."""
    chosen = select(prompts, settings.loop, iteration, shard)
    num_wanted = settings.loop.prompts_per_iteration // settings.loop.num_shards
    sampled, judged = sample_and_verify(
        policy_directory, chosen, settings.rollout, settings.verify, iteration, shard, num_wanted_groups=num_wanted
    )
    rounds = [(sampled.rollouts, judged.verdicts)]
    events = [sampled.events, judged.events]
    missing = judged.num_missing_groups
    for refill_round in range(1, settings.loop.max_refill_rounds + 1):
        more = (
            conditional(f"refill_{shard}_{refill_round}")
            .if_(missing == 0)
            .then(no_refill(num_missing_groups=missing))
            .else_()
            .then(
                refill(
                    policy_directory=policy_directory,
                    prompts=prompts,
                    settings=settings,
                    iteration=iteration,
                    shard=shard,
                    refill_round=refill_round,
                    num_missing_groups=missing,
                )
            )
        )
        rounds.append((more.rollouts, more.verdicts))
        events += [more.rollout_events, more.verify_events]
        missing = more.num_missing_groups
    scored = reference_logprobs(
        rollouts=[table for table, _ in rounds],
        verdicts=[table for _, table in rounds],
        reference=reference,
        advantage=settings.advantage,
        kl_coef=settings.learner.kl_coef,
        temperature=settings.learner.temperature,
        dtype=settings.learner.dtype.value,
        trust_remote_code=settings.learner.trust_remote_code,
        iteration=iteration,
        shard=shard,
    )
    return scored.scored, [*events, scored.events]


def sample_and_verify(
    policy_directory: Any,
    prompts: FlyteFile,
    rollout: RolloutSettings,
    verification: VerifySettings,
    iteration: int,
    shard: int,
    *,
    greedy: bool = False,
    num_wanted_groups: int = 0,
) -> tuple[Any, Any]:
    """Wires one chain: completions of every prompt and their verdicts."""
    sampled = rollouts(
        policy_directory=policy_directory, prompts=prompts, settings=rollout, iteration=iteration, shard=shard, greedy=greedy
    )
    judged = verify(
        completions=sampled.completions,
        prompts=prompts,
        settings=verification,
        verifier_versions=verifier_versions(artifacts.read(prompts, "PROMPTS", ["verifier", "answer"]), verification),
        max_completion_tokens=rollout.max_completion_tokens,
        num_wanted_groups=num_wanted_groups,
        iteration=iteration,
        shard=shard,
    )
    return sampled, judged


def select(
    prompts: FlyteFile, loop: LoopSettings, iteration: int, shard: int, refill_round: int = 0, num_missing_groups: int = 0
) -> FlyteFile:
    """The prompts of one shard and round, as a file: selection is cheap, so it needs no task of its own."""
    chosen = selection.select_prompts(
        artifacts.read(prompts, "PROMPTS"),
        loop,
        iteration=iteration,
        shard=shard,
        refill_round=refill_round,
        num_missing_groups=num_missing_groups,
    )
    return artifacts.write(chosen, "PROMPTS", "select")
