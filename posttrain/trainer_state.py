"""What an update hands to the next one besides the policy: optimiser, random generators and data cursor, as a directory.

Schedulers need no state of their own: the learning rate is a function of the settings and of `DataCursor.num_steps`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from posttrain.directories import hash_files, verify_files, write_aside
from posttrain.errors import InfrastructureError, PolicyError
from posttrain.random_state import RandomState

MANIFEST = "trainer_state.json"
OPTIMIZER, RANDOM = "optimizer.safetensors", "random.safetensors"
FORMAT = 1
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class DataCursor:
    """How far training has come: the last iteration, optimiser steps and trained rows of all iterations together."""

    iteration: int = -1
    num_steps: int = 0
    num_rows: int = 0


@dataclass(frozen=True)
class TrainerState:
    """`moments`: tensors named `<parameter>/<moment>`; `shapes`: every trained parameter, stepped yet or not."""

    shapes: Shapes
    moments: Mapping[str, Any]
    random: RandomState
    cursor: DataCursor


@dataclass(frozen=True)
class _Manifest:
    cursor: DataCursor
    shapes: Shapes
    files: Mapping[str, str]


def optimizer_moments(optimizer: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The optimiser's tensors by parameter name (`<parameter>/exp_avg` …); empty before the first step.

    Args:
        parameters: name → parameter, for every parameter that the torch optimiser holds.
    """
    return {
        f"{name}/{moment}": value
        for name, parameter in parameters.items()
        for moment, value in optimizer.state.get(parameter, {}).items()
    }


def restore_moments(optimizer: Any, parameters: Mapping[str, Any], moments: Mapping[str, Any]) -> None:
    """Puts saved tensors back into a torch optimiser, on each parameter's device (the step count stays where it was)."""
    found: dict[str, dict[str, Any]] = {name: {} for name in parameters}
    for key, value in moments.items():
        name, _, moment = key.rpartition("/")
        found[name][moment] = value.clone() if moment == "step" else value.to(parameters[name].device, copy=True)
    for name, parameter in parameters.items():
        if found[name]:
            optimizer.state[parameter] = found[name]


def save_trainer_state(state: TrainerState, directory: Path) -> None:
    """Writes the state aside, then renames it; when that fails a state already at `directory` stays as it was.

    Raises:
        InfrastructureError: the disk is full or not writable.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        with write_aside(Path(directory)) as aside:
            save_file({name: value.contiguous() for name, value in state.moments.items()}, aside / OPTIMIZER)
            save_file(dict(state.random), aside / RANDOM)
            shapes = {name: list(shape) for name, shape in state.shapes.items()}
            manifest = {"format": FORMAT, "cursor": asdict(state.cursor), "shapes": shapes, "files": hash_files(aside, MANIFEST)}
            (aside / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True))
    except (OSError, SafetensorError) as error:
        why = f"{directory}: the trainer state cannot be written ({error})"
        raise InfrastructureError(f"{why}. The previous state is intact; free disk space and run again.") from error


def load_trainer_state(directory: Path, shapes: Shapes | None = None) -> TrainerState:
    """The verified state in `directory`.

    Args:
        shapes: name → shape of the parameters that will be trained; None checks the files alone.

    Raises:
        PolicyError: half-written, altered, of another format, or of another model (naming the first difference).
    """
    from safetensors.torch import load_file

    directory = Path(directory)
    manifest = _read_manifest(directory)
    verify_files(directory, manifest.files, MANIFEST)
    if shapes is not None:
        _check_shapes(directory, manifest.shapes, shapes)
    moments, random = load_file(directory / OPTIMIZER), load_file(directory / RANDOM)
    return TrainerState(manifest.shapes, moments, random, manifest.cursor)


def _read_manifest(directory: Path) -> _Manifest:
    path = directory / MANIFEST
    if not path.is_file():
        raise PolicyError(f"{directory}: no {MANIFEST}: half-written, or not a trainer state. Take the previous one.")
    try:
        manifest = json.loads(path.read_text())
        if manifest["format"] != FORMAT:
            raise PolicyError(f"{path}: format {manifest['format']}, this version reads {FORMAT}.")
        shapes = {str(name): tuple(int(size) for size in shape) for name, shape in manifest["shapes"].items()}
        files = {str(name): str(digest) for name, digest in manifest["files"].items()}
        return _Manifest(DataCursor(**manifest["cursor"]), shapes, files)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PolicyError(f"{path}: not a trainer-state manifest ({error!r}). Take the previous state.") from error


def _check_shapes(directory: Path, found: Shapes, wanted: Shapes) -> None:
    advice = "It belongs to another model or to other trainable_parameters: start without a state."
    for name in sorted(found.keys() ^ wanted.keys()):
        where = "the state, not the model" if name in found else "the model, not the state"
        raise PolicyError(f"{directory}: parameter {name!r} is trained in {where}. {advice}")
    for name, shape in found.items():
        other = tuple(wanted[name])
        if shape != other:
            raise PolicyError(f"{directory}: parameter {name!r} has shape {shape}, the model's has {other}. {advice}")
