"""DPO on a policy in memory, one part of the steps at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from posttrain import random_state, tables
from posttrain.config_dpo import DpoLearnerSettings
from posttrain.dpo_rows import PartPlan, plan_part
from posttrain.errors import ConfigError
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
            ConfigError: there is no such part, fewer steps were made than the parts before it have, or a decaying schedule would
                be over before it is, or never reach its rate.
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

        settings = self._with_schedule_length(plan)
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

    def _with_schedule_length(self, plan: PartPlan) -> DpoLearnerSettings:
        before_training = self.cursor.num_steps - plan.first_step
        if before_training < 0:
            why = f"the parts before this one have {plan.first_step} steps on these pairs with these settings"
            raise ConfigError(
                "state.num_steps", self.cursor.num_steps, why, "Train the parts in order, and change nothing between."
            )
        total = self.settings.total_steps or before_training + plan.total_num_steps
        if self.settings.lr_scheduler in ("linear", "cosine") and self.settings.warmup_steps >= total:
            why = f"the schedule has {total} steps: learning_rate would never be reached"
            raise ConfigError("learner.warmup_steps", self.settings.warmup_steps, why, "Lower it, or train more steps.")
        return self.settings.model_copy(update={"total_steps": total})
