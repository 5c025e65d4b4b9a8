"""SCORED tables for learner tests, written row by row; values that a test does not care about are filled in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from posttrain import tables

MOMENT = datetime(2030, 1, 1, tzinfo=UTC)


def rollout_row(prompt_id: str, sample_index: int, completion_ids: Sequence[int] = (5, 6, 2), **values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "prompt_id": prompt_id,
        "sample_index": sample_index,
        "prompt_ids": [1, 8, 9],
        "completion_ids": list(completion_ids),
        "behavior_logprobs": [-1.0] * len(completion_ids),
        "policy_versions": [{"version": 0, "num_tokens": len(completion_ids)}],
        "finish_reason": "stop",
        "completion": "text",
        "seed": 0,
        "engine": "none",
        "started_at": MOMENT,
        "finished_at": MOMENT,
    }
    return row | values


def verdict_row(prompt_id: str, sample_index: int, reward: float | None) -> dict[str, Any]:
    outcome = "error" if reward is None else "pass" if reward > 0 else "fail"
    return {
        "prompt_id": prompt_id,
        "sample_index": sample_index,
        "outcome": outcome,
        "reward": reward,
        "detail": "",
        "seconds": 0.0,
        "verifier": "none",
        "verifier_version": "1",
        "parts": [],
        "limits": "{}",
    }


def scored_row(
    prompt_id: str,
    sample_index: int,
    completion_ids: Sequence[int] = (5, 6, 2),
    *,
    advantage: float | None = 1.0,
    reward: float | None = None,
    **values: Any,
) -> dict[str, Any]:
    if reward is None and advantage is not None:
        reward = advantage
    row = rollout_row(prompt_id, sample_index, completion_ids) | verdict_row(prompt_id, sample_index, reward)
    return row | {"advantage": advantage, "reference_logprobs": None} | values


def scored_table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    return tables.from_rows("SCORED", rows)


def random_scored(
    num_groups: int,
    group_size: int = 4,
    seed: int = 0,
    max_prompt: int = 12,
    max_completion: int = 20,
    vocabulary: int = 50,
    behavior_noise: float = 0.0,
    model: Any = None,
) -> pa.Table:
    """Random ids and rewards; behaviour logprobs are the model's own (plus noise) where a model is given."""
    from posttrain.logprobs import token_logprobs

    draw = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for group in range(num_groups):
        prompt = draw.integers(4, vocabulary, draw.integers(2, max_prompt + 1)).tolist()
        rewards = draw.permutation([1.0] + [0.0] * (group_size - 1))
        for sample, reward in enumerate(rewards):
            completion = draw.integers(4, vocabulary, draw.integers(1, max_completion + 1)).tolist()
            advantage = float(reward - rewards.mean()) / 0.5
            rows.append(scored_row(f"p{group}", sample, completion, advantage=advantage, reward=float(reward), prompt_ids=prompt))
    if model is not None:
        found = token_logprobs(model, [row["prompt_ids"] for row in rows], [row["completion_ids"] for row in rows], 1.0)
        for row, logprobs in zip(rows, found, strict=True):
            noisy = logprobs + behavior_noise * draw.standard_normal(len(logprobs))
            row["behavior_logprobs"] = np.minimum(noisy, 0.0).tolist()
    return scored_table(rows)
