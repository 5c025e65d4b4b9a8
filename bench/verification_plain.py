"""One program judged in this very process, as in-process scorers do it; standard library only. It protects nothing."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import Any

OUTCOMES = {"right": "pass", "wrong": "fail", "raises": "fail", "unparseable": "unparseable"}


def kind_of(source: str, answer: dict[str, Any]) -> str:
    """`right`, `wrong`, `raises` or `unparseable`; stops at the first value that is wrong, and may change the inputs."""
    try:
        code = compile(source, "<completion>", "eval" if answer["mode"] == "expression" else "exec")
    except (SyntaxError, ValueError):
        return "unparseable"
    try:
        found = zip(_values(code, answer), answer["outputs"], strict=True)
        return "right" if all(value == expected for value, expected in found) else "wrong"
    except Exception:  # noqa: BLE001 - what a program raises is what it is
        return "raises"


def _values(code: Any, answer: dict[str, Any]) -> Iterator[Any]:
    if answer["mode"] == "program":
        yield from (_printed(code, typed) for typed in answer["inputs"])
    elif answer["mode"] == "expression":
        yield from (eval(code, {answer["variable"]: value}) for value in answer["inputs"])  # noqa: S307
    else:
        names: dict[str, Any] = {"__name__": "completion"}
        exec(code, names)  # noqa: S102
        yield from (names[answer["name"]](*arguments) for arguments in answer["inputs"])


def _printed(code: Any, typed: str) -> str:
    before, sys.stdin = sys.stdin, io.StringIO(typed)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as sink:
            exec(code, {"__name__": "__main__"})  # noqa: S102
    finally:
        sys.stdin = before
    return sink.getvalue()
