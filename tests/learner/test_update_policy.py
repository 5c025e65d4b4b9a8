"""One call of the update: what it writes, carries on, leaves alone and refuses."""

from __future__ import annotations

import math
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from posttrain import logprobs, policy
from posttrain.config import LearnerSettings
from posttrain.errors import ConfigError, ContractError, InfrastructureError, PolicyError, TrainingError
from posttrain.grpo import update_policy
from posttrain.grpo_learner import Learner
from posttrain.trainer_state import load_trainer_state
from tests.learner.scored_tables import random_scored, scored_row, scored_table
from tests.tiny_models import build_tiny_model, build_tiny_model_with_code, build_tiny_policy, build_tiny_tokenizer

SETTINGS = LearnerSettings(groups_per_step=2, groups_per_microbatch=1, learning_rate=1e-3)


@pytest.fixture
def start(tmp_path: Path) -> Path:
    return build_tiny_policy(tmp_path / "policy-0")


def update(
    start: Path, state: Path | None, scored: list[pa.Table], settings: LearnerSettings, iteration: int = 0
) -> dict[str, float]:
    """Runs one update into policy-<iteration + 1> and state-<iteration + 1> beside `start`; its per-iteration metrics."""
    name = iteration + 1
    metrics = update_policy(
        start,
        state,
        scored,
        settings,
        iteration=iteration,
        output_policy=start.parent / f"policy-{name}",
        output_state=start.parent / f"state-{name}",
    )
    return {row["name"]: row["value"] for row in metrics.to_pylist() if row["step"] is None}


def weights(directory: Path) -> Mapping[str, torch.Tensor]:
    return policy.load_model(directory, "float32").state_dict()


def same(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_the_successor_names_its_parent_and_differs_only_in_weights(start: Path) -> None:
    found = update(start, None, [random_scored(4)], SETTINGS, iteration=0)
    manifest = policy.read_policy(start.parent / "policy-1")
    assert (manifest.version, manifest.algorithm, manifest.iteration) == (1, "grpo", 0)
    assert manifest.parent == policy.policy_hash(start)
    assert not same(weights(start), weights(start.parent / "policy-1"))
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        assert (start.parent / "policy-1" / name).read_text() == (start / name).read_text(), name
    assert sorted(path.name for path in start.parent.iterdir()) == ["policy-0", "policy-1", "state-1"]
    assert found["train/num_steps"] == 2 and found["train/num_rows_trained"] == 16 and found["train/num_rows_left_out"] == 0


def test_two_updates_through_the_disk_equal_one_process_that_keeps_its_optimiser(start: Path) -> None:
    batches = [random_scored(5, seed=seed) for seed in (0, 1)]
    kept = Learner(build_tiny_model(), build_tiny_tokenizer(), SETTINGS)
    update(start, None, batches[:1], SETTINGS, iteration=0)
    kept.update(batches[0], 0)
    assert same(weights(start.parent / "policy-1"), kept.model.state_dict())
    torch.rand(3)  # whatever else the process draws must not matter
    update(start.parent / "policy-1", start.parent / "state-1", batches[1:], SETTINGS, iteration=1)
    kept.update(batches[1], 1)
    assert same(weights(start.parent / "policy-2"), kept.model.state_dict())
    state = load_trainer_state(start.parent / "state-2", kept.shapes)
    assert same(state.moments, kept.state.moments) and same(state.random, kept.state.random)
    assert state.cursor == kept.cursor and (state.cursor.iteration, state.cursor.num_steps, state.cursor.num_rows) == (1, 6, 40)
    forgetful = start.parent / "policy-1"
    update(forgetful, None, batches[1:], SETTINGS, iteration=2)
    assert not same(weights(start.parent / "policy-3"), kept.model.state_dict())


def test_shards_in_any_order_give_the_same_policy(start: Path) -> None:
    scored = random_scored(4)
    update(start, None, [scored.slice(0, 8), scored.slice(8)], SETTINGS, iteration=0)
    update(start, None, [scored.slice(8), scored.slice(0, 8)], SETTINGS, iteration=1)
    first, second = (weights(start.parent / f"policy-{name}") for name in (1, 2))
    assert not same(first, second)  # the iteration decides the order
    again = start.parent / "again"
    update_policy(
        start,
        None,
        [scored.slice(8), scored.slice(0, 8)],
        SETTINGS,
        iteration=0,
        output_policy=again,
        output_state=start.parent / "again-state",
    )
    assert same(first, weights(again))


def test_the_learning_rate_follows_one_schedule_over_all_iterations(start: Path) -> None:
    settings = LearnerSettings(
        groups_per_step=2, groups_per_microbatch=2, learning_rate=1e-3, lr_scheduler="linear", total_steps=4
    )
    rates: list[tuple[int, float]] = []
    for iteration in (0, 1):
        metrics = update_policy(
            start.parent / f"policy-{iteration}",
            start.parent / f"state-{iteration}" if iteration else None,
            [random_scored(4)],
            settings,
            iteration=iteration,
            output_policy=start.parent / f"policy-{iteration + 1}",
            output_state=start.parent / f"state-{iteration + 1}",
        )
        rates += [(row["step"], row["value"]) for row in metrics.to_pylist() if row["name"] == "train/learning_rate"]
    assert rates == [(step, pytest.approx(rate)) for step, rate in enumerate([1e-3, 7.5e-4, 5e-4, 2.5e-4])]
    with pytest.raises(ConfigError, match="total_steps"):
        update(start.parent / "policy-2", start.parent / "state-2", [random_scored(4)], settings, iteration=2)


def test_no_trainable_row_carries_policy_and_optimiser_on(start: Path) -> None:
    update(start, None, [random_scored(2)], SETTINGS, iteration=0)
    nothing = scored_table([scored_row("p", 0, advantage=0.0), scored_row("p", 1, advantage=None)])
    found = update(start.parent / "policy-1", start.parent / "state-1", [nothing], SETTINGS, iteration=1)
    assert same(weights(start.parent / "policy-1"), weights(start.parent / "policy-2"))
    assert policy.read_policy(start.parent / "policy-2").version == 2
    assert (found["train/num_steps"], found["train/num_groups_trained"], found["train/num_rows_left_out"]) == (0, 0, 2)
    first, second = (load_trainer_state(start.parent / f"state-{name}") for name in (1, 2))
    assert same(first.moments, second.moments) and len(first.moments) > 0
    assert (second.cursor.iteration, second.cursor.num_steps) == (1, first.cursor.num_steps)


def test_no_shards_at_all_is_an_iteration_without_rows(start: Path) -> None:
    assert update(start, None, [], SETTINGS)["train/num_rows_trained"] == 0
    assert same(weights(start), weights(start.parent / "policy-1"))
    # a state from before the first step pins nothing of this process: what follows is as without it
    scored = random_scored(2)
    update(start.parent / "policy-1", start.parent / "state-1", [scored], SETTINGS, iteration=1)
    update_policy(
        start,
        None,
        [scored],
        SETTINGS,
        iteration=1,
        output_policy=start.parent / "direct",
        output_state=start.parent / "direct-state",
    )
    assert same(weights(start.parent / "policy-2"), weights(start.parent / "direct"))


def test_rows_without_behavior_logprobs_are_left_out_and_counted(start: Path) -> None:
    rows = random_scored(3).to_pylist()
    rows[2]["behavior_logprobs"] = None
    found = update(start, None, [scored_table(rows)], SETTINGS)
    assert (found["train/num_rows_unknown_logprobs"], found["train/num_rows_trained"]) == (1, 11)


@pytest.mark.parametrize(
    ("advantages", "what"),
    [((1e300, -1.0), r"loss is (-?inf|nan)"), ((3e38, -3e38), "gradient norm is (inf|nan)")],
    ids=["loss", "gradient"],
)
def test_a_loss_or_gradient_that_is_not_finite_stops_before_anything_is_written(
    start: Path, advantages: tuple[float, float], what: str
) -> None:
    good = random_scored(1)
    bad = scored_table([scored_row("bad", index, [5, 6 + index, 2], advantage=value) for index, value in enumerate(advantages)])
    with pytest.raises(TrainingError, match=what) as caught:
        update(start, None, [good, bad], LearnerSettings(groups_per_step=2, groups_per_microbatch=1))
    assert "('bad', 0)" in str(caught.value) and "('bad', 1)" in str(caught.value)
    assert [path.name for path in start.parent.iterdir()] == ["policy-0"]


def test_a_key_that_appears_in_two_shards_is_refused(start: Path) -> None:
    with pytest.raises(ContractError, match="twice"):
        update(start, None, [random_scored(1), random_scored(1)], SETTINGS)


def test_only_matching_parameters_are_trained(start: Path) -> None:
    settings = LearnerSettings(trainable_parameters=r"layers\.1\..*(q_proj|norm)")
    update(start, None, [random_scored(2)], settings)
    before, after = weights(start), weights(start.parent / "policy-1")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all("layers.1." in name and ("q_proj" in name or "norm" in name) for name in changed)
    shapes = load_trainer_state(start.parent / "state-1").shapes
    assert changed <= shapes.keys() and all("layers.1." in name for name in shapes)
    with pytest.raises(PolicyError, match="is trained in the model, not the state"):
        update(start.parent / "policy-1", start.parent / "state-1", [random_scored(2)], LearnerSettings(), iteration=1)


@pytest.mark.parametrize(("pattern", "why"), [("nothing_like_it", "no parameter matches"), ("(", "not a regular expression")])
def test_a_pattern_that_trains_nothing_is_refused(start: Path, pattern: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        update(start, None, [random_scored(1)], LearnerSettings(trainable_parameters=pattern))


def test_kl_needs_no_reference_model_in_memory(start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    settings = LearnerSettings(kl_coef=0.5)
    scored = logprobs.add_reference_logprobs(random_scored(2), start, settings)
    loads: list[str] = []
    load = transformers.PreTrainedModel.from_pretrained.__func__

    def counting(kind: type, directory: str, *rest: Any, **options: Any) -> Any:
        loads.append(Path(directory).name)
        return load(kind, directory, *rest, **options)

    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", classmethod(counting))
    update(start, None, [scored], settings)
    assert [name for name in loads if not name.startswith(".")] == ["policy-0"]  # and once the successor, for its fingerprint


def test_bfloat16_computes_under_autocast_and_keeps_float32_weights(start: Path) -> None:
    settings = LearnerSettings.model_validate({"dtype": "bfloat16", "learning_rate": 1e-6})
    update(start, None, [random_scored(2)], settings)
    before, after = weights(start), weights(start.parent / "policy-1")
    assert all(value.dtype == torch.float32 for value in after.values())
    assert not same(before, after)  # a step of 1e-6 would vanish in bfloat16


def test_gradient_checkpointing_changes_nothing_but_memory(start: Path) -> None:
    scored = random_scored(2)
    update(start, None, [scored], SETTINGS, iteration=0)
    with_it = start.parent / "checkpointed"
    update_policy(
        start,
        None,
        [scored],
        SETTINGS.model_copy(update={"gradient_checkpointing": True}),
        iteration=0,
        output_policy=with_it,
        output_state=start.parent / "checkpointed-state",
    )
    first, second = weights(start.parent / "policy-1"), weights(with_it)
    assert all(torch.allclose(first[name], second[name], atol=1e-6) for name in first)


def test_training_raises_the_probability_of_what_was_rewarded(start: Path) -> None:
    rows = [scored_row("p", 0, [5, 6, 7, 2], advantage=1.0), scored_row("p", 1, [9, 9, 9, 9], advantage=-1.0)]
    before = logprobs.token_logprobs(policy.load_model(start, "float32"), [[1, 8, 9]] * 2, [[5, 6, 7, 2], [9] * 4], 1.0)
    settings = LearnerSettings.model_validate({"importance_correction": "none", "num_epochs": 8, "learning_rate": 1e-3})
    update(start, None, [scored_table(rows)], settings)
    trained = policy.load_model(start.parent / "policy-1", "float32")
    after = logprobs.token_logprobs(trained, [[1, 8, 9]] * 2, [[5, 6, 7, 2], [9] * 4], 1.0)
    assert after[0].sum() > before[0].sum() + math.log(1.5)
    assert after[1].sum() < before[1].sum()


def test_the_update_is_quiet_and_leaves_no_files(
    start: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    working = start.parent / "working"
    working.mkdir()
    monkeypatch.chdir(working)
    update(start, None, [random_scored(3)], SETTINGS)
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err == ""
    assert list(working.iterdir()) == []


def test_a_policy_with_code_of_its_own_is_trained_only_when_it_is_trusted(tmp_path: Path) -> None:
    start = tmp_path / "policy-0"
    policy.import_policy(build_tiny_model_with_code(tmp_path / "source"), start, trust_remote_code=True)
    trusted = LearnerSettings(kl_coef=0.1, trust_remote_code=True)
    scored = logprobs.add_reference_logprobs(random_scored(1), start, trusted)
    update(start, None, [scored], trusted)
    assert type(policy.load_model(tmp_path / "policy-1", "float32", trust_remote_code=True)).__name__ == "OwnModel"
    untrusted = LearnerSettings(kl_coef=0.1)
    for refused in (
        lambda: logprobs.add_reference_logprobs(random_scored(1), start, untrusted),
        lambda: update(start, None, [scored], untrusted, iteration=1),
    ):
        with pytest.raises(PolicyError, match="trust_remote_code"):
            refused()


@pytest.mark.parametrize("failing", ["state", "policy"])
def test_a_full_disk_leaves_neither_policy_nor_state(start: Path, failing: str) -> None:
    settings = LearnerSettings(trainable_parameters=r"layers\.1\..*q_proj")  # a state that is smaller than the policy
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit_bytes = 8_000 if failing == "state" else (start / "model.safetensors").stat().st_size - 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        with pytest.raises(InfrastructureError, match=f"the (trainer )?{failing} cannot be written"):
            update(start, None, [random_scored(1)], settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in start.parent.iterdir()] == ["policy-0"]


def test_a_tokenizer_that_cannot_pad_is_refused(tmp_path: Path) -> None:
    tokenizer = build_tiny_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token = None
    with pytest.raises(PolicyError, match="neither a padding nor an end-of-sequence token"):
        Learner(build_tiny_model(), tokenizer, SETTINGS)
