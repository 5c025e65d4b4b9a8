"""Packs against layouts worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from posttrain.packing import Branch, Pack, pack_rows


def one(packs: list[Pack]) -> Pack:
    (pack,) = packs
    return pack


def test_a_shared_prompt_stands_once_and_its_last_token_scores_the_first_token_of_each_completion() -> None:
    pack = one(pack_rows([[1, 2, 3], [1, 2, 3]], [[4, 5, 6], [7, 8]]))
    assert pack.rows == (0, 1)
    assert pack.ids.tolist() == [1, 2, 3, 4, 5, 7]  # the last token of a completion predicts nothing that is asked for
    assert pack.position_ids.tolist() == [0, 1, 2, 3, 4, 3]
    assert pack.scored.tolist() == [2, 3, 4, 2, 5]
    assert pack.targets.tolist() == [4, 5, 6, 7, 8]
    assert pack.segments == ((0, 5), (5, 1))
    assert pack.branches == (Branch((5, 1), (0, 3)),)
    assert pack.num_positions == 5


def test_the_longest_completion_continues_the_prompt_and_rows_need_not_be_neighbours() -> None:
    pack = one(pack_rows([[1], [9, 9], [1], [1]], [[2], [3, 4], [5, 6, 7], [8, 2]]))
    assert pack.rows == (2, 3, 0, 1)
    assert pack.ids.tolist() == [1, 5, 6, 8, 9, 9, 3]
    assert pack.position_ids.tolist() == [0, 1, 2, 1, 0, 1, 2]
    assert pack.scored.tolist() == [0, 1, 2, 0, 3, 0, 5, 6]
    assert pack.targets.tolist() == [5, 6, 7, 8, 2, 2, 3, 4]
    assert pack.segments == ((0, 3), (3, 1), (4, 3))
    assert pack.branches == (Branch((3, 1), (0, 1)),)


def test_completions_of_one_token_need_no_input_of_their_own() -> None:
    pack = one(pack_rows([[5, 6], [5, 6]], [[1], [2]]))
    assert (pack.ids.tolist(), pack.scored.tolist(), pack.targets.tolist()) == ([5, 6], [1, 1], [1, 2])
    assert pack.segments == ((0, 2),) and pack.branches == ()


def test_rows_without_completion_are_left_out() -> None:
    assert pack_rows([], []) == []
    assert pack_rows([[1, 2], []], [[], []]) == []
    assert one(pack_rows([[1, 2], [3], [1, 2]], [[], [4], [5]])).rows == (2, 1)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="row 1 has an empty prompt"):
        pack_rows([[1], []], [[2], [3]])


def test_trees_of_like_size_come_together_within_the_budget() -> None:
    lengths = [3, 9, 2, 8, 5]  # prompts of one token and completions of `length` give trees of that many tokens
    packs = pack_rows([[row] for row in range(5)], [[7] * length for length in lengths], 10)
    assert [pack.rows for pack in packs] == [(1,), (3,), (4, 0, 2)]
    assert [len(pack.ids) for pack in packs] == [9, 8, 10]


def test_a_tree_above_the_budget_is_cut_and_repeats_its_prompt() -> None:
    prompts, completions = [[1, 2, 3]] * 4, [[4] * 5, [5] * 4, [6] * 3, [7] * 2]
    packs = pack_rows(prompts, completions, 9)  # 3 + 4 and not 3 more; 3 + 3 + 2 + 1
    assert [pack.rows for pack in packs] == [(1, 2, 3), (0,)]
    assert [pack.ids.tolist() for pack in packs] == [[1, 2, 3, 5, 5, 5, 6, 6, 7], [1, 2, 3, 4, 4, 4, 4]]


def test_a_row_above_the_budget_is_a_pack_of_its_own() -> None:
    packs = pack_rows([[1] * 6, [1] * 6, [2]], [[3] * 9, [4] * 2, [5]], 8)
    assert sorted((pack.rows, len(pack.ids)) for pack in packs) == [((0,), 14), ((1, 2), 8)]


def test_every_scored_token_of_random_rows_stands_once_behind_what_came_before_it() -> None:
    draw = np.random.default_rng(0)
    pool = [draw.integers(0, 9, length) for length in (1, 4, 4, 20)]
    prompts = [pool[number] for number in draw.integers(0, 4, 60)]
    completions = [draw.integers(0, 9, length) for length in draw.integers(0, 15, 60)]
    seen: list[int] = []
    for pack in pack_rows(prompts, completions, 50):
        assert len(pack.ids) <= 50
        seen += pack.rows
        scored = iter(zip(pack.scored, pack.targets, strict=True))
        for row in pack.rows:
            for step, token in enumerate(completions[row]):
                source, target = next(scored)
                history = np.concatenate([prompts[row], completions[row][:step]])
                assert target == token and pack.position_ids[source] == len(history) - 1
                assert pack.ids[visible(pack, source)].tolist() == history.tolist()
        assert next(scored, None) is None
    assert sorted(seen) == [row for row in range(60) if len(completions[row])]


def visible(pack: Pack, token: int) -> np.ndarray:
    """Positions that a token may look at, by what the fields of Pack say."""
    positions: list[int] = []
    for branch in pack.branches:
        if branch.completions[0] <= token < sum(branch.completions):
            positions += range(branch.prompt[0], sum(branch.prompt))
    for start, length in pack.segments:
        if start <= token < start + length:
            positions += range(start, token + 1)
    return np.array(positions)
