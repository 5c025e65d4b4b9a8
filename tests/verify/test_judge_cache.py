"""Kept grades: across openings and processes, and what a broken file costs."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.verify.judge_cache import GradeCache, cache_file
from posttrain.verify.judge_prompt import Grade

ROOT = Path(__file__).parent.parent.parent
GOOD = Grade(0.7, "fine")
WRITE_200 = """
import sys
from pathlib import Path
from posttrain.verify.judge_cache import GradeCache
from posttrain.verify.judge_prompt import Grade
with GradeCache(Path(sys.argv[1])) as cache:
    for number in range(200):
        cache.put(f"{sys.argv[2]}-{number}", Grade(0.5, sys.argv[2]))
        cache.put(f"shared-{number}", Grade(0.5, "same"))
"""


def test_grades_outlive_the_run(tmp_path: Path) -> None:
    path = tmp_path / "new" / "judge.sqlite"
    with GradeCache(path) as cache:
        assert cache.get("a") is None
        cache.put("a", GOOD)
    with GradeCache(path) as cache:
        assert cache.get("a") == GOOD


def test_processes_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "judge.sqlite"
    command = [sys.executable, "-c", WRITE_200, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    writers = [subprocess.Popen([*command, name], env=environment, stderr=subprocess.PIPE) for name in ("one", "two", "three")]
    assert [(writer.communicate()[1], writer.returncode) for writer in writers] == [(b"", 0)] * 3
    with GradeCache(path) as cache:
        for name in ("one", "two", "three"):
            assert all(cache.get(f"{name}-{number}") == Grade(0.5, name) for number in range(200))
        assert cache.get("shared-199") == Grade(0.5, "same")


def test_a_file_that_is_no_database_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "judge.sqlite"
    path.write_bytes(b"not a database" * 1_000)
    with GradeCache(path) as cache:
        cache.put("a", GOOD)
    assert "set aside as judge.unreadable" in caplog.text
    assert (tmp_path / "judge.unreadable").read_bytes().startswith(b"not a database")
    with GradeCache(path) as cache:
        assert cache.get("a") == GOOD


def test_a_file_that_breaks_later_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "judge.sqlite"
    with GradeCache(path) as cache:
        for number in range(2_000):
            cache.put(f"{number}", GOOD)
    content = path.read_bytes()
    path.write_bytes(content[:8192] + b"\xff" * (len(content) - 8192))
    with GradeCache(path) as cache:
        assert [cache.get(f"{number}") for number in range(0, 2_000, 100)].count(None) > 0
        cache.put("new", GOOD)
        assert cache.get("new") == GOOD
    assert caplog.text.count("this run keeps the judge's grades in memory only") == 1


def test_a_place_that_cannot_be_written_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / "file").write_text("")
    with GradeCache(tmp_path / "file" / "judge.sqlite") as cache:
        cache.put("a", GOOD)
        assert cache.get("a") == GOOD
    assert "in memory only" in caplog.text


@pytest.mark.parametrize(("score", "reason"), [(1.5, "x"), (-1, "x"), ("one", "x"), (0.5, b"\xff")])
def test_what_others_wrote_must_be_a_grade(tmp_path: Path, score: object, reason: object) -> None:
    path = tmp_path / "judge.sqlite"
    with GradeCache(path) as cache:
        cache.put("a", GOOD)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE grades SET score = ?, reason = ?", (score, reason))
    with GradeCache(path) as cache:
        assert cache.get("a") is None


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("POSTTRAIN_CACHE", raising=False)
    monkeypatch.setenv("POSTTRAIN_WORKSPACE", str(tmp_path))
    assert cache_file() == tmp_path / "cache" / "judge.sqlite"
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "kept"))
    assert cache_file() == tmp_path / "kept" / "judge.sqlite"
