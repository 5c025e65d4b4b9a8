"""Settings of verification: limits, what programs may import, and the rules that a dataset may leave open."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from posttrain.config_base import Settings


class SandboxPolicy(StrEnum):
    """How little isolation may run; see docs/verification.md for what each level promises."""

    namespaces = "namespaces"  # a view of files, processes and network of its own, or nothing runs
    require = "require"  # files and network closed, by namespaces or by Landlock
    weak = "weak"  # anything, said loudly


class CodeReward(StrEnum):
    """What a program earns: 1 only when every test passes, or the fraction of tests that pass."""

    all = "all"
    fraction = "fraction"


class PercentRule(StrEnum):
    """What meets the answer 28%, besides 28% and 28 percent."""

    sign = "sign"  # nothing else
    hundredths = "hundredths"  # also 0.28; and 28 when the question asks "what percent"
    bare = "bare"  # also 0.28, and 28 whatever the question


class VerifySettings(Settings):
    """Limits and rules of verification."""

    timeout_s: float = Field(default=2.0, gt=0, le=3600, description="wall time of one completion, all its tests together")
    case_timeout_s: float = Field(default=0.0, ge=0, description="wall time of one test; 0 leaves timeout_s as the only limit")
    memory_mib: int = Field(default=256, ge=16, description="memory of one completion's processes")
    max_completion_characters: int = Field(default=2_000_000, ge=1, description="longer completions are unparseable")
    max_error_share: float = Field(default=0.1, ge=0, le=1, description="above this share of verifier errors the task fails")
    overlong_buffer_tokens: int = Field(
        default=0, ge=0, description="soft penalty for the last tokens before the cap (DAPO eq. 13); 0 is off"
    )
    sandbox: SandboxPolicy = Field(
        default=SandboxPolicy.require, description="`weak` allows running with files open to programs; never silently"
    )
    packages: str = Field(default="numpy", description="installed packages that programs may import, separated by commas")
    code_reward: CodeReward = CodeReward.all
    percent: PercentRule = PercentRule.hundredths
    plugins: str = Field(default="", description="own verifiers as name=package.module:Class, separated by commas")
    judge_model: str = Field(default="", description="model that the verifier `judge` asks")
    judge_max_requests: int = Field(default=10_000, ge=1, description="requests that the judge may send for one shard")
    judge_max_retries: int = Field(default=4, ge=0, description="further tries of one request of the judge")
    judge_timeout_s: float = Field(default=60.0, gt=0, le=3600, description="wall time of one request of the judge")
