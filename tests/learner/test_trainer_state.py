"""Trainer state: what is written comes back, and what is damaged is refused by name."""

from __future__ import annotations

import json
import random
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from posttrain import random_state
from posttrain.errors import InfrastructureError, PolicyError
from posttrain.trainer_state import DataCursor, TrainerState, load_trainer_state, save_trainer_state

SHAPES = {"head.weight": (3, 2), "norm/scale": (2,)}


def some_state(seed: int = 0, num_steps: int = 7) -> TrainerState:
    draw = torch.Generator().manual_seed(seed)
    moments = {
        f"{name}/{moment}": torch.randn(shape, generator=draw)
        for name, shape in SHAPES.items()
        for moment in ("exp_avg", "exp_avg_sq")
    }
    return TrainerState(SHAPES, moments, random_state.capture(), DataCursor(iteration=2, num_steps=num_steps, num_rows=40))


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    state = some_state()
    save_trainer_state(state, tmp_path / "state")
    loaded = load_trainer_state(tmp_path / "state", SHAPES)
    assert loaded.cursor == state.cursor and loaded.shapes == SHAPES
    assert loaded.moments.keys() == state.moments.keys() and loaded.random.keys() == state.random.keys()
    assert all(torch.equal(loaded.moments[name], value) for name, value in state.moments.items())
    assert all(torch.equal(loaded.random[name], value) for name, value in state.random.items())


def test_every_generator_goes_on_where_it_was(tmp_path: Path) -> None:
    def draws() -> list[float]:
        return [random.random(), random.gauss(0, 1), np.random.random(), np.random.standard_normal(), torch.rand(1).item()]

    with random_state.untouched():
        draws()  # leaves the spare value of both gaussian generators behind
        save_trainer_state(some_state(), tmp_path / "state")
        expected = draws()
        random_state.restore(load_trainer_state(tmp_path / "state").random)
        assert draws() == expected


def test_untouched_gives_the_generators_back() -> None:
    before = random_state.capture()
    with random_state.untouched():
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
    after = random_state.capture()
    assert all(torch.equal(before[name], after[name]) for name in before)


def truncate(directory: Path) -> None:
    path = directory / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def flip_a_bit(directory: Path) -> None:
    content = bytearray((directory / "random.safetensors").read_bytes())
    content[-1] ^= 1
    (directory / "random.safetensors").write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (truncate, "optimizer.safetensors"),
        (flip_a_bit, "random.safetensors"),
        (lambda directory: (directory / "optimizer.safetensors").unlink(), "optimizer.safetensors"),
        (lambda directory: (directory / "trainer_state.json").unlink(), "half-written"),
        (lambda directory: (directory / "trainer_state.json").write_text('{"format": 1'), "not a trainer-state manifest"),
        (lambda directory: (directory / "extra.bin").write_text(""), "extra.bin"),
    ],
    ids=["truncated", "altered", "file-gone", "manifest-gone", "manifest-cut", "file-added"],
)
def test_a_damaged_state_is_refused_by_name(tmp_path: Path, damage: Callable[[Path], object], named: str) -> None:
    save_trainer_state(some_state(), tmp_path / "state")
    damage(tmp_path / "state")
    with pytest.raises(PolicyError, match=named) as caught:
        load_trainer_state(tmp_path / "state", SHAPES)
    assert str(tmp_path / "state") in str(caught.value)


def test_another_format_is_refused(tmp_path: Path) -> None:
    save_trainer_state(some_state(), tmp_path / "state")
    path = tmp_path / "state" / "trainer_state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(PolicyError, match="format 2"):
        load_trainer_state(tmp_path / "state")


@pytest.mark.parametrize(
    "shapes",
    [{"head.weight": (3, 2)}, SHAPES | {"bias": (1,)}, SHAPES | {"head.weight": (2, 3)}],
    ids=["fewer", "more", "other-shape"],
)
def test_a_state_of_another_model_is_refused_with_the_parameter(tmp_path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    save_trainer_state(some_state(), tmp_path / "state")
    with pytest.raises(PolicyError, match=r"norm/scale|bias|head\.weight"):
        load_trainer_state(tmp_path / "state", shapes)


def test_a_full_disk_leaves_the_previous_state_and_no_rubbish(tmp_path: Path) -> None:
    save_trainer_state(some_state(num_steps=7), tmp_path / "state")
    big = replace(some_state(num_steps=8), moments={"head.weight/exp_avg": torch.zeros(1 << 16)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(InfrastructureError, match="cannot be written"):
            save_trainer_state(big, tmp_path / "state")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert load_trainer_state(tmp_path / "state", SHAPES).cursor.num_steps == 7
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("field", ["files", "shapes", "cursor"])
def test_a_manifest_with_a_field_of_another_type_is_refused(tmp_path: Path, field: str) -> None:
    save_trainer_state(some_state(), tmp_path / "state")
    path = tmp_path / "state" / "trainer_state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: None}))
    with pytest.raises(PolicyError, match="not a trainer-state manifest"):
        load_trainer_state(tmp_path / "state")
