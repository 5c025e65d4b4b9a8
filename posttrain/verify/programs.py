"""Entry module of the sandbox for generated code. Runs inside the child: knows inputs, never an expected output.

What it reports is only as honest as the program it runs; the judging side compares and believes nothing else.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

Report = Callable[[Any], None]
_PRELOADED = (
    "abc", "array", "bisect", "calendar", "cmath", "collections", "collections.abc", "copy", "csv", "dataclasses", "datetime",
    "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "inspect", "io", "itertools", "json", "math", "numbers",
    "operator", "queue", "random", "re", "statistics", "string", "struct", "textwrap", "time", "traceback", "typing",
    "unicodedata",
)  # fmt: skip
_CANNOT_COMPILE = (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError)
_MAX_DEPTH = 200


def preload() -> None:
    """Imports once, before any fork, what programs commonly use."""
    for name in _PRELOADED:
        importlib.import_module(name)


def run(job: dict[str, Any], report: Report) -> int:
    """Runs `job["source"]` in its mode and returns the exit status of the process."""
    sys.set_int_max_str_digits(0)
    try:
        code = compile(job["source"], "<completion>", "eval" if job["mode"] == "expression" else "exec", dont_inherit=True)
    except _CANNOT_COMPILE as error:
        report({"unparseable": _describe(error)})
        return 1
    module = types.ModuleType("__main__" if job["mode"] == "program" else "completion")
    sys.modules[module.__name__] = module
    return _MODES[job["mode"]](job, code, module.__dict__, report)


def _run_expression(job: dict[str, Any], code: types.CodeType, names: dict[str, Any], report: Report) -> int:
    return _report_each(job["inputs"], lambda value: eval(code, names | {job["variable"]: value}), report)


def _run_function(job: dict[str, Any], code: types.CodeType, names: dict[str, Any], report: Report) -> int:
    try:
        exec(code, names)
    except BaseException as error:
        report({"error": _describe(error)})
        return 1
    if not callable(names.get(job["name"])):
        report({"unparseable": f"it defines no function {job['name']!r}"})
        return 1
    return _report_each(job["inputs"], lambda arguments: names[job["name"]](*arguments), report)


def _report_each(inputs: list[Any], compute: Callable[[Any], Any], report: Report) -> int:
    for value in inputs:
        try:
            line = {"value": _plain(compute(value), 0)}
        except BaseException as error:
            report({"error": _describe(error)})
            return 1
        report(line)
    return 0


def _run_program(job: dict[str, Any], code: types.CodeType, names: dict[str, Any], report: Report) -> int:
    try:
        status = _exit_status(code, names)
        _end_interpreter(names)
    except BaseException as error:
        report({"error": _describe(error)})
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        return 1
    return status


def _end_interpreter(names: dict[str, Any]) -> None:
    """What the interpreter does at its end: waits for threads, runs exit functions, drops objects, writes what is buffered."""
    threading._shutdown()  # type: ignore[attr-defined]  # no public name exists
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    _flush(sys.stdout)
    names.clear()
    gc.collect()  # a file that nobody closed writes its buffer when it goes
    _flush(sys.stdout)
    _flush(sys.__stdout__)


def _flush(stream: Any) -> None:
    if stream is not None and not getattr(stream, "closed", False):
        stream.flush()


def _exit_status(code: types.CodeType, names: dict[str, Any]) -> int:
    try:
        exec(code, names)
    except SystemExit as error:
        if error.code is None:
            return 0
        return error.code & 0xFF if isinstance(error.code, int) else 1
    return 0


def _plain(value: Any, depth: int) -> Any:
    """`value` if strict JSON can say it exactly: no subclass, no NaN, no set; a tuple counts as a list."""
    kind = type(value)
    if depth > _MAX_DEPTH:
        raise ValueError("the value is nested too deeply")
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"{value} is no number to compare")
        return value
    if kind in (list, tuple):
        return [_plain(item, depth + 1) for item in value]
    if kind is dict:
        if any(type(key) is not str for key in value):
            raise TypeError("a dictionary with keys that are no text")
        return {key: _plain(item, depth + 1) for key, item in value.items()}
    raise TypeError(f"a value of type {kind.__name__} cannot be compared")


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:300].encode("utf-8", "replace").decode()
    except BaseException:
        return "an exception that cannot be shown"


_MODES = {"expression": _run_expression, "function": _run_function, "program": _run_program}
