"""Entry module of the sandbox for generated code. Runs inside the child: knows inputs, never an expected output.

What it reports is only as honest as the program it runs; the judging side compares and believes nothing else.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import importlib
import json
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from posttrain.verify.plain_values import MAX_DEPTH, without_numpy
from posttrain.verify.program_calls import serve_calls

Report = Callable[[Any], None]
_PRELOADED = (
    "bisect", "collections", "collections.abc", "copy", "enum", "functools", "heapq", "io", "itertools", "json", "math",
    "operator", "random", "re", "string", "time", "typing",
)  # fmt: skip
# Run before any fork: what the interpreter then remembers (methods it looked up, bytecode made special) no child writes anew,
# and every page of memory that a child writes is copied.
_WARM_UP = {
    "mode": "function",
    "name": "solve",
    "inputs": [[3], [17]],
    "source": "import math\ndef solve(x):\n    n = 0\n    for digit in str(x):\n        n += int(digit)\n    return [n]\n",
}
_NUM_WARM_UPS = 20
_CANNOT_COMPILE = (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError)


def preload() -> None:
    """Imports once, before any fork, what programs commonly use.

    `random` would seed itself anew after every fork, which costs a tenth of an execution; without that a program that draws
    random numbers draws the same in every run, and its verdict does not change from run to run.
    """
    register, os.register_at_fork = os.register_at_fork, lambda **functions: None
    try:
        for name in _PRELOADED:
            importlib.import_module(name)
    finally:
        os.register_at_fork = register
    sys.modules["random"].seed(0)
    sys.set_int_max_str_digits(0)
    builtins.exit = builtins.quit = sys.exit  # as an interpreter started in the usual way has them
    depth = sys.getrecursionlimit()
    for _ in range(_NUM_WARM_UPS):
        run(_WARM_UP, _encode)
        sys.setrecursionlimit(depth)
    del sys.modules["completion"]


def _encode(value: Any) -> None:
    """Does what reporting does, short of writing."""
    json.dumps(value, allow_nan=False).encode()


def run(job: dict[str, Any], report: Report) -> int:
    """Runs `job["source"]` in its mode and returns the exit status of the process."""
    sys.setrecursionlimit(sys.getrecursionlimit() + _depth())
    try:
        code = compile(job["source"], "<completion>", "eval" if job["mode"] == "expression" else "exec", dont_inherit=True)
    except _CANNOT_COMPILE as error:
        report({"unparseable": _describe(error)})
        return 1
    module = types.ModuleType("__main__" if job["mode"] == "program" else "completion")
    sys.modules[module.__name__] = module
    return _MODES[job["mode"]](job, code, module.__dict__, report)


def _depth() -> int:
    """Calls that stand between the start of the interpreter and the program; in a run of its own there would be none."""
    frame, depth = sys._getframe(), 4  # run, its mode, and up to two calls more  # pyright: ignore[reportPrivateUsage]
    while frame.f_back:
        frame, depth = frame.f_back, depth + 1
    return depth


def _run_expression(job: dict[str, Any], code: types.CodeType, names: dict[str, Any], report: Report) -> int:
    return _report_each(job["inputs"], lambda value: eval(code, names | {job["variable"]: value}), report)


def _run_function(job: dict[str, Any], code: types.CodeType, names: dict[str, Any], report: Report) -> int:
    if not _define(job, code, names, report):
        return 1
    return _report_each(job["inputs"], lambda arguments: names[job["name"]](*arguments), report)


def _run_assertions(job: dict[str, Any], code: types.CodeType, names: dict[str, Any], report: Report) -> int:
    """Answers the calls of tests that run in another process."""
    with contextlib.suppress(BaseException):  # a fault of the setup shows where the tests run
        exec(compile(job["setup"], "<setup>", "exec", dont_inherit=True), names)
    names.pop(job["name"], None)
    if not _define(job, code, names, report):
        return 1
    serve_calls(lambda *arguments, **keywords: names[job["name"]](*arguments, **keywords))
    return 0


def _define(job: dict[str, Any], code: types.CodeType, names: dict[str, Any], report: Report) -> bool:
    try:
        exec(code, names)
    except BaseException as error:
        report({"undefined": _describe(error)})
        return False
    if not callable(names.get(job["name"])):
        report({"unparseable": f"it defines no function {job['name']!r}"})
        return False
    return True


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
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()  # no public name exists
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
    """`value` if strict JSON can say it exactly: no subclass, no NaN, no set; a tuple counts as a list, numpy as plain values."""
    value = without_numpy(value)
    kind = type(value)
    if depth > MAX_DEPTH:
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
        return {_key(key): _plain(item, depth + 1) for key, item in value.items()}
    raise TypeError(f"a value of type {kind.__name__} cannot be compared")


def _key(key: Any) -> str:
    if type(key) is not str:
        raise TypeError("a dictionary with keys that are no text")
    return key


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:300].encode("utf-8", "replace").decode()
    except BaseException:
        return "an exception that cannot be shown"


_MODES = {"expression": _run_expression, "function": _run_function, "assertions": _run_assertions, "program": _run_program}
