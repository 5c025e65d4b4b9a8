"""Every setting. Frozen, unknown keys refused; what changes the result is here, where it runs is not."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from posttrain.config_base import Dtype, ModelData, OptimizerSettings, Settings
from posttrain.config_rules import check_sections
from posttrain.config_verify import VerifySettings
from posttrain.errors import ConfigError


class EngineName(StrEnum):
    vllm = "vllm"
    transformers = "transformers"


class LossType(StrEnum):
    """The GRPO losses of TRL 1.16."""

    grpo = "grpo"
    dr_grpo = "dr_grpo"
    dapo = "dapo"
    bnpo = "bnpo"
    cispo = "cispo"
    sapo = "sapo"
    luspo = "luspo"
    vespo = "vespo"


class AdvantageScaling(StrEnum):
    """What a centred reward is divided by: nothing, the group's or the batch's standard deviation."""

    none = "none"
    group = "group"
    batch = "batch"


class AdvantageBaseline(StrEnum):
    """What is subtracted from a reward: the group's mean, or the mean of the other samples (RLOO)."""

    mean = "mean"
    leave_one_out = "leave_one_out"


class ImportanceCorrection(StrEnum):
    """How the mismatch between sampler and learner is corrected from the stored behaviour logprobs."""

    none = "none"
    token_truncate = "token_truncate"
    token_mask = "token_mask"
    sequence_truncate = "sequence_truncate"
    sequence_mask = "sequence_mask"


class DataSettings(ModelData):
    """Also the prompts that are trained on."""

    evaluation_prompts: str = Field(
        default="brackets?size=100&seed=1000001", min_length=1, description="held-out prompts, same forms as `prompts`"
    )
    prompts: str = Field(
        default="brackets?size=1024", min_length=1, description="dataset id, .parquet or .jsonl file, or generator?size=…"
    )


class WarmStartSettings(Settings):
    """Supervised fine-tuning before GRPO. No demonstrations, no warm start."""

    demonstrations: str = Field(
        default="", description="brackets_demonstrations?size=…, or a .jsonl/.parquet of prompt and completion; empty for none"
    )
    num_steps: int = Field(default=200, ge=1)
    batch_size: int = Field(default=64, ge=1)
    learning_rate: float = Field(default=3e-3, gt=0)
    seed: int = Field(default=0, ge=0, lt=2**63)


class RolloutSettings(Settings):
    """How completions are sampled."""

    engine: EngineName = EngineName.vllm
    dtype: Dtype = Dtype.float32
    group_size: int = Field(default=8, description="completions for each prompt")
    temperature: float = Field(default=1.0, ge=0.01, le=10)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_completion_tokens: int = Field(default=48, ge=1)
    max_model_tokens: int = Field(default=112, ge=2)
    seed: int = Field(default=0, ge=0, lt=2**63)
    trust_remote_code: bool = False


class AdvantageSettings(Settings):
    """From the rewards of a group to advantages."""

    scaling: AdvantageScaling = AdvantageScaling.group
    baseline: AdvantageBaseline = AdvantageBaseline.mean


class LearnerSettings(OptimizerSettings):
    """The GRPO update."""

    loss_type: LossType = LossType.dapo
    learning_rate: float = Field(default=4e-4, gt=0)
    groups_per_step: int = Field(default=8, ge=1, description="prompt groups in one optimiser step")
    groups_per_microbatch: int = Field(default=8, ge=1, description="prompt groups in one forward and backward pass")
    clip_low: float = Field(default=0.2, ge=0, lt=1)
    clip_high: float = Field(default=0.28, ge=0)
    kl_coef: float = Field(default=0.0, ge=0)
    importance_level: str = Field(default="token", pattern="^(token|sequence)$", description="`sequence` is GSPO")
    importance_correction: ImportanceCorrection = ImportanceCorrection.token_truncate
    importance_cap: float = Field(default=2.0, gt=0, description="truncation C of the importance weight")
    mask_truncated: bool = Field(default=False, description="leave completions that hit the length cap out of the loss")
    temperature: float = Field(default=1.0, gt=0, description="sampling temperature; logprobs are taken at it")
    scaling: AdvantageScaling = AdvantageScaling.group
    max_completion_tokens: int = Field(default=48, ge=1)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.groups_per_step % self.groups_per_microbatch:
            raise ConfigError(
                "learner.groups_per_microbatch",
                self.groups_per_microbatch,
                f"it does not divide groups_per_step = {self.groups_per_step}",
                "Choose a divisor.",
            )
        if self.loss_type is LossType.vespo and self.importance_correction.value.startswith("sequence"):
            raise ConfigError(
                "learner.importance_correction",
                self.importance_correction.value,
                "vespo weighs whole sequences by itself",
                "Choose token_truncate or token_mask.",
            )
        return self


class EvaluationSettings(Settings):
    """How a policy is measured on the held-out prompts."""

    every: int = Field(default=2, ge=1, description="iterations between evaluations")
    num_samples: int = Field(default=4, ge=1, description="sampled completions for each prompt, beside one greedy")
    pass_at: list[int] = Field(default=[1, 4], description="the k of pass@k")
    confidence: float = Field(default=0.95, gt=0, lt=1)

    @model_validator(mode="after")
    def _enough_samples(self) -> Self:
        for k in self.pass_at:
            if not 1 <= k <= self.num_samples:
                raise ConfigError(
                    "evaluation.pass_at",
                    k,
                    f"pass@k needs 1 <= k <= num_samples = {self.num_samples}",
                    "Raise num_samples or drop the k.",
                )
        return self


class LoopSettings(Settings):
    """The shape of the run."""

    num_iterations: int = Field(default=10, ge=1, le=100, description="sample–verify–update cycles; above 100 chain executions")
    prompts_per_iteration: int = Field(default=32, ge=1)
    num_shards: int = Field(default=2, ge=1, description="parallel chains of one iteration")
    staleness: int = Field(default=0, description="rollouts of iteration k use policy k − staleness")
    max_refill_rounds: int = Field(
        default=1, ge=0, le=4, description="times that zero-variance groups are replaced by further prompts"
    )
    target_pass_rate: float = Field(default=0.0, ge=0, le=1, description="stop when sampled pass@1 reaches it; 0 never stops")
    seed: int = Field(default=0, ge=0, lt=2**63)

    @model_validator(mode="after")
    def _shards_divide(self) -> Self:
        if self.prompts_per_iteration % self.num_shards:
            raise ConfigError(
                "loop.num_shards",
                self.num_shards,
                f"it does not divide prompts_per_iteration = {self.prompts_per_iteration}",
                "Choose a divisor, so that every shard holds the same number of groups.",
            )
        return self


class TrackingSettings(Settings):
    """Names under which a run is found. They change no result and no cache key."""

    experiment: str = Field(default="posttrain", min_length=1)
    run_name: str = ""
    parent_execution: str = Field(
        default="", description="execution whose MLflow run this one is nested in, as a sweep's trials are"
    )
    keep_last: int = Field(default=2, ge=1, description="checkpoints kept beside the best one")
    register_as: str = Field(
        default="", pattern=r"^[^/:'\"]*$", description="name in the MLflow model registry; empty registers nothing"
    )


class GrpoSettings(Settings):
    """All settings of the `grpo` workflow; sections hold what one kind of task needs."""

    data: DataSettings = DataSettings()
    warm_start: WarmStartSettings = WarmStartSettings()
    rollout: RolloutSettings = RolloutSettings()
    verify: VerifySettings = VerifySettings()
    advantage: AdvantageSettings = AdvantageSettings()
    learner: LearnerSettings = LearnerSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    loop: LoopSettings = LoopSettings()
    tracking: TrackingSettings = TrackingSettings()

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        check_sections(self)
        return self
