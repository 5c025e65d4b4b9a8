"""Published checkpoints of a run: verified, complete or absent, the last few and the best one kept."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from posttrain import policy, trainer_state
from posttrain.directories import write_aside
from posttrain.errors import PolicyError
from posttrain.policy import PolicyManifest

logger = logging.getLogger("posttrain")
MANIFEST = "checkpoint.json"
_NAME = re.compile(r"iteration-(\d{6})")


@dataclass(frozen=True)
class Checkpoint:
    """One published checkpoint; `pass_rate` is None where that iteration was not evaluated."""

    iteration: int
    policy_hash: str
    pass_rate: float | None
    directory: str


def verify(policy_directory: Path, state_directory: Path) -> PolicyManifest:
    """Reads both directories whole and returns the policy's manifest.

    Raises:
        PolicyError: a file is missing or altered, or policy and state are not of the same iteration.
    """
    manifest = policy.read_policy(policy_directory)
    state = trainer_state.load_trainer_state(state_directory)
    if state.cursor.iteration != manifest.iteration:
        raise PolicyError(
            f"{state_directory}: trainer state of iteration {state.cursor.iteration}, policy of iteration {manifest.iteration}. "
            "Pass the two outputs of one update."
        )
    return manifest


def publish(policy_directory: Path, state_directory: Path, root: Path, iteration: int, pass_rate: float | None) -> Checkpoint:
    """Verifies policy and trainer state, copies both to `root/iteration-NNNNNN` and returns the checkpoint.

    Raises:
        PolicyError: see `verify`.
        OSError: the disk is full; an earlier checkpoint stays as it was.
    """
    manifest = verify(policy_directory, state_directory)
    directory = Path(root) / f"iteration-{iteration:06d}"
    checkpoint = Checkpoint(iteration, manifest.hash, pass_rate, str(directory))
    with write_aside(directory) as aside:
        shutil.copytree(policy_directory, aside / "policy")
        shutil.copytree(state_directory, aside / "state")
        (aside / MANIFEST).write_text(json.dumps(asdict(checkpoint), indent=2), encoding="utf-8")
    return checkpoint


def list_checkpoints(root: Path) -> list[Checkpoint]:
    """The complete checkpoints of a run by iteration number; a directory without manifest is named and passed over."""
    found: list[Checkpoint] = []
    for directory in Path(root).glob("iteration-*"):
        if not _NAME.fullmatch(directory.name):
            continue
        manifest = directory / MANIFEST
        try:
            found.append(Checkpoint(**json.loads(manifest.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError) as error:
            logger.warning("%s is not used: its %s cannot be read (%s)", directory, MANIFEST, error)
    return sorted(found, key=lambda checkpoint: checkpoint.iteration)


def best(checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
    """The evaluated checkpoint with the highest pass rate, the earliest of equals."""
    evaluated = [checkpoint for checkpoint in checkpoints if checkpoint.pass_rate is not None]
    return max(evaluated, key=lambda checkpoint: (checkpoint.pass_rate or 0.0, -checkpoint.iteration), default=None)


def apply_retention(root: Path, keep_last: int) -> list[Checkpoint]:
    """Removes all but the last `keep_last` checkpoints (by number, not by date) and the best one; returns those removed."""
    checkpoints = list_checkpoints(root)
    kept = {checkpoint.iteration for checkpoint in checkpoints[-keep_last:]}
    champion = best(checkpoints)
    if champion is not None:
        kept.add(champion.iteration)
    removed = [checkpoint for checkpoint in checkpoints if checkpoint.iteration not in kept]
    for checkpoint in removed:
        shutil.rmtree(Path(root) / f"iteration-{checkpoint.iteration:06d}")
    return removed
