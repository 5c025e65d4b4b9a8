"""Equal completions of a prompt are judged once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain import tables
from posttrain.config_verify import VerifySettings
from posttrain.verify.metrics import copied_metrics
from posttrain.verify.requests import first_equal
from tests.verify.rollout_tables import named, prompt, rollout, rollouts_of, verify


def test_the_first_of_equal_rows_is_judged_and_the_others_take_its_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    (tmp_path / "their_counter.py").write_text(
        "from posttrain.verify.own import OwnVerifier\n"
        "class Counter(OwnVerifier):\n"
        "    name, version = 'counter', '1'\n"
        "    def judge(self, request):\n"
        f"        open({str(calls)!r}, 'a').write(request.completion + '\\n')\n"
        "        return float(len(request.completion))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = VerifySettings(timeout_s=20, plugins="counter=their_counter:Counter")
    prompts = [prompt("p", "counter", 1), prompt("q", "counter", 1)]
    rows = [*rollouts_of("p", ["aa", "b", "aa", "aa"]), *rollouts_of("q", ["aa", "b"])]
    verdicts = verify(prompts, rows, settings)
    assert verdicts["reward"].to_pylist() == [2.0, 1.0, 2.0, 2.0, 2.0, 1.0]
    assert tables.keys(verdicts) == [("p", 0), ("p", 1), ("p", 2), ("p", 3), ("q", 0), ("q", 1)]
    assert sorted(calls.read_text().split()) == ["aa", "aa", "b", "b"]  # once for each prompt
    seconds = verdicts["seconds"].to_pylist()
    assert seconds[2:4] == [0.0, 0.0] and min(seconds[:2] + seconds[4:]) > 0
    assert named(copied_metrics(tables.from_rows("ROLLOUTS", rows), 3)) == {"verify/num_copied": 2}


@pytest.mark.parametrize(
    ("second", "first"),
    [
        (rollout("p", 1, "a"), 0), (rollout("q", 1, "a"), 1), (rollout("p", 1, "a "), 1), (rollout("p", 1, "a", num_tokens=4), 1),
        (rollout("p", 1, "a", finish_reason="length"), 1),
    ],
)  # fmt: skip
def test_rows_are_equal_in_all_that_a_verdict_can_depend_on(second: dict[str, Any], first: int) -> None:
    assert first_equal(tables.from_rows("ROLLOUTS", [rollout("p", 0, "a"), second])) == [0, first]


def test_aborted_rows_are_not_judged_and_so_not_copied() -> None:
    rows = [rollout("p", index, "", 0, finish_reason="aborted") for index in range(3)]
    assert first_equal(tables.from_rows("ROLLOUTS", rows)) == [0, 1, 2]
    assert first_equal(tables.empty("ROLLOUTS")) == []


def test_a_slice_and_several_chunks_are_one_shard() -> None:
    table = tables.from_rows("ROLLOUTS", [rollout("p", index, text) for index, text in enumerate(["x", "a", "b", "a"])])
    assert first_equal(tables.concat("ROLLOUTS", [table.slice(1, 1), table.slice(2)])) == [0, 1, 0]
