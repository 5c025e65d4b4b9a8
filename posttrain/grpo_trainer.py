"""TRL's GRPOTrainer fed with recorded rollouts. The only file that touches TRL's underscore methods and attributes.

Importing it imports TRL (seconds): import it inside functions.
"""

from __future__ import annotations

import copy
import gc
import math
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PrinterCallback

from posttrain.config import Dtype, ImportanceCorrection, LearnerSettings, LossType
from posttrain.errors import TrainingError
from posttrain.fused_head import packed_head
from posttrain.grpo_metrics import WeightedMeans
from posttrain.grpo_rows import Microbatch, TrainingRow
from posttrain.grpo_tensors import SEQUENCE_CORRECTIONS, cap_importance, log_importance, pad_logprobs, pad_rows
from posttrain.trainer_progress import ShowProgress

with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # TRL names the vLLM versions of its own generation, which is not used here
    from trl import GRPOConfig, GRPOTrainer

# losses that TRL averages over the rows of a microbatch; the others divide by `num_items_in_batch` (bnpo: by its own tokens)
ROW_MEAN_LOSSES = (LossType.grpo, LossType.dr_grpo, LossType.sapo, LossType.luspo)
# TRL's name → ours
STEP_METRICS = {
    "kl": "train/kl",
    "entropy": "train/entropy",
    "clip_ratio/low_mean": "train/clip_fraction_low",
    "clip_ratio/high_mean": "train/clip_fraction_high",
    "clip_ratio/region_mean": "train/clip_fraction_total",
    "cispo_clip_ratio": "train/clip_fraction_high",
}
MAX_NAMED_ROWS = 16


class RecordedRolloutTrainer(GRPOTrainer):
    """Takes microbatches from a plan instead of generating; loss, optimiser loop and clipping are TRL's.

    `step_metrics` holds one mapping for each optimiser step after `train()`, `old_logprobs` float32 (T,) by row key,
    `sampler_metrics` the mismatch between the sampler's logprobs and those of the policy at the start of the update;
    the capped fraction counts what the correction caps, tokens or whole completions, all others count tokens.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        settings: LearnerSettings,
        optimizers: tuple[Any, Any],
        epochs: Sequence[Sequence[Microbatch]],
        output_directory: str,
    ) -> None:
        from datasets import Dataset

        super().__init__(
            model=model,
            reward_funcs=_refuse_to_judge,
            args=_arguments(settings, output_directory, epochs[0][0].step_num_microbatches),
            train_dataset=Dataset.from_dict({"prompt": [""] * len(epochs[0])}),  # one row for each microbatch
            processing_class=copy.deepcopy(tokenizer),  # TRL sets its pad token
            optimizers=optimizers,
            callbacks=[ShowProgress("update")],
        )
        self.remove_callback(PrinterCallback)
        self.beta = settings.kl_coef  # after construction, so that no reference model is loaded
        self.use_vllm = settings.importance_correction is not ImportanceCorrection.none  # applies importance_sampling_ratio
        self.step_metrics: list[Mapping[str, float]] = []
        self.sampler_metrics: Mapping[str, float] = {}
        self._settings = settings
        self._epochs = epochs
        self._planned = iter([microbatch for epoch in epochs for microbatch in epoch])
        self._current = epochs[0][0]
        self.old_logprobs: dict[tuple[str, int], torch.Tensor] = {}
        self._means, self._loss_sum = WeightedMeans(), 0.0

    def record_old_logprobs(self) -> None:
        """Computes `old_logprobs` of every row, in the very microbatches of the first epoch: its first ratio is exactly 1."""
        for microbatch in self._epochs[0]:
            batch = pad_rows(microbatch.rows, self._pad_id, self.accelerator.device)
            input_ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
            mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
            with torch.no_grad():
                old_BT, _, _ = self._get_per_token_logps_and_entropies(
                    self.model, input_ids, mask, batch["completion_ids"].size(1)
                )
            for row, logprobs in zip(microbatch.rows, old_BT.float(), strict=True):
                self.old_logprobs[row.key] = logprobs[: len(row.completion_ids)].clone()
        self.sampler_metrics = self._compare_with_sampler([row for microbatch in self._epochs[0] for row in microbatch.rows])

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> torch.Tensor:
        """TRL's loss of one microbatch, scaled so that the step's gradient does not depend on how it is cut.

        Raises:
            TrainingError: the loss is not finite; names the rows.
        """
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        microbatch = self._current
        if self._settings.loss_type in ROW_MEAN_LOSSES:
            loss = loss * microbatch.row_share
        value = loss.item()
        if not math.isfinite(value):
            raise TrainingError(_explain_not_finite("loss", value, microbatch.rows))
        self._loss_sum += value
        weight = microbatch.num_tokens if self.importance_sampling_level == "token" else len(microbatch.rows)
        for name, values in self._metrics["train"].items():
            if name in STEP_METRICS:
                per_row = weight if name.startswith(("clip_ratio", "cispo")) else microbatch.num_tokens
                self._means.add(STEP_METRICS[name], values[-1], per_row)
        self._metrics["train"].clear()
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Called once after each optimiser step: keeps the numbers, writes none.

        Raises:
            TrainingError: the gradient is not finite; names the step's rows.
        """
        if "grad_norm" not in logs:
            return  # the summary at the end of training
        if not math.isfinite(logs["grad_norm"]):
            rows = [row for epoch in self._epochs for mb in epoch if mb.step == self._current.step for row in mb.rows]
            raise TrainingError(_explain_not_finite("gradient norm", logs["grad_norm"], rows))
        self.step_metrics.append(
            {
                "train/loss": self._loss_sum,
                "train/grad_norm": logs["grad_norm"],
                "train/learning_rate": logs["learning_rate"],
                "train/num_tokens": self._current.step_num_tokens,
                **self._means.means(),
            }
        )
        self._means, self._loss_sum = WeightedMeans(), 0.0

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """TRL's hook for generation: returns the next planned microbatch instead."""
        self._current = microbatch = next(self._planned)
        rows, device = microbatch.rows, self.accelerator.device
        batch = pad_rows(rows, self._pad_id, device)
        # TRL multiplies by the number of microbatches, so the normaliser is the token count of the whole optimiser step
        per_microbatch = microbatch.step_num_tokens / microbatch.step_num_microbatches
        batch["num_items_in_batch"] = torch.tensor(per_microbatch, dtype=torch.float32, device=device)
        if self.old_logprobs:
            batch["old_per_token_logps"] = self._old_BT(rows)
        if self.use_vllm:
            batch["sampling_per_token_logps"] = pad_logprobs([row.behavior_logprobs for row in rows], device)
            batch["importance_sampling_ratio"] = self._importance(batch)
        if self.beta:
            references = [row.reference_logprobs for row in rows if row.reference_logprobs is not None]
            batch["ref_per_token_logps"] = pad_logprobs(references, device)
        return batch

    def _send_telemetry(self) -> None:
        """TRL would report each run to its authors over the network."""

    @property
    def _pad_id(self) -> Any:
        return self._tokenizer.pad_token_id

    def _old_BT(self, rows: Sequence[TrainingRow]) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence([self.old_logprobs[row.key] for row in rows], batch_first=True)

    def _importance(self, batch: Mapping[str, Any]) -> torch.Tensor:
        correction = self._settings.importance_correction
        log_weight = log_importance(
            batch["old_per_token_logps"], batch["sampling_per_token_logps"], batch["completion_mask"], correction
        )
        return cap_importance(log_weight, correction, self._settings.importance_cap)

    def _compare_with_sampler(self, rows: Sequence[TrainingRow]) -> Mapping[str, float]:
        by_row = [self.old_logprobs[row.key].cpu().double() - torch.from_numpy(row.behavior_logprobs) for row in rows]
        difference = torch.cat(by_row)
        ratio = difference.exp()
        by_sequence = self._settings.importance_correction in SEQUENCE_CORRECTIONS
        weight = torch.stack([values.sum() for values in by_row]).exp() if by_sequence else ratio
        return {
            "train/behavior_gap_mean": difference.abs().mean().item(),
            "train/importance_ratio_mean": ratio.mean().item(),
            "train/importance_ratio_max": ratio.max().item(),
            "train/importance_capped_fraction": (weight > self._settings.importance_cap).double().mean().item(),
        }


@contextmanager
def recorded_trainer(
    model: Any, tokenizer: Any, settings: LearnerSettings, optimizers: tuple[Any, Any], epochs: Sequence[Sequence[Microbatch]]
) -> Iterator[RecordedRolloutTrainer]:
    """A trainer for one update. Afterwards the model is as it was but for its weights: TRL changes forward and configs.

    Args:
        optimizers: torch optimiser and learning-rate scheduler; both are stepped in place.
    """
    config, generation_config = copy.deepcopy(model.config), copy.deepcopy(model.generation_config)
    gc.freeze()  # accelerate collects garbage at the start: half a second over the objects of all imported libraries
    try:
        with tempfile.TemporaryDirectory(prefix="posttrain-trl-") as directory:
            trainer = RecordedRolloutTrainer(model, tokenizer, settings, optimizers, epochs, directory)
            with packed_head(model, temperature=settings.temperature, outputs=("log_probs", "entropy")):
                yield trainer
    finally:
        gc.unfreeze()
        for patched in ("forward", "_original_forward"):
            model.__dict__.pop(patched, None)
        model.config, model.generation_config = config, generation_config
        if settings.gradient_checkpointing:
            model.gradient_checkpointing_disable()
        model.eval()


def _arguments(settings: LearnerSettings, output_directory: str, num_microbatches: int) -> Any:
    # CISPO clips the weight at 1 + ε_high (arXiv 2506.13585, eq. 5); TRL's epsilon_high is that bound itself
    clip_high = 1 + settings.clip_high if settings.loss_type is LossType.cispo else settings.clip_high
    return GRPOConfig(
        output_dir=output_directory,
        loss_type=settings.loss_type.value,
        beta=0.0,
        # the plain k3 estimator: TRL's default would multiply it by the ratio, which at ratio 1 changes only the gradient
        use_bias_correction_kl=False,
        epsilon=settings.clip_low,
        epsilon_high=clip_high,
        importance_sampling_level=settings.importance_level,
        max_completion_length=settings.max_completion_tokens,
        temperature=settings.temperature,
        # a generation batch of two equal placeholder rows is what TRL asks for once per microbatch
        num_generations=2,
        per_device_train_batch_size=2,
        steps_per_generation=1,
        gradient_accumulation_steps=num_microbatches,  # of every step alike: the plan sees to it
        num_train_epochs=settings.num_epochs,
        max_grad_norm=settings.max_grad_norm,
        gradient_checkpointing=settings.gradient_checkpointing,
        bf16=settings.dtype is Dtype.bfloat16,
        use_cpu=not torch.cuda.is_available(),
        disable_dropout=True,
        shuffle_dataset=False,
        seed=settings.seed % 2**32,  # numpy takes no more
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


def _refuse_to_judge(**_: Any) -> list[float | None]:
    """Stands for the rewards that TRL wants to know of: verdicts are already in the table."""
    raise AssertionError("recorded rollouts are never judged again")


def _explain_not_finite(what: str, value: float, rows: Sequence[TrainingRow]) -> str:
    named = ", ".join(f"({row.prompt_id!r}, {row.sample_index})" for row in rows[:MAX_NAMED_ROWS])
    more = f" and {len(rows) - MAX_NAMED_ROWS} more" if len(rows) > MAX_NAMED_ROWS else ""
    return (
        f"the {what} is {value} in the microbatch of rows (prompt_id, sample_index) {named}{more}. "
        "Nothing was written. Look at these rows' logprobs and advantages, or lower the learning rate."
    )
