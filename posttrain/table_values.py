"""Python values → Arrow columns, without what Arrow changes in silence (apache/arrow#35584)."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa


def to_column(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """`values` as an Arrow array of type `kind`; None is null, also inside lists.

    Arrow alone would cut the fraction of a float in an integer column, at any depth, and read a truth value as 1.

    Raises:
        ValueError, TypeError, OverflowError or pa.ArrowException: a value does not fit.
    """
    for value in values:
        _check(kind, value)
    return pa.array(values, type=kind)


def _check(kind: pa.DataType, value: Any) -> None:
    if value is None:
        return
    if pa.types.is_integer(kind):
        _check_integer(value)
    elif pa.types.is_floating(kind):
        _check_float(value)
    elif pa.types.is_struct(kind):
        if not isinstance(value, Mapping):
            raise TypeError(f"{value!r} is not a mapping")
        for field in kind:
            _check(field.type, value.get(field.name))
    elif pa.types.is_large_list(kind):
        _check_list(kind.value_type, value)


def _check_list(kind: pa.DataType, value: Any) -> None:
    if pa.types.is_nested(kind):
        for item in value:
            _check(kind, item)
        return
    # by the few types that occur, not by the many items: a completion has thousands
    types = {value.dtype.type} if isinstance(value, np.ndarray) else set(map(type, value))
    if any(issubclass(one, (bool, np.bool_)) for one in types):
        raise ValueError("it holds truth values")
    allowed = (int, np.integer, type(None))
    if pa.types.is_integer(kind) and not all(issubclass(one, allowed) for one in types):
        raise ValueError("it must hold integers only")


def _check_integer(value: Any) -> None:
    whole = isinstance(value, numbers.Number) and not isinstance(value, bool) and value == int(value)  # type: ignore[call-overload]
    if not whole:
        raise ValueError(f"{value!r} is not an integer")


def _check_float(value: Any) -> None:
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is a bool")
    if isinstance(value, (int, np.integer)) and int(float(value)) != value:
        raise ValueError(f"{value!r} has no exact float64")
