"""The submission's end of mode `assertions`: answers calls that arrive at one pipe by another. It sees arguments, never a test.

Runs beside untrusted code; `assertions` is the other end and believes nothing of what comes.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from posttrain.verify.plain_values import NotPlainError, Objects, frame, read_frame, write_frame

CALLS, VALUES = 4, 5  # descriptors, alike at both ends


def serve_calls(function: Callable[..., Any]) -> None:
    """Until the tests end."""
    while True:
        try:
            call = read_frame(CALLS)
        except EOFError:
            return
        try:
            answer = frame(_answer(function, call))
        except NotPlainError as error:
            answer = frame({"failed": str(error)})
        write_frame(VALUES, answer)


def _answer(function: Callable[..., Any], call: dict[str, Any]) -> dict[str, Any]:
    objects = Objects(numpy_crosses=True)
    arguments, keywords = objects.decode(call["arguments"]), dict(objects.decode(call["keywords"]))
    num_objects = len(objects)
    try:
        answer = {"value": objects.encode(function(*arguments, **keywords))}
    except NotPlainError as error:
        return {"failed": f"it returned {error}"}
    except BaseException as error:
        answer = _raised(error, objects)
    try:
        return answer | {"state": objects.encode_state(num_objects)}
    except NotPlainError as error:
        return {"failed": f"it left {error} in an argument"}


def _raised(error: BaseException, objects: Objects) -> dict[str, Any]:
    """The nearest built-in class of an exception, its arguments where they are plain, else its text."""
    name = next(kind.__name__ for kind in type(error).__mro__ if is_exception(getattr(builtins, kind.__name__, None)))
    try:
        return {"raised": name, "arguments": objects.encode(error.args)}
    except NotPlainError:
        return {"raised": name, "arguments": objects.encode((str(error)[:300],))}


def is_exception(value: Any) -> bool:
    """Whether it is a class of exceptions that can cross: not a group, which holds others."""
    return isinstance(value, type) and issubclass(value, BaseException) and not issubclass(value, BaseExceptionGroup)
