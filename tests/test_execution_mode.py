"""Every stage of an iteration as Flyte runs it on a cluster: one process for each task, tables and policies through S3."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flytekit.types.file import FlyteFile

from posttrain import policy, resolution, tables, trainer_state
from posttrain.config import GrpoSettings
from posttrain.verify.registry import verifier_versions
from tasks.artifacts import PolicyDirectory, StateDirectory, TableFile
from tasks.checkpoint import checkpoint
from tasks.prepare import base_policy, prepare
from tasks.reference import reference_logprobs
from tasks.rollouts import rollouts
from tasks.update import update
from tasks.verify import verify
from tests.execution_mode import Executor, TaskFailedError, s3_server
from workflows.collect import collect
from workflows.grpo import grpo_loop

SETTINGS = resolution.resolve(
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
        executor = Executor(endpoint)
        yield executor
        executor.close()


def verify_in_flyte(executor: Executor, sampled: dict, prompts: object, settings: GrpoSettings) -> dict:
    table = tables.read_table(executor.to_python(prompts, TableFile).path, "PROMPTS")
    return executor.run(
        verify,
        completions=sampled["completions"],
        prompts=prompts,
        settings=settings.verify,
        verifier_versions=verifier_versions(table, settings.verify),
        max_completion_tokens=6,
        num_wanted_groups=4,
        iteration=1,
        shard=0,
    )


@pytest.mark.slow
def test_an_iteration_runs_task_by_task_through_s3(executor: Executor, tmp_path: Path) -> None:
    base = executor.run(base_policy, model="brackets", trust_remote_code=False, seed=0)
    prepared = executor.run(
        prepare, policy_directory=base["policy"], data=SETTINGS.data, verification=SETTINGS.verify, loop=SETTINGS.loop
    )
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
        trust_remote_code=False,
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

    published = executor.run(
        checkpoint,
        policy_directory=updated["policy"],
        state=updated["state"],
        settings=SETTINGS.tracking,
        execution="test",
        iteration=1,
        pass_rate=0.5,
    )

    assert published["o0"].scalar.primitive.string_value == updated["policy"].scalar.blob.uri  # in the object store already
    table = tables.read_table(executor.to_python(scored["scored"], TableFile).path, "SCORED")
    assert table.num_rows == 8
    assert sampled["rollouts"].scalar.blob.uri.startswith("s3://")
    assert sampled["rollouts"].hash == tables.content_hash(table.select(tables.ROLLOUTS.names))
    new = Path(executor.to_python(updated["policy"], PolicyDirectory).path)
    assert policy.read_policy(new).version == 1
    assert trainer_state.load_trainer_state(Path(executor.to_python(updated["state"], StateDirectory).path)).cursor.iteration == 1


@pytest.mark.slow
def test_the_dynamics_compile_to_the_graph_of_the_design(executor: Executor) -> None:
    base = executor.run(base_policy, model="brackets", trust_remote_code=False, seed=0)
    prepared = executor.run(
        prepare, policy_directory=base["policy"], data=SETTINGS.data, verification=SETTINGS.verify, loop=SETTINGS.loop
    )
    loop = SETTINGS.loop.model_copy(update={"num_shards": 2, "num_iterations": 4, "staleness": 1})
    settings = SETTINGS.model_copy(update={"loop": loop})

    shards = executor.compile(
        collect, policy_directory=base["policy"], reference=base["policy"], prompts=prepared["prompts"], settings=settings,
        iteration=1, stop=False,
    )  # fmt: skip
    names = Counter(node.task_node.reference_id.name or node.metadata.name for node in shards.nodes)
    chain = ["tasks.rollouts.rollouts", "tasks.verify.verify", "tasks.reference.reference_logprobs"]
    assert all(names[name] == 2 for name in chain)  # one chain for each shard ...
    by_id = {node.id: node for node in shards.nodes}
    for node in shards.nodes:  # ... and no edge between chains
        if node.task_node.reference_id.name == chain[2]:
            assert len(_ancestors(node, by_id, chain[0])) == 1

    empty = tables_file()
    inputs = {
        "base": base["policy"], "state": base["state"], "prompts": prepared["prompts"],
        "evaluation_prompts": prepared["evaluation_prompts"], "warm_start_metrics": empty("METRICS"),
        "warm_start_events": empty("EVENTS"), "execution": "test",
    }  # fmt: skip
    graph = executor.compile(grpo_loop, settings=settings, **inputs)
    by_id = {node.id: node for node in graph.nodes}
    collected = [node for node in graph.nodes if node.task_node.reference_id.name == "workflows.collect.collect"]
    assert len(collected) == 4
    # With staleness 1 the rollouts of iterations 1 and 2 wait for nothing, those of iteration 3 for the first update only.
    updates = [len(_ancestors(node, by_id, "")) for node in collected]
    assert updates == [0, 0, 1, 2]
    longer = settings.model_copy(update={"loop": loop.model_copy(update={"num_iterations": 12})})
    growth = executor.compile(grpo_loop, settings=longer, **inputs).ByteSize() - graph.ByteSize()
    assert graph.ByteSize() + 100 * growth / 8 < 1_500_000  # bytes of a run of 100 iterations; Flyte's limit is 2 MB and more
    print(f"grpo_loop: {graph.ByteSize()} bytes at 4 iterations, {growth / 8:.0f} for each further one")


def _ancestors(node: Any, by_id: dict[str, Any], task_name: str) -> set[str]:
    """Ids of the nodes above `node` that run the task, or that are branch nodes when the name is empty."""
    found: set[str] = set()
    for upstream in _upstream_ids(node) & by_id.keys():
        above = by_id[upstream]
        matches = above.HasField("branch_node") if not task_name else above.task_node.reference_id.name == task_name
        found |= ({above.id} if matches else set()) | _ancestors(above, by_id, task_name)
    return found


def _upstream_ids(node: Any) -> set[str]:
    """Nodes that this one waits for; a branch node waits for what the nodes inside its branches are bound to."""
    ids = set(node.upstream_node_ids) | {binding.binding.promise.node_id for binding in node.inputs}
    if node.HasField("branch_node"):
        cases = node.branch_node.if_else
        for inner in [cases.case.then_node, *(other.then_node for other in cases.other), cases.else_node]:
            ids |= _upstream_ids(inner)
    return ids


def tables_file() -> Callable[[str], FlyteFile]:
    directory = Path(tempfile.mkdtemp())
    return lambda name: FlyteFile(str(tables.write_table(tables.empty(name), name, directory / f"{name}.arrow")))


@pytest.mark.slow
def test_a_failing_task_writes_an_error_that_says_why_and_is_not_retried(executor: Executor) -> None:
    with pytest.raises(TaskFailedError, match="no-such-model") as error:
        executor.run(base_policy, model="no-such-model", trust_remote_code=False, seed=0)
    assert not error.value.recoverable
