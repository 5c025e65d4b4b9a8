"""The answers that the code verifier accepts: their shapes, and what their options mean."""

from __future__ import annotations

import ast
import keyword
import unicodedata
from functools import lru_cache
from typing import Any

from posttrain.verify.answers import is_number, refuse, require_keys
from posttrain.verify.code_outputs import check_printed, check_values
from posttrain.verify.compare import Equality, Order

_OWN_KEY = {"expression": "variable", "function": "name", "program": None, "assertions": "name"}
_ORDERS = {False: Order.kept, True: Order.outermost, "nested": Order.nested}
_REMEDY = (
    'Use {"mode": "expression", "variable": "x", "inputs": […], "outputs": […]}, {"mode": "function", "name": "solve", '
    '"inputs": [[…], …], "outputs": […]}, {"mode": "program", "inputs": ["stdin", …], "outputs": ["stdout", …]} or '
    '{"mode": "assertions", "name": "solve", "tests": ["assert solve(1) == 2", …]}.'
)


def check_answer(answer: Any) -> None:
    """Raises ConfigError for an answer that has none of the shapes, or that has no test."""
    mode = answer.get("mode") if isinstance(answer, dict) else None
    if not isinstance(mode, str) or mode not in _OWN_KEY:
        raise refuse("answer.mode", answer, f"the mode must be one of {', '.join(_OWN_KEY)}", _REMEDY)
    if mode == "assertions":
        require_keys(answer, ["mode", "name", "tests"], _REMEDY, optional=["setup"])
        _check_tests(answer["tests"], answer.get("setup", ""))
    else:
        own_key = _OWN_KEY[mode]
        required = ["mode", "inputs", "outputs", *([own_key] if own_key else [])]
        require_keys(answer, required, _REMEDY, optional=["unordered", "tolerance"])
        _check_cases(mode, answer["inputs"], answer["outputs"])
        _check_options(answer)
    own_key = _OWN_KEY[mode]
    if own_key and not _is_name(answer[own_key]):
        raise refuse(f"answer.{own_key}", answer[own_key], "it is not a Python name", _REMEDY)


def _is_name(value: Any) -> bool:
    """Whether code can define it: no keyword, and written as Python keeps names, in NFKC."""
    if not isinstance(value, str) or not value.isidentifier():
        return False
    return not keyword.iskeyword(value) and unicodedata.normalize("NFKC", value) == value


def equality(answer: dict[str, Any]) -> Equality:
    """How outputs are compared with the expected ones."""
    return Equality(_ORDERS[answer.get("unordered", False)], answer.get("tolerance"))


def sources_of_tests(answer: dict[str, Any]) -> list[str]:
    """The tests of mode `assertions`; one source is one test."""
    tests = answer["tests"]
    return [tests] if isinstance(tests, str) else tests


def _check_options(answer: dict[str, Any]) -> None:
    unordered, tolerance = answer.get("unordered", False), answer.get("tolerance")
    if not isinstance(unordered, (bool, str)) or unordered not in _ORDERS:
        why = 'it must be true (the items of the outermost list, the lines of a text), "nested" (at every depth) or false'
        raise refuse("answer.unordered", unordered, why, "Leave it out where the order counts.")
    if tolerance is not None and not (is_number(tolerance) and 0 <= tolerance < 1):
        why = "it must be a number from 0 to below 1, the absolute or relative error of a float"
        raise refuse("answer.tolerance", tolerance, why, "Leave it out for the default.")


def _check_tests(tests: Any, setup: Any) -> None:
    if not isinstance(setup, str):
        raise refuse("answer.setup", setup, "it is not a text of Python", _REMEDY)
    sources = tests if isinstance(tests, list) else [tests]
    for number, source in enumerate(sources):
        field = f"answer.tests[{number}]" if isinstance(tests, list) else "answer.tests"
        if not isinstance(source, str):
            raise refuse(field, source, "it is not a text of Python", _REMEDY)
        _check_source(field, source)
    if not any(source.strip() for source in sources):
        raise refuse("answer.tests", tests, "without a test nothing can be judged", "Give at least one test.")
    _check_source("answer.setup", setup)


def _check_source(field: str, source: str) -> None:
    if fault := _fault(source):
        raise refuse(field, source, f"it is not Python ({fault})", "Correct it; it is run as it stands.")


@lru_cache(maxsize=4096)  # the same tests come with each completion of a prompt
def _fault(source: str) -> str:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return str(error)
    return ""


def _check_cases(mode: str, inputs: Any, outputs: Any) -> None:
    for key, cases in (("inputs", inputs), ("outputs", outputs)):
        if not isinstance(cases, list):
            raise refuse(f"answer.{key}", cases, "it is not a list", _REMEDY)
    if len(inputs) != len(outputs):
        why = f"{len(outputs)} outputs for {len(inputs)} inputs"
        raise refuse("answer.outputs", outputs, why, "Give one output for each input.")
    if not inputs:
        why = "without a test case nothing can be judged"
        raise refuse("answer.inputs", inputs, why, "Give at least one input and its output.")
    wanted = {"expression": object, "function": list, "program": str}[mode]
    for number, value in enumerate(inputs):
        if not isinstance(value, wanted):
            raise refuse(f"answer.inputs[{number}]", value, f"in mode {mode} an input is a {wanted.__name__}", _REMEDY)
    if mode == "program":
        check_printed(outputs, _REMEDY)
    else:
        check_values(outputs)
