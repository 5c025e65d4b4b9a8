"""Cutting a sequence into parts of like size."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def even_parts(items: Sequence[Item], num_parts: int) -> Iterator[Sequence[Item]]:
    """Consecutive parts whose sizes differ by one at most; none for `num_parts` 0."""
    bounds = [len(items) * part // num_parts for part in range(num_parts + 1)] if num_parts else [0]
    for start, end in itertools.pairwise(bounds):
        yield items[start:end]
