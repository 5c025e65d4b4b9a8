"""DPO on a policy in memory, one part of the steps at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from posttrain import random_state, tables
from posttrain.config_dpo import DpoLearnerSettings
from posttrain.dpo_rows import PartPlan, plan_part
from posttrain.grpo_metrics import metric_rows
from posttrain.optimizer import build_scheduler
from posttrain.trained_model import TrainedModel
from posttrain.trainer_state import DataCursor


class DpoLearner(TrainedModel[DpoLearnerSettings]):
    """DPO on one model, which holds a LoRA adapter where `settings.lora_rank` says so: then that alone is trained."""

    def update(self, pairs: pa.Table, iteration: int, part: int, num_parts: int) -> pa.Table:
        """Trains one part of the steps and returns METRICS.

        Per-step rows carry the optimiser step counted over all iterations from 0. Without a pair or a step nothing changes
        but the cursor, and the metrics say so.

        Args:
            pairs: REFERENCED, as `sorted_pairs` returns it.

        Raises:
            TrainingError: loss or gradient is not finite; the model in memory is then not to be used.
            ConfigError: there is no such part, or a decaying schedule would be over before it is.
        """
        plan = plan_part(pairs, self.settings, part, num_parts)
        values = {"train/num_pairs": pairs.num_rows, "train/num_steps": len(plan.steps)}
        rows = metric_rows(values, iteration, None)
        step_metrics = self._train(pairs, plan) if plan.steps else []
        for step, metrics in enumerate(step_metrics, self.cursor.num_steps):
            rows += metric_rows(metrics, iteration, step)
        num_trained = sum(step[0].step_num_pairs for step in plan.steps)
        self.cursor = DataCursor(iteration, self.cursor.num_steps + len(plan.steps), self.cursor.num_rows + num_trained)
        return tables.from_rows("METRICS", rows)

    def _train(self, pairs: pa.Table, plan: PartPlan) -> Sequence[Mapping[str, float]]:
        from posttrain.dpo_trainer import recorded_trainer

        before_training = self.cursor.num_steps - plan.first_step
        total = self.settings.total_steps or before_training + plan.total_num_steps
        settings = self.settings.model_copy(update={"total_steps": total})
        optimizers = (self.optimizer, build_scheduler(self.optimizer, settings, self.cursor.num_steps, len(plan.steps)))
        with (
            random_state.untouched(),
            recorded_trainer(self.model, self.tokenizer, settings, optimizers, pairs, plan.steps) as trainer,
        ):
            if self.random:
                random_state.restore(self.random)
            trainer.train()
            self.random = random_state.capture()
        return trainer.step_metrics
