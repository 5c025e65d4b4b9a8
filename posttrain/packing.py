"""Rows → packs of a token budget: no padding, and a prompt that rows share stands in a pack once.

Rows with equal prompts form a tree: the prompt's tokens, then each completion. The last token of a completion predicts
nothing that is asked for, so it is never an input:

    prompt 1 2 3, completions 4 5 6 and 7 8  →  ids        1 2 3 4 5 7
                                                positions  0 1 2 3 4 3
                                                scored by  2 3 4 (for 4 5 6) and 2 5 (for 7 8)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MAX_PACK_TOKENS = 4096

Ids = Sequence[int] | np.ndarray
Range = tuple[int, int]  # first token and length, within a pack


@dataclass(frozen=True)
class Branch:
    """Further completions of a tree, side by side, and the prompt that all of them see."""

    completions: Range
    prompt: Range


@dataclass(frozen=True)
class Pack:
    """One forward pass. Arrays are int64: (N,) input tokens, (S,) scored tokens.

    `rows` are the numbers of its rows; their scored tokens stand one row after the other in `scored` (the input token whose
    hidden state predicts) and `targets` (the id that it predicts). A token sees those before it in its own segment (the
    prompt with its first completion, or a further completion), and a further completion also sees its branch's prompt.
    """

    rows: tuple[int, ...]
    ids: np.ndarray
    position_ids: np.ndarray
    scored: np.ndarray
    targets: np.ndarray
    segments: tuple[Range, ...]
    branches: tuple[Branch, ...]

    @property
    def num_positions(self) -> int:
        """Length of the longest row as the model sees it."""
        return int(self.position_ids.max()) + 1


@dataclass(frozen=True)
class _Tree:
    prompt: np.ndarray
    rows: tuple[int, ...]
    completions: tuple[np.ndarray, ...]

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + sum(len(completion) - 1 for completion in self.completions)


def pack_rows(prompt_ids: Sequence[Ids], completion_ids: Sequence[Ids], max_tokens: int = MAX_PACK_TOKENS) -> list[Pack]:
    """Every row with a completion token stands in exactly one pack; the packs depend on nothing but the arguments.

    Trees of like size come together, largest first. A tree above `max_tokens` is cut and repeats its prompt; a single row
    above it is a pack of its own.

    Args:
        prompt_ids: ids of each row; rows that share a prompt need not be neighbours.
        completion_ids: ids of each row; rows with none are left out.

    Raises:
        ValueError: a row with a completion has an empty prompt.
    """
    trees = [part for tree in _trees(prompt_ids, completion_ids) for part in _cut(tree, max_tokens)]
    packs: list[list[_Tree]] = []
    room = 0
    for tree in sorted(trees, key=lambda tree: -tree.num_tokens):
        if tree.num_tokens > room:
            packs.append([])
            room = max_tokens
        packs[-1].append(tree)
        room -= tree.num_tokens
    return [_pack(trees) for trees in packs]


def _trees(prompt_ids: Sequence[Ids], completion_ids: Sequence[Ids]) -> list[_Tree]:
    """Rows by prompt, the longest completion first: it continues the prompt's own segment."""
    by_prompt: dict[bytes, list[tuple[int, np.ndarray]]] = {}
    for row, (prompt, completion) in enumerate(zip(prompt_ids, completion_ids, strict=True)):
        if len(completion):
            if not len(prompt):
                raise ValueError(f"row {row} has an empty prompt: nothing predicts its first token. Begin it with a BOS token.")
            members = by_prompt.setdefault(np.asarray(prompt, np.int64).tobytes(), [])
            members.append((row, np.asarray(completion, np.int64)))
    trees: list[_Tree] = []
    for prompt, members in by_prompt.items():
        members.sort(key=lambda member: -len(member[1]))
        rows, completions = zip(*members, strict=True)
        trees.append(_Tree(np.frombuffer(prompt, np.int64), rows, completions))
    return trees


def _cut(tree: _Tree, max_tokens: int) -> list[_Tree]:
    """The tree, or as few parts as its order allows, each within the budget if a single row is."""
    bounds, num_tokens = [0], len(tree.prompt)
    for number, completion in enumerate(tree.completions):
        num_tokens += len(completion) - 1
        if num_tokens > max_tokens and number > bounds[-1]:
            bounds.append(number)
            num_tokens = len(tree.prompt) + len(completion) - 1
    ends = [*bounds[1:], len(tree.rows)]
    return [_Tree(tree.prompt, tree.rows[a:b], tree.completions[a:b]) for a, b in zip(bounds, ends, strict=True)]


def _pack(trees: Sequence[_Tree]) -> Pack:
    ids: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    scored: list[np.ndarray] = []
    segments: list[Range] = []
    branches: list[Branch] = []
    end = 0
    for tree in trees:
        start, size = end, len(tree.prompt)
        ids.append(tree.prompt)
        positions.append(np.arange(size))
        end += size
        for number, completion in enumerate(tree.completions):
            first, length = end, len(completion) - 1
            ids.append(completion[:-1])
            positions.append(np.arange(size, size + length))
            scored += [np.array([start + size - 1]), np.arange(first, first + length)]
            if number == 0:
                segments.append((start, size + length))
            elif length:
                segments.append((first, length))
            end += length
        further = start + size + len(tree.completions[0]) - 1
        if end > further:
            branches.append(Branch((further, end - further), (start, size)))
    return Pack(
        rows=tuple(row for tree in trees for row in tree.rows),
        ids=np.concatenate(ids),
        position_ids=np.concatenate(positions),
        scored=np.concatenate(scored),
        targets=np.concatenate([completion for tree in trees for completion in tree.completions]),
        segments=tuple(segments),
        branches=tuple(branches),
    )
