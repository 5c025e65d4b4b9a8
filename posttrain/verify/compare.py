"""Whether what an untrusted program gave back equals what is expected. Runs only on the judging side."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NoReturn

VALUE_TOLERANCE = 1e-9
TOKEN_TOLERANCE = 1e-6
MAX_NUMBER_CHARACTERS = 400  # a float written out in full has fewer
_MAX_ASSIGNED = 200  # items; beyond it sorting alone decides
# there is one way to match, so that hostile text costs linear time
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"[+-]?[0-9]+")


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

    def inside(self) -> Equality:
        """What holds for the items of a list."""
        return replace(self, order=Order.kept) if self.order is Order.outermost else self


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


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def equal_values(expected: Any, found: Any, equality: Equality = PLAIN) -> bool:
    """Equality as Python's `==` has it, but: True is not 1, and a float is met within 1e-9, absolute or relative.

    Both sides come from JSON, so their types are exact; a tuple was turned into a list.
    """
    try:
        return _equal_values(expected, found, equality)
    except RecursionError:  # only what was found can be nested so deeply
        return False


def _equal_values(expected: Any, found: Any, equality: Equality) -> bool:
    if isinstance(expected, bool) or isinstance(found, bool) or expected is None or found is None:
        return expected is found
    if isinstance(expected, (int, float)) and isinstance(found, (int, float)):
        return _equal_numbers(expected, found, VALUE_TOLERANCE if equality.tolerance is None else equality.tolerance)
    inside = equality.inside()
    if isinstance(expected, list) and isinstance(found, list):
        return _equal_items(expected, found, equality.order, lambda one, other: _equal_values(one, other, inside), _value_key)
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(_equal_values(expected[key], found[key], inside) for key in expected)
    return type(expected) is type(found) and expected == found


def _equal_numbers(expected: float, found: float, tolerance: float) -> bool:
    if isinstance(expected, int):
        return expected == found
    try:
        return math.isclose(expected, float(found), rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:
        return False


def equal_text(expected: str, found: str, equality: Equality = PLAIN) -> bool:
    """Equality of printed text, token by token: the amount and kind of white space between tokens does not matter.

    Where the expected token is a real number (it has a point or an exponent), a number within 1e-6, absolute or relative,
    is equal; integers, words and whatever is longer than 400 characters must agree character by character. Where lines may
    come in any order, they are what counts: tokens keep to their line, and empty lines are left out.
    """
    tolerance = TOKEN_TOLERANCE if equality.tolerance is None else equality.tolerance

    def equal_tokens(one: str, other: str) -> bool:
        return _equal_tokens(one, other, tolerance)

    if equality.order is Order.kept:
        return _equal_items(expected.split(), found.split(), Order.kept, equal_tokens, _token_key)
    within = equality.inside().order

    def equal_lines(one: list[str], other: list[str]) -> bool:
        return _equal_items(one, other, within, equal_tokens, _token_key)

    def line_key(tokens: list[str]) -> list[Any]:
        keys = [_token_key(token) for token in tokens]
        return keys if within is Order.kept else sorted(keys)

    return _equal_items(_lines(expected), _lines(found), equality.order, equal_lines, line_key)


def _lines(text: str) -> list[list[str]]:
    return [tokens for line in text.split("\n") if (tokens := line.split())]


def _equal_tokens(expected: str, found: str, tolerance: float) -> bool:
    if expected == found:
        return True
    if max(len(expected), len(found)) > MAX_NUMBER_CHARACTERS:
        return False
    if _INTEGER.fullmatch(expected) or not (_NUMBER.fullmatch(expected) and _NUMBER.fullmatch(found)):
        return False
    wanted, given = float(expected), float(found)
    return math.isfinite(given) and math.isclose(wanted, given, rel_tol=tolerance, abs_tol=tolerance)


def _equal_items(
    expected: Sequence[Any], found: Sequence[Any], order: Order, equal: Callable[[Any, Any], bool], key: Callable[[Any], Any]
) -> bool:
    """Item by item; in any order: sorted, or, as tolerance can sort equal items apart, by some assignment of one to another."""
    if len(expected) != len(found):
        return False
    if order is Order.kept:
        return all(map(equal, expected, found))
    wanted, given = sorted(expected, key=key), sorted(found, key=key)
    return all(map(equal, wanted, given)) or (len(wanted) <= _MAX_ASSIGNED and _can_assign(wanted, given, equal))


def _can_assign(expected: Sequence[Any], found: Sequence[Any], equal: Callable[[Any, Any], bool]) -> bool:
    """Whether each expected item has an equal item of its own (bipartite matching by augmenting paths)."""
    edges = [[place for place, item in enumerate(found) if equal(wanted, item)] for wanted in expected]
    holder: dict[int, int] = {}

    def place_item(number: int, tried: set[int]) -> bool:
        for place in edges[number]:
            if place not in tried:
                tried.add(place)
                if place not in holder or place_item(holder[place], tried):
                    holder[place] = number
                    return True
        return False

    return all(edges) and all(place_item(number, set()) for number in range(len(expected)))


def _value_key(value: Any) -> tuple[Any, ...]:
    """Sorts any values of JSON: by type, then by size; the order of items inside does not matter."""
    if value is None or isinstance(value, bool):
        return (0, value is not None, bool(value))
    if isinstance(value, (int, float)):
        return (1, value)
    if isinstance(value, str):
        return (2, value)
    if isinstance(value, list):
        return (3, len(value), sorted(map(_value_key, value)))
    return (4, sorted((name, _value_key(item)) for name, item in value.items()))


def _token_key(token: str) -> tuple[Any, ...]:
    return (0, float(token)) if len(token) <= MAX_NUMBER_CHARACTERS and _NUMBER.fullmatch(token) else (1, token)
