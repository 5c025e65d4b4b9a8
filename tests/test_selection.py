"""Which prompts an iteration uses."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pytest

from posttrain import selection, tables
from posttrain.config import LoopSettings
from posttrain.errors import ConfigError
from posttrain.resolution import parse


def prompts(size: int) -> pa.Table:
    row: dict[str, Any] = {"messages": [{"role": "user", "content": "?"}], "prompt_ids": [1], "verifier": "exact"}
    return tables.from_rows("PROMPTS", [{**row, "prompt_id": f"p{n}", "answer": "1", "source": "s"} for n in range(size)])


def loop(**values: Any) -> LoopSettings:
    return parse(LoopSettings, {"prompts_per_iteration": 8, "num_shards": 2, "max_refill_rounds": 2, **values})


def select(
    table: pa.Table, settings: LoopSettings, iteration: int, shard: int, refill_round: int = 0, missing: int = 0
) -> list[str]:
    chosen = selection.select_prompts(
        table, settings, iteration=iteration, shard=shard, refill_round=refill_round, num_missing_groups=missing
    )
    return tables.validate(chosen, "PROMPTS")["prompt_id"].to_pylist()


def window(table: pa.Table, settings: LoopSettings, iteration: int) -> list[str]:
    return [prompt_id for shard in range(settings.num_shards) for prompt_id in select(table, settings, iteration, shard)]


def test_shards_split_the_window_evenly_and_share_nothing() -> None:
    table, settings = prompts(40), loop()
    first, second = select(table, settings, 1, 0), select(table, settings, 1, 1)
    assert len(first) == len(second) == 4
    assert not set(first) & set(second)


def test_an_epoch_uses_every_prompt_once_and_the_next_one_another_order() -> None:
    table, settings = prompts(40), loop()
    epochs = [[window(table, settings, 1 + 5 * epoch + index) for index in range(5)] for epoch in range(2)]
    for windows in epochs:
        assert sorted(name for names in windows for name in names) == sorted(table["prompt_id"].to_pylist())
    assert epochs[0] != epochs[1]


def test_what_does_not_fill_a_window_changes_from_epoch_to_epoch() -> None:
    table, settings = prompts(43), loop()
    used = [{name for index in range(5) for name in window(table, settings, 1 + 5 * epoch + index)} for epoch in range(4)]
    assert {len(names) for names in used} == {40}
    assert len(set.union(*used)) == 43


def test_the_first_iteration_takes_the_first_window() -> None:
    table, settings = prompts(40), loop(seed=5)
    shuffled = sorted(table["prompt_id"].to_pylist(), key=lambda name: hashlib.sha256(f"5:epoch:0:{name}".encode()).digest())
    assert sorted(window(table, settings, 1)) == sorted(shuffled[:8])
    assert sorted(window(table, settings, 5)) == sorted(shuffled[32:])
    with pytest.raises(ConfigError, match="'iteration' = 0: the first iteration is 1"):
        select(table, settings, 0, 0)


def test_selection_repeats_for_a_seed_whatever_the_order_of_the_rows() -> None:
    table, settings = prompts(40), loop(seed=3)
    backwards = table.take(list(range(39, -1, -1)))
    assert window(table, settings, 2) == window(table, settings, 2) == window(backwards, settings, 2)
    assert window(table, settings, 2) != window(table, loop(seed=4), 2)


def test_no_prompt_occurs_twice_in_an_iteration_with_all_its_refills() -> None:
    table, settings = prompts(50), loop()
    for iteration in (1, 3, 6, 17):
        names = window(table, settings, iteration)
        for refill_round in (1, 2):
            for shard in (0, 1):
                refill = select(table, settings, iteration, shard, refill_round, missing=4)
                assert len(refill) == 4
                names += refill
        assert len(set(names)) == len(names) == 8 + 16


def test_a_small_set_gives_fewer_refills_never_a_second_time() -> None:
    table, settings = prompts(11), loop()
    refills = [select(table, settings, 1, shard, refill_round, missing=4) for refill_round in (1, 2) for shard in (0, 1)]
    assert [len(refill) for refill in refills] == [1, 1, 1, 0]  # 3 prompts outside the window
    names = [*window(table, settings, 1), *(name for refill in refills for name in refill)]
    assert sorted(names) == sorted(table["prompt_id"].to_pylist())


def test_no_missing_group_means_no_rows_with_the_right_schema() -> None:
    chosen = selection.select_prompts(prompts(40), loop(), iteration=1, shard=0, refill_round=1, num_missing_groups=0)
    assert chosen.num_rows == 0
    assert chosen.schema == tables.PROMPTS


def test_exactly_enough_prompts_are_enough() -> None:
    table, settings = prompts(8), loop()
    selection.check_enough(table, settings)
    assert sorted(window(table, settings, 4)) == sorted(table["prompt_id"].to_pylist())


def test_fewer_prompts_than_an_iteration_needs_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"loop.prompts_per_iteration.*only 7 prompts.*7 or less"):
        selection.check_enough(prompts(7), loop())
    with pytest.raises(ConfigError, match="only 0 prompts"):
        select(tables.empty("PROMPTS"), loop(), 1, 0)


@pytest.mark.parametrize(("shard", "refill_round", "name"), [(2, 0, "shard"), (-1, 0, "shard"), (0, 3, "refill_round")])
def test_a_position_outside_the_loop_is_refused(shard: int, refill_round: int, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        select(prompts(40), loop(), 1, shard, refill_round, missing=1)
