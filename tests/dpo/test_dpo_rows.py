"""Which pair stands in which step: every pair once an epoch, whatever the shards; parts that make up the whole."""

from __future__ import annotations

import itertools
import math

import pyarrow as pa
import pytest

from posttrain import tables
from posttrain.config_dpo import DpoLearnerSettings
from posttrain.dpo_rows import PartPlan, plan_part, read_pairs, sorted_pairs
from posttrain.errors import ConfigError, ContractError
from tests.dpo.pair_tables import HASH, random_pairs, referenced_row, referenced_table

SETTINGS = DpoLearnerSettings(pairs_per_step=8, pairs_per_microbatch=4, num_epochs=3)


def referenced(num_pairs: int) -> pa.Table:
    return referenced_table(referenced_row("x") | row for row in random_pairs(num_pairs).to_pylist())


def rows_of(plan: PartPlan) -> list[list[int]]:
    return [[row for microbatch in step for row in microbatch.rows] for step in plan.steps]


@pytest.mark.parametrize("num_pairs", [1, 2, 7, 8, 9, 17, 40])
def test_every_pair_stands_in_every_epoch_once_in_steps_of_like_size(num_pairs: int) -> None:
    steps = rows_of(plan_part(referenced(num_pairs), SETTINGS, 1, 1))
    per_epoch = math.ceil(num_pairs / 8)
    assert len(steps) == 3 * per_epoch
    orders = [list(itertools.chain.from_iterable(steps[first : first + per_epoch])) for first in range(0, len(steps), per_epoch)]
    assert all(sorted(order) == list(range(num_pairs)) for order in orders)
    sizes = {len(step) for step in steps}
    assert max(sizes) <= 8 and max(sizes) - min(sizes) <= 1
    assert num_pairs < 7 or len({tuple(order) for order in orders}) == 3  # another order in each epoch


@pytest.mark.parametrize("num_pairs", [1, 5, 9, 17, 33])
def test_every_step_has_the_same_number_of_microbatches_and_shares_add_up(num_pairs: int) -> None:
    plan = plan_part(referenced(num_pairs), SETTINGS, 1, 1)
    (num_microbatches,) = {len(step) for step in plan.steps}
    for step in plan.steps:
        assert all(1 <= len(microbatch.rows) <= 4 for microbatch in step)
        assert sum(microbatch.pair_share for microbatch in step) == pytest.approx(num_microbatches)
        assert sum(microbatch.chosen_token_share for microbatch in step) == pytest.approx(num_microbatches)
        assert {microbatch.step_num_tokens for microbatch in step} == {sum(microbatch.num_tokens for microbatch in step)}


def test_token_counts_are_those_of_the_answers() -> None:
    rows = [referenced_row("a", [5, 6, 2], [7, 2]), referenced_row("b", [5], [6, 7, 8, 2])]
    ((microbatch,),) = plan_part(referenced_table(rows), DpoLearnerSettings(), 1, 1).steps
    assert (microbatch.num_tokens, microbatch.num_chosen_tokens) == (10, 4)
    assert (microbatch.step_num_pairs, microbatch.step_num_tokens, microbatch.step_num_chosen_tokens) == (2, 10, 4)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 5, 9, 20])
def test_parts_one_after_the_other_are_the_whole(num_parts: int) -> None:
    pairs = referenced(20)
    whole = plan_part(pairs, SETTINGS, 1, 1)
    parts = [plan_part(pairs, SETTINGS, part, num_parts) for part in range(1, num_parts + 1)]
    assert [step for part in parts for step in part.steps] == list(whole.steps)
    assert [part.first_step for part in parts] == [
        sum(len(before.steps) for before in parts[:number]) for number in range(num_parts)
    ]
    assert {part.total_num_steps for part in parts} == {9}


@pytest.mark.parametrize("part", [0, 4])
def test_a_part_that_is_none_is_refused(part: int) -> None:
    with pytest.raises(ConfigError, match="parts 1 to 3"):
        plan_part(referenced(3), SETTINGS, part, 3)


def test_without_pairs_there_are_no_steps() -> None:
    assert plan_part(tables.empty("REFERENCED"), SETTINGS, 1, 1) == PartPlan([], 0, 0)


def test_the_order_of_shards_and_rows_does_not_matter() -> None:
    pairs = referenced(9)
    expected = sorted_pairs([pairs], HASH)
    backwards = pairs.take(list(range(8, -1, -1)))
    assert sorted_pairs([backwards.slice(5), backwards.slice(0, 5), tables.empty("REFERENCED")], HASH).equals(expected)
    assert expected["pair_id"].to_pylist() == sorted(pairs["pair_id"].to_pylist())


def test_the_seed_decides_the_order() -> None:
    pairs = referenced(20)
    first, second = (rows_of(plan_part(pairs, SETTINGS.model_copy(update={"seed": seed}), 1, 1)) for seed in (0, 1))
    assert first != second


def test_rows_are_read_as_trl_takes_them() -> None:
    pairs = referenced_table([referenced_row("a"), referenced_row("b", [9, 2], [8])])
    assert read_pairs(pairs, [1]) == [
        {"prompt_ids": [1, 8, 9], "chosen_ids": [9, 2], "rejected_ids": [8], "ref_chosen_logps": -9.0, "ref_rejected_logps": -8.0}
    ]


def test_a_pair_that_stands_in_two_shards_is_refused() -> None:
    with pytest.raises(ContractError, match="pair-001"):
        sorted_pairs([referenced(2), referenced(2).slice(1)], HASH)


def test_logprobs_of_another_reference_are_refused_and_both_are_named() -> None:
    rows = [referenced_row("good"), referenced_row("stale", [9, 2], reference_hash="f" * 64)]
    with pytest.raises(ContractError) as caught:
        sorted_pairs([referenced_table(rows)], HASH)
    for named in ("stale", HASH, "f" * 64, "reference_hash"):
        assert named in str(caught.value)


@pytest.mark.parametrize("value", [None, float("nan"), float("-inf"), 1.0])
@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_a_stored_logprob_that_is_missing_or_impossible_stops_with_the_pair(side: str, value: float | None) -> None:
    column = f"reference_{side}_logprob"
    good = referenced_table([referenced_row("good"), referenced_row("bad", [9, 2])])
    broken = good.set_column(good.schema.get_field_index(column), tables.REFERENCED.field(column), pa.array([-3.0, value]))
    with pytest.raises(ContractError) as caught:
        sorted_pairs([broken], HASH)
    assert column in str(caught.value) and "'bad'" in str(caught.value)
