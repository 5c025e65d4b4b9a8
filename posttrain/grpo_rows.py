"""Which rows of SCORED are trained on, and in which order: groups → microbatches → optimiser steps → epochs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from posttrain.advantages import batch_scale
from posttrain.config import AdvantageScaling, LearnerSettings
from posttrain.errors import ContractError
from posttrain.partition import even_parts
from posttrain.table_checks import list_lengths

UNJUDGED = "unjudged"  # no reward: the verifier failed or abstained
ZERO_VARIANCE = "zero_variance"  # the whole group has advantage 0
UNKNOWN_LOGPROBS = "unknown_logprobs"  # the sampler reported no usable logprob for some token
TRUNCATED = "truncated"  # cut off, and mask_truncated is on
EMPTY = "empty"  # no tokens
REASONS = (UNJUDGED, ZERO_VARIANCE, UNKNOWN_LOGPROBS, TRUNCATED, EMPTY)


@dataclass(frozen=True)
class TrainingRow:
    """One completion as the update sees it. Arrays: int64 ids (P,) and (T,), float32 logprobs (T,)."""

    prompt_id: str
    sample_index: int
    prompt_ids: np.ndarray
    completion_ids: np.ndarray
    behavior_logprobs: np.ndarray
    reference_logprobs: np.ndarray | None
    advantage: float

    @property
    def key(self) -> tuple[str, int]:
        return self.prompt_id, self.sample_index


Group = tuple[TrainingRow, ...]


@dataclass(frozen=True)
class Microbatch:
    """Rows of one forward and backward pass, and the size of the optimiser step that they are a part of."""

    rows: Sequence[TrainingRow]
    step: int
    step_num_rows: int
    step_num_tokens: int
    step_num_microbatches: int

    @property
    def num_tokens(self) -> int:
        return sum(len(row.completion_ids) for row in self.rows)

    @property
    def row_share(self) -> float:
        """By how much a mean over these rows must be scaled so that the step's microbatches add up to a mean over all."""
        return len(self.rows) * self.step_num_microbatches / self.step_num_rows


def left_out_reasons(scored: pa.Table, settings: LearnerSettings) -> list[str | None]:
    """Why each row is not trained on, None for those that are. Truncation is what the engine recorded, never a token."""
    advantages = scored["advantage"].to_pylist()
    with_signal = {name for name, value in zip(scored["prompt_id"].to_pylist(), advantages, strict=True) if value}
    columns = zip(
        scored["prompt_id"].to_pylist(),
        advantages,
        scored["behavior_logprobs"].is_valid().to_pylist(),
        scored["finish_reason"].to_pylist(),
        list_lengths(scored, "completion_ids").tolist(),
        strict=True,
    )
    return [_reason(name in with_signal, *rest, mask_truncated=settings.mask_truncated) for name, *rest in columns]


def _reason(
    has_signal: bool, advantage: float | None, has_logprobs: bool, finish_reason: str, length: int, *, mask_truncated: bool
) -> str | None:
    if advantage is None:
        return UNJUDGED
    if not has_signal:
        return ZERO_VARIANCE
    if not has_logprobs:
        return UNKNOWN_LOGPROBS
    if mask_truncated and finish_reason != "stop":
        return TRUNCATED
    return None if length else EMPTY


def trained_groups(scored: pa.Table, settings: LearnerSettings) -> list[Group]:
    """The rows that are trained on, by prompt and sample index, so that the order of shards does not matter.

    Raises:
        ContractError: kl_coef > 0 and a row has no reference logprobs.
    """
    kept = [row for row, reason in enumerate(left_out_reasons(scored, settings)) if reason is None]
    scale = batch_scale(scored) if settings.scaling is AdvantageScaling.batch else 1.0
    groups: dict[str, list[TrainingRow]] = {}
    selected = scored.take(pa.array(kept, pa.int64())).to_pylist()
    for values in sorted(selected, key=lambda row: (row["prompt_id"], row["sample_index"])):
        row = _training_row(values, scale)
        if settings.kl_coef and row.reference_logprobs is None:
            why, remedy = "kl_coef > 0 needs them on every trained row", "Run add_reference_logprobs with the same settings."
            raise ContractError("SCORED", "reference_logprobs", str(row.key), None, why, remedy)
        groups.setdefault(row.prompt_id, []).append(row)
    return [tuple(rows) for rows in groups.values()]


def _training_row(values: Mapping[str, Any], scale: float) -> TrainingRow:
    reference = values["reference_logprobs"]
    return TrainingRow(
        prompt_id=values["prompt_id"],
        sample_index=values["sample_index"],
        prompt_ids=np.asarray(values["prompt_ids"], np.int64),
        completion_ids=np.asarray(values["completion_ids"], np.int64),
        behavior_logprobs=np.asarray(values["behavior_logprobs"], np.float32),
        reference_logprobs=None if reference is None else np.asarray(reference, np.float32),
        advantage=values["advantage"] / scale,
    )


def plan_epochs(groups: Sequence[Group], settings: LearnerSettings, iteration: int) -> list[list[Microbatch]]:
    """Microbatches of every epoch in training order; seed and iteration alone decide the order of the groups.

    An epoch has as few steps as `groups_per_step` allows, of equal size to within one group: a last step of a single
    group would take a whole learning rate's stride on the noise of a few rows. Every step of the update has the same
    number of microbatches, because the trainer counts them to know where a step ends; rows are dealt to them evenly, so
    that a group may be cut in two (the loss is a sum over rows, advantages are already there).
    """
    order = np.random.default_rng([settings.seed, iteration])
    num_steps = math.ceil(len(groups) / settings.groups_per_step)
    epochs = [
        [
            tuple(itertools.chain.from_iterable(groups[number] for number in numbers))
            for numbers in even_parts(order.permutation(len(groups)).tolist(), num_steps)
        ]
        for _ in range(settings.num_epochs)
    ]
    steps = itertools.count()
    num_microbatches = _num_microbatches(len(groups), num_steps, settings, epochs)
    return [[part for rows in epoch for part in _step_microbatches(rows, num_microbatches, next(steps))] for epoch in epochs]


def _num_microbatches(num_groups: int, num_steps: int, settings: LearnerSettings, epochs: Sequence[Sequence[Group]]) -> int:
    """What the largest step needs, but never more than the smallest step has rows: a microbatch cannot be empty."""
    largest = math.ceil(num_groups / max(num_steps, 1))
    fewest_rows = min((len(rows) for epoch in epochs for rows in epoch), default=0)
    return min(math.ceil(largest / settings.groups_per_microbatch), fewest_rows)


def _step_microbatches(rows: Group, num_microbatches: int, step: int) -> list[Microbatch]:
    num_tokens = sum(len(row.completion_ids) for row in rows)
    return [Microbatch(part, step, len(rows), num_tokens, num_microbatches) for part in even_parts(rows, num_microbatches)]
