"""What a task of the corpus is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any


@dataclass(frozen=True)
class Family:
    """One task: how its constants and tests are drawn, what is right, and what programs for it look like.

    `name` is the function's; without one the programs read stdin and print, and a test is the text of stdin.
    `constants` are drawn once for a program and stand as $names in its source; `arguments` are drawn for every test;
    `reference` gives the right value from a test's arguments and the constants.
    `solutions` are right; a slip is a piece of a solution's text and what makes it wrong.
    """

    name: str
    arguments: Callable[[Random], list[Any]]
    reference: Callable[..., Any]
    solutions: tuple[str, ...]
    slips: tuple[tuple[str, str], ...]
    constants: Callable[[Random], dict[str, Any]] = field(default=lambda random: {})


def numbers(random: Random, *, most: int = 14, low: int = -20, high: int = 60) -> list[int]:
    """Between 3 and `most` integers from `low` to `high`."""
    return [random.randint(low, high) for _ in range(random.randint(3, most))]


def words(random: Random, *, most: int = 12) -> str:
    """Between 4 and `most` words, some of them more than once."""
    return " ".join(random.choice(_WORDS) for _ in range(random.randint(4, most)))


_WORDS = (
    "apple", "banana", "cherry", "date", "elder", "fig", "grape", "apple", "fig", "cherry", "Kiwi", "lemon", "level", "noon",
    "radar", "stats", "mango", "nectarine", "orange", "papaya", "apple", "fig", "quince", "aa", "bb", "abc", "zebra", "onion",
    "peach", "Plum", "queue", "rhythm", "sky", "tree", "under", "violet", "winter", "xylophone", "yes", "zoo",
)  # fmt: skip
