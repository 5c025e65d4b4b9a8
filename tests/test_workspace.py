"""The local cache never hands out a result whose files are not all there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from diskcache import Cache
from flyteidl.core import literals_pb2

from posttrain import policy
from posttrain.directories import hash_files, write_aside
from posttrain.errors import PolicyError
from tasks.artifacts import folder_name
from tasks.workspace import forget_gone_files


def remember(cache: Path, key: str, *paths: Path) -> None:
    literals = literals_pb2.LiteralMap()
    for number, path in enumerate(paths):
        literals.literals[str(number)].scalar.blob.uri = str(path)
    with Cache(str(cache)) as opened:
        opened.set(key, literals.SerializeToString())


def test_entries_are_forgotten_when_a_file_of_theirs_has_gone(tmp_path: Path) -> None:
    whole, broken, table = tmp_path / "whole", tmp_path / "broken", tmp_path / "table.arrow"
    for directory in (whole, broken):
        directory.mkdir()
        (directory / "model.safetensors").write_bytes(b"w")
        (directory / policy.MANIFEST).write_text(json.dumps({"files": {"model.safetensors": "x"}}))
    (broken / "model.safetensors").unlink()
    table.write_bytes(b"t")
    remember(tmp_path / "cache", "kept", whole, table)
    remember(tmp_path / "cache", "broken", broken)
    remember(tmp_path / "cache", "gone", tmp_path / "gone.arrow")
    remember(tmp_path / "cache", "remote", Path("s3:/bucket/key"))
    assert forget_gone_files(tmp_path / "cache") == 2
    with Cache(str(tmp_path / "cache")) as cache:
        assert sorted(cache) == ["kept", "remote"]


def test_a_failed_rename_keeps_the_previous_directory(tmp_path: Path) -> None:
    directory = tmp_path / "policy"
    directory.mkdir()
    (directory / "old").touch()
    with pytest.raises(OSError, match="No such file"), write_aside(directory) as aside:
        aside.rmdir()  # what is renamed at the end has gone
    assert [path.name for path in directory.iterdir()] == ["old"]


@pytest.mark.parametrize("kind", ["linked directory", "dangling link", "pipe"])
def test_entries_that_are_no_files_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    directory = tmp_path / "policy"
    directory.mkdir()
    if kind == "pipe":
        os.mkfifo(directory / "odd")
    else:
        (directory / "odd").symlink_to(tmp_path if kind == "linked directory" else tmp_path / "nowhere")
    with pytest.raises(PolicyError, match="'odd' is neither"):
        hash_files(directory, "")


@pytest.mark.parametrize(
    ("run_name", "folder"),
    [
        ("brackets", "brackets"),
        ("", ""),
        ("../../etc", "--..-etc"),
        ("..", "-"),
        ("/tmp/x", "-tmp-x"),
        ("a/../b\0c", "a-..-b-c"),
        ("день 1", "день-1"),
        ("é" * 100, "é" * 40),
    ],
)
def test_a_run_name_becomes_one_part_of_a_path(run_name: str, folder: str) -> None:
    assert folder_name(run_name) == folder
