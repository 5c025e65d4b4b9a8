"""Generated code: values of the three modes, the rule for fences, comparison of values and of printed text."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.config_verify import VerifySettings
from posttrain.verify.compare import NotJson, equal_text, equal_values, read_json
from posttrain.verify.fences import extract_code, extract_expression
from tests.verify.judging import judge, outcomes

DOUBLE = {"mode": "expression", "variable": "x", "inputs": [1, 2, -3], "outputs": [2, 4, -6]}


def function(*cases: tuple[list[Any], Any]) -> dict[str, Any]:
    return {
        "mode": "function",
        "name": "solve",
        "inputs": [list(case[0]) for case in cases],
        "outputs": [case[1] for case in cases],
    }


def program(*cases: tuple[str, str]) -> dict[str, Any]:
    return {"mode": "program", "inputs": [case[0] for case in cases], "outputs": [case[1] for case in cases]}


def test_expressions() -> None:
    values = {
        "x * 2": "pass", "\n x+x ": "pass", "(x\n+ x)": "pass", "x * 3": "fail", "x": "fail", "y * 2": "fail", "x / 0": "fail", "x * 2.0": "pass",
        "x *": "unparseable", "y = x * 2": "unparseable", "x * 2; x": "unparseable", "```x*2```": "unparseable", "(" * 300 + "x": "unparseable",
    }  # fmt: skip
    assert dict(zip(values, outcomes("code", [(text, DOUBLE) for text in values]), strict=True)) == values


def test_functions() -> None:
    add = function(([1, 2], 3), (["a", "b"], "ab"))
    values = {
        "def solve(a, b): return a + b": "pass",
        "Here it is:\n```python\ndef solve(a, b):\n    return a + b\n```\nDone.": "pass",
        "import math\nclass Adder:\n    def __call__(self, a, b): return a + b\nsolve = Adder()": "pass",
        "def solve(a, b): return a - b": "fail",
        "def solve(a): return a": "fail",
        "def other(a, b): return a + b": "unparseable",
        "solve = 3": "unparseable",
        "raise ValueError('no')": "fail",
        "I cannot do that.": "unparseable",
    }
    assert dict(zip(values, outcomes("code", [(text, add) for text in values]), strict=True)) == values


def test_a_function_of_many_types() -> None:
    rows = [[1, 2.5, "ü", None, True], {"a": [1], "b": {}}, [], "", 10**30, -0.0]
    completion = "def solve(x): return tuple(x) if isinstance(x, list) else x"
    assert outcomes("code", [(completion, function(*[([row], row) for row in rows]))]) == ["pass"]


def test_printed_text_as_programs_are_judged_elsewhere() -> None:
    """verl and NeMo-Gym failed right programs on decimals, raw streams, mixed reading and long integers."""
    right = [
        ("print(1/3)", program(("", "0.333333"))),
        ("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read().upper())", program(("abc\n", "ABC"))),
        ("import sys\nfirst = input()\nprint(first, sys.stdin.read().split())", program(("1\n2\n3\n", "1 ['2', '3']"))),
        ("print(10 ** 4999)", program(("", "1" + "0" * 4999))),
        ("print('1  ', end='\\r\\n'); print('2', end='')", program(("", "1\n2\n"))),
        ("import sys\nprint(3)\nsys.exit(0)", program(("", "3"))),
        ("print(3)\nexit()", program(("", "3"))),
        ("print(3)\nquit(0)", program(("", "3"))),
        ("import atexit\natexit.register(print, 2)\nprint(1)", program(("", "1 2"))),
        ("import threading\nthreading.Timer(0.05, print, [2]).start()\nprint(1)", program(("", "1 2"))),
        ("if __name__ == '__main__':\n    print('main')", program(("", "main"))),
        ("n = int(input())\nprint(n * 2)", program(("1", "2"), ("5\r\n", "10"))),
    ]
    assert outcomes("code", right) == ["pass"] * len(right)


def test_printed_text_that_is_wrong() -> None:
    wrong = [
        ("print('12')", program(("", "1 2"))),
        ("print('1e-7')", program(("", "0"))),
        ("print('2.0')", program(("", "2"))),
        ("print(0.3333)", program(("", "0.333333"))),
        ("print('nan')", program(("", "0.5"))),
        ("import sys\nsys.stdout.buffer.write(b'\\xff')", program(("", "\ufffd"))),
        ("print(1); import sys; sys.exit(1)", program(("", "1"))),
        ("print(1); raise ValueError", program(("", "1"))),
        ("n = int(input())\nprint(2)", program(("1", "2"), ("5", "10"))),
    ]
    assert outcomes("code", wrong) == ["fail"] * len(wrong)


def test_waiting_for_input_that_does_not_come_fails_at_once() -> None:
    (verdict,) = judge("code", [("print(input())", program(("", "1")))])
    assert verdict.outcome == "fail"
    assert "EOFError" in verdict.detail


def test_raising_does_not_equal_empty_output() -> None:
    """verl PR 7853: an exception printed nothing, and nothing equalled the expected nothing."""
    pairs = [("raise ValueError('x')", program(("", ""))), ("def solve(x): raise ValueError('x')", function(([1], "")))]
    for verdict in judge("code", pairs):
        assert (verdict.outcome, verdict.reward) == ("fail", 0.0)
        assert "runtime error: ValueError: x" in verdict.detail


def test_the_time_limit_holds_for_all_cases_together() -> None:
    slow = program(*[("", "1")] * 20)
    (verdict,) = judge("code", [("import time\ntime.sleep(0.3)\nprint(1)", slow)], settings=VerifySettings(timeout_s=1.0))
    assert verdict.outcome == "timeout"
    assert 0.9 < verdict.seconds < 5


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        ("print(1)", "print(1)"),
        ("```py\nfirst\n```\ntext\n```python\nlast\n```\nbye", "\nlast\n"),
        ("so:\n```py\ncut off", "\ncut off"),
        ("```a\n1\n```\n```b\n2", "\n2"),
        ("inline ``` is no fence", "inline ``` is no fence"),
        ("```python\r\nx\r\n```\r\n", "\nx\r\n"),
        ("```\n```", "\n"),
        ("~~~python\n```\n~~~", "\n```\n"),
        ("````python\n'''\n```\n'''\n````\nbye", "\n'''\n```\n'''\n"),
        ("1. so:\n   ```python\n   if x:\n       y\n   ```", "\nif x:\n    y\n"),
        ("```python\ncode\n```\nIt prints:\n```\n5\n```\n```text\n6\n```", "\ncode\n"),
        ("```\ncode\n```\n```text\n6\n```", "\ncode\n"),
        ("<think>\n```python\ndraft\n```\n</think>\ncode", "\ncode"),
    ],
)
def test_the_last_fenced_block_is_the_code(completion: str, code: str) -> None:
    assert extract_code(completion) == code


def test_the_block_that_defines_the_wanted_function_is_the_code() -> None:
    parts = [
        "```python\ndef solve(a):\n    return a\n```",
        "```python\ndef solve(a):\n    return -a\n```",
        "```python\nprint(solve(1))\n```",
    ]
    assert extract_code("\n".join(parts), "solve") == "\ndef solve(a):\n    return -a\n"
    assert extract_code("\n".join(parts), "other") == "\nprint(solve(1))\n"
    assert extract_code("```python\nsolve = abs\n```\n```python\nsolve == abs\n```", "solve") == "\nsolve = abs\n"


@pytest.mark.parametrize(
    ("completion", "expression"),
    [
        (" x * 2\n", "x * 2"), ("`x * 2`", "x * 2"), ("```python\nx * 2\n```", "x * 2"), ("~~~\nx\n~~~\n", "x"), ("<think>x</think> x * 2", "x * 2"),
        ("`x` + `y`", "`x` + `y`"), ("it is `x`", "it is `x`"), ("```\nx\n```\n```\ny\n```", "```\nx\n```\n```\ny\n```"), ("```\nx", "```\nx"),
        ("```\nx\n```\nbye", "```\nx\n```\nbye"), ("``", "``"),
    ],
)  # fmt: skip
def test_one_fence_or_pair_of_backticks_around_an_expression_is_ignored(completion: str, expression: str) -> None:
    assert extract_expression(completion) == expression


def test_recursion_may_be_as_deep_as_in_an_interpreter_of_its_own() -> None:
    deep = "def solve(n): return n and 1 + solve(n - 1)"
    asserted = {"mode": "assertions", "name": "solve", "tests": ["assert solve(995) == 995"]}
    pairs = [(deep, function(([995], 995))), (f"{deep}\nprint(solve(int(input())))", program(("995", "995"))), (deep, asserted)]
    assert outcomes("code", pairs) == ["pass"] * 3
    assert outcomes("code", [(deep, function(([1100], 1100)))]) == ["fail"]


def test_nothing_of_our_modules_reaches_the_code() -> None:
    """Our own `from __future__ import annotations` made every annotation of a completion a text."""
    annotated = "def solve(x: int): return str(solve.__annotations__['x'])"
    assert outcomes("code", [(annotated, function(([1], "<class 'int'>")))]) == ["pass"]


def test_a_main_block_runs_in_mode_program_alone() -> None:
    main = "def solve(x): return x\nif __name__ == '__main__':\n    print(solve(int(input())))"
    stored = "from dataclasses import dataclass\n@dataclass\nclass Pair:\n    x: int\ndef solve(x): return Pair(x).x"
    pairs = [(main, function(([1], 1))), (main, program(("1", "1"))), (stored, function(([1], 1)))]
    assert outcomes("code", pairs) == ["pass"] * 3


def test_what_a_program_leaves_unflushed_is_written_at_its_end() -> None:
    programs = [
        "out = open(1, 'w')\nout.write('1 2')",
        "import sys\nprint('1 2')\nsys.stdout.close()",
        "import sys\nsys.stdout = open(1, 'w')\nprint('1 2')",
        "import sys\nprint(1)\nsys.stdout.flush()\nsys.stdout = None\nopen(1, 'w', closefd=False).write('2')",
        "class Last:\n    def __del__(self): print(2)\nlast = Last()\nprint(1)",
        "import io, os, sys\nbuffer = io.StringIO()\nsys.stdout = buffer\nprint('1 2')\nos.write(1, buffer.getvalue().encode())",
    ]
    assert outcomes("code", [(source, program(("", "1 2"))) for source in programs]) == ["pass"] * len(programs)


@pytest.mark.parametrize(
    ("expected", "found", "equal"),
    [
        (1, 1, True), (1, True, False), (True, 1, False), (True, True, True), (0, False, False), (0, None, False), (None, None, True), (1, 1.0, True),
        (1, 1.0000000001, False), (1.0, 1, True), (0.3, 0.1 + 0.2, True), (1.0, 1 + 2e-9, False), (0.0, 1e-300, True), (0.0, 1e-10, True), (0.0, 2e-9, False), (-1e-10, 0.0, True), (1.5, 10**400, False),
        ("1", 1, False), ("a", "a", True), ([1, 2], [1, 2], True), ([1, 2], [2, 1], False), ([1], [1, 1], False), ([1], [True], False),
        ({"a": 1}, {"a": 1.0}, True), ({"a": 1}, {"b": 1}, False), ([], {}, False), (10**30, 10**30 + 1, False),
    ],
)  # fmt: skip
def test_equality_of_values(expected: object, found: object, equal: bool) -> None:
    assert equal_values(expected, found) is equal


@pytest.mark.parametrize(
    ("expected", "found", "equal"),
    [
        ("1 2", "1   2\n", True), ("1 2", "12", False), ("1.0", "1", True), ("1", "1.0", False), ("0.333333333333", "0.333333", True),
        ("1e-7", "0", True), ("0", "1e-7", False), ("1000000.0", "1000000.5", True), ("100.0", "100.5", False), ("inf", "inf", True),
        ("1.0", "nan", False), ("1.0", "1_0", False), ("", "\n\n", True), ("", "x", False), ("yes", "Yes", False), ("1.5", "१.५", False),
        ("0." + "3" * 398, "0." + "3" * 397, True), ("0." + "3" * 399, "0." + "3" * 398, False), ("0." + "3" * 399, "0." + "3" * 399, True),
    ],
)  # fmt: skip
def test_equality_of_printed_text(expected: str, found: str, equal: bool) -> None:
    assert equal_text(expected, found) is equal


@pytest.mark.parametrize(
    "text", [b"NaN", b"-Infinity", b"[" * 100_000, b'"\xff"', b"9" * 5_000, b"", b"{'a': 1}", b"1 2", b"\xef\xbb\xbf1"]
)
def test_only_strict_json_is_read(text: bytes) -> None:
    with pytest.raises(NotJson):
        read_json(text)
