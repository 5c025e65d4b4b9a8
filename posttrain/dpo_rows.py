"""Which pairs are trained on, and in which order: pairs → microbatches → optimiser steps → epochs → parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from posttrain import tables
from posttrain.config_dpo import DpoLearnerSettings
from posttrain.errors import ConfigError, ContractError
from posttrain.partition import even_parts
from posttrain.table_checks import list_lengths, row_label


@dataclass(frozen=True)
class PairMicrobatch:
    """Pairs of one forward and backward pass, and the size of the optimiser step that they are a part of.

    `rows` are row numbers of the table that the plan was made for. Token counts are of answers, not of prompts.
    """

    rows: Sequence[int]
    num_tokens: int
    num_chosen_tokens: int
    step_num_pairs: int
    step_num_tokens: int
    step_num_chosen_tokens: int
    step_num_microbatches: int

    @property
    def pair_share(self) -> float:
        """The factor of a mean over these pairs that makes the mean of the step's microbatches the mean over its pairs."""
        return len(self.rows) * self.step_num_microbatches / self.step_num_pairs

    @property
    def chosen_token_share(self) -> float:
        """The same for a mean over chosen tokens."""
        return self.num_chosen_tokens * self.step_num_microbatches / self.step_num_chosen_tokens


Step = tuple[PairMicrobatch, ...]


@dataclass(frozen=True)
class PartPlan:
    """The optimiser steps of one part; `first_step` and `total_num_steps` place them in the whole training."""

    steps: Sequence[Step]
    first_step: int
    total_num_steps: int


def sorted_pairs(referenced: Sequence[pa.Table], reference_hash: str) -> pa.Table:
    """The rows of all shards by pair_id, in one chunk: the order of shards and of their rows does not matter.

    Raises:
        ContractError: a table breaks its contract, a pair appears twice, a reference logprob is missing, or it was computed by
            another reference than `reference_hash` (a policy hash).
    """
    pairs = tables.validate(tables.concat("REFERENCED", referenced), "REFERENCED")  # again as a whole: a key may repeat
    for row, found in enumerate(pairs["reference_hash"].to_pylist()):
        if found != reference_hash:
            why = f"the stored logprobs are those of another reference; this training's is {reference_hash}"
            remedy = "Compute the reference logprobs again with this training's reference."
            raise ContractError("REFERENCED", "reference_hash", row_label(pairs, row), found, why, remedy)
    return pairs.take(np.argsort(np.array(pairs["pair_id"].to_pylist(), dtype=object), kind="stable")).combine_chunks()


def plan_part(pairs: pa.Table, settings: DpoLearnerSettings, part: int, num_parts: int) -> PartPlan:
    """The microbatches of part `part` (1 to num_parts) of the training on `pairs`; seed and epoch alone decide their order.

    An epoch has as few steps as `pairs_per_step` allows, of equal size to within one pair, so that no last step of a few
    pairs takes a whole learning rate's stride. Every step has the same number of microbatches, because the trainer counts them
    to know where a step ends. The parts are consecutive: trained one after the other they are the whole training.

    Args:
        pairs: REFERENCED, as `sorted_pairs` returns it.

    Raises:
        ConfigError: there is no such part.
    """
    if not 1 <= part <= num_parts:
        raise ConfigError("part", part, f"the training has the parts 1 to {num_parts}", "Give one of them.")
    lengths = np.stack([list_lengths(pairs, side) for side in ("chosen_ids", "rejected_ids")])
    steps = [step for epoch in range(settings.num_epochs) for step in _epoch_steps(lengths, settings, epoch)]
    first, end = (len(steps) * number // num_parts for number in (part - 1, part))
    return PartPlan(steps[first:end], first, len(steps))


def _epoch_steps(lengths: np.ndarray, settings: DpoLearnerSettings, epoch: int) -> list[Step]:
    num_pairs = lengths.shape[1]
    order = np.random.default_rng([settings.seed, epoch]).permutation(num_pairs).tolist()
    num_steps = math.ceil(num_pairs / settings.pairs_per_step)
    largest, smallest = (math.ceil(num_pairs / num_steps), num_pairs // num_steps) if num_steps else (0, 0)
    # what the largest step needs, but never more than the smallest has pairs: a microbatch cannot be empty
    num_microbatches = min(math.ceil(largest / settings.microbatch_size), smallest)
    return [_step(rows, lengths, num_microbatches) for rows in even_parts(order, num_steps)]


def _step(rows: Sequence[int], lengths: np.ndarray, num_microbatches: int) -> Step:
    in_step = lengths[:, rows]
    return tuple(
        PairMicrobatch(
            rows=part,
            num_tokens=int(lengths[:, part].sum()),
            num_chosen_tokens=int(lengths[0, part].sum()),
            step_num_pairs=len(rows),
            step_num_tokens=int(in_step.sum()),
            step_num_chosen_tokens=int(in_step[0].sum()),
            step_num_microbatches=num_microbatches,
        )
        for part in even_parts(rows, num_microbatches)
    )


def read_pairs(pairs: pa.Table, rows: Sequence[int]) -> list[dict[str, Any]]:
    """These rows as TRL's collator takes them: lists of ids, and the stored logprobs under TRL's names."""
    return [
        {
            "prompt_ids": row["prompt_ids"],
            "chosen_ids": row["chosen_ids"],
            "rejected_ids": row["rejected_ids"],
            "ref_chosen_logps": row["reference_chosen_logprob"],
            "ref_rejected_logps": row["reference_rejected_logprob"],
        }
        for row in pairs.take(list(rows)).to_pylist()
    ]
