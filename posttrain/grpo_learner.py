"""GRPO on a policy in memory, one iteration at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa

from posttrain import random_state, tables
from posttrain.config import ImportanceCorrection, LearnerSettings
from posttrain.grpo_metrics import metric_rows
from posttrain.grpo_rows import REASONS, Microbatch, left_out_reasons, plan_epochs, trained_groups
from posttrain.optimizer import build_scheduler
from posttrain.table_checks import list_lengths
from posttrain.trained_model import TrainedModel
from posttrain.trainer_state import DataCursor


class Learner(TrainedModel[LearnerSettings]):
    """GRPO on one model: `update` trains it in place, one iteration at a time."""

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
            if self.random:
                random_state.restore(self.random)
            if corrected or num_steps > 1:
                trainer.record_old_logprobs()
            trainer.train()
            self.random = random_state.capture()
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
