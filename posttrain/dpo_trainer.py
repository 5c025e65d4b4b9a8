"""TRL's DPOTrainer fed with pairs and stored reference logprobs. The only file that touches DPOTrainer's underscore names.

Importing it imports TRL (seconds): import it inside functions.
"""

from __future__ import annotations

import copy
import math
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import torch
from transformers import PrinterCallback

from posttrain.config import Dtype
from posttrain.config_dpo import DpoLearnerSettings, DpoLoss
from posttrain.dpo_rows import PairMicrobatch, Step, read_pairs
from posttrain.errors import TrainingError
from posttrain.fused_head import packed_head
from posttrain.grpo_metrics import WeightedMeans
from posttrain.trainer_model import lent
from posttrain.trainer_progress import ShowProgress

with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # TRL names the vLLM versions of its own generation, which is not used here
    from trl import DPOConfig, DPOTrainer
    from trl.trainer.dpo_trainer import DataCollatorForPreference

HEAD_OUTPUTS = ("log_probs", "entropy", "mean_logits", "is_top1")  # what TRL's loss and metrics read
# TRL's name → ours, each a mean over pairs
PAIR_METRICS = {
    "rewards/accuracies": "train/pair_accuracy",
    "rewards/margins": "train/reward_margin",
    "rewards/chosen": "train/chosen_reward",
    "rewards/rejected": "train/rejected_reward",
    "logps/chosen": "train/chosen_logprob",
    "logps/rejected": "train/rejected_logprob",
}
MAX_NAMED_PAIRS = 16


class RecordedPairTrainer(DPOTrainer):
    """Takes microbatches from a plan and the reference's logprobs from the table; losses, optimiser loop and clipping are TRL's.

    No reference model is ever built and none runs. As in TRL, `ipo` and `sigmoid_norm` divide each side's log-ratio by its
    number of tokens, the other losses take sums; `aot` and `aot_unpaired` sort within a microbatch, so that they alone depend
    on how a step is cut. `step_metrics` holds one mapping for each optimiser step after `train()`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        settings: DpoLearnerSettings,
        optimizers: tuple[Any, Any],
        pairs: pa.Table,
        steps: Sequence[Step],
        output_directory: str,
    ) -> None:
        from datasets import Dataset

        own_tokenizer = copy.deepcopy(tokenizer)  # TRL sets its pad token
        pad_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        # masks come from lengths: the pad id may also be a real token
        self._collate = DataCollatorForPreference(pad_token_id=pad_id)
        self._settings, self._pairs, self._steps = settings, pairs, steps
        self._microbatches = [microbatch for step in steps for microbatch in step]
        super().__init__(
            model=model,
            args=_arguments(settings, output_directory, len(steps[0])),
            train_dataset=Dataset.from_dict({"microbatch": range(len(self._microbatches))}),
            data_collator=self._read_microbatch,
            processing_class=own_tokenizer,
            optimizers=optimizers,
            callbacks=[ShowProgress("update")],
        )
        self.remove_callback(PrinterCallback)
        self.step_metrics: list[Mapping[str, float]] = []
        self._number = 0
        self._means, self._loss_sum = WeightedMeans(), 0.0

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> torch.Tensor:
        """TRL's loss of one microbatch, weighted so that the step's gradient does not depend on how it is cut.

        Raises:
            TrainingError: the loss is not finite; names the pairs.
        """
        self._number = inputs.pop("microbatch")
        microbatch = self._microbatches[self._number]
        self.loss_weights = [weight * _share(name, microbatch) for name, weight in _losses(self._settings)]
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        value = loss.item()
        if not math.isfinite(value):
            raise TrainingError(self._explain_not_finite("loss", value, microbatch.rows))
        self._loss_sum += value / microbatch.step_num_microbatches
        found = self._metrics["train"]
        self._means.add("train/entropy", found["entropy"][-1], microbatch.num_tokens)
        for name, ours in PAIR_METRICS.items():
            self._means.add(ours, found[name][-1], len(microbatch.rows))
        found.clear()
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Called once after each optimiser step: keeps the numbers, writes none.

        Raises:
            TrainingError: the gradient is not finite; names the step's pairs.
        """
        if "grad_norm" not in logs:
            return  # the summary at the end of training
        if not math.isfinite(logs["grad_norm"]):
            rows = [row for microbatch in self._step for row in microbatch.rows]
            raise TrainingError(self._explain_not_finite("gradient norm", logs["grad_norm"], rows))
        means = self._means.means()
        self.step_metrics.append(
            {
                "train/loss": self._loss_sum,
                "train/grad_norm": logs["grad_norm"],
                "train/learning_rate": logs["learning_rate"],
                "train/num_tokens": self._step[0].step_num_tokens,
                **means,
                **{f"train/{side}_logprob_drift": means[f"train/{side}_reward"] / self.beta for side in ("chosen", "rejected")},
            }
        )
        self._means, self._loss_sum = WeightedMeans(), 0.0

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, dataset_name: str) -> Any:
        """TRL would tokenise text; the table holds ids."""
        return dataset

    def _precompute_ref_logps(self, dataset: Any, name: str, batch_size: int) -> Any:
        """TRL would run the reference; the table holds its logprobs."""
        return dataset

    def _send_telemetry(self) -> None:
        """TRL would report each run to its authors over the network."""

    def _read_microbatch(self, examples: Sequence[Mapping[str, int]]) -> dict[str, Any]:
        (example,) = examples
        number = example["microbatch"]
        return {**self._collate(read_pairs(self._pairs, self._microbatches[number].rows)), "microbatch": number}

    @property
    def _step(self) -> Step:
        """The step of the microbatch that was computed last."""
        return self._steps[self._number // len(self._steps[0])]

    def _explain_not_finite(self, what: str, value: float, rows: Sequence[int]) -> str:
        named = self._pairs["pair_id"].take(list(rows[:MAX_NAMED_PAIRS])).to_pylist()
        more = f" and {len(rows) - MAX_NAMED_PAIRS} more" if len(rows) > MAX_NAMED_PAIRS else ""
        return (
            f"the {what} is {value} in the microbatch of pairs (pair_id) {', '.join(map(repr, named))}{more}. "
            "Nothing was written. Look at these pairs' reference logprobs, or lower the learning rate."
        )


@contextmanager
def recorded_trainer(
    model: Any, tokenizer: Any, settings: DpoLearnerSettings, optimizers: tuple[Any, Any], pairs: pa.Table, steps: Sequence[Step]
) -> Iterator[RecordedPairTrainer]:
    """A trainer for one part. Afterwards the model is as it was but for its weights.

    Args:
        optimizers: torch optimiser and learning-rate scheduler; both are stepped in place.
        pairs: REFERENCED, which the row numbers of `steps` refer to.
    """
    with lent(model), tempfile.TemporaryDirectory(prefix="posttrain-trl-") as directory:
        trainer = RecordedPairTrainer(model, tokenizer, settings, optimizers, pairs, steps, directory)
        with packed_head(model, temperature=1.0, outputs=HEAD_OUTPUTS):
            yield trainer


def _share(loss: DpoLoss, microbatch: PairMicrobatch) -> float:
    """TRL takes `sft` as a mean over chosen tokens, every other loss as one over pairs."""
    return microbatch.chosen_token_share if loss is DpoLoss.sft else microbatch.pair_share


def _losses(settings: DpoLearnerSettings) -> list[tuple[DpoLoss, float]]:
    """TRL's losses and their weights, whose weighted sum is the loss that the settings ask for.

    TRL's `sigmoid` ignores label smoothing ε. cDPO (ericmitchell.ai/cdpo.pdf) is (1 − ε)·L(h) + ε·L(−h) with L = −log σ(β·h), and
    TRL's `robust` is ((1 − ε)·L(h) − ε·L(−h)) / (1 − 2ε); so cDPO is 2(1 − ε)·sigmoid − (1 − 2ε)·robust.
    """
    smoothing = settings.label_smoothing
    losses = [(settings.loss_type, 1.0)]
    if settings.loss_type is DpoLoss.sigmoid and smoothing:
        losses = [(DpoLoss.sigmoid, 2 * (1 - smoothing)), (DpoLoss.robust, 2 * smoothing - 1)]
    return [*losses, (DpoLoss.sft, settings.nll_coef)] if settings.nll_coef else losses


def _arguments(settings: DpoLearnerSettings, output_directory: str, num_microbatches: int) -> Any:
    losses = _losses(settings)
    return DPOConfig(
        output_dir=output_directory,
        loss_type=[name.value for name, _ in losses],
        loss_weights=[weight for _, weight in losses],
        beta=settings.beta,
        label_smoothing=settings.label_smoothing,
        precompute_ref_log_probs=True,  # otherwise TRL builds the reference
        max_length=None,  # the preparation has truncated
        # one dataset row stands for one microbatch, in the order of the plan
        per_device_train_batch_size=1,
        gradient_accumulation_steps=num_microbatches,  # of every step alike: the plan sees to it
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        num_train_epochs=1,  # the plan holds all epochs
        max_grad_norm=settings.max_grad_norm,
        gradient_checkpointing=settings.gradient_checkpointing,
        bf16=settings.dtype is Dtype.bfloat16,
        use_cpu=not torch.cuda.is_available(),
        disable_dropout=True,
        seed=settings.seed % 2**32,  # numpy takes no more
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
