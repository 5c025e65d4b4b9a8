"""ROLLOUTS and PROMPTS for tests of verification, row by row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from posttrain import tables
from posttrain.config_verify import VerifySettings
from posttrain.verify.score import verify_rollouts

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = VerifySettings(max_error_share=1.0)


def prompt(prompt_id: str, verifier: str, answer: Any, question: str = "?") -> dict[str, Any]:
    messages = [
        {"role": "user", "content": "before"},
        {"role": "assistant", "content": "…"},
        {"role": "user", "content": question},
    ]
    encoded = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return {
        "prompt_id": prompt_id,
        "messages": messages,
        "prompt_ids": [1],
        "verifier": verifier,
        "answer": encoded.decode(),
        "source": "test",
    }


def rollout(prompt_id: str, index: int, completion: str, num_tokens: int = 3, finish_reason: str = "stop") -> dict[str, Any]:
    return {
        "prompt_id": prompt_id, "sample_index": index, "prompt_ids": [1], "completion_ids": [5] * num_tokens,
        "behavior_logprobs": [-0.5] * num_tokens, "policy_versions": [{"version": 0, "num_tokens": num_tokens}], "finish_reason": finish_reason,
        "completion": completion, "seed": 0, "engine": "test", "started_at": NOW, "finished_at": NOW,
    }  # fmt: skip


def rollouts_of(prompt_id: str, completions: Sequence[str]) -> list[dict[str, Any]]:
    """One group."""
    return [rollout(prompt_id, index, completion) for index, completion in enumerate(completions)]


def verify(
    prompts: list[dict[str, Any]], rollouts: list[dict[str, Any]], settings: VerifySettings = SETTINGS, cap: int = 100
) -> pa.Table:
    return verify_rollouts(
        tables.from_rows("ROLLOUTS", rollouts), tables.from_rows("PROMPTS", prompts), settings, max_completion_tokens=cap
    )


def named(metrics: pa.Table) -> dict[str, float]:
    return dict(zip(metrics["name"].to_pylist(), metrics["value"].to_pylist(), strict=True))
