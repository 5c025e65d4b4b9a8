"""Which pairs train, which are held out, which shard they go to, and whether a reference reads them as the policy does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from posttrain import tables
from posttrain.errors import ConfigError, PolicyError
from posttrain.preferences import (
    LoadedPreferences,
    RejectedPair,
    check_same_tokenizer,
    hold_out_pairs,
    shard_pairs,
    without_held_out,
)
from tests.tiny_models import CHAT_TEMPLATE, build_tiny_tokenizer

EARLIER = RejectedPair("earlier", "an answer is empty")


def pairs(num_prompts: int, pairs_per_prompt: int = 2, num_tokens: int = 3) -> LoadedPreferences:
    rows = [
        {
            "pair_id": f"{prompt}-{pair}",
            "prompt_id": f"{pair}",  # says nothing about the prompt, as ids of a source may
            "prompt_ids": [1, prompt],
            "chosen_ids": [7] * num_tokens,
            "rejected_ids": [8 + pair],
            "source": "s",
            "margin": None,
        }
        for prompt in range(num_prompts)
        for pair in range(pairs_per_prompt)
    ]
    return LoadedPreferences(tables.from_rows("PREFERENCES", rows), (EARLIER,))


def prompts_of(table: pa.Table) -> set[tuple[int, ...]]:
    return {tuple(ids) for ids in table["prompt_ids"].to_pylist()}


def test_no_prompt_is_on_both_sides_and_the_share_is_about_right() -> None:
    training, evaluation = hold_out_pairs(pairs(1000), 0.1, seed=0)
    assert prompts_of(training.table).isdisjoint(prompts_of(evaluation))
    assert training.table.num_rows + evaluation.num_rows == 2000
    assert 70 <= len(prompts_of(evaluation)) <= 130  # three standard deviations of 9.5
    assert training.rejected == (EARLIER,)
    for table in (training.table, evaluation):
        tables.validate(table, "PREFERENCES")


def test_a_prompt_stays_on_its_side_when_rows_are_added_or_shuffled_and_the_seed_decides() -> None:
    few, many = pairs(300), pairs(600)
    held_out = prompts_of(hold_out_pairs(few, 0.2, seed=1)[1])
    assert held_out == {prompt for prompt in prompts_of(hold_out_pairs(many, 0.2, seed=1)[1]) if prompt[1] < 300}
    order = pa.array(np.random.default_rng(0).permutation(few.table.num_rows))
    assert held_out == prompts_of(hold_out_pairs(LoadedPreferences(few.table.take(order), ()), 0.2, seed=1)[1])
    assert held_out != prompts_of(hold_out_pairs(few, 0.2, seed=2)[1])


def test_one_prompt_always_trains() -> None:
    for seed in range(20):
        training, evaluation = hold_out_pairs(pairs(1), 0.5, seed)
        assert (training.table.num_rows, evaluation.num_rows) == (2, 0)
        assert evaluation.schema == tables.PREFERENCES


def test_two_prompts_leave_one_for_training_whatever_the_seed() -> None:
    sizes = {hold_out_pairs(pairs(2), 0.5, seed)[1].num_rows for seed in range(40)}
    assert sizes == {0, 2}


def test_training_pairs_of_given_evaluation_prompts_are_left_out_and_named() -> None:
    loaded = pairs(5)
    kept = without_held_out(loaded, loaded.table.slice(4, 1))
    assert prompts_of(kept.table) == {(1, 0), (1, 1), (1, 3), (1, 4)}
    assert kept.rejected == (EARLIER, *(RejectedPair(f"2-{n}", "the same prompt is held out for evaluation") for n in range(2)))
    chunked = pa.concat_tables([loaded.table.slice(0, 3), loaded.table.slice(7)])
    assert prompts_of(without_held_out(LoadedPreferences(chunked, ()), loaded.table.slice(8)).table) == {(1, 0), (1, 1), (1, 3)}
    with pytest.raises(ConfigError, match="no pair is left.*10 × the same prompt is held out"):
        without_held_out(loaded, loaded.table)


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7, 12, 40])
def test_shards_in_order_are_the_table_again(num_shards: int) -> None:
    table = pairs(6).table
    shards = shard_pairs(table, num_shards)
    assert len(shards) == num_shards
    assert all(shard.schema == tables.PREFERENCES for shard in shards)
    assert pa.concat_tables(shards).equals(table)


def test_shards_are_balanced_by_tokens_not_rows() -> None:
    table = pa.concat_tables([pairs(10, 1, num_tokens=97).table, pairs(100, 1, num_tokens=7).table])  # 1,000 tokens each
    assert [shard.num_rows for shard in shard_pairs(table, 2)] == [10, 100]
    assert [shard.num_rows for shard in shard_pairs(table, 4)] == [5, 5, 50, 50]


def test_an_empty_table_and_no_shard() -> None:
    assert [shard.num_rows for shard in shard_pairs(tables.empty("PREFERENCES"), 3)] == [0, 0, 0]
    with pytest.raises(ConfigError, match="loop.num_shards"):
        shard_pairs(pairs(1).table, 0)


def test_a_shard_written_alone_holds_its_own_rows_only(tmp_path: Path) -> None:
    table = pairs(1000, num_tokens=100).table
    whole = tables.write_table(table, "PREFERENCES", tmp_path / "whole.arrow").stat().st_size
    shard = shard_pairs(table, 10)[4]
    path = tables.write_table(shard, "PREFERENCES", tmp_path / "shard.arrow")
    assert path.stat().st_size < whole / 5
    assert tables.read_table(path, "PREFERENCES").equals(shard)


def saved(path: Path, **changes: str) -> Path:
    tokenizer = build_tiny_tokenizer(CHAT_TEMPLATE)
    for name, value in changes.items():
        if name == "token":
            tokenizer.add_tokens([value])
        else:
            setattr(tokenizer, name, value)
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"token": "new"}, "id 65 is None to the policy and 'new' to the reference"),
        ({"eos_token": "<unk>"}, "eos_token_id is 2 to the policy and 3 to the reference"),
        ({"chat_template": "{{ messages[0].content }}"}, "chat_template is "),
    ],
)
def test_a_reference_with_another_tokenizer_is_refused(tmp_path: Path, changes: dict[str, str], difference: str) -> None:
    policy, reference = saved(tmp_path / "policy"), saved(tmp_path / "reference", **changes)
    with pytest.raises(PolicyError) as error:
        check_same_tokenizer(policy, reference, trust_remote_code=False)
    assert all(part in str(error.value) for part in (str(policy), str(reference), difference))


def test_a_reference_that_only_pads_otherwise_is_the_same(tmp_path: Path) -> None:
    check_same_tokenizer(saved(tmp_path / "policy"), saved(tmp_path / "reference", pad_token="</s>"), trust_remote_code=False)
