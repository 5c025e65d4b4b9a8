"""Refuses expected outputs that no completion can give, whatever it computes: they would cost right completions their reward."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from posttrain.verify.answers import refuse
from posttrain.verify.plain_values import MAX_DEPTH
from posttrain.verify.sandbox.pool import SandboxLimits

MAX_BYTES = SandboxLimits.max_output_bytes
_MAX_DIGITS = 4300  # what the interpreter reads
_TOO_LARGE = 10**_MAX_DIGITS
_LINE_BYTES = len('{"value": }\n')  # around each value as it comes back
_CORRECT = "Correct it, or leave this case out."


def check_values(outputs: Sequence[Any]) -> None:
    """Raises ConfigError for an output that strict JSON cannot bring back, or outputs that are too large together."""
    num_bytes = 0
    for number, value in enumerate(outputs):
        if why := _fault(value, 0):
            raise refuse(f"answer.outputs[{number}]", _shown(value), f"no completion can give it: {why}", _CORRECT)
        num_bytes += len(json.dumps(value)) + _LINE_BYTES
    if num_bytes > MAX_BYTES:
        why = f"all values of a completion together may have {MAX_BYTES:,} bytes of JSON, these have {num_bytes:,}"
        raise refuse("answer.outputs", f"{len(outputs)} outputs", why, "Leave out the cases with the largest outputs.")


def check_printed(outputs: Sequence[Any], remedy: str) -> None:
    """Raises ConfigError for an output that is no text, not UTF-8, or longer than what a program may print."""
    for number, text in enumerate(outputs):
        field = f"answer.outputs[{number}]"
        if not isinstance(text, str):
            raise refuse(field, text, "in mode program an output is the text to print", remedy)
        try:
            num_bytes = len(text.encode())
        except UnicodeEncodeError as error:
            why = f"no program can print it: {error.reason} at character {error.start}"
            raise refuse(field, ascii(text[:200]), why, _CORRECT) from error
        if num_bytes > MAX_BYTES:
            why = f"a program may print {MAX_BYTES:,} bytes, this has {num_bytes:,}"
            raise refuse(field, text[:200], why, "Leave this case out.")


def _fault(value: Any, depth: int) -> str:
    """Why no value that comes back equals `value`, or nothing."""
    kind = type(value)
    if depth > MAX_DEPTH:
        return f"it is nested more than {MAX_DEPTH} deep"
    if value is None or kind in (bool, str):
        return ""
    if kind is float:
        return "" if math.isfinite(value) else f"{value} is not JSON"
    if kind is int:
        return "" if -_TOO_LARGE < value < _TOO_LARGE else f"an integer of more than {_MAX_DIGITS:,} digits"
    if kind is list:
        return next(filter(None, (_fault(item, depth + 1) for item in value)), "")
    if kind is dict:
        odd_key = "" if all(type(key) is str for key in value) else "a mapping whose keys are not all text"
        return odd_key or next(filter(None, (_fault(item, depth + 1) for item in value.values())), "")
    return f"a {kind.__name__} is not JSON"


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except (ValueError, RecursionError):  # an integer of too many digits, a value nested too deeply
        return f"a {type(value).__name__}"
