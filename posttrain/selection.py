"""Which prompts an iteration uses: a pure function of prompts, settings and position, so that a retry picks the same ones.

Every epoch shuffles the set and cuts it into windows of `prompts_per_iteration`; what does not fill a window is left to
other epochs. An iteration's window is split evenly over the shards. Groups without variance are refilled from the prompts
outside the window, of which every (round, shard) owns a stripe: no prompt occurs twice in one iteration.
"""

from __future__ import annotations

import hashlib

import pyarrow as pa

from posttrain.config import LoopSettings
from posttrain.errors import ConfigError


def check_enough(prompts: pa.Table, loop: LoopSettings) -> None:
    """Raises ConfigError when one iteration needs more prompts than there are."""
    if prompts.num_rows < loop.prompts_per_iteration:
        raise ConfigError(
            "loop.prompts_per_iteration",
            loop.prompts_per_iteration,
            f"there are only {prompts.num_rows} prompts",
            f"Load more prompts or set it to {prompts.num_rows} or less.",
        )


def select_prompts(
    prompts: pa.Table, loop: LoopSettings, *, iteration: int, shard: int, refill_round: int, num_missing_groups: int
) -> pa.Table:
    """The PROMPTS rows of one shard (counted from 0) of one iteration (counted from 1, as 0 is before the first update).

    Round 0 is the shard's part of the main window, whatever `num_missing_groups` says. Rounds 1 to
    `loop.max_refill_rounds` give up to `num_missing_groups` further prompts, fewer when the set is too small.

    Raises:
        ConfigError: fewer prompts than one iteration needs, or a position outside the loop.
    """
    check_enough(prompts, loop)
    if iteration < 1:
        raise ConfigError("iteration", iteration, "the first iteration is 1", "Pass a position inside the loop.")
    _check_position("shard", shard, loop.num_shards - 1)
    _check_position("refill_round", refill_round, loop.max_refill_rounds)
    window, others = _split(prompts["prompt_id"].to_pylist(), loop, iteration)
    if refill_round == 0:
        return prompts.take(pa.array(window[shard :: loop.num_shards], type=pa.int64()))
    stripe = (refill_round - 1) * loop.num_shards + shard
    own = others[stripe :: loop.num_shards * loop.max_refill_rounds]
    return prompts.take(pa.array(own[: max(0, num_missing_groups)], type=pa.int64()))


def _split(prompt_ids: list[str], loop: LoopSettings, iteration: int) -> tuple[list[int], list[int]]:
    """Row numbers inside and outside the iteration's window; those outside in an order of their own."""
    windows_per_epoch = len(prompt_ids) // loop.prompts_per_iteration
    epoch, position = divmod(iteration - 1, windows_per_epoch)
    order = _shuffled(prompt_ids, range(len(prompt_ids)), f"{loop.seed}:epoch:{epoch}")
    first, last = position * loop.prompts_per_iteration, (position + 1) * loop.prompts_per_iteration
    others = _shuffled(prompt_ids, [*order[:first], *order[last:]], f"{loop.seed}:refill:{iteration}")
    return order[first:last], others


def _shuffled(prompt_ids: list[str], rows: range | list[int], key: str) -> list[int]:
    """Rows in the order of a keyed hash: the same on every machine and with every library version."""
    return sorted(rows, key=lambda row: hashlib.sha256(f"{key}:{prompt_ids[row]}".encode()).digest())


def _check_position(name: str, value: int, last: int) -> None:
    if not 0 <= value <= last:
        raise ConfigError(name, value, f"this loop has 0 to {last}", "Pass a position inside the loop.")
