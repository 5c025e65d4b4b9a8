"""Row selection, the plan of steps, and padding."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from posttrain import tables
from posttrain.config import ImportanceCorrection, LearnerSettings
from posttrain.errors import ContractError
from posttrain.grpo_metrics import WeightedMeans, metric_rows
from posttrain.grpo_rows import TrainingRow, left_out_reasons, plan_epochs, trained_groups
from posttrain.grpo_tensors import cap_importance, log_importance, pad_rows
from tests.learner.scored_tables import random_scored, scored_row, scored_table

PAD_ID, EOS_ID = 0, 2


def row_of(prompt: list[int], completion: list[int]) -> TrainingRow:
    return TrainingRow("p", 0, np.array(prompt), np.array(completion), np.zeros(len(completion), np.float32), None, 1.0)


def test_masks_come_from_lengths_never_from_token_values() -> None:  # B07
    batch = pad_rows([row_of([9, PAD_ID, 9], [5, 6, 7]), row_of([9], [5, EOS_ID]), row_of([8, 8], [4] * 5)], PAD_ID, "cpu")
    assert batch["completion_ids"].tolist() == [[5, 6, 7, 0, 0], [5, 2, 0, 0, 0], [4] * 5]
    assert batch["completion_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [1] * 5]
    assert batch["prompt_ids"].tolist() == [[9, PAD_ID, 9], [0, 0, 9], [0, 8, 8]]
    assert batch["prompt_mask"].tolist() == [[1, 1, 1], [0, 0, 1], [0, 1, 1]]


def test_end_of_sequence_is_trained_when_it_is_also_the_pad_token() -> None:  # B09
    batch = pad_rows([row_of([9], [5, 6, EOS_ID]), row_of([9], [5, EOS_ID])], EOS_ID, "cpu")
    assert batch["completion_ids"].tolist() == [[5, 6, 2], [5, 2, 2]]
    assert batch["completion_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]


def test_each_reason_to_leave_a_row_out_is_named() -> None:
    scored = scored_table(
        [
            scored_row("a", 0, advantage=1.0),
            scored_row("a", 1, advantage=None),
            scored_row("a", 2, advantage=-1.0, behavior_logprobs=None),
            scored_row("a", 3, advantage=-1.0, finish_reason="length"),
            scored_row("a", 4, [], advantage=-1.0),
            scored_row("a", 5, advantage=0.0),  # the mean of a group that has a signal
            scored_row("b", 0, advantage=0.0),
            scored_row("b", 1, advantage=0.0),
        ]
    )
    reasons = left_out_reasons(scored, LearnerSettings(mask_truncated=True))
    assert reasons == [None, "unjudged", "unknown_logprobs", "truncated", "empty", None, "zero_variance", "zero_variance"]
    assert left_out_reasons(scored, LearnerSettings())[3] is None
    assert [[row.key for row in group] for group in trained_groups(scored, LearnerSettings())] == [[("a", 0), ("a", 3), ("a", 5)]]


def test_batch_scaling_divides_by_the_deviation_of_every_judged_reward() -> None:
    scored = scored_table(
        [
            scored_row("a", 0, advantage=0.5, reward=1.0),
            scored_row("a", 1, advantage=-0.5, reward=0.0),
            scored_row("b", 0, advantage=0.0, reward=3.0),
            scored_row("b", 1, advantage=None),
        ]
    )
    group = trained_groups(scored, LearnerSettings.model_validate({"scaling": "batch"}))[0]
    assert [row.advantage for row in group] == pytest.approx([0.5 / 1.5276252, -0.5 / 1.5276252])


def test_missing_reference_logprobs_stop_the_run_with_the_row() -> None:
    with pytest.raises(ContractError, match=r"reference_logprobs.*\('a', 0\)"):
        trained_groups(scored_table([scored_row("a", 0)]), LearnerSettings(kl_coef=0.1))


def test_every_group_is_trained_once_an_epoch_in_steps_of_even_size() -> None:
    settings = LearnerSettings(groups_per_step=4, groups_per_microbatch=2, num_epochs=2)
    epochs = plan_epochs(trained_groups(random_scored(7), settings), settings, iteration=0)
    assert [[microbatch.step for microbatch in epoch] for epoch in epochs] == [[0, 0, 1, 1], [2, 2, 3, 3]]
    for epoch in epochs:
        assert [len(microbatch.rows) for microbatch in epoch] == [6, 6, 8, 8]  # steps of 3 and 4 groups of 4 rows
        assert sorted({row.prompt_id for microbatch in epoch for row in microbatch.rows}) == [f"p{group}" for group in range(7)]
        for step in {microbatch.step for microbatch in epoch}:
            parts = [microbatch for microbatch in epoch if microbatch.step == step]
            assert {part.step_num_tokens for part in parts} == {sum(part.num_tokens for part in parts)}
            assert sum(part.row_share for part in parts) == pytest.approx(len(parts))


@pytest.mark.parametrize("rows_per_group", [1, 2, 5])
@pytest.mark.parametrize("per_microbatch", [1, 2, 4])
def test_every_plan_has_whole_steps_of_as_many_microbatches_and_none_is_empty(per_microbatch: int, rows_per_group: int) -> None:
    settings = LearnerSettings(groups_per_step=4, groups_per_microbatch=per_microbatch, num_epochs=3)
    for num_groups in range(1, 18):
        rows = [scored_row(f"p{group:02}", sample) for group in range(num_groups) for sample in range(rows_per_group)]
        epochs = plan_epochs(trained_groups(scored_table(rows), settings), settings, iteration=1)
        assert all(len(epoch) == len(epochs[0]) for epoch in epochs)
        parts = [part for epoch in epochs for part in epoch]
        per_step = Counter(part.step for part in parts)
        assert sorted(per_step) == list(range(3 * math.ceil(num_groups / 4)))
        assert set(per_step.values()) == {part.step_num_microbatches for part in parts}
        assert len(set(per_step.values())) == 1
        # more than groups_per_microbatch only where a step has too few rows to be cut further
        bound = per_microbatch * rows_per_group + (rows_per_group == per_microbatch == 1)
        assert all(1 <= len(part.rows) <= bound for part in parts)
        for epoch in epochs:
            assert sorted(row.key for part in epoch for row in part.rows) == sorted(
                (row["prompt_id"], row["sample_index"]) for row in rows
            )


def test_the_order_depends_on_seed_and_iteration_and_not_on_the_order_of_shards() -> None:
    scored = random_scored(9)
    backwards = scored.take(list(range(scored.num_rows))[::-1])

    def order(table: object, seed: int, iteration: int) -> list[tuple[str, int]]:
        settings = LearnerSettings(seed=seed)
        return [row.key for part in plan_epochs(trained_groups(table, settings), settings, iteration)[0] for row in part.rows]

    assert order(scored, 1, 4) == order(backwards, 1, 4)
    assert len({tuple(order(scored, seed, iteration)) for seed in (0, 1) for iteration in (0, 1)}) == 4


def test_importance_weights_at_token_and_at_sequence_level() -> None:
    old = torch.tensor([[0.0, 0.5, 1.0, 2.0], [0.3, 0.3, 9.0, 9.0]])
    behavior, mask = torch.zeros(2, 4), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])  # what stands in the padding must not matter

    def weights(correction: ImportanceCorrection, cap: float) -> list[list[float]]:
        return cap_importance(log_importance(old, behavior, mask, correction), correction, cap).tolist()

    assert weights(ImportanceCorrection.token_truncate, 2.0)[0] == pytest.approx([1, 1.6487, 2, 2], abs=1e-4)
    assert weights(ImportanceCorrection.token_mask, 2.0)[0] == pytest.approx([1, 1.6487, 0, 0], abs=1e-4)
    assert weights(ImportanceCorrection.sequence_truncate, 2.0) == [pytest.approx([2.0]), pytest.approx([1.8221], abs=1e-4)]
    assert weights(ImportanceCorrection.sequence_mask, 2.0) == [[0.0], pytest.approx([1.8221], abs=1e-4)]


def test_a_nan_does_not_wipe_out_a_mean_and_an_absent_mean_is_not_logged() -> None:  # B35
    means = WeightedMeans()
    for value in (0.5, float("nan"), float("nan"), 0.8):
        means.add("train/kl", value, 1)
        means.add("train/entropy", float("nan"), 1)
    assert means.means() == {"train/kl": pytest.approx(0.65)}
    assert means.weights == {"train/kl": 2}
    assert metric_rows({"a": float("nan"), "b": 1.0}, 0, None) == [{"iteration": 0, "step": None, "name": "b", "value": 1.0}]


def test_nothing_is_selected_from_an_empty_table() -> None:
    assert trained_groups(tables.empty("SCORED"), LearnerSettings()) == []
