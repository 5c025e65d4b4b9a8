"""A user's own verifier: how it is found, what is refused, and that one bad completion costs one verdict."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from posttrain.config_base import ModelData
from posttrain.config_verify import VerifySettings
from posttrain.errors import ConfigError, VerificationError
from posttrain.prompts import load_prompts
from posttrain.verify.base import Part, Verdict, VerificationRequest
from posttrain.verify.registry import create_verifier
from tests.tiny_models import build_tiny_tokenizer

ROOT = Path(__file__).parents[2]
HERE = "tests.verify.own_verifiers"


def settings(*classes: str, timeout_s: float = 20.0) -> VerifySettings:
    return VerifySettings(
        timeout_s=timeout_s, plugins=",".join(f"{name}={HERE}:{kind}" for name, kind in map(str.split, classes))
    )


def judge(own: VerifySettings, name: str, completions: list[str], answer: object) -> list[Verdict]:
    requests = [VerificationRequest(f"p{row}", 0, "", text, answer, "stop") for row, text in enumerate(completions)]
    return create_verifier(name, own).verify(requests)


def num_workers() -> int:
    """Processes of this test that hold a verifier."""
    listed = subprocess.run(["ps", "-eo", "ppid,args"], capture_output=True, text=True, check=True).stdout
    return sum(line.split(None, 1)[0] == str(os.getpid()) and "own_worker" in line for line in listed.splitlines()[1:])


def test_a_function_is_a_verifier() -> None:
    verdicts = judge(settings("vowels Vowels"), "vowels", ["aei", "ab", "none", "whole", "nan", "text", "bc"], "vowels")
    assert [(verdict.outcome, verdict.reward) for verdict in verdicts] == [
        ("pass", 1.0), ("fail", 0.5), ("abstain", None), ("unparseable", 0.0), ("error", None), ("error", None), ("fail", 0.0),
    ]  # fmt: skip
    assert "nan, which is no finite number" in verdicts[4].detail
    assert all(verdict.seconds > 0 for verdict in verdicts)
    assert num_workers() == 0


@pytest.mark.slow
def test_a_killed_and_a_hung_process_cost_their_own_verdicts() -> None:
    started = time.monotonic()
    completions = ["ae", "kill", "ab", "hang", "leave", "io", "uu"]
    verdicts = judge(settings("vowels Vowels", timeout_s=3.0), "vowels", completions, "vowels")
    outcomes = ["pass", "error", "fail", "timeout", "error", "pass", "pass"]
    assert [verdict.outcome for verdict in verdicts] == outcomes
    assert [verdict.reward for verdict in verdicts] == [1.0, None, 0.5, 0.0, None, 1.0, 1.0]
    assert "status -9" in verdicts[1].detail and "stopped after 3 s" in verdicts[3].detail and "status 0" in verdicts[4].detail
    assert verdicts[3].seconds == 3.0
    assert time.monotonic() - started < 60
    assert num_workers() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bad", "outcome", "detail"),
    [
        ("raise", "error", "out of memory"), ("kill", "error", "status -9"), ("hang", "timeout", "stopped"),
        ("twice", "error", "2 verdicts for 1 completions"), ("never", "error", "0 verdicts for 1 completions"),
    ],
)  # fmt: skip
def test_of_a_batch_that_fails_the_bad_row_alone_is_lost(bad: str, outcome: str, detail: str) -> None:
    verdicts = judge(settings("batches Batches", timeout_s=1.0), "batches", ["good", bad, "fine"], 1)
    assert [(verdict.outcome, verdict.reward) for verdict in verdicts[::2]] == [("pass", 1.0)] * 2
    assert (verdicts[1].outcome, verdicts[1].reward) == (outcome, 0.0 if outcome == "timeout" else None)
    assert detail in verdicts[1].detail


def test_batches_are_whole_where_nothing_fails_and_keep_their_order() -> None:
    verdicts = judge(settings("batches Batches"), "batches", ["good"] * 20, 1)
    assert [verdict.detail for verdict in verdicts] == ["of 16"] * 16 + ["of 4"] * 4


def test_a_verifier_may_say_that_nothing_can_be_verified() -> None:
    with pytest.raises(VerificationError, match="no model server"):
        judge(settings("batches Batches"), "batches", ["good", "refuse"], 1)


def test_verdicts_that_no_table_can_hold_are_errors() -> None:
    kinds = ["outcome", "reward", "unjudged", "infinite", "true", "seconds", "type", "huge"]
    kinds += ["surrogate", "newline", "slash", "blank", "number", "same", "none", "nones", "numpy", "subclass"]
    verdicts = judge(settings("unsound Unsound"), "unsound", kinds, 1)
    assert [verdict.outcome for verdict in verdicts] == ["error"] * 16 + ["pass"] * 2
    assert [verdict.reward for verdict in verdicts] == [None] * 16 + [0.5, 1.0]
    assert "the reward 1e+101, which is beyond ±1e+100" in verdicts[7].detail
    assert all("a name has up to 64 letters" in verdict.detail for verdict in verdicts[8:12])
    assert "two parts of the same name" in verdicts[13].detail
    assert verdicts[16].detail == "\N{REPLACEMENT CHARACTER}"
    assert verdicts[17].parts == (Part("a.b-c_1", "pass", 1.0, 1.0),)


def test_a_child_that_a_judge_forks_answers_for_no_row() -> None:
    completions = ["0.5", "return", "0.5", "raise", "0.5", "0.75", "return", "0.5"] * 3
    verdicts = judge(settings("forks Forks"), "forks", completions, 1)
    wanted = {"0.5": 0.5, "0.75": 0.75, "return": 1.0, "raise": 1.0}
    assert [verdict.reward for verdict in verdicts] == [wanted[completion] for completion in completions]


@pytest.mark.parametrize(("place", "message"), [("made", "cannot be constructed"), ("version", "does not say what it is")])
def test_a_verifier_that_ends_the_process_is_refused(monkeypatch: pytest.MonkeyPatch, place: str, message: str) -> None:
    monkeypatch.setenv("POSTTRAIN_TEST_EXIT", place)
    with pytest.raises(ConfigError, match=f"own_verifiers:Exits.*{message}.*SystemExit: 0"):
        create_verifier("exits", settings("exits Exits"))


def test_a_check_of_answers_or_an_import_that_ends_the_process_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POSTTRAIN_TEST_EXIT", "answer")
    with pytest.raises(ConfigError, match="'exits' refuses it .SystemExit: 0"):
        create_verifier("exits", settings("exits Exits")).check_answer(1)
    (tmp_path / "script_without_guard.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="script_without_guard:X.*cannot be imported .SystemExit: 0"):
        create_verifier("x", VerifySettings(plugins="x=script_without_guard:X"))


def test_name_version_limits_and_the_check_of_answers_are_the_users() -> None:
    own = settings("vowels Vowels", "batches Batches", timeout_s=2.5)
    vowels, batches = create_verifier("vowels", own), create_verifier("batches", own)
    assert (vowels.name, vowels.version, dict(vowels.limits)) == ("vowels", "3", {"timeout_s": 2.5})
    assert dict(batches.limits) == {"timeout_s": 2.5, "batch_rows": 16}
    vowels.check_answer("vowels")
    with pytest.raises(ConfigError, match="not 'vowels'"):
        vowels.check_answer("consonants")
    with pytest.raises(ConfigError, match="TypeError: an int is wanted"):
        batches.check_answer("one")


@pytest.mark.parametrize(
    ("plugins", "name", "part"),
    [
        (f"no_version={HERE}:NoVersion", "no_version", "it has no version"), (f"no_judge={HERE}:NoJudge", "no_judge", "it has no judge"),
        (f"not_a_verifier={HERE}:NotAVerifier", "not_a_verifier", "it has no version, no check_answer, no verify"),
        (f"cannot_be_made={HERE}:CannotBeMade", "cannot_be_made", "FileNotFoundError: weights.bin"),
        (f"x={HERE}:Nothing", "x", "AttributeError"), ("x=no_such_package.y:Z", "x", "ModuleNotFoundError"),
        (f"other={HERE}:Vowels", "other", "the class calls itself 'vowels', here it is called 'other'"),
        (f"code={HERE}:Vowels", "code", "built in"), (f"vowels={HERE}", "vowels", "does not name a class"),
        (f"vowels={HERE}:Vowels,vowels={HERE}:Vowels", "vowels", "occurs twice"), ("vowels=os; import x:Y", "vowels", "does not name a class"),
        (f"vowels={HERE}:Vowels", "vowel", "Did you mean 'vowels'"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said(plugins: str, name: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part) as caught:
        create_verifier(name, VerifySettings(plugins=plugins))
    assert caught.value.remedy


def test_a_name_in_the_data_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("trap:Verifier", "trap", "x=trap:Verifier"):
        with pytest.raises(ConfigError, match="no such verifier"):
            create_verifier(name, VerifySettings())


def test_an_installed_package_brings_its_verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point as `pip install` writes it: a package and its .dist-info."""
    source = Path(__file__).with_name("own_verifiers.py").read_text(encoding="utf-8").replace('"vowels"', '"installed"')
    (tmp_path / "their_package.py").write_text(source, encoding="utf-8")
    information = tmp_path / "their_package-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[posttrain.verifiers]\ninstalled = their_package:Vowels\n")
    monkeypatch.syspath_prepend(tmp_path)
    verdicts = judge(VerifySettings(timeout_s=20), "installed", ["aei", "bcd"], "installed")
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.0]
    rival = tmp_path / "rival-1.0.dist-info"
    rival.mkdir()
    (rival / "METADATA").write_text("Metadata-Version: 2.1\nName: rival\nVersion: 1.0\n")
    (rival / "entry_points.txt").write_text("[posttrain.verifiers]\ninstalled = their_package:Batches\n")
    with pytest.raises(ConfigError, match="several installed packages have one: their_package:Batches, their_package:Vowels"):
        create_verifier("installed", VerifySettings())


def test_a_verifier_that_does_not_start_stops_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTTRAIN_TEST_PROCESS", str(os.getpid()))
    with pytest.raises(VerificationError, match="'starts_only_here' .* does not start.*status 3"):
        judge(settings("starts_only_here StartsOnlyHere"), "starts_only_here", ["x"], None)


def test_prompts_are_checked_by_the_verifiers_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "hi", "verifier": "vowels", "answer": "vowels"}\n', encoding="utf-8")
    load = partial(load_prompts, str(path), build_tiny_tokenizer(), ModelData(), field="data.prompts")
    assert load(verification=settings("vowels Vowels")).table["verifier"].to_pylist() == ["vowels"]
    with pytest.raises(ConfigError, match="no such verifier"):
        load()
    path.write_text('{"prompt": "hi", "verifier": "vowels", "answer": 3}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="not 'vowels'"):
        load(verification=settings("vowels Vowels"))


@pytest.mark.slow
def test_no_process_outlives_a_killed_parent(tmp_path: Path) -> None:
    script = (
        "from tests.verify.test_own_verifiers import judge, settings\n"
        "judge(settings('vowels Vowels', timeout_s=600.0), 'vowels', ['hang', 'hang'], 'vowels')\n"
    )
    mark = tmp_path.name
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, env=os.environ | {"POSTTRAIN_TEST_MARK": mark})
    try:
        wait_for(lambda: len(marked(mark)) > 1)
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not marked(mark))


def marked(mark: str) -> list[int]:
    """Processes that have `mark` in their environment."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if f"POSTTRAIN_TEST_MARK={mark}".encode() in environment:
            found.append(int(entry.name))
    return found


def wait_for(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
