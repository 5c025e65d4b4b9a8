"""One call of the update: what it writes, carries on, leaves alone and refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from posttrain import policy, tables
from posttrain.config_dpo import DpoLearnerSettings
from posttrain.dpo_learner import DpoLearner
from posttrain.dpo_rows import sorted_pairs
from posttrain.errors import ConfigError, ContractError, PolicyError, TrainingError
from posttrain.packed_model import why_not_packed
from posttrain.trainer_state import load_trainer_state
from tests.dpo.counting import counted
from tests.dpo.pair_tables import (
    HASH,
    pair_row,
    random_pairs,
    referenced_row,
    referenced_table,
    same,
    update,
    values_of,
    weights,
    with_reference,
)
from tests.tiny_models import build_tiny_model, build_tiny_policy, build_tiny_tokenizer

SETTINGS = DpoLearnerSettings(pairs_per_step=4, pairs_per_microbatch=2, learning_rate=1e-3, num_epochs=2)


@pytest.fixture
def start(tmp_path: Path) -> Path:
    return build_tiny_policy(tmp_path / "policy-0")


def test_the_successor_names_its_parent_and_differs_only_in_weights(start: Path) -> None:
    written, _, metrics = update(start, [with_reference(random_pairs(6), start)], SETTINGS, "1", iteration=3)
    manifest = policy.read_policy(written)
    assert (manifest.version, manifest.algorithm, manifest.iteration) == (1, "dpo", 3)
    assert manifest.parent == policy.policy_hash(start)
    assert not same(weights(start), weights(written))
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        assert (written / name).read_text() == (start / name).read_text(), name
    assert sorted(path.name for path in start.parent.iterdir()) == ["policy-0", "policy-1", "state-1"]
    assert values_of(metrics, "train/num_pairs") == [6] and values_of(metrics, "train/num_steps") == [4]
    assert values_of(metrics, "train/loss")[0] == pytest.approx(0.693147, abs=1e-4)  # the policy is its reference
    assert set(metrics["iteration"].to_pylist()) == {3}


def test_parts_through_the_disk_equal_one_call_bit_for_bit(start: Path) -> None:
    settings = SETTINGS.model_copy(update={"lr_scheduler": "cosine", "warmup_steps": 1, "nll_coef": 0.5})
    shards = [with_reference(random_pairs(9), start)]
    whole, whole_state, whole_metrics = update(start, shards, settings, "whole")
    directory, state, losses, steps = start, None, [], []
    for part in (1, 2, 3):
        torch.rand(3)  # whatever else the process draws must not matter
        directory, state, metrics = update(
            directory, shards, settings, f"part-{part}", state=state, base=start, iteration=part, part=part, num_parts=3
        )
        losses += values_of(metrics, "train/loss")
        steps += [row["step"] for row in metrics.to_pylist() if row["name"] == "train/loss"]
    assert same(weights(whole), weights(directory))
    assert losses == values_of(whole_metrics, "train/loss") and steps == list(range(6))
    found, expected = load_trainer_state(state), load_trainer_state(whole_state)
    assert same(found.moments, expected.moments)
    assert (found.cursor.num_steps, found.cursor.num_rows) == (6, 18) == (expected.cursor.num_steps, expected.cursor.num_rows)


def test_parts_in_one_process_equal_those_through_the_disk(start: Path) -> None:
    name = policy.policy_hash(start)
    shards = [with_reference(random_pairs(9), start)]
    learner = DpoLearner(build_tiny_model(), build_tiny_tokenizer(), SETTINGS)
    directory, state = start, None
    for part in (1, 2):
        learner.update(sorted_pairs(shards, name), part, part, 2)
        directory, state, _ = update(directory, shards, SETTINGS, str(part), state=state, base=start, part=part, num_parts=2)
        assert same(weights(directory), learner.model.state_dict())


def test_shards_and_their_order_do_not_change_a_bit(start: Path) -> None:
    pairs = with_reference(random_pairs(7), start)
    one, _, _ = update(start, [pairs], SETTINGS, "one")
    backwards = pairs.take([6, 5, 4, 3, 2, 1, 0])
    shards = [backwards.slice(0, 1), backwards.slice(4), backwards.slice(1, 3)]
    many, _, _ = update(start, shards, SETTINGS, "many")
    assert same(weights(one), weights(many))


def test_steps_count_on_over_iterations_that_have_pairs_of_their_own(start: Path) -> None:
    """Iterative DPO: each iteration is a whole training on pairs whose reference is the policy that it starts from."""
    first, state, _ = update(start, [with_reference(random_pairs(5), start)], SETTINGS, "1")
    shards = [with_reference(random_pairs(3, seed=1), first)]
    second, state, metrics = update(
        first, shards, SETTINGS, "2", state=state, base=start, iteration=2, reference_hash=policy.policy_hash(first)
    )
    assert [row["step"] for row in metrics.to_pylist() if row["name"] == "train/loss"] == [4, 5]
    assert values_of(metrics, "train/loss")[0] == pytest.approx(0.693147, abs=1e-4)
    assert load_trainer_state(state).cursor.iteration == 2 and policy.read_manifest(second).version == 2


def test_the_reference_is_never_built_and_never_runs(monkeypatch: pytest.MonkeyPatch, start: Path) -> None:
    pairs = sorted_pairs([with_reference(random_pairs(8), start)], policy.policy_hash(start))
    model = build_tiny_model()
    assert why_not_packed(model) is None  # tries the model on a probe, once
    learner = DpoLearner(model, build_tiny_tokenizer(), SETTINGS)
    with counted(monkeypatch) as counts:
        learner.update(pairs, 0, 1, 1)
    assert counts == {"loaded": 0, "built": 0, "no_grad": 0, "grad": 8}  # two epochs of two steps of two microbatches


def test_the_reference_need_not_exist_when_training_starts(start: Path, tmp_path: Path) -> None:
    reference = build_tiny_policy(tmp_path / "reference", seed=1)
    pairs, name = with_reference(random_pairs(4), reference), policy.policy_hash(reference)
    shutil.rmtree(reference)
    _, _, metrics = update(start, [pairs], SETTINGS, "1", reference_hash=name)
    assert values_of(metrics, "train/chosen_logprob_drift")[0] != pytest.approx(0, abs=0.1)


def test_without_a_pair_only_the_cursor_moves(start: Path) -> None:
    written, state, metrics = update(start, [tables.empty("REFERENCED")], SETTINGS, "1", iteration=4)
    assert same(weights(start), weights(written)) and policy.read_manifest(written).version == 1
    assert {row["name"]: row["value"] for row in metrics.to_pylist()} == {"train/num_pairs": 0, "train/num_steps": 0}
    assert load_trainer_state(state).cursor.iteration == 4
    update(written, [tables.empty("REFERENCED")], SETTINGS, "2", state=state)


def test_more_parts_than_steps_leave_some_without_any(start: Path) -> None:
    shards = [with_reference(random_pairs(3), start)]
    settings = SETTINGS.model_copy(update={"num_epochs": 1})
    first, state, metrics = update(start, shards, settings, "1", part=1, num_parts=2)
    assert values_of(metrics, "train/num_steps") == [0] and same(weights(start), weights(first))
    _, _, metrics = update(first, shards, settings, "2", base=start, state=state, part=2, num_parts=2)
    assert values_of(metrics, "train/num_steps") == [1]


def test_a_part_goes_on_from_the_state_of_the_very_update_before_it(start: Path) -> None:
    shards = [with_reference(random_pairs(8), start)]
    settings = SETTINGS.model_copy(update={"num_epochs": 3})
    first, state, _ = update(start, shards, settings, "1", part=1, num_parts=3)
    second, _, _ = update(first, shards, settings, "2", base=start, state=state, iteration=2, part=2, num_parts=3)
    with pytest.raises(PolicyError, match="state-1: trainer state of iteration 1, .*policy-2 is of iteration 2"):
        update(second, shards, settings, "3", base=start, state=state, iteration=3, part=3, num_parts=3)
    with pytest.raises(ConfigError, match=r"state.num_steps' = 0: the parts before this one have 4 steps"):
        update(second, shards, settings, "3", base=start, iteration=3, part=3, num_parts=3)
    more = [with_reference(random_pairs(40), start)]
    with pytest.raises(ConfigError, match=r"state.num_steps' = 2: the parts before this one have 10 steps"):
        update(first, more, settings, "3", base=start, state=state, iteration=2, part=2, num_parts=3)
    assert not (start.parent / "policy-3").exists() and not (start.parent / "state-3").exists()


def test_a_warmup_that_outlasts_a_decaying_schedule_is_refused(start: Path) -> None:
    shards = [with_reference(random_pairs(8), start)]
    settings = SETTINGS.model_copy(update={"lr_scheduler": "linear", "warmup_steps": 4})
    with pytest.raises(ConfigError, match="warmup_steps' = 4: the schedule has 4 steps"):
        update(start, shards, settings, "1")
    _, _, metrics = update(start, shards, settings.model_copy(update={"warmup_steps": 3}), "2")
    assert max(values_of(metrics, "train/learning_rate")) == pytest.approx(1e-3)


def test_a_dataset_of_one_row_trains(start: Path) -> None:
    written, _, metrics = update(start, [with_reference(random_pairs(1), start)], SETTINGS, "1")
    assert values_of(metrics, "train/num_steps") == [2] and not same(weights(start), weights(written))


def test_a_loss_that_is_not_finite_names_the_pair_and_leaves_nothing(start: Path) -> None:
    rows = [referenced_row("fine"), referenced_row("lost", [9, 2], [8, 2], reference_rejected_logprob=-1e300)]
    settings = SETTINGS.model_copy(update={"pairs_per_microbatch": 1})
    with pytest.raises(TrainingError, match="loss is inf in the microbatch of pairs .*'lost'") as caught:
        update(start, [referenced_table(rows)], settings, "1", reference_hash=HASH)
    assert "fine" not in str(caught.value)
    assert [path.name for path in start.parent.iterdir()] == ["policy-0"]


def test_a_gradient_that_is_not_finite_names_the_pairs_of_its_step(start: Path) -> None:
    rows = [referenced_row("fine"), referenced_row("far", [9, 2], [8, 2], reference_rejected_logprob=-1e12)]
    settings = SETTINGS.model_copy(update={"beta": 1e25})  # a loss of 1e37, but the square of its gradient is beyond float32
    with pytest.raises(TrainingError, match="gradient norm is inf .*'far'"):
        update(start, [referenced_table(rows)], settings, "1", reference_hash=HASH)
    assert [path.name for path in start.parent.iterdir()] == ["policy-0"]


def test_logprobs_of_another_reference_stop_before_anything_is_loaded(start: Path) -> None:
    pairs = with_reference(random_pairs(3), start)
    with pytest.raises(ContractError) as caught:
        update(start, [pairs], SETTINGS, "1", reference_hash="e" * 64)
    assert policy.policy_hash(start) in str(caught.value) and "e" * 64 in str(caught.value)


def test_ids_outside_the_vocabulary_name_the_pair(start: Path) -> None:
    with pytest.raises(PolicyError, match="'foreign'.*id 900 in rejected_ids.*another tokenizer"):
        update(start, [referenced_table([referenced_row("foreign", [5], [900])])], SETTINGS, "1", reference_hash=HASH)


def test_a_frozen_part_of_the_model_stays_as_it_is(start: Path) -> None:
    settings = SETTINGS.model_copy(update={"trainable_parameters": r"layers\.1\."})
    written, _, _ = update(start, [with_reference(random_pairs(4), start)], settings, "1")
    before, after = weights(start), weights(written)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all("layers.1." in name for name in changed)


def test_the_process_keeps_its_random_generators(start: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    update(start, [with_reference(random_pairs(3), start)], SETTINGS, "1")
    assert torch.equal(torch.rand(2), expected)


def test_the_margin_of_two_pairs_grows_until_both_are_right(start: Path) -> None:
    """The chosen answer of one prompt is the rejected one of the other, so no shift common to both prompts helps."""
    pairs = tables.from_rows(
        "PREFERENCES",
        [
            pair_row("a", [5, 6, 2], [7, 8, 2], prompt_ids=[1, 20, 21]),
            pair_row("b", [7, 8, 2], [5, 6, 2], prompt_ids=[1, 30, 31]),
        ],
    )
    settings = DpoLearnerSettings(learning_rate=1e-3, num_epochs=20)
    _, _, metrics = update(start, [with_reference(pairs, start)], settings, "1")
    margins = values_of(metrics, "train/reward_margin")
    assert margins[0] == pytest.approx(0, abs=1e-5) and margins[-1] > margins[10] > margins[4] > 0.1
    assert values_of(metrics, "train/pair_accuracy")[-1] == 1
    assert values_of(metrics, "train/loss")[-1] < values_of(metrics, "train/loss")[0]
