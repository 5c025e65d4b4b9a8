"""Plain values between two sandboxed processes: tagged, bounded JSON that neither side can use to reach the other's code.

None, booleans, texts, integers of up to 64 bits and finite floats are written as JSON has them. Everything else is a list
whose first item is a tag, so that list, tuple, set, frozenset, dict, bytes, range, complex, large integers, NaN and
infinities stay apart. A list, set or dict has a number, by the order in which both sides meet it. Met again it is a
reference, which keeps shared and cyclic values, tells a function's own argument from a copy, and names what a call changed
in place.

Only exact types cross. A Counter, defaultdict or OrderedDict crosses as a dict; what a function returns may also hold
numpy numbers, which cross as numbers, and numpy arrays, which cross as lists. Any other type, and any other subclass, is refused.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import Any, NoReturn

MAX_DEPTH = 200
MAX_FRAME_BYTES = 4 << 20
_SMALL = 1 << 63
_DICTS = (dict, Counter, defaultdict, OrderedDict)
_SPECIAL_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_HEADER_BYTES = 4


class NotPlainError(Exception):
    """A value cannot cross, or what arrived is not one."""


class Objects:
    """The lists, sets and dicts of one call, numbered alike at both ends as both meet them in the same order.

    Args:
        numpy_crosses: whether `encode` takes numpy values, as plain ones.
    """

    def __init__(self, numpy_crosses: bool = False) -> None:
        self._convert = without_numpy if numpy_crosses else _as_it_is
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def encode(self, value: Any, depth: int = 0) -> Any:
        """`value` as JSON can hold it.

        Raises:
            NotPlainError: something in it is of another type, or nested too deeply.
        """
        value = self._convert(value)
        kind = type(value)
        if depth > MAX_DEPTH:
            raise NotPlainError("a value that is nested too deeply")
        if value is None or kind in (bool, str) or (kind is int and -_SMALL < value < _SMALL):
            return value
        if kind is float:
            return value if math.isfinite(value) else ["float", str(value)]
        if kind in (list, set, *_DICTS):
            return self._encode_object(value, depth)
        return _encode_unnumbered(kind, value, lambda item: self.encode(item, depth + 1))

    def _encode_object(self, value: Any, depth: int) -> list[Any]:
        if id(value) in self._numbers:
            return ["ref", self._numbers[id(value)]]
        self._number(value)
        return self._encode_contents(value, depth)

    def _number(self, value: Any) -> None:
        self._numbers[id(value)] = len(self._objects)
        self._objects.append(value)  # kept, so that no other object gets its id

    def _encode_contents(self, value: Any, depth: int = 0) -> list[Any]:
        items = chain.from_iterable(value.items()) if isinstance(value, dict) else value
        return [_tag(value), *(self.encode(item, depth + 1) for item in items)]

    def encode_state(self, count: int) -> list[Any]:
        """What the first `count` objects hold now."""
        return [self._encode_contents(value) for value in self._objects[:count]]

    def decode(self, text: Any, depth: int = 0) -> Any:
        """The value of what `encode` gave.

        Raises:
            NotPlainError: it gave no such thing.
        """
        if depth > MAX_DEPTH + 1:
            raise NotPlainError("a value that is nested too deeply")
        if not isinstance(text, list):
            if isinstance(text, dict):
                raise NotPlainError("a mapping where a value was due")
            return text
        tag, *items = text or [None]
        if tag in ("list", "set", "dict"):
            made: Any = {"list": list, "set": set, "dict": dict}[tag]()
            self._number(made)
            _fill(made, [self.decode(item, depth + 1) for item in items])
            return made
        if tag == "ref":
            return self._referred(items)
        return _decode_unnumbered(tag, items, lambda item: self.decode(item, depth + 1))

    def _referred(self, items: list[Any]) -> Any:
        (number,) = items
        if type(number) is not int or not 0 <= number < len(self._objects):
            raise NotPlainError("a reference to nothing")
        return self._objects[number]

    def restore(self, state: list[Any]) -> None:
        """Makes the first objects hold what `encode_state` says of them.

        Raises:
            NotPlainError: it is not the state of these objects.
        """
        contents: list[list[Any]] = []
        for value, (tag, *items) in zip(self._objects, state, strict=False):
            if tag != _tag(value):
                raise NotPlainError(f"a {tag} in place of a {_tag(value)}")
            contents.append([self.decode(item, 1) for item in items])
        for value, items in zip(self._objects, contents, strict=False):
            value.clear()
            _fill(value, items)


def _tag(value: Any) -> str:
    return "dict" if isinstance(value, dict) else type(value).__name__


def _encode_unnumbered(kind: type, value: Any, encode: Any) -> list[Any]:
    if kind in (tuple, frozenset):
        return [kind.__name__, *map(encode, value)]
    if kind is int:
        return ["int", f"{value:x}"]  # linear in its length, unlike decimal digits
    if kind is bytes:
        return ["bytes", value.hex()]
    if kind is complex:
        return ["complex", encode(value.real), encode(value.imag)]
    if kind is range:
        return ["range", encode(value.start), encode(value.stop), encode(value.step)]
    raise NotPlainError(f"a value of type {kind.__name__}")


def _decode_unnumbered(tag: Any, items: list[Any], decode: Any) -> Any:
    if tag in ("tuple", "frozenset"):
        return {"tuple": tuple, "frozenset": frozenset}[tag](map(decode, items))
    if tag == "float":
        return _SPECIAL_FLOATS[items[0]]
    if tag == "int":
        return int(items[0], 16)
    if tag == "bytes":
        return bytes.fromhex(items[0])
    if tag in ("complex", "range"):
        return {"complex": complex, "range": range}[tag](*map(decode, items))
    raise NotPlainError("a value without a known tag")


def _fill(value: Any, items: list[Any]) -> None:
    if isinstance(value, dict):
        if len(items) % 2:
            raise NotPlainError("a key without its value")
        for key, item in zip(items[::2], items[1::2], strict=True):
            value[key] = item  # a Counter's `update` would count the pairs
    elif isinstance(value, set):
        value.update(items)
    else:
        value.extend(items)


def _as_it_is(value: Any) -> Any:
    return value


def without_numpy(value: Any) -> Any:
    """A numpy number as a number, an array as a list of such; anything else, and any subclass, as it is."""
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value).__module__ != "numpy":
        return value
    if type(value) is numpy.ndarray:
        return value.tolist()
    return value.item() if isinstance(value, numpy.generic) else value


def frame(value: Any) -> bytes:
    """One JSON value behind its length.

    Raises:
        NotPlainError: it is longer than a frame may be.
    """
    text = json.dumps(value, allow_nan=False).encode()
    if len(text) > MAX_FRAME_BYTES:
        raise NotPlainError(f"values of more than {MAX_FRAME_BYTES >> 20} MiB")
    return len(text).to_bytes(_HEADER_BYTES, "big") + text


def write_frame(descriptor: int, written: bytes) -> None:
    """Writes what `frame` gave; blocks while the reader is behind.

    Raises:
        OSError: the reader has gone.
    """
    while written:
        written = written[os.write(descriptor, written) :]


def read_frame(descriptor: int) -> Any:
    """The JSON value of one `frame`; blocks until all of it is there.

    Raises:
        EOFError: the writer has gone.
        NotPlainError: it is longer than a frame may be, or not JSON.
    """
    size = int.from_bytes(b"".join(_read_exactly(descriptor, _HEADER_BYTES)), "big")
    if size > MAX_FRAME_BYTES:
        raise NotPlainError(f"values of more than {MAX_FRAME_BYTES >> 20} MiB")
    text = b"".join(_read_exactly(descriptor, size))
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise NotPlainError("bytes that are no values") from error


def refuse_constant(name: str) -> NoReturn:
    """For `parse_constant` of a reader of JSON: NaN and infinities are not JSON."""
    raise ValueError(f"{name} is not JSON")


def _read_exactly(descriptor: int, size: int) -> Iterator[bytes]:
    while size:
        chunk = os.read(descriptor, min(size, 1 << 16))
        if not chunk:
            raise EOFError
        size -= len(chunk)
        yield chunk
