"""Mode assertions: what tests may do, what crosses between the two processes, and whose fault a failure is."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from posttrain.config_verify import CodeReward, VerifySettings
from posttrain.errors import ConfigError
from posttrain.verify.base import Verdict
from posttrain.verify.code import CodeVerifier
from posttrain.verify.sandbox.connection import Connection
from tests.verify.judging import judge

SQUARE = "def f(x):\n    return x * x"
FRACTION = VerifySettings(timeout_s=2.0, code_reward=CodeReward.fraction)


def assertions(tests: str | list[str], setup: str | None = None) -> dict[str, Any]:
    answer = {"mode": "assertions", "name": "f", "tests": tests}
    return answer if setup is None else {**answer, "setup": setup}


def ask(completion: str, tests: str | list[str], setup: str | None = None, settings: VerifySettings | None = None) -> Verdict:
    (verdict,) = judge("code", [(completion, assertions(tests, setup))], settings=settings or VerifySettings(timeout_s=2.0))
    return verdict


def function(body: str, parameters: str = "x") -> str:
    return f"def f({parameters}):\n    " + body.replace("\n", "\n    ")


def test_a_list_of_assertions_and_a_source_with_check() -> None:
    check = "def check(candidate):\n    assert candidate(3) == 9\n    assert candidate(-2) == 4\n"
    listed = ["assert f(3) == 9", "assert f(-2) == 4, 'negative'"]
    called = check + "check(f)\n"
    pairs = [(code, assertions(tests)) for tests in (check, listed, called) for code in (SQUARE, "def f(x): return 3 * x")]
    assert [verdict.outcome for verdict in judge("code", pairs)] == ["pass", "fail"] * 3
    assert ask("def f(x): return 3 * x", listed).detail == "case 1: line 1 of the test: AssertionError: negative"
    assert ask("```python\ndef f(x): return x\n```\n```python\ndef f(x): return x ** 2\n```", listed).outcome == "pass"


def test_tests_of_a_list_do_not_see_each_other() -> None:
    verdict = ask(SQUARE, ["two = f(1) + 1\nassert two == 2", "assert f(two) == 4"])
    assert (verdict.outcome, verdict.reward) == ("error", None)
    assert "they use two, which neither they nor the setup define" in verdict.detail


def test_setup_is_there_for_the_tests_and_for_the_completion() -> None:
    setup = "import math\ndef double(x):\n    return 2 * x\ndef f(x):\n    '''Twice the root.'''\n"
    tests = ["assert f(9) == double(3)", "assert math.isclose(f(2), 2.8284271247461903)"]
    assert ask("def f(x): return double(math.sqrt(x))", tests, setup).outcome == "pass"
    assert ask("def g(x): return 1", tests, setup).detail == "it defines no function 'f'"


VALUES = [
    "None", "True", "0", "-1", "10 ** 4000", "-(2 ** 63)", "2 ** 63 - 1", "1.5", "-0.0", "float('inf')", "'ü\\ud800\\x00'", "b'\\x00\\xff'", "1 + 2j", "[]", "[1, [2, (3, {4})]]",
    "()", "(1,)", "set()", "{1, 'a', (2, 3)}", "frozenset({1})", "{}", "{1: 'a', (2, 3): [4], None: {5: 6}}", "range(3, 9, 2)", "{True: 1.0}",
]  # fmt: skip


def test_plain_values_cross_both_ways_with_their_types() -> None:
    there = "value = {0}\nfound = f({0})\nassert found == value and type(found) is type(value) and repr(found) == repr(value)"
    back = "assert f() == {0} and type(f()) is type({0}) and repr(f()) == repr({0})"
    pairs = [("def f(x): return x", assertions([there.format(value)])) for value in VALUES]
    pairs += [(f"def f(): return {value}", assertions([back.format(value)])) for value in VALUES]
    assert [verdict.detail for verdict in judge("code", pairs)] == ["1 cases"] * 2 * len(VALUES)


def test_nan_keyword_arguments_and_dict_subclasses_of_the_standard_library_cross() -> None:
    passing = [
        ("def f(): return float('nan')", "assert f() != f()"),
        ("def f(a, *b, c=0, **d): return [a, b, c, d]", "assert f(1, 2, 3, c=4, d=5) == [1, (2, 3), 4, {'d': 5}]"),
        ("from collections import *\ndef f(x): return Counter(x)", "assert f('abca') == {'a': 2, 'b': 1, 'c': 1}"),
        ("from collections import *\ndef f(x): return OrderedDict(x=x)", "assert f(1) == {'x': 1}"),
        ("def f(x):\n    x['a'] += 1", "from collections import Counter\nc = Counter('ab')\nf(c)\nassert c == Counter(a=2, b=1)"),
    ]
    verdicts = judge("code", [(code, assertions([test])) for code, test in passing])
    assert [verdict.outcome for verdict in verdicts] == ["pass"] * len(passing)


def test_changes_in_place_and_identity_reach_the_tests() -> None:
    passing = [
        ("def f(x): x.sort()", "a = [3, 1, 2]\nassert f(a) is None and a == [1, 2, 3]"),
        ("def f(x):\n    x.append(4)\n    return x", "a = [3]\nassert f(a) is a and a == [3, 4]"),
        ("def f(x): return list(x)", "a = [3]\nassert f(a) == a and f(a) is not a"),
        (
            "def f(x): x[0].append(x[1].pop())",
            "inner, other = [1], [2]\nouter = [inner, other]\nf(outer)\nassert inner == [1, 2] and other == [] and outer[0] is inner",
        ),
        ("def f(x): x[:] = [x[1], x[0]]", "a, b = [1], [2]\nc = [a, b]\nf(c)\nassert c[0] is b and c[1] is a"),
        ("def f(x, y):\n    x.update(new=y)\n    y.clear()", "d, s = {}, {1}\nf(d, s)\nassert d['new'] is s and s == set()"),
        ("def f(x, y): x.append(1)", "a = []\nf(a, a)\nassert a == [1]"),
        ("def f(x):\n    x.append(x)\n    return x", "a = []\nb = f(a)\nassert b is a and a[0] is a"),
        (
            "def f(x):\n    x.append(1)\n    raise ValueError",
            "a = []\ntry:\n    f(a)\nexcept ValueError:\n    pass\nassert a == [1]",
        ),
        (
            "def f(x): x['b'] = x.pop('a')",
            "from collections import OrderedDict\nd = OrderedDict(a=1, c=2)\nf(d)\nassert list(d.items()) == [('c', 2), ('b', 1)]",
        ),
        ("memory = []\ndef f(x):\n    memory.append(x)\n    return len(memory)", "assert [f(1), f(1)] == [1, 2]"),
    ]
    verdicts = judge("code", [(code, assertions([test])) for code, test in passing])
    assert [verdict.detail for verdict in verdicts] == ["1 cases"] * len(passing)


def test_exceptions_come_back_as_the_nearest_built_in_type() -> None:
    raises = "import unittest\ncase = unittest.TestCase()\nwith case.assertRaises({0}) as caught:\n    f(1)\nassert caught.exception.args == {1}"
    passing = [
        (function("raise ValueError('no', 7)"), raises.format("ValueError", "('no', 7)")),
        ("class Own(KeyError): pass\ndef f(x): raise Own(x)", raises.format("KeyError", "(1,)")),
        (function("return {}[x]"), raises.format("LookupError", "(1,)")),
        (
            function("raise UnicodeDecodeError('utf-8', b'x', 0, 1, 'why')"),
            raises.format("UnicodeDecodeError", "('utf-8', b'x', 0, 1, 'why')"),
        ),
        (function("open('/nowhere')"), "try:\n    f(1)\nexcept FileNotFoundError as error:\n    assert error.errno == 2"),
        ("class Odd(Exception):\n    args = ()\ndef f(x): raise Odd(object())", raises.format("Exception", "()")),
        (function("raise SystemExit(3)"), raises.format("SystemExit", "(3,)")),
    ]
    verdicts = judge("code", [(code, assertions([test])) for code, test in passing])
    assert [verdict.detail for verdict in verdicts] == ["1 cases"] * len(passing)
    assert ask(function("raise ValueError('no')"), ["assert f(1) == 1"]).detail == "case 0: line 1 of the test: ValueError: no"


CANNOT_CROSS = {
    "return (y for y in [x])": "it returned a value of type generator", "return lambda: x": "a value of type function", "return object()": "a value of type object",
    "return type('Int', (int,), {})(1)": "a value of type Int", "for _ in range(300): x = [x]\nreturn x": "nested too deeply",
    "return 'x' * (5 << 20)": "values of more than 4 MiB", "x.append(print)": "it left a value of type builtin_function_or_method in an argument",
}  # fmt: skip


def test_what_cannot_cross_fails_with_its_reason_though_the_test_swallows_everything() -> None:
    swallow = assertions(["try:\n    f([1])\nexcept BaseException:\n    pass"])
    verdicts = judge("code", [(function(body), swallow) for body in CANNOT_CROSS])
    for verdict, reason in zip(verdicts, CANNOT_CROSS.values(), strict=True):
        assert (verdict.outcome, verdict.reward) == ("fail", 0.0)
        assert reason in verdict.detail


FAULTY = [
    (["raise ValueError('broken')"], None, "ValueError: broken"), (["assert f(1) == 1", "assert g(1) == 1"], None, "they use g"), (["assert True"], None, "never call f"),
    (["assert f(lambda y: y) == 1"], None, "they pass a value of type function"), (["import no_such_module\nassert f(1) == 1"], None, "no_such_module"),
    (["assert f(1) == 1"], "1 / 0", "ZeroDivisionError"), (["raise SystemExit(0)"], None, "SystemExit"), ("def check(candidate):\n    assert candidate(missing) == 1", None, "they use missing"),
    ("def check(): pass", None, "TypeError"),
]  # fmt: skip


def test_a_fault_of_the_tests_is_an_error_whatever_the_completion() -> None:
    completions = ["def f(x): return x", "def f(x): return None", "import os\nos._exit(0)", "def f(x) return"]
    pairs = [(completion, assertions(tests, setup), reason) for tests, setup, reason in FAULTY for completion in completions]
    verdicts = judge("code", [pair[:2] for pair in pairs])
    for verdict, (_, _, reason) in zip(verdicts, pairs, strict=True):
        assert (verdict.outcome, verdict.reward) == ("error", None), verdict
        assert reason in verdict.detail


def test_what_a_wrong_value_leads_to_is_no_error() -> None:
    test = assertions(["assert 1 // len(f(1)) == [5][f(1)[0]]"])
    verdicts = judge("code", [(f"def f(x): return {value}", test) for value in ("None", "[]", "0", "{}", "[9]")])
    assert [(verdict.outcome, verdict.reward) for verdict in verdicts] == [("fail", 0.0)] * 5


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (assertions([]), "without a test"), (assertions(""), "without a test"), (assertions(["assert f(1) ="]), "not Python"), (assertions("def check(f:"), "not Python"),
        (assertions([1]), r"tests\[0\]"), (assertions(["assert f(1)"], "def"), "answer.setup"), ({"mode": "assertions", "name": "f"}, "'tests' is missing"),
        (assertions(["assert f(1)"]) | {"name": "f()"}, "not a Python name"), (assertions(["assert f(1)"]) | {"inputs": []}, "no such key"),
    ],
)  # fmt: skip
def test_answers_of_the_wrong_shape_are_refused(answer: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        CodeVerifier(VerifySettings()).check_answer(answer)
    (verdict,) = judge("code", [("def f(x): return x", answer)])
    assert (verdict.outcome, verdict.reward) == ("error", None)


def test_with_fraction_each_test_counts_and_none_costs_those_after_it() -> None:
    """Of six tests: passes, fails, raises, ends its process, hangs, passes."""
    completion = function("import os\nif x == 3: raise ValueError\nif x == 4: os._exit(0)\nwhile x == 5: pass\nreturn x")
    tests = [f"assert f({number}) == {wanted}" for number, wanted in ((1, 1), (2, 3), (3, 3), (4, 4), (5, 5), (6, 6))]
    settings = VerifySettings(timeout_s=10.0, case_timeout_s=0.5, code_reward=CodeReward.fraction)
    verdict = ask(completion, tests, settings=settings)
    assert (verdict.outcome, verdict.reward) == ("fail", 2 / 6)
    assert verdict.detail == "2 of 6 cases passed; case 1: line 1 of the test: AssertionError"
    assert 0.5 < verdict.seconds < 5
    assert ask(SQUARE, ["assert f(2) == 4", "assert f(3) == 9"], settings=FRACTION).reward == 1.0
    assert ask("def f(x) return", ["assert f(2) == 4"], settings=FRACTION).outcome == "unparseable"


def test_a_test_that_hangs_is_stopped_after_its_own_limit() -> None:
    settings = VerifySettings(timeout_s=30.0, case_timeout_s=0.5)
    verdict = ask("def f(x):\n    while x == 2: pass\n    return x", ["assert f(1) == 1", "assert f(2) == 2"], settings=settings)
    assert (verdict.outcome, verdict.detail) == ("timeout", "case 1: stopped after 0.5 s")
    assert 0.4 < verdict.seconds < 5


def test_the_start_of_the_other_server_takes_nothing_from_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    start, slow = Connection.__init__, [""]

    def slow_start(self: Connection, python: str, policy: str, config: Any, *arguments: Any) -> None:
        time.sleep(1.5 if config["entry"] == slow[0] else 0)
        start(self, python, policy, config, *arguments)

    monkeypatch.setattr(Connection, "__init__", slow_start)
    for slow[0] in ("posttrain.verify.programs", "posttrain.verify.assertions"):
        assert ask(SQUARE, ["assert f(3) == 9"], settings=VerifySettings(timeout_s=1.0)).outcome == "pass"


@pytest.mark.parametrize("entry", ["posttrain.verify.programs", "posttrain.verify.assertions"])
def test_a_killed_server_of_either_side_costs_no_verdict(entry: str) -> None:
    settings = VerifySettings(timeout_s=5.0, memory_mib=300 + os.getpid() % 100)  # the number marks our processes
    marks = f'"entry": "{entry}"'.encode(), f'"memory_mib": {settings.memory_mib}'.encode()
    killed: list[int] = []

    def kill_once() -> None:
        deadline = time.monotonic() + 10
        while not killed and time.monotonic() < deadline:
            time.sleep(0.2)
            killed.extend(process for process in processes() if all(mark in command_of(process) for mark in marks))
        for process in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    killer = threading.Thread(target=kill_once)
    killer.start()
    verdict = ask("import time\ndef f(x):\n    time.sleep(1.5)\n    return x", ["assert f(1) == 1"], settings=settings)
    killer.join()
    assert killed
    assert verdict.outcome == "pass", verdict


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def command_of(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def test_descriptors_do_not_grow() -> None:
    pairs = [(code, assertions(["assert f(3) == 9"])) for code in (SQUARE, "import os\nos._exit(0)") for _ in range(20)]
    counts = []
    for _ in range(2):
        judge("code", pairs)
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[0] == counts[1]
