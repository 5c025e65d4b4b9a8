"""Verified rollouts → pairs: who is paired with whom, what is left out and why, ids untouched."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from posttrain import tables
from posttrain.config_dpo import PairSettings
from posttrain.errors import ContractError
from posttrain.preference_pairs import (
    LENGTH_RATIO,
    NEAR_DUPLICATE,
    SMALL_MARGIN,
    TRUNCATED,
    UNJUDGED,
    _common_length,
    pair_metrics,
    pairs_from_rollouts,
)
from posttrain.preferences import LoadedPreferences
from tests.learner.scored_tables import rollout_row, verdict_row

Row = tuple[str, int, list[int], float | None, str]


def make(*rows: Row, settings: PairSettings | None = None, iteration: int = 3, **values: Any) -> LoadedPreferences:
    rollouts = [rollout_row(prompt, n, ids, finish_reason=finish, **values) for prompt, n, ids, _, finish in rows]
    verdicts = [verdict_row(prompt, n, reward) for prompt, n, _, reward, _ in rows]
    loaded = pairs_from_rollouts(
        tables.from_rows("ROLLOUTS", rollouts),
        tables.from_rows("VERDICTS", verdicts[::-1]),
        settings or PairSettings(),
        iteration=iteration,
    )
    tables.validate(loaded.table, "PREFERENCES")
    return loaded


def group(*completions: tuple[list[int], float | None] | tuple[list[int], float | None, str], prompt: str = "p") -> list[Row]:
    return [(prompt, n, one[0], one[1], one[2] if len(one) == 3 else "stop") for n, one in enumerate(completions)]


def reasons(loaded: LoadedPreferences) -> dict[str, str]:
    return {pair.pair_id: pair.reason for pair in loaded.rejected}


def test_best_against_worst_with_the_sampled_ids_and_the_difference_of_rewards() -> None:
    loaded = make(*group(([5, 2], 0.25), ([6, 6, 2], 1.0), ([7, 2], -0.5), ([8, 2], 0.5)))
    assert loaded.rejected == ()
    assert loaded.table.to_pylist() == [
        {
            "pair_id": "3:p:1-2",
            "prompt_id": "p",
            "prompt_ids": [1, 8, 9],
            "chosen_ids": [6, 6, 2],
            "rejected_ids": [7, 2],
            "source": "rollouts",
            "margin": 1.5,
        }
    ]


def test_second_best_goes_with_second_worst_and_no_completion_is_used_twice() -> None:
    rows = group(([5], 0.2), ([6], 1.0), ([7], 0.0), ([8], 0.9), ([9], 0.5))
    table = make(*rows, settings=PairSettings(max_pairs_per_prompt=2, min_margin=0.1)).table
    assert table["pair_id"].to_pylist() == ["3:p:1-2", "3:p:3-0"]
    assert table["margin"].to_pylist() == pytest.approx([1.0, 0.7])
    many = make(*rows, settings=PairSettings(max_pairs_per_prompt=9, min_margin=0.1)).table
    assert many["pair_id"].to_pylist() == ["3:p:1-2", "3:p:3-0"]  # the fifth has nobody left
    wide = make(*rows, settings=PairSettings(max_pairs_per_prompt=2, min_margin=0.8)).table
    assert wide["pair_id"].to_pylist() == ["3:p:1-2"]


def test_unjudged_and_empty_completions_are_never_used() -> None:
    rows = [*group(([5], None), ([6], 1.0)), *group(([], 0.0), ([6], 1.0), prompt="q"), *group(([5], None), prompt="r")]
    assert reasons(make(*rows)) == {"p": UNJUDGED, "q": UNJUDGED, "r": UNJUDGED}
    blank = make(*group(([2], 0.0), ([2], 1.0)), completion=" ")
    assert (blank.table.num_rows, reasons(blank)) == (0, {"p": UNJUDGED})
    assert blank.table.schema == tables.PREFERENCES


def test_a_completion_that_was_cut_off_may_be_rejected_but_never_chosen() -> None:
    cut_worst = make(*group(([5], 0.0, "length"), ([6], 1.0)))
    assert cut_worst.table["pair_id"].to_pylist() == ["3:p:1-0"]
    cut_best = make(*group(([5], 1.0, "length"), ([6], 0.75), ([7], 0.0, "aborted")))
    assert cut_best.table["pair_id"].to_pylist() == ["3:p:1-2"]
    only = make(*group(([5], 1.0, "length"), ([6], 0.0), ([7], 0.0)))
    assert reasons(only) == {"p": TRUNCATED}


def test_margin_and_length_rules() -> None:
    small = make(*group(([5], 0.5), ([6], 0.1)))
    assert reasons(small) == {"p": SMALL_MARGIN}
    assert make(*group(([5], 0.5), ([6], 0.0))).table.num_rows == 1  # the margin itself is enough
    long, short = ([5] * 9 + [2], 1.0), ([6, 7, 2], 0.0)
    assert reasons(make(*group(long, short), settings=PairSettings(max_length_ratio=3.3))) == {"p": LENGTH_RATIO}
    assert make(*group(long, short), settings=PairSettings(max_length_ratio=3.4)).table.num_rows == 1
    assert reasons(make(*group((short[0], 1.0), (long[0], 0.0)), settings=PairSettings(max_length_ratio=2))) == {
        "p": LENGTH_RATIO
    }
    other = make(*group(long, short, ([7] * 6, 0.25)), settings=PairSettings(max_length_ratio=2))
    assert other.table["pair_id"].to_pylist() == ["3:p:0-2"]  # the next worse one keeps the rule


def test_near_duplicates_are_left_out() -> None:
    base = list(range(10, 60))
    one_off = [*base[:20], 99, *base[21:]]  # 49 of 50 tokens match: 0.98
    assert reasons(make(*group((base, 1.0), (one_off, 0.0)))) == {"p": NEAR_DUPLICATE}
    assert make(*group((base, 1.0), (one_off, 0.0)), settings=PairSettings(max_similarity=0.981)).table.num_rows == 1
    assert make(*group((base, 1.0), (one_off, 0.0)), settings=PairSettings(max_similarity=1)).table.num_rows == 1
    same = group((base, 1.0), (base, 0.0))
    assert reasons(make(*same, settings=PairSettings(max_similarity=1))) == {"p": NEAR_DUPLICATE}
    assert make(*group((base, 1.0), (base[::-1], 0.0))).table.num_rows == 1  # the same tokens in another order


def test_one_answer_is_chosen_once_for_a_prompt() -> None:
    rows = group(([5], 1.0), ([5], 1.0), ([6], 0.0), ([7], 0.0))
    table = make(*rows, settings=PairSettings(max_pairs_per_prompt=2)).table
    assert table["chosen_ids"].to_pylist() == [[5]]


def test_ties_follow_seed_iteration_and_prompt_and_not_the_order_of_rows() -> None:
    rows = [row for name in map(str, range(40)) for row in group(*[([n + 5], float(n % 2)) for n in range(8)], prompt=name)]

    def picked(rows: list[Row], seed: int = 0, iteration: int = 1) -> dict[str, str]:
        table = make(*rows, settings=PairSettings(seed=seed), iteration=iteration).table
        samples = (pair_id.split(":")[-1] for pair_id in table["pair_id"].to_pylist())
        return dict(zip(table["prompt_id"].to_pylist(), samples, strict=True))

    first = picked(rows)
    shuffled = [rows[n] for n in np.random.default_rng(0).permutation(len(rows))]
    assert picked(shuffled) == first
    assert len(set(first.values())) > 8  # of 16 possible pairs
    assert picked(rows, seed=1) != first
    assert picked(rows, iteration=2) != first


def test_every_group_without_a_pair_is_in_the_metrics_by_reason() -> None:
    rows = [
        *group(([5, 5, 2], 1.0), ([6, 2], 0.0), prompt="good"),
        *group(([5], 1.0), ([6], 1.0), prompt="equal"),
        *group(([5], None), ([6], 1.0), prompt="unjudged"),
    ]
    values = {row["name"]: row["value"] for row in pair_metrics(make(*rows), num_groups=3, iteration=3).to_pylist()}
    assert {name.removeprefix("preferences/"): value for name, value in values.items() if value} == {
        "num_pairs": 1, "num_groups": 3, "num_groups_without_pair": 2, "num_groups_without_pair/small_margin": 1,
        "num_groups_without_pair/unjudged": 1, "margin_mean": 1.0, "chosen_tokens_mean": 3.0, "rejected_tokens_mean": 2.0,
    }  # fmt: skip
    empty = pair_metrics(make(*rows[2:]), num_groups=2, iteration=3)
    assert "preferences/margin_mean" not in empty["name"].to_pylist()


def test_rollouts_without_verdicts_or_with_two_prompts_are_refused() -> None:
    rollouts = [rollout_row("p", n, [n + 5]) for n in range(2)]
    verdicts = [verdict_row("p", n, float(n)) for n in range(2)]
    with pytest.raises(ContractError, match="no verdict"):
        pairs_from_rollouts(
            tables.from_rows("ROLLOUTS", rollouts), tables.from_rows("VERDICTS", verdicts[:1]), PairSettings(), iteration=1
        )
    other = [rollouts[0], rollouts[1] | {"prompt_ids": [1]}]
    with pytest.raises(ContractError, match=r"prompt_id='p'.*different prompts"):
        pairs_from_rollouts(
            tables.from_rows("ROLLOUTS", other), tables.from_rows("VERDICTS", verdicts), PairSettings(), iteration=1
        )


def test_no_rollouts_give_no_pairs() -> None:
    loaded = pairs_from_rollouts(tables.empty("ROLLOUTS"), tables.empty("VERDICTS"), PairSettings(), iteration=1)
    assert (loaded.table.num_rows, loaded.rejected) == (0, ())


def test_long_completions_of_few_token_kinds_are_compared_in_bounded_time() -> None:
    chance = np.random.default_rng(0)
    ids = chance.integers(5, 15, 16_000)
    shuffled, looping = (
        group((ids.tolist(), 1.0), (chance.permutation(ids).tolist(), 0.0)),
        group(([5] * 16_000, 1.0), ([5] * 15_000 + [6] * 1000, 0.0), prompt="loop"),
    )
    started = time.process_time()
    loaded = make(*shuffled, *looping, settings=PairSettings(max_similarity=0.9))
    assert (loaded.table["prompt_id"].to_pylist(), reasons(loaded)) == (["p"], {"loop": NEAR_DUPLICATE})
    assert time.process_time() - started < 5


def test_the_longest_common_subsequence_is_that_of_the_textbook() -> None:
    def textbook(one: list[int], other: list[int]) -> int:
        row = [0] * (len(other) + 1)
        for a in one:
            previous = row[:]
            for n, b in enumerate(other):
                row[n + 1] = previous[n] + 1 if a == b else max(previous[n + 1], row[n])
        return row[-1]

    chance = np.random.default_rng(0)
    for _ in range(100):
        one, other = (chance.integers(0, 4, chance.integers(0, 150)).tolist() for _ in range(2))
        assert _common_length(tuple(one), tuple(other)) == textbook(one, other)


def test_ids_survive_a_table_of_several_chunks() -> None:
    rows = [row for name in "abc" for row in group(([5, 6], 1.0), ([7], 0.0), prompt=name)]
    parts = [tables.from_rows("ROLLOUTS", [rollout_row(p, n, ids) for p, n, ids, *_ in rows[k : k + 2]]) for k in (0, 2, 4)]
    verdicts = tables.from_rows("VERDICTS", [verdict_row(p, n, reward) for p, n, _, reward, _ in rows])
    table = pairs_from_rollouts(pa.concat_tables(parts), verdicts, PairSettings(), iteration=1).table
    assert table["chosen_ids"].to_pylist() == [[5, 6]] * 3
