"""Settings of DPO, of the pairs it learns from, and of iterative DPO."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from posttrain.config import (
    DataSettings,
    EvaluationSettings,
    LoopSettings,
    RolloutSettings,
    TrackingSettings,
    VerifySettings,
    WarmStartSettings,
)
from posttrain.config_base import ModelData, OptimizerSettings, Settings
from posttrain.config_rules_dpo import check_dpo, check_iterative_dpo
from posttrain.errors import ConfigError


class DpoLoss(StrEnum):
    """The DPO losses of TRL 1.16 by name; `sigmoid` is the paper's, `sigmoid_norm` divides by length."""

    sigmoid = "sigmoid"
    hinge = "hinge"
    ipo = "ipo"
    exo_pair = "exo_pair"
    nca_pair = "nca_pair"
    robust = "robust"
    bco_pair = "bco_pair"
    sppo_hard = "sppo_hard"
    aot = "aot"
    aot_unpaired = "aot_unpaired"
    apo_zero = "apo_zero"
    apo_down = "apo_down"
    discopop = "discopop"
    sft = "sft"
    sigmoid_norm = "sigmoid_norm"


class PreferenceData(ModelData):
    """A fixed dataset of pairs, the frozen reference, and how the policy is measured."""

    model: str = Field(min_length=1, description="policy before training: Hugging Face id, local directory or object store URL")
    reference: str = Field(default="", description="frozen reference, same forms; empty is the policy before training")
    preferences: str = Field(min_length=1, description="pairs: dataset id, .parquet, .jsonl, or an .arrow table PREFERENCES")
    evaluation_preferences: str = Field(default="", description="held-out pairs, same forms; empty holds out a share")
    evaluation_share: float = Field(default=0.1, gt=0, le=0.5, description="share of the prompts whose pairs are held out")
    evaluation_prompts: str = Field(default="", description="held-out prompts to generate for and verify; empty for none")
    max_pair_tokens: int = Field(
        default=1024, ge=2, description="prompt + one answer; a longer answer loses its end, each side by itself"
    )


class DpoLearnerSettings(OptimizerSettings):
    """The DPO update."""

    loss_type: DpoLoss = DpoLoss.sigmoid
    beta: float = Field(default=0.1, gt=0, description="strength of the tie to the reference")
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5, description="share of labels taken to be wrong (cDPO, robust)")
    nll_coef: float = Field(default=0.0, ge=0, description="weight of the mean NLL of chosen tokens; keeps them likely (RPO)")
    pairs_per_step: int = Field(default=32, ge=1, description="pairs in one optimiser step")
    pairs_per_microbatch: int = Field(default=0, ge=0, description="pairs in one forward and backward pass; 0 is the whole step")
    lora_rank: int = Field(default=0, ge=0, description="rank of the LoRA adapter; 0 trains the weights themselves")
    lora_alpha: float = Field(default=16.0, gt=0, description="the adapter's output is scaled by alpha / rank")

    @property
    def microbatch_size(self) -> int:
        """Pairs of one forward and backward pass."""
        return self.pairs_per_microbatch or self.pairs_per_step

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.pairs_per_step % self.microbatch_size:
            raise ConfigError(
                "learner.pairs_per_microbatch",
                self.pairs_per_microbatch,
                f"it does not divide pairs_per_step = {self.pairs_per_step}",
                "Choose a divisor.",
            )
        smoothed = (DpoLoss.sigmoid, DpoLoss.robust, DpoLoss.exo_pair, DpoLoss.aot, DpoLoss.aot_unpaired)
        if self.label_smoothing and self.loss_type not in smoothed:
            names = ", ".join(loss.value for loss in smoothed)
            why = f"the loss {self.loss_type.value} has no label smoothing"
            raise ConfigError("learner.label_smoothing", self.label_smoothing, why, f"Set it to 0, or choose one of {names}.")
        if self.loss_type is DpoLoss.exo_pair and not self.label_smoothing:
            why = "exo_pair is not defined without label smoothing"
            raise ConfigError("learner.label_smoothing", self.label_smoothing, why, "The paper's value is 0.001.")
        if self.lora_rank and self.trainable_parameters != ".*":
            why = "with lora_rank > 0 the adapter alone is trained"
            raise ConfigError("learner.trainable_parameters", self.trainable_parameters, why, "Leave it out.")
        return self


class DpoLoopSettings(Settings):
    """Training is cut into parts; after each the policy is a checkpoint and is evaluated."""

    num_iterations: int = Field(default=4, ge=1, le=100, description="parts that the optimiser steps are cut into")
    num_shards: int = Field(default=2, ge=1, description="parallel tasks of the reference precompute")
    seed: int = Field(default=0, ge=0, lt=2**63)


class PartEvaluationSettings(EvaluationSettings):
    """As for GRPO, but after every part: parts are few and long."""

    every: int = Field(default=1, ge=1, description="parts between evaluations")


class PairSettings(Settings):
    """How verified rollouts become pairs: the best of a group against its worst."""

    min_margin: float = Field(default=0.5, gt=0, description="smallest difference of the two rewards")
    max_pairs_per_prompt: int = Field(default=1, ge=1)
    max_length_ratio: float = Field(
        default=0.0, ge=0, description="longer side over shorter side in tokens; pairs above it are left out; 0 is off"
    )
    max_similarity: float = Field(
        default=0.98, gt=0, le=1, description="likeness of the two sides (0 to 1) from which a pair is a near-duplicate; 1 is off"
    )
    seed: int = Field(default=0, ge=0, lt=2**63)


class DpoSettings(Settings):
    """All settings of the `dpo` workflow."""

    data: PreferenceData
    learner: DpoLearnerSettings = DpoLearnerSettings()
    rollout: RolloutSettings = RolloutSettings()
    verify: VerifySettings = VerifySettings()
    evaluation: PartEvaluationSettings = PartEvaluationSettings()
    loop: DpoLoopSettings = DpoLoopSettings()
    tracking: TrackingSettings = TrackingSettings()

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        check_dpo(self)
        return self


class IterativeDpoSettings(Settings):
    """All settings of the `iterative_dpo` workflow: rollouts → verify → preferences → reference → update, again and again."""

    data: DataSettings = DataSettings()
    warm_start: WarmStartSettings = WarmStartSettings()
    rollout: RolloutSettings = RolloutSettings()
    verify: VerifySettings = VerifySettings()
    pairs: PairSettings = PairSettings()
    learner: DpoLearnerSettings = DpoLearnerSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    loop: LoopSettings = LoopSettings()
    tracking: TrackingSettings = TrackingSettings()

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        check_iterative_dpo(self)
        return self
