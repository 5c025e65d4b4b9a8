"""A model in training, in memory: weights, optimiser, random generators and cursor; what every learner owns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from posttrain import random_state
from posttrain.config_base import OptimizerSettings
from posttrain.errors import PolicyError
from posttrain.optimizer import build_optimizer, trained_parameters
from posttrain.trainer_state import DataCursor, TrainerState, optimizer_moments, restore_moments

SettingsT = TypeVar("SettingsT", bound=OptimizerSettings)


class TrainedModel(Generic[SettingsT]):
    """Owns `model`, which is trained in place. Optimiser and generators live on from update to update."""

    def __init__(self, model: Any, tokenizer: Any, settings: SettingsT, trained: str | None = None) -> None:
        """
        Args:
            model: transformers causal language model with float32 weights.
            tokenizer: its tokenizer; only the pad id is used.
            trained: regular expression of the parameters that move; None takes `settings.trainable_parameters`.

        Raises:
            ConfigError: the expression matches nothing.
            PolicyError: the tokenizer names neither a padding nor an end-of-sequence token.
        """
        if tokenizer.pad_token_id is None and tokenizer.eos_token_id is None:
            why = "the tokenizer names neither a padding nor an end-of-sequence token: rows cannot be padded"
            raise PolicyError(f"{why}. Set tokenizer.eos_token, save it with the model and import that.")
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.parameters = trained_parameters(model, settings.trainable_parameters if trained is None else trained)
        self.optimizer = build_optimizer(self.parameters.values(), settings)
        self.cursor = DataCursor()
        self.random: random_state.RandomState = {}  # empty until the first step: it starts from settings.seed

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """name → shape of the trained parameters."""
        return {name: tuple(parameter.shape) for name, parameter in self.parameters.items()}

    @property
    def state(self) -> TrainerState:
        """Everything that the next update needs besides the model."""
        moments = optimizer_moments(self.optimizer, self.parameters)
        return TrainerState(self.shapes, moments, self.random, self.cursor)

    def resume(self, state: TrainerState) -> None:
        """Goes on from a state that `load_trainer_state` has checked against `shapes`."""
        restore_moments(self.optimizer, self.parameters, state.moments)
        self.random, self.cursor = state.random, state.cursor
