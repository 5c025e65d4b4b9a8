"""What every settings class shares: frozen, unknown keys refused; what several algorithms need is here once."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from posttrain.errors import ConfigError


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"


_NUMBERS: tuple[Any, ...] = (int, float)


class Settings(BaseModel):
    """Base of every settings class."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_enum_values=False)

    @model_validator(mode="before")
    @classmethod
    def _no_truth_values_for_numbers(cls, values: Any) -> Any:
        """`true` would silently become 1."""
        for name, value in values.items() if isinstance(values, dict) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field is not None and field.annotation in _NUMBERS:
                raise ConfigError(name, value, "a number is wanted", "Write the number.")
        return values


class ModelData(Settings):
    """Which model, and the held-out prompts on which it is measured."""

    model: str = Field(
        default="brackets", min_length=1, description="Hugging Face id, local directory, or `brackets` (the quick-start model)"
    )
    evaluation_prompts: str = Field(
        default="brackets?size=100&seed=1000001",
        description="held-out prompts: dataset id, .parquet or .jsonl file, generator?size=…",
    )
    verifier: str = Field(default="code", min_length=1, description="verifier of rows that name none")
    system_prompt: str = Field(default="", description="system message put before every prompt; empty for none")
    max_prompt_tokens: int = Field(default=64, ge=1, description="longer prompts are reported by id and left out")
    max_completion_tokens: int = Field(default=48, ge=1)
    max_model_tokens: int = Field(default=0, ge=0, description="context of the engine; 0 is prompt + completion")
    trust_remote_code: bool = False

    @property
    def context_tokens(self) -> int:
        return self.max_model_tokens or self.max_prompt_tokens + self.max_completion_tokens

    @model_validator(mode="after")
    def _context_fits(self) -> Self:
        needed = self.max_prompt_tokens + self.max_completion_tokens
        if self.context_tokens < needed:
            raise ConfigError(
                "data.max_model_tokens",
                self.max_model_tokens,
                f"prompt + completion may take {needed} tokens",
                f"Set it to {needed} or more, or to 0.",
            )
        return self


class OptimizerSettings(Settings):
    """AdamW, its schedule, and which parameters move: shared by every learner."""

    learning_rate: float = Field(default=1e-6, gt=0)
    lr_scheduler: str = Field(default="constant", pattern="^(constant|linear|cosine|constant_with_warmup)$")
    warmup_steps: int = Field(default=0, ge=0)
    total_steps: int = Field(
        default=0, ge=0, description="length of a decaying schedule, all iterations together; 0 is computed from the loop"
    )
    weight_decay: float = Field(default=0.0, ge=0)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.99, ge=0, lt=1)
    max_grad_norm: float = Field(default=1.0, gt=0)
    num_epochs: int = Field(default=1, ge=1, description="passes over the rows")
    trainable_parameters: str = Field(default=".*", description="regular expression of the parameter names that are trained")
    dtype: Dtype = Dtype.float32
    gradient_checkpointing: bool = False
    trust_remote_code: bool = False
    seed: int = Field(default=0, ge=0, lt=2**63)

    @model_validator(mode="after")
    def _pattern_compiles(self) -> Self:
        try:
            re.compile(self.trainable_parameters)
        except re.error as error:
            why = f"not a regular expression ({error})"
            raise ConfigError(
                "learner.trainable_parameters", self.trainable_parameters, why, "`.*` trains everything."
            ) from error
        return self
