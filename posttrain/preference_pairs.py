"""Verified rollouts → PREFERENCES: within a group the best completion against the worst; token ids stay as they were sampled."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from posttrain import tables
from posttrain.advantages import score
from posttrain.config import AdvantageSettings
from posttrain.config_dpo import PairSettings
from posttrain.errors import ContractError
from posttrain.preference_sources import RejectedPair
from posttrain.preferences import LoadedPreferences
from posttrain.table_checks import list_lengths

SOURCE = "rollouts"
UNJUDGED = "fewer than two completions that were judged and are not empty"
TRUNCATED = "every completion that is good enough to be chosen was cut off"
SMALL_MARGIN = "the rewards differ by less than pairs.min_margin"
LENGTH_RATIO = "the lengths differ by more than pairs.max_length_ratio"
NEAR_DUPLICATE = "the sides are near-duplicates by pairs.max_similarity"
# as metrics are called
REASONS = {
    UNJUDGED: "unjudged",
    TRUNCATED: "truncated",
    SMALL_MARGIN: "small_margin",
    LENGTH_RATIO: "length_ratio",
    NEAR_DUPLICATE: "near_duplicate",
}


@dataclass(frozen=True)
class _Completion:
    row: int
    ids: tuple[int, ...]
    reward: float
    stopped: bool


def pairs_from_rollouts(rollouts: pa.Table, verdicts: pa.Table, settings: PairSettings, *, iteration: int) -> LoadedPreferences:
    """PREFERENCES with up to `max_pairs_per_prompt` pairs of every group, and every group that gives none, by prompt_id.

    Best with worst, second best with second worst, each completion at most once; equal rewards are ordered by a hash of seed,
    iteration, prompt and sample, so that the order of rows and shards does not matter. Where a pair breaks a rule the next
    worse completion is tried. Unjudged and empty completions are never used; one that was cut off is never chosen.
    `margin` is the difference of the rewards; `pair_id` is `<iteration>:<prompt_id>:<chosen sample>-<rejected sample>`.

    Raises:
        ContractError: a table breaks its contract, a rollout has no verdict or a verdict no rollout, or the rollouts of one
            prompt_id have different prompts.
    """
    scored = score(rollouts, verdicts, AdvantageSettings())
    pairs: list[tuple[_Completion, _Completion]] = []
    rejected: list[RejectedPair] = []
    for prompt_id, group in _groups(scored, f"{settings.seed}:{iteration}").items():
        found = _pairs(group, settings)
        pairs += found
        if not found:
            rejected.append(RejectedPair(prompt_id, _why_none(group, settings)))
    return LoadedPreferences(_table(scored, pairs, iteration), tuple(rejected))


def pair_metrics(loaded: LoadedPreferences, num_groups: int, iteration: int) -> pa.Table:
    """METRICS `preferences/…` of what `pairs_from_rollouts` gave: counts, groups without a pair by reason, margin and lengths."""
    reasons = Counter(pair.reason for pair in loaded.rejected)
    values: dict[str, float] = {
        "num_pairs": loaded.table.num_rows,
        "num_groups": num_groups,
        "num_groups_without_pair": len(loaded.rejected),
        **{f"num_groups_without_pair/{name}": reasons[reason] for reason, name in REASONS.items()},
    }
    if loaded.table.num_rows:
        values["margin_mean"] = pc.mean(loaded.table["margin"]).as_py()
        values["chosen_tokens_mean"] = float(list_lengths(loaded.table, "chosen_ids").mean())
        values["rejected_tokens_mean"] = float(list_lengths(loaded.table, "rejected_ids").mean())
    rows = [
        {"iteration": iteration, "step": None, "name": f"preferences/{name}", "value": float(value)}
        for name, value in values.items()
    ]
    return tables.from_rows("METRICS", rows)


def _groups(scored: pa.Table, key: str) -> dict[str, list[_Completion]]:
    """The usable completions of every prompt, best first; equal rewards in an order that `key` decides."""
    groups: dict[str, list[tuple[float, bytes, _Completion]]] = {}
    columns = ("prompt_id", "sample_index", "completion_ids", "completion", "reward", "finish_reason")
    for row, values in enumerate(zip(*(scored[column].to_pylist() for column in columns), strict=True)):
        prompt_id, sample_index, ids, text, reward, finish_reason = values
        members = groups.setdefault(prompt_id, [])
        if reward is not None and ids and text.strip():
            order = hashlib.sha256(f"{key}:{prompt_id}:{sample_index}".encode()).digest()
            members.append((-reward, order, _Completion(row, tuple(ids), reward, finish_reason == "stop")))
    return {prompt_id: [item for *_, item in sorted(members, key=lambda one: one[:2])] for prompt_id, members in groups.items()}


def _pairs(group: Sequence[_Completion], settings: PairSettings) -> list[tuple[_Completion, _Completion]]:
    pairs: list[tuple[_Completion, _Completion]] = []
    used: set[int] = set()
    for chosen in group:
        if len(pairs) == settings.max_pairs_per_prompt:
            break
        if not chosen.stopped or chosen.row in used or any(chosen.ids == earlier.ids for earlier, _ in pairs):
            continue
        for rejected in _partners(chosen, group, used):
            if _breach(chosen, rejected, settings) is None:
                pairs.append((chosen, rejected))
                used |= {chosen.row, rejected.row}
                break
    return pairs


def _partners(chosen: _Completion, group: Sequence[_Completion], used: set[int]) -> Iterator[_Completion]:
    """What `chosen` may be paired with, worst first."""
    return (rejected for rejected in reversed(group) if rejected.row not in used and rejected is not chosen)


def _breach(chosen: _Completion, rejected: _Completion, settings: PairSettings) -> str | None:
    """The rule that the pair breaks, None when it breaks none."""
    if chosen.reward - rejected.reward < settings.min_margin:
        return SMALL_MARGIN
    shorter, longer = sorted((len(chosen.ids), len(rejected.ids)))
    if settings.max_length_ratio and longer > settings.max_length_ratio * shorter:
        return LENGTH_RATIO
    return NEAR_DUPLICATE if _is_near_duplicate(chosen.ids, rejected.ids, settings.max_similarity) else None


def _is_near_duplicate(chosen: tuple[int, ...], rejected: tuple[int, ...], max_similarity: float) -> bool:
    """Whether 2 · (tokens that both have in one order) / (all tokens) reaches `max_similarity`; identical sides always do."""
    if chosen == rejected:
        return True
    enough = max_similarity * (len(chosen) + len(rejected)) / 2
    if max_similarity == 1 or (Counter(chosen) & Counter(rejected)).total() < enough:  # the order can only lower it
        return False
    return _common_length(chosen, rejected) >= enough


def _common_length(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Length of the longest common subsequence, 64 tokens at a time (Hyyrö 2004, Bit-parallel LCS-length computation revisited).

    Unlike difflib it is symmetric, and a completion that repeats one token 16,000 times takes a moment, not minutes.
    """
    places: dict[int, int] = {}
    for place, token in enumerate(one):
        places[token] = places.get(token, 0) | 1 << place
    everywhere = (1 << len(one)) - 1
    unmatched = everywhere
    for token in other:
        matches = unmatched & places.get(token, 0)
        unmatched = (unmatched + matches | unmatched - matches) & everywhere
    return len(one) - unmatched.bit_count()


def _why_none(group: Sequence[_Completion], settings: PairSettings) -> str:
    """Of the rules that stand in the way of the group's pairs, the last one to be asked."""
    if len(group) < 2:
        return UNJUDGED
    if group[0].reward - group[-1].reward < settings.min_margin:
        return SMALL_MARGIN
    breaches = {
        _breach(chosen, rejected, settings) for chosen in group if chosen.stopped for rejected in _partners(chosen, group, set())
    }
    return next((reason for reason in (NEAR_DUPLICATE, LENGTH_RATIO) if reason in breaches), TRUNCATED)


def _table(scored: pa.Table, pairs: Sequence[tuple[_Completion, _Completion]], iteration: int) -> pa.Table:
    chosen, rejected = (scored.take(pa.array([pair[side].row for pair in pairs], pa.int64())) for side in (0, 1))
    _check_same_prompts(chosen, rejected)
    samples = zip(*(side["sample_index"].to_pylist() for side in (chosen, rejected)), strict=True)
    prompt_ids = chosen["prompt_id"].to_pylist()
    columns = {
        "pair_id": pa.array(
            [f"{iteration}:{prompt_id}:{best}-{worst}" for prompt_id, (best, worst) in zip(prompt_ids, samples, strict=True)],
            pa.string(),
        ),
        "prompt_id": chosen["prompt_id"],
        "prompt_ids": chosen["prompt_ids"],
        "chosen_ids": chosen["completion_ids"],
        "rejected_ids": rejected["completion_ids"],
        "source": pa.array([SOURCE] * len(pairs), pa.string()),
        "margin": pc.subtract(chosen["reward"], rejected["reward"]),
    }
    return tables.validate(pa.table(columns, schema=tables.PREFERENCES), "PREFERENCES")


def _check_same_prompts(chosen: pa.Table, rejected: pa.Table) -> None:
    columns = (chosen["prompt_id"], chosen["prompt_ids"], rejected["prompt_ids"])
    for prompt_id, prompt_ids, other_ids in zip(*(column.to_pylist() for column in columns), strict=True):
        if prompt_ids != other_ids:
            why = "two rollouts of this prompt_id have different prompts, so they cannot be compared"
            raise ContractError("ROLLOUTS", "prompt_ids", f"prompt_id={prompt_id!r}", other_ids, why)
