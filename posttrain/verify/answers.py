"""Checks of the shape of a dataset's answer; every refusal names field, value, reason and remedy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeGuard

from posttrain.errors import ConfigError


def refuse(field: str, value: Any, why: str, remedy: str) -> ConfigError:
    """The error for a wrong answer; long values are cut."""
    shown = value if len(repr(value)) <= 200 else f"{repr(value)[:200]}…"
    return ConfigError(field, shown, why, remedy)


def require_keys(answer: Any, keys: Sequence[str], remedy: str, optional: Sequence[str] = ()) -> dict[str, Any]:
    """`answer` as a mapping with all of `keys`, perhaps some of `optional`, and no other."""
    if not isinstance(answer, dict):
        raise refuse("answer", answer, "it is not a mapping", remedy)
    for key in keys:
        if key not in answer:
            raise refuse("answer", sorted(answer), f"the key {key!r} is missing", remedy)
    for key in answer:
        if key not in (known := (*keys, *optional)):
            raise refuse("answer", key, f"no such key; known are {', '.join(known)}", remedy)
    return answer


def is_number(value: Any) -> TypeGuard[int | float]:
    """An integer or a finite float; True is neither."""
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))
