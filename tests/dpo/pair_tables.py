"""PREFERENCES and REFERENCED tables for DPO tests, and one update with defaults for what a test does not care about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from posttrain import dpo, policy, tables
from posttrain.config import Dtype
from posttrain.config_dpo import DpoLearnerSettings
from posttrain.dpo_reference import reference_logprobs

HASH = "0" * 64


def pair_row(pair_id: str, chosen_ids: Sequence[int] = (5, 6, 2), rejected_ids: Sequence[int] = (7, 2), **values: Any) -> dict:
    row: dict[str, Any] = {
        "pair_id": pair_id,
        "prompt_id": pair_id,
        "prompt_ids": [1, 8, 9],
        "chosen_ids": list(chosen_ids),
        "rejected_ids": list(rejected_ids),
        "source": "test",
        "margin": None,
    }
    return row | values


def referenced_row(pair_id: str, *sides: Sequence[int], **values: Any) -> dict[str, Any]:
    stored = {"reference_chosen_logprob": -9.0, "reference_rejected_logprob": -8.0, "reference_hash": HASH}
    return pair_row(pair_id, *sides) | stored | values


def referenced_table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    return tables.from_rows("REFERENCED", rows)


def random_pairs(num_pairs: int, seed: int = 0, max_prompt: int = 12, max_answer: int = 16, vocabulary: int = 60) -> pa.Table:
    """PREFERENCES of random ids, of lengths from 1 on."""
    draw = np.random.default_rng(seed)

    def ids(most: int) -> list[int]:
        return draw.integers(4, vocabulary, draw.integers(1, most + 1)).tolist()

    rows = [
        pair_row(f"pair-{number:03}", [*ids(max_answer), 2], [*ids(max_answer), 3], prompt_ids=[1, *ids(max_prompt)])
        for number in range(num_pairs)
    ]
    return tables.from_rows("PREFERENCES", rows)


def with_reference(pairs: pa.Table, reference: Path) -> pa.Table:
    return reference_logprobs(pairs, reference, dtype=Dtype.float32, trust_remote_code=False)


def update(
    start: Path,
    referenced: Sequence[pa.Table],
    settings: DpoLearnerSettings,
    name: str,
    *,
    state: Path | None = None,
    base: Path | None = None,
    reference_hash: str | None = None,
    iteration: int = 1,
    part: int = 1,
    num_parts: int = 1,
) -> tuple[Path, Path, pa.Table]:
    """One call into `policy-<name>` and `state-<name>` beside `start`; the reference is the base where no hash is given."""
    base = base or start
    written, left = start.parent / f"policy-{name}", start.parent / f"state-{name}"
    metrics = dpo.update_policy(
        start,
        base,
        state,
        referenced,
        settings,
        iteration=iteration,
        part=part,
        num_parts=num_parts,
        reference_hash=reference_hash or policy.policy_hash(base),
        output_policy=written,
        output_state=left,
    )
    return written, left, metrics


def values_of(metrics: pa.Table, name: str) -> list[float]:
    return [row["value"] for row in metrics.to_pylist() if row["name"] == name]


def weights(directory: Path) -> dict[str, Any]:
    return dict(policy.load_model(directory, "float32").state_dict())


def same(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    import torch

    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
