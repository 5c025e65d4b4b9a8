"""Progress of a transformers Trainer, in place of its own bar."""

from __future__ import annotations

from typing import Any

from transformers.trainer_callback import TrainerCallback

from posttrain.progress import Progress


class ShowProgress(TrainerCallback):
    """A bar or log lines, one unit for each optimiser step."""

    def __init__(self, description: str) -> None:
        self._description = description
        self._progress: Progress | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._progress = Progress(self._description, state.max_steps, "step").__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._progress is not None:
            self._progress.advance()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._progress is not None:
            self._progress.__exit__()
