"""Every stage of an iteration as Flyte runs it on a cluster: one process for each task, tables and policies through S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from posttrain import config, policy, tables, trainer_state
from posttrain.config import GrpoSettings
from tasks.artifacts import PolicyDirectory, StateDirectory, TableFile
from tasks.prepare import base_policy, prepare
from tasks.reference import reference_logprobs
from tasks.rollouts import rollouts
from tasks.update import update
from tasks.verify import verify
from tests.execution_mode import Executor, TaskFailedError, s3_server

SETTINGS = config.resolve(
    {
        "data.prompts": "brackets?size=16",
        "data.evaluation_prompts": "brackets?size=4&seed=1000001",
        "rollout.engine": "transformers",
        "rollout.group_size": 2,
        "loop.prompts_per_iteration": 4,
        "loop.num_shards": 1,
        "learner.kl_coef": 0.1,
    },
    "{learner: {groups_per_step: 4, groups_per_microbatch: 4}, data: {max_completion_tokens: 6}}",
)


@pytest.fixture
def executor() -> Iterator[Executor]:
    with s3_server() as endpoint:
        yield Executor(endpoint)


def verify_in_flyte(executor: Executor, sampled: dict, prompts: object, settings: GrpoSettings) -> dict:
    return executor.run(
        verify,
        rollouts=sampled["rollouts"],
        prompts=prompts,
        settings=settings.verify,
        max_completion_tokens=6,
        iteration=1,
        shard=0,
    )


@pytest.mark.slow
def test_an_iteration_runs_task_by_task_through_s3(executor: Executor, tmp_path: Path) -> None:
    base = executor.run(base_policy, model="brackets", trust_remote_code=False, seed=0)
    prepared = executor.run(prepare, policy_directory=base["policy"], data=SETTINGS.data, loop=SETTINGS.loop)
    sampled = executor.run(
        rollouts,
        policy_directory=base["policy"],
        prompts=prepared["evaluation_prompts"],
        settings=SETTINGS.rollout,
        iteration=1,
        shard=0,
        greedy=False,
    )
    judged = verify_in_flyte(executor, sampled, prepared["evaluation_prompts"], SETTINGS)
    scored = executor.run(
        reference_logprobs,
        rollouts=[executor.to_python(sampled["rollouts"], TableFile)],
        verdicts=[executor.to_python(judged["verdicts"], TableFile)],
        reference=base["policy"],
        advantage=SETTINGS.advantage,
        kl_coef=0.1,
        temperature=1.0,
        dtype="float32",
        iteration=1,
        shard=0,
    )
    updated = executor.run(
        update,
        policy_directory=base["policy"],
        state=base["state"],
        scored=[executor.to_python(scored["scored"], TableFile)],
        settings=SETTINGS.learner,
        iteration=1,
    )

    table = tables.read_table(executor.to_python(scored["scored"], TableFile).path, "SCORED")
    assert table.num_rows == 8
    assert sampled["rollouts"].scalar.blob.uri.startswith("s3://")
    assert sampled["rollouts"].hash == tables.content_hash(table.select(tables.ROLLOUTS.names))
    new = Path(executor.to_python(updated["policy"], PolicyDirectory).path)
    assert policy.read_policy(new).version == 1
    assert trainer_state.load_trainer_state(Path(executor.to_python(updated["state"], StateDirectory).path)).cursor.iteration == 1


@pytest.mark.slow
def test_a_failing_task_writes_an_error_that_says_why_and_is_not_retried(executor: Executor) -> None:
    with pytest.raises(TaskFailedError, match="no-such-model") as error:
        executor.run(base_policy, model="no-such-model", trust_remote_code=False, seed=0)
    assert not error.value.recoverable
