"""What every update leaves behind: the next policy and its trainer state, both or neither."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from posttrain import policy
from posttrain.policy import PolicyManifest
from posttrain.trainer_state import TrainerState, save_trainer_state


def write_successor(
    model: Any,
    tokenizer: Any,
    state: TrainerState,
    parent: PolicyManifest,
    *,
    algorithm: str,
    iteration: int,
    output_policy: Path,
    output_state: Path,
    add_files: Callable[[Path], None] | None = None,
) -> None:
    """Writes the policy of version `parent.version + 1` and the state that belongs to it.

    Args:
        add_files: see `policy.write_policy`.

    Raises:
        InfrastructureError: policy or state cannot be written; then neither is there.
        PolicyError: the weights hold NaN or infinity; then neither is there.
    """
    save_trainer_state(state, output_state)
    try:
        policy.write_policy(
            model,
            tokenizer,
            output_policy,
            version=parent.version + 1,
            parent=parent.hash,
            algorithm=algorithm,
            iteration=iteration,
            add_files=add_files,
        )
    except BaseException:
        shutil.rmtree(output_state, ignore_errors=True)  # a state without its policy would be taken for a finished update
        raise
