"""Stored rollouts under another verifier or other settings, by the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from posttrain import tables
from posttrain.advantages import score
from posttrain.config import AdvantageSettings
from posttrain.verify import rescore
from tests.verify.rollout_tables import prompt, rollout, rollouts_of, verify

ROOT = Path(__file__).parents[2]
PROMPTS = [prompt("p", "exact", "12"), prompt("q", "exact", "7")]
ROWS = [*rollouts_of("p", ["12", "it is 12", "13"]), *rollouts_of("q", ["7.0", "none"])]


@pytest.fixture
def shard(tmp_path: Path) -> dict[str, Path]:
    """Files of a real shard: rollouts, their prompts, and the verdicts of then."""
    content = {
        "ROLLOUTS": tables.from_rows("ROLLOUTS", ROWS),
        "PROMPTS": tables.from_rows("PROMPTS", PROMPTS),
        "VERDICTS": verify(PROMPTS, ROWS),
    }
    return {name: tables.write_table(table, name, tmp_path / f"{name.lower()}.arrow") for name, table in content.items()}


def run(shard: dict[str, Path], *options: Any) -> tuple[int, Path]:
    out = shard["ROLLOUTS"].with_name("new.arrow")
    return rescore.main([str(shard["ROLLOUTS"]), str(shard["PROMPTS"]), "--out", str(out), *map(str, options)]), out


def test_another_verifier_and_what_it_changes(shard: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(shard, "--verifier", "last_number", "--old", shard["VERDICTS"])
    assert status == 0
    verdicts = tables.read_table(out, "VERDICTS")
    assert verdicts["outcome"].to_pylist() == ["pass", "pass", "fail", "pass", "unparseable"]
    assert tables.keys(verdicts) == [("p", 0), ("p", 1), ("p", 2), ("q", 0), ("q", 1)]
    assert set(verdicts["verifier"].to_pylist()) == {"last_number"}
    assert capsys.readouterr().out.splitlines() == [
        "old \\ new  pass  fail  unparseable",
        "pass          1     ·            ·",
        "fail          2     1            1",
        "3 of 5 outcomes and 2 rewards changed",
        "  p/1: fail → pass",
        "  q/0: fail → pass",
        "  q/1: fail → unparseable",
        f"verdicts: {out}",
    ]


def test_the_same_again_changes_nothing_and_equals_what_was_stored(
    shard: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = run(shard, "--old", shard["VERDICTS"])
    assert status == 0 and "0 of 5 outcomes and 0 rewards changed" in capsys.readouterr().out
    stored, again = (tables.read_table(path, "VERDICTS") for path in (shard["VERDICTS"], out))
    assert tables.content_hash(stored) == tables.content_hash(again)


def test_settings_can_be_changed_and_an_overlong_buffer_needs_its_cap(
    shard: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = run(shard, "--set", "verify.max_completion_characters=4")
    assert status == 0 and capsys.readouterr().out == f"1 pass, 3 fail, 1 unparseable\nverdicts: {out}\n"
    buffer = ["--set", "verify.overlong_buffer_tokens=4"]
    assert run(shard, *buffer)[0] == 2
    assert "counts back from it" in capsys.readouterr().err
    status, out = run(shard, *buffer, "--max-completion-tokens", 5)
    assert tables.read_table(out, "VERDICTS")["reward"].to_pylist() == [0.5, -0.5, -0.5, -0.5, -0.5]


def test_scored_may_stand_for_rollouts_and_for_old_verdicts(shard: dict[str, Path], tmp_path: Path) -> None:
    rollouts, verdicts = (tables.read_table(shard[name], name) for name in ("ROLLOUTS", "VERDICTS"))
    path = tables.write_table(score(rollouts, verdicts, AdvantageSettings()), "SCORED", tmp_path / "scored.arrow")
    status, out = run(shard | {"ROLLOUTS": path}, "--old", path)
    assert status == 0 and tables.read_table(out, "VERDICTS").num_rows == 5


def test_verdicts_stored_before_a_column_was_added_can_be_compared_with(shard: dict[str, Path], tmp_path: Path) -> None:
    columns = [name for name in tables.VERDICTS.names if name not in ("parts", "limits")]
    path = tables.write_table(verify(PROMPTS, ROWS), "VERDICTS", tmp_path / "old.arrow", columns=columns)
    assert run(shard, "--old", path)[0] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--verifier", "last_numbr"], "Did you mean 'last_number'"), (["--verifier", "code"], "prompt 'p'"), (["--set", "timeout_s=5"], "verify.timeout_s=5"),
        (["--set", "verify.timeout_s=fast"], "timeout_s"), (["--set", "verify.time_s=5"], "timeout_s"), (["--set", "verify.timeout_s=["], "not YAML"),
        (["--old", "/nowhere.arrow"], "there is no such file"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_and_nothing_is_written(
    shard: dict[str, Path], options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = run(shard, *options)
    assert status == 2 and not out.exists()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "out", "message"),
    [
        ({}, "rollouts.arrow", "over ROLLOUTS"), ({}, "sub/../prompts.arrow", "over PROMPTS"), ({}, "verdicts.arrow", "over --old"),
        ({}, "link.arrow", "over ROLLOUTS"), ({}, ".", "it is a directory"), ({}, "rollouts.arrow/new.arrow", "it cannot be written"),
        ({"ROLLOUTS": "nowhere.arrow"}, "new.arrow", "nowhere.arrow': there is no such file"),
    ],
)  # fmt: skip
def test_a_place_that_the_verdicts_cannot_go_to_is_refused_before_judging(
    shard: dict[str, Path], given: dict[str, str], out: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shard["ROLLOUTS"].parent
    (folder / "sub").mkdir()
    (folder / "link.arrow").symlink_to(shard["ROLLOUTS"])
    before = {path: path.read_bytes() for path in shard.values()}
    paths = shard | {name: folder / path for name, path in given.items()}
    arguments = [paths["ROLLOUTS"], paths["PROMPTS"], "--old", paths["VERDICTS"], "--out", folder / out, "--verifier", "no_such"]
    assert rescore.main([str(argument) for argument in arguments]) == 2  # an unknown verifier would be refused next
    assert message in capsys.readouterr().err
    assert {path: path.read_bytes() for path in shard.values()} == before and len(list(folder.iterdir())) == 5


def test_old_verdicts_of_other_rollouts_are_refused(shard: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    tables.write_table(verify(PROMPTS, ROWS[:4]), "VERDICTS", shard["VERDICTS"])
    assert run(shard, "--old", shard["VERDICTS"])[0] == 2
    assert "('q', 1)" in capsys.readouterr().err


def test_many_changes_are_named_in_part() -> None:
    rows = [rollout("p", index, "it is 12") for index in range(30)]
    old, new = verify(PROMPTS, rows), verify([prompt("p", "last_number", "12")], rows)
    said = rescore.describe_changes(old, new).splitlines()
    assert said[-1] == "  and 20 more" and said[-2] == "  p/9: fail → pass"


@pytest.mark.slow
def test_it_is_one_command(shard: dict[str, Path]) -> None:
    out = shard["ROLLOUTS"].with_name("new.arrow")
    command = [sys.executable, "-m", "posttrain.verify.rescore", str(shard["ROLLOUTS"]), str(shard["PROMPTS"]), "--out", str(out)]
    done = subprocess.run([*command, "--verifier", "maths"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == f"3 pass, 1 fail, 1 unparseable\nverdicts: {out}\n"
