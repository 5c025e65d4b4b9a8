"""Checkpoints: complete or refused by name, kept by number and by pass rate, independent of what they were made from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from posttrain import checkpoints, policy
from posttrain.errors import PolicyError
from posttrain.trainer_state import DataCursor, TrainerState, save_trainer_state
from tests.tiny_models import build_tiny_model, build_tiny_tokenizer


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A policy and a trainer state of iteration 7."""
    root = tmp_path_factory.mktemp("outputs")
    tokenizer = build_tiny_tokenizer()
    policy.write_policy(build_tiny_model(), tokenizer, root / "policy", version=7, parent=None, algorithm="grpo", iteration=7)
    state = TrainerState({"a": (2,)}, {"a/exp_avg": torch.zeros(2)}, {"torch": torch.zeros(1)}, DataCursor(7, 1, 1))
    save_trainer_state(state, root / "state")
    return root / "policy", root / "state"


def write_record(root: Path, iteration: int, pass_rate: float | None) -> None:
    directory = root / f"iteration-{iteration:06d}"
    directory.mkdir(parents=True)
    record = {"iteration": iteration, "policy_hash": "h", "pass_rate": pass_rate, "directory": str(directory)}
    (directory / checkpoints.MANIFEST).write_text(json.dumps(record))


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_a_published_checkpoint_can_be_read_and_edited_without_touching_its_source(
    outputs: tuple[Path, Path], tmp_path: Path
) -> None:
    published = checkpoints.publish(*outputs, tmp_path, 7, 0.5)
    copy = Path(published.directory) / "policy"
    assert policy.read_policy(copy).hash == published.policy_hash
    (copy / "model.safetensors").write_bytes(b"changed")
    with pytest.raises(PolicyError, match=r"model\.safetensors.*altered"):
        policy.read_policy(copy)
    assert policy.read_policy(outputs[0]).hash == published.policy_hash


@pytest.mark.parametrize("damage", ["missing", "altered", "half-written"])
def test_a_damaged_output_is_not_published(outputs: tuple[Path, Path], tmp_path: Path, damage: str) -> None:
    directory = tmp_path / "policy"
    shutil.copytree(outputs[0], directory)
    if damage == "missing":
        (directory / "model.safetensors").unlink()
    elif damage == "altered":
        (directory / "config.json").write_text("{}")
    else:
        (directory / policy.MANIFEST).unlink()
    with pytest.raises(PolicyError):
        checkpoints.publish(directory, outputs[1], tmp_path / "root", 7, None)
    assert not (tmp_path / "root").exists()


def test_policy_and_state_must_be_of_one_update(outputs: tuple[Path, Path], tmp_path: Path) -> None:
    state = TrainerState({"a": (2,)}, {}, {"torch": torch.zeros(1)}, DataCursor(6, 1, 1))
    save_trainer_state(state, tmp_path / "state")
    with pytest.raises(PolicyError, match="iteration 6, policy of iteration 7"):
        checkpoints.verify(outputs[0], tmp_path / "state")


def test_retention_goes_by_number_and_keeps_the_best(tmp_path: Path) -> None:
    for iteration, pass_rate in ((9900, 0.9), (9950, 0.7), (9800, 0.2), (10000, None)):  # made in no order, dates say nothing
        write_record(tmp_path, iteration, pass_rate)
    removed = checkpoints.apply_retention(tmp_path, keep_last=2)
    assert [checkpoint.iteration for checkpoint in removed] == [9800]
    assert names(tmp_path) == ["iteration-009900", "iteration-009950", "iteration-010000"]


def test_of_equal_pass_rates_the_earliest_is_the_best(tmp_path: Path) -> None:
    for iteration in (1, 2, 3, 4):
        write_record(tmp_path, iteration, 0.5)
    checkpoints.apply_retention(tmp_path, keep_last=1)
    assert names(tmp_path) == ["iteration-000001", "iteration-000004"]


def test_other_directories_and_damaged_records_are_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_record(tmp_path, 1, 0.1)
    write_record(tmp_path, 2, 0.2)
    (tmp_path / "iteration-000003").mkdir()
    (tmp_path / "iteration-000004").mkdir()
    (tmp_path / "iteration-000004" / checkpoints.MANIFEST).write_text('{"iter')
    (tmp_path / "iteration-best").mkdir()
    assert [checkpoint.iteration for checkpoint in checkpoints.list_checkpoints(tmp_path)] == [1, 2]
    checkpoints.apply_retention(tmp_path, keep_last=1)
    assert names(tmp_path) == ["iteration-000002", "iteration-000003", "iteration-000004", "iteration-best"]
    assert "iteration-000003" in caplog.text and "iteration-000004" in caplog.text
