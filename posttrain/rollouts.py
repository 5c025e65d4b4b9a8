"""Prompts to ROLLOUTS: groups of completions, each with its own seed, ids and logprobs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from posttrain import tables
from posttrain.chat import decode_completion
from posttrain.engines.base import Completion, Engine, GenerationRequest, SamplingParameters
from posttrain.seeds import sample_seed
from posttrain.table_checks import check_groups, list_lengths

logger = logging.getLogger("posttrain")


def generate_rollouts(
    engine: Engine,
    prompts: pa.Table,
    sampling: SamplingParameters,
    *,
    group_size: int,
    run_seed: int,
    iteration: int,
    tokenizer: Any,
) -> pa.Table:
    """`group_size` completions for each row of PROMPTS, in its order; ROLLOUTS.

    Seeds come from (run seed, iteration, prompt, sample): the same call gives the same completions, in any batching. No prompts
    give no rows. A completion whose logprobs the engine could not report has a null there and is not trained on.

    Raises:
        EngineError: a prompt does not fit the engine's context; names it.
        FingerprintError: the engine serves other weights than it claims.
        InfrastructureError: the engine died.
    """
    tables.validate(prompts, "PROMPTS")
    requests = _requests(prompts, group_size, run_seed, iteration)
    completions = engine.generate(requests, sampling)
    rows = [_row(request, completion, engine, tokenizer) for request, completion in zip(requests, completions, strict=True)]
    rollouts = tables.from_rows("ROLLOUTS", rows)
    check_groups(rollouts, group_size)
    if sampling.temperature > 0:
        _warn_of_duplicates(rollouts)
    return rollouts


def rollout_metrics(rollouts: pa.Table, iteration: int) -> pa.Table:
    """METRICS `rollout/…` of one iteration: counts, lengths, shares of truncated and duplicate completions, tokens per second."""
    values: dict[str, float] = {"num_completions": rollouts.num_rows}
    if rollouts.num_rows:
        lengths = list_lengths(rollouts, "completion_ids")
        busy_s = _busy_seconds(rollouts)
        values |= {
            "num_tokens": int(lengths.sum()),
            "mean_completion_tokens": float(lengths.mean()),
            "max_completion_tokens": int(lengths.max()),
            "share_truncated": _share(rollouts, "length"),
            "share_aborted": _share(rollouts, "aborted"),
            "share_duplicates": float(_duplicates(rollouts).mean()),
            "num_missing_logprobs": rollouts["behavior_logprobs"].null_count,
            **({"tokens_per_s": float(lengths.sum()) / busy_s} if busy_s else {}),
        }
    return tables.from_rows(
        "METRICS",
        [
            {"iteration": iteration, "step": None, "name": f"rollout/{name}", "value": float(value)}
            for name, value in values.items()
        ],
    )


def _requests(prompts: pa.Table, group_size: int, run_seed: int, iteration: int) -> list[GenerationRequest]:
    pairs = zip(prompts["prompt_id"].to_pylist(), prompts["prompt_ids"].to_pylist(), strict=True)
    return [
        GenerationRequest(prompt_id, sample_index, tuple(prompt_ids), sample_seed(run_seed, iteration, prompt_id, sample_index))
        for prompt_id, prompt_ids in pairs
        for sample_index in range(group_size)
    ]


def _row(request: GenerationRequest, completion: Completion, engine: Engine, tokenizer: Any) -> dict[str, Any]:
    num_tokens = len(completion.completion_ids)
    return {
        "prompt_id": request.prompt_id,
        "sample_index": request.sample_index,
        "prompt_ids": request.prompt_ids,
        "completion_ids": completion.completion_ids,
        "behavior_logprobs": completion.behavior_logprobs,
        "policy_versions": [{"version": engine.policy_version, "num_tokens": num_tokens}],
        "finish_reason": completion.finish_reason,
        "completion": decode_completion(tokenizer, completion.completion_ids, engine.end_ids),
        "seed": request.seed,
        "engine": engine.name,
        "started_at": completion.started_at,
        "finished_at": completion.finished_at,
    }


def _duplicates(rollouts: pa.Table) -> np.ndarray:
    """For every row whether an earlier row of its group has the same ids; bool of shape (num_rows,)."""
    seen: set[tuple[str, tuple[int, ...]]] = set()
    found: list[bool] = []
    for prompt_id, ids in zip(rollouts["prompt_id"].to_pylist(), rollouts["completion_ids"].to_pylist(), strict=True):
        key = (prompt_id, tuple(ids))
        found.append(key in seen)
        seen.add(key)
    return np.array(found, dtype=bool)


def _warn_of_duplicates(rollouts: pa.Table) -> None:
    num_groups = len(pc.unique(rollouts["prompt_id"]))
    if num_groups < rollouts.num_rows == num_groups + int(_duplicates(rollouts).sum()):
        logger.warning(
            "all %d completions repeat the first of their group at temperature > 0: every advantage is 0. "
            "The seeds are not used, or the policy has collapsed.",
            rollouts.num_rows,
        )


def _share(rollouts: pa.Table, finish_reason: str) -> float:
    return pc.mean(pc.cast(pc.equal(rollouts["finish_reason"], finish_reason), pa.float64())).as_py()


def _busy_seconds(rollouts: pa.Table) -> float:
    """Time in which at least one completion was under way; the gaps between shards do not count."""
    return sum((end - start).total_seconds() for start, end in _merged(rollouts))


def _merged(rollouts: pa.Table) -> Iterator[tuple[datetime, datetime]]:
    intervals = sorted(zip(rollouts["started_at"].to_pylist(), rollouts["finished_at"].to_pylist(), strict=True))
    current_start, current_end = intervals[0]
    for start, end in intervals[1:]:
        if start > current_end:
            yield current_start, current_end
            current_start, current_end = start, end
        current_end = max(current_end, end)
    yield current_start, current_end
