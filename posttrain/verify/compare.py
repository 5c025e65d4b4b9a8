"""Whether what an untrusted program gave back equals what is expected. Runs only on the judging side."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from operator import itemgetter
from typing import Any

from posttrain.verify.plain_values import MAX_DEPTH, refuse_constant

VALUE_TOLERANCE = 1e-9
TOKEN_TOLERANCE = 1e-6
MAX_NUMBER_CHARACTERS = 400  # a float written out in full has fewer
MAX_COMPARISONS = 500_000  # one or two seconds
_MAX_ASSIGNED = 200  # items; beyond it sorting alone decides
_CHARACTERS_A_COMPARISON = 32  # reading two tokens as numbers takes longer than comparing two numbers
# there is one way to match, so that hostile text costs linear time
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_Equal = Callable[[Any, Any], bool]


class Order(StrEnum):
    """Where items may come in any order: nowhere, in the outermost list (or among lines), or in every list (and within lines)."""

    kept = "kept"
    outermost = "outermost"
    nested = "nested"


@dataclass(frozen=True)
class Equality:
    """What an answer asks for: order, and how far a float may be off, absolute or relative (None: the default)."""

    order: Order = Order.kept
    tolerance: float | None = None


class TooManyComparisons(Exception):
    """Pairing items in any order took more comparisons than one completion has."""


class Comparisons:
    """What one completion has for pairing items that sorting did not pair; comparing in a given order costs nothing of it."""

    def __init__(self) -> None:
        self._left = MAX_COMPARISONS

    def spend(self, number: int = 1) -> None:
        """Raises TooManyComparisons when none are left."""
        self._left -= number
        if self._left < 0:
            raise TooManyComparisons


PLAIN = Equality()


class NotJson(ValueError):
    """The text is not strict JSON within its limits."""


def read_json(text: bytes) -> Any:
    """Strict JSON from an untrusted source: UTF-8, no NaN or infinity, no nesting or integer beyond the interpreter's limits.

    Raises:
        NotJson: whatever is wrong with it.
    """
    try:
        return _DECODER.decode(text.decode())
    except (ValueError, RecursionError, MemoryError) as error:
        raise NotJson(f"{type(error).__name__}: {str(error)[:200]}") from error


_DECODER = json.JSONDecoder(parse_constant=refuse_constant)


def equal_values(expected: Any, found: Any, equality: Equality = PLAIN, work: Comparisons | None = None) -> bool:
    """Equality as Python's `==` has it, but: True is not 1, and a float is met within 1e-9, absolute or relative.

    Both sides come from JSON, so their types are exact; a tuple was turned into a list.

    Args:
        work: shared by all cases of one completion; by default this comparison has its own.

    Raises:
        TooManyComparisons: in any order, and only where what was found differs from what is expected once both are sorted.
    """
    tolerance = VALUE_TOLERANCE if equality.tolerance is None else equality.tolerance

    def equal_leaves(one: Any, other: Any) -> bool:
        return _equal_leaves(one, other, tolerance)

    try:
        if equality.order is not Order.kept:
            expected, found = _arrange(expected, equality.order)[1], _arrange(found, equality.order)[1]
        return _equal(expected, found, equality.order, equal_leaves, work)
    except RecursionError:  # only what was found can be nested so deeply
        return False


def _equal_leaves(expected: Any, found: Any, tolerance: float) -> bool:
    if isinstance(expected, bool) or isinstance(found, bool) or expected is None or found is None:
        return expected is found
    if isinstance(expected, (int, float)) and isinstance(found, (int, float)):
        return _equal_numbers(expected, found, tolerance)
    return type(expected) is type(found) and expected == found


def _equal_numbers(expected: float, found: float, tolerance: float) -> bool:
    if isinstance(expected, int):
        return expected == found
    try:
        return math.isclose(expected, float(found), rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:
        return False


def equal_text(expected: str, found: str, equality: Equality = PLAIN, work: Comparisons | None = None) -> bool:
    """Equality of printed text, token by token: the amount and kind of white space between tokens does not matter.

    Where the expected token is a real number (it has a point or an exponent), a number within 1e-6, absolute or relative,
    is equal; integers, words and whatever is longer than 400 characters must agree character by character. Where lines may
    come in any order, they are what counts: tokens keep to their line, and empty lines are left out.

    Args and raises: as `equal_values`.
    """
    tolerance = TOKEN_TOLERANCE if equality.tolerance is None else equality.tolerance

    def equal_tokens(one: str, other: str) -> bool:
        return _equal_tokens(one, other, tolerance)

    if equality.order is Order.kept:
        return _equal(expected.split(), found.split(), Order.kept, equal_tokens, work)
    return _equal(_lines(expected, equality.order), _lines(found, equality.order), equality.order, equal_tokens, work)


def _lines(text: str, order: Order) -> list[list[str]]:
    """Tokens by lines, sorted as `order` allows."""
    lines = [tokens for line in text.split("\n") if (tokens := line.split())]
    if order is Order.nested:
        lines = [sorted(tokens, key=_token_key) for tokens in lines]
    return sorted(lines, key=lambda tokens: [_token_key(token) for token in tokens])


def _equal_tokens(expected: str, found: str, tolerance: float) -> bool:
    if expected == found:
        return True
    if max(len(expected), len(found)) > MAX_NUMBER_CHARACTERS:
        return False
    if _INTEGER.fullmatch(expected) or not (_NUMBER.fullmatch(expected) and _NUMBER.fullmatch(found)):
        return False
    wanted, given = float(expected), float(found)
    return math.isfinite(given) and math.isclose(wanted, given, rel_tol=tolerance, abs_tol=tolerance)


def _equal(expected: Any, found: Any, order: Order, equal_leaves: _Equal, work: Comparisons | None) -> bool:
    """Whether two arranged values agree: item by item, else, as tolerance can sort equal items apart, by pairing them."""
    if _Comparison(equal_leaves, None).equal(expected, found, order):
        return True
    return order is not Order.kept and _Comparison(equal_leaves, work or Comparisons()).equal(expected, found, order)


@dataclass(frozen=True)
class _Comparison:
    """One pass over two arranged values; without `work` items are compared in the order they have."""

    equal_leaves: _Equal
    work: Comparisons | None

    def equal(self, expected: Any, found: Any, order: Order) -> bool:
        if self.work:
            self.work.spend(_cost(expected, found))
        inside = Order.kept if order is Order.outermost else order
        if isinstance(expected, list) and isinstance(found, list):
            return self._equal_items(expected, found, order, lambda one, other: self.equal(one, other, inside))
        if isinstance(expected, dict) and isinstance(found, dict):
            same_keys = expected.keys() == found.keys()
            return same_keys and all(self.equal(expected[key], found[key], inside) for key in expected)
        return self.equal_leaves(expected, found)

    def _equal_items(self, expected: Sequence[Any], found: Sequence[Any], order: Order, equal: _Equal) -> bool:
        if len(expected) != len(found):
            return False
        if all(map(equal, expected, found)):
            return True
        if self.work is None or order is Order.kept:
            return False
        return 1 < len(expected) <= _MAX_ASSIGNED and _can_assign(expected, found, equal, self.work)


def _cost(expected: Any, found: Any) -> int:
    if isinstance(expected, dict):
        return 1 + len(expected)
    if isinstance(expected, str) and isinstance(found, str):
        return 1 + min(len(expected), len(found)) // _CHARACTERS_A_COMPARISON
    return 1


def _can_assign(expected: Sequence[Any], found: Sequence[Any], equal: _Equal, work: Comparisons) -> bool:
    """Whether each expected item has an equal item of its own (bipartite matching by augmenting paths)."""
    edges: list[list[int]] = []
    for wanted in expected:
        edges.append([place for place, item in enumerate(found) if equal(wanted, item)])
        if not edges[-1]:
            return False
    holder: dict[int, int] = {}

    def place_item(number: int, tried: set[int]) -> bool:
        work.spend(len(edges[number]))
        for place in edges[number]:
            if place not in tried:
                tried.add(place)
                if place not in holder or place_item(holder[place], tried):
                    holder[place] = number
                    return True
        return False

    return all(place_item(number, set()) for number in range(len(expected)))


def _arrange(value: Any, order: Order, depth: int = 0) -> tuple[tuple[Any, ...], Any]:
    """The key that sorts any values of JSON, by type, then by size, and `value` with its items sorted as `order` allows.

    The order of items inside does not matter to the key. It is flat, so that comparing two takes no longer than they are long.

    Raises:
        RecursionError: it is nested more deeply than any expected value.
    """
    if depth > MAX_DEPTH:
        raise RecursionError
    if value is None or isinstance(value, bool):
        return (0, value is not None, bool(value)), value
    if isinstance(value, (int, float)):
        return (1, value), value
    if isinstance(value, str):
        return (2, value), value
    inside = Order.kept if order is Order.outermost else order
    if isinstance(value, list):
        pairs = [_arrange(item, inside, depth + 1) for item in value]
        ordered = sorted(pairs, key=itemgetter(0))
        key = (3, len(value), *chain.from_iterable(key for key, _ in ordered))
        return key, [item for _, item in (pairs if order is Order.kept else ordered)]
    named = {name: _arrange(value[name], inside, depth + 1) for name in sorted(value)}
    key = (4, len(named), *chain.from_iterable((name, *key) for name, (key, _) in named.items()))
    return key, {name: item for name, (_, item) in named.items()}


def _token_key(token: str) -> tuple[Any, ...]:
    return (0, float(token)) if len(token) <= MAX_NUMBER_CHARACTERS and _NUMBER.fullmatch(token) else (1, token)
