"""A policy in training, in memory: model, optimiser, random generators and cursor, updated one iteration at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from posttrain import random_state, tables
from posttrain.config import ImportanceCorrection, LearnerSettings
from posttrain.errors import PolicyError
from posttrain.grpo_metrics import metric_rows
from posttrain.grpo_rows import REASONS, Microbatch, left_out_reasons, plan_epochs, trained_groups
from posttrain.optimizer import build_optimizer, build_scheduler, trained_parameters
from posttrain.table_checks import list_lengths
from posttrain.trainer_state import DataCursor, TrainerState, optimizer_moments, restore_moments


class Learner:
    """Owns `model`, which `update` trains in place. Optimiser and generators live on from update to update."""

    def __init__(self, model: Any, tokenizer: Any, settings: LearnerSettings) -> None:
        """
        Args:
            model: transformers causal language model with float32 weights.
            tokenizer: its tokenizer; only the pad id is used.

        Raises:
            ConfigError: `trainable_parameters` matches nothing.
            PolicyError: the tokenizer names neither a padding nor an end-of-sequence token.
        """
        if tokenizer.pad_token_id is None and tokenizer.eos_token_id is None:
            why = "the tokenizer names neither a padding nor an end-of-sequence token: rows cannot be padded"
            raise PolicyError(f"{why}. Set tokenizer.eos_token, save it with the model and import that.")
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.parameters = trained_parameters(model, settings.trainable_parameters)
        self.optimizer = build_optimizer(self.parameters.values(), settings)
        self.cursor = DataCursor()
        self._random: random_state.RandomState = {}  # empty until the first step: it starts from settings.seed

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """name → shape of the trained parameters."""
        return {name: tuple(parameter.shape) for name, parameter in self.parameters.items()}

    @property
    def state(self) -> TrainerState:
        """Everything that the next update needs besides the model."""
        moments = optimizer_moments(self.optimizer, self.parameters)
        return TrainerState(self.shapes, moments, self._random, self.cursor)

    def resume(self, state: TrainerState) -> None:
        """Goes on from a state that `load_trainer_state` has checked against `shapes`."""
        restore_moments(self.optimizer, self.parameters, state.moments)
        self._random, self.cursor = state.random, state.cursor

    def update(self, scored: pa.Table, iteration: int) -> pa.Table:
        """Trains on the rows of one iteration and returns METRICS.

        Per-step rows carry the optimiser step counted over all iterations from 0. Without a trainable row nothing changes
        but the cursor, and the metrics say so.

        Raises:
            TrainingError: loss or gradient is not finite; the model in memory is then not to be used.
            ContractError: a row lacks the reference logprobs that kl_coef needs.
            ConfigError: a decaying schedule would be over before the iteration is.
        """
        groups = trained_groups(scored, self.settings)
        num_rows = sum(len(group) for group in groups)
        epochs = plan_epochs(groups, self.settings, iteration)
        rows = metric_rows(_row_metrics(scored, self.settings) | {"train/num_groups_trained": len(groups)}, iteration, None)
        num_steps = epochs[-1][-1].step + 1 if groups else 0
        rows += metric_rows({"train/num_steps": num_steps}, iteration, None)
        if groups:
            sampler_metrics, step_metrics = self._train(epochs)
            rows += metric_rows(sampler_metrics, iteration, None)
        else:
            step_metrics = [{"train/loss": 0.0, "train/grad_norm": 0.0}]
        for step, values in enumerate(step_metrics, self.cursor.num_steps):
            rows += metric_rows(values, iteration, step)
        self.cursor = DataCursor(iteration, self.cursor.num_steps + num_steps, self.cursor.num_rows + num_rows)
        return tables.from_rows("METRICS", rows)

    def _train(self, epochs: Sequence[Sequence[Microbatch]]) -> tuple[Mapping[str, float], Sequence[Mapping[str, float]]]:
        from posttrain.grpo_trainer import recorded_trainer

        num_steps = epochs[-1][-1].step + 1
        corrected = self.settings.importance_correction is not ImportanceCorrection.none
        scheduler = build_scheduler(self.optimizer, self.settings, self.cursor.num_steps, num_steps)
        optimizers = (self.optimizer, scheduler)
        with random_state.untouched(), recorded_trainer(self.model, self.tokenizer, self.settings, optimizers, epochs) as trainer:
            if self._random:
                random_state.restore(self._random)
            if corrected or num_steps > 1:
                trainer.record_old_logprobs()
            trainer.train()
            self._random = random_state.capture()
        return trainer.sampler_metrics, trainer.step_metrics


def _row_metrics(scored: pa.Table, settings: LearnerSettings) -> dict[str, float]:
    reasons = left_out_reasons(scored, settings)
    counts = Counter(reasons)
    lengths = list_lengths(scored, "completion_ids")
    metrics: dict[str, float] = {f"train/num_rows_{reason}": counts[reason] for reason in REASONS}
    metrics["train/num_rows_left_out"] = len(reasons) - counts[None]
    metrics["train/num_rows_trained"] = counts[None]
    if len(lengths):  # of every completion, also those left out: a mask must not hide how long they are
        metrics["train/completion_tokens_mean"] = float(lengths.mean())
    return metrics
