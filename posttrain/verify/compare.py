"""Whether what an untrusted program gave back equals what is expected. Runs only on the judging side."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

VALUE_TOLERANCE = 1e-9
TOKEN_TOLERANCE = 1e-6
MAX_NUMBER_CHARACTERS = 400  # a float written out in full has fewer
# there is one way to match, so that hostile text costs linear time
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"[+-]?[0-9]+")


class NotJson(ValueError):
    """The text is not strict JSON within its limits."""


def read_json(text: bytes) -> Any:
    """Strict JSON from an untrusted source: UTF-8, no NaN or infinity, no nesting or integer beyond the interpreter's limits.

    Raises:
        NotJson: whatever is wrong with it.
    """
    try:
        return json.loads(text.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError, MemoryError) as error:
        raise NotJson(f"{type(error).__name__}: {str(error)[:200]}") from error


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def equal_values(expected: Any, found: Any) -> bool:
    """Equality as Python's `==` has it, but: True is not 1, and a float is met within 1e-9, absolute or relative.

    Both sides come from JSON, so their types are exact; a tuple was turned into a list.
    """
    if isinstance(expected, bool) or isinstance(found, bool) or expected is None or found is None:
        return expected is found
    if isinstance(expected, (int, float)) and isinstance(found, (int, float)):
        return _equal_numbers(expected, found)
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(equal_values, expected, found))
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(equal_values(expected[key], found[key]) for key in expected)
    return type(expected) is type(found) and expected == found


def _equal_numbers(expected: float, found: float) -> bool:
    if isinstance(expected, int):
        return expected == found
    try:
        return math.isclose(expected, float(found), rel_tol=VALUE_TOLERANCE, abs_tol=VALUE_TOLERANCE)
    except OverflowError:
        return False


def equal_text(expected: str, found: str) -> bool:
    """Equality of printed text, token by token: the amount and kind of white space between tokens does not matter.

    Where the expected token is a real number (it has a point or an exponent), a number within 1e-6, absolute or relative,
    is equal; integers, words and whatever is longer than 400 characters must agree character by character.
    """
    wanted, given = expected.split(), found.split()
    return len(wanted) == len(given) and all(map(_equal_tokens, wanted, given))


def _equal_tokens(expected: str, found: str) -> bool:
    if expected == found:
        return True
    if max(len(expected), len(found)) > MAX_NUMBER_CHARACTERS:
        return False
    if _INTEGER.fullmatch(expected) or not (_NUMBER.fullmatch(expected) and _NUMBER.fullmatch(found)):
        return False
    wanted, given = float(expected), float(found)
    return math.isfinite(given) and math.isclose(wanted, given, rel_tol=TOKEN_TOLERANCE, abs_tol=TOKEN_TOLERANCE)
