"""Entry module of the sandbox for tests written as assertions. Its servers never run a completion's code.

The tests call a stand-in for the completion's function, which sends the arguments to the process of the completion and waits
for the value (see `program_calls`). For each test it reports `calling` before the first call, then `passed`, `failed` or `fault`.

Each test has names of its own, for which the setup runs anew, so that before its first call nothing can be the completion's
doing: whatever goes wrong is a fault of the tests, and so is a test that never calls. From then on nothing can be told apart
from what a wrong value leads to, so it counts as failed; names that no one defines are therefore looked for before.
"""

from __future__ import annotations

import ast
import builtins
import gc
import importlib
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

from posttrain.verify.plain_values import NotPlainError, Objects, frame, read_frame, write_frame
from posttrain.verify.program_calls import CALLS, VALUES, is_exception

Report = Callable[[Any], None]
_PRELOADED = ("collections", "copy", "itertools", "math", "random", "re", "string", "typing")
_EXCEPTIONS = {name: kind for name, kind in vars(builtins).items() if is_exception(kind)}
_BINDING_FIELDS = ("name", "asname", "arg", "rest")


class SubmissionBroken(BaseException):
    """The completion's process gave no value. Tests that catch it change nothing: the test has failed."""


class FaultyTest(BaseException):
    """The tests themselves cannot be run."""


def preload() -> None:
    """Imports once, before any fork, what tests commonly use."""
    for name in _PRELOADED:
        importlib.import_module(name)


def run(job: dict[str, Any], report: Report) -> int:
    """Runs the tests of `job` in order until one does not pass."""
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 — what tests print is nobody's
    submission = Submission(job["name"], report)
    try:
        setup = compile(job["setup"], "<setup>", "exec", dont_inherit=True)
        ready = [_run_setup(setup, submission)]
        tests = [_compile(source, ready[0]) for source in job["tests"]]
    except BaseException as error:
        report({"fault": _describe(error)})
        return 0
    for code in tests:
        result = _run_test(code, lambda: ready.pop() if ready else _run_setup(setup, submission), submission)
        report(result)
        if "passed" not in result:
            break
        gc.collect()  # what a test kept leaves its memory to the next
    return 0


class Submission:
    """The completion's function as the tests see it."""

    def __init__(self, name: str, report: Report) -> None:
        self.name, self._report = name, report
        self.was_called = False  # by any test so far
        self.start_test()

    def start_test(self) -> None:
        self.num_calls = 0
        self.broken = self.fault = ""

    def stand_in(self) -> Callable[..., Any]:
        """A plain function, as the tests expect one."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            return self.call(arguments, keywords)

        call.__name__ = call.__qualname__ = self.name
        return call

    def call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """What the completion's function returns or raises for these arguments.

        Raises:
            SubmissionBroken: it gave neither a plain value nor an exception.
            FaultyTest: an argument of the first call cannot cross.
        """
        objects = Objects()
        try:
            call = frame({"arguments": objects.encode(arguments), "keywords": objects.encode(tuple(keywords.items()))})
        except NotPlainError as error:
            if self.num_calls:  # it may hold what the completion gave
                self.broken = f"an argument made after the first call cannot cross: {error}"
                raise SubmissionBroken(self.broken) from error
            self.fault = f"they pass {error}, which cannot cross to another process"
            raise FaultyTest(self.fault) from error
        if not self.num_calls:
            self._report({"calling": True})
        self.num_calls += 1
        self.was_called = True
        result = self._exchange(call, objects)
        if isinstance(result, _Raised):
            raise _outside_iterators(result.error, self.name)
        return result

    def _exchange(self, call: bytes, objects: Objects) -> Any:
        if not self.broken:
            try:
                write_frame(CALLS, call)
                return _read_answer(read_frame(VALUES), objects)
            except SubmissionBroken as error:
                self.broken = str(error)
            except (EOFError, OSError):
                self.broken = "its process ended"
            except BaseException as error:  # whatever is wrong with what arrived is the completion's doing
                self.broken = f"its process gave {_describe(error)}"
        raise SubmissionBroken(self.broken)


class _Raised:
    """An exception that the completion's function raised."""

    def __init__(self, kind: type[BaseException], arguments: tuple[Any, ...]) -> None:
        try:
            self.error = kind(*arguments)
        except Exception:  # not the arguments that its constructor takes
            self.error = kind.__new__(kind)
            self.error.args = arguments


def _outside_iterators(error: BaseException, name: str) -> BaseException:
    """`error`, but as a RuntimeError where it would end an iterator of the tests (`map(f, …)`) early, as generators have it."""
    if isinstance(error, (StopIteration, StopAsyncIteration)):
        return RuntimeError(f"{name} raised {type(error).__name__}")
    return error


def _read_answer(answer: dict[str, Any], objects: Objects) -> Any:
    num_objects = len(objects)
    if "failed" in answer:
        raise SubmissionBroken(str(answer["failed"])[:300])
    if "raised" in answer:
        result: Any = _Raised(_EXCEPTIONS[answer["raised"]], objects.decode(answer["arguments"]))
    else:
        result = objects.decode(answer["value"])
    if len(answer["state"]) != num_objects:
        raise NotPlainError("the state of other objects")
    objects.restore(answer["state"])
    return result


def _run_setup(setup: types.CodeType, submission: Submission) -> dict[str, Any]:
    """New names with what the setup defines."""
    module = types.ModuleType("tests")
    sys.modules["tests"] = module
    exec(setup, module.__dict__)
    module.__dict__[submission.name] = submission.stand_in()
    return module.__dict__


def _compile(source: str, known: dict[str, Any]) -> types.CodeType:
    tree = ast.parse(source, "<tests>")
    missing = sorted(set(_undefined(tree)) - known.keys())
    if missing:
        raise FaultyTest(f"they use {', '.join(missing)}, which neither they nor the setup define")
    return compile(tree, "<tests>", "exec", dont_inherit=True)


def _undefined(tree: ast.AST) -> Iterator[str]:
    """Names that are read and nowhere bound, whatever the scope; nothing where an import may bind any."""
    bound, read = set(dir(builtins)), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif not isinstance(node, ast.keyword):
            fields = (getattr(node, field, None) for field in _BINDING_FIELDS)
            bound.update(field.partition(".")[0] for field in fields if isinstance(field, str))
    if "*" not in bound:
        yield from (name for name in read - bound if not name.startswith("__"))


def _run_test(code: types.CodeType, prepare: Callable[[], dict[str, Any]], submission: Submission) -> dict[str, Any]:
    submission.start_test()
    why = ""
    try:
        names = prepare()
        stand_in = names[submission.name]
        exec(code, names)
        if not submission.num_calls and callable(check := names.get("check")):
            check(stand_in)
    except MemoryError as error:
        why = _describe(error)
        if submission.was_called:  # values from earlier calls may have left too little
            return {"failed": why}
    except BaseException as error:
        why = _place(error) + _describe(error)
    if submission.fault:
        return {"fault": submission.fault}
    if not submission.num_calls:
        return {"fault": why or f"they never call {submission.name}"}
    if submission.broken or why:
        return {"failed": submission.broken or why}
    return {"passed": True}


def _place(error: BaseException) -> str:
    """The line of the tests that an exception passed last."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == "<tests>"]
    return f"line {lines[-1]} of the test: " if lines else ""


def _describe(error: BaseException) -> str:
    try:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    except BaseException:
        return type(error).__name__
    return str(error) if isinstance(error, FaultyTest) else text[:300].encode("utf-8", "replace").decode()
