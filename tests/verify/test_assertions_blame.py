"""Mode assertions: a completion chooses neither `pass` nor `error`, and what is the data's fault is not its failure."""

from __future__ import annotations

from posttrain.config_verify import CodeReward, VerifySettings
from posttrain.verify.base import Verdict
from tests.verify.judging import judge
from tests.verify.test_assertions import ask, assertions, function


def summary(verdict: Verdict) -> tuple[str, float | None]:
    return verdict.outcome, verdict.reward


def test_an_exception_that_ends_iterators_does_not_end_those_of_the_tests() -> None:
    tests = [
        "assert all(map(lambda x: f(x) == x * x, [1, 2, 3]))",
        "for got, want in zip(map(f, [1, 2, 3]), [1, 4, 9]):\n    assert got == want",
        "assert all(f(x) == x * x for x in [1, 2, 3])",
        "assert [got for got in map(f, [1, 2])] in ([], [1, 4])",
    ]
    bodies = [
        "raise StopIteration",
        "raise StopIteration(1)",
        "raise StopAsyncIteration",
        "class Own(StopIteration): pass\nraise Own",
        "next(iter([]))",
    ]
    verdicts = judge("code", [(function(body), assertions([test])) for body in bodies for test in tests])
    assert [summary(verdict) for verdict in verdicts] == [("fail", 0.0)] * len(bodies) * len(tests)
    assert verdicts[0].detail == "case 0: line 1 of the test: RuntimeError: f raised StopIteration"
    assert ask(function("return x * x"), tests).outcome == "pass"
    caught = "try:\n    f(1)\nexcept RuntimeError as error:\n    assert str(error) == 'f raised StopIteration'"
    assert ask(function("raise StopIteration"), [caught]).outcome == "pass"


def test_what_one_test_does_to_objects_of_the_setup_is_unknown_to_the_next() -> None:
    setup, tests = "G = [[1], [2]]", ["assert f(G) == 1", "assert f(G[0]) == 1"]
    assert ask(function("return 1"), tests, setup).outcome == "pass"
    assert ask(function("x.clear()\nreturn 1"), tests, setup).outcome == "pass"
    verdict = ask(function("if len(x) == 1: raise ValueError\nx.clear()\nreturn 1"), tests, setup)
    assert (*summary(verdict), verdict.detail) == ("fail", 0.0, "case 1: line 1 of the test: ValueError")


def test_a_setup_that_works_only_once_is_a_fault_of_the_tests() -> None:
    setup = "import math\nassert not hasattr(math, 'used')\nmath.used = True"
    assert summary(ask(function("return 1"), ["assert f(1) == 1"], setup)) == ("pass", 1.0)
    assert summary(ask(function("return 1"), ["assert f(1) == 1"] * 2, setup)) == ("error", None)


def test_an_argument_made_of_what_a_completion_gave_is_no_fault_of_the_tests() -> None:
    deep = function("if x != 1: return x\nv = []\nfor _ in range(199): v = [v]\nreturn v")
    large = function("return 'a' * (3 << 20)")
    for completion, test in ((deep, "assert f([f(1)]) == 3"), (large, "assert f([f(1), f(2)]) == 3")):
        for swallowed in (test, f"try:\n    {test}\nexcept BaseException:\n    pass"):
            verdict = ask(completion, [swallowed])
            assert summary(verdict) == ("fail", 0.0)
            assert "an argument made after the first call cannot cross" in verdict.detail


def test_an_argument_of_the_tests_that_is_too_large_to_cross_is_their_fault() -> None:
    for test in (
        "assert f([0] * 1_500_000) == 1_500_000",
        "assert f('a' * 5_000_000) == 5_000_000",
        "assert f(x='a' * 5_000_000) == 1",
    ):
        verdict = ask(function("return len(x)"), [test], settings=VerifySettings(timeout_s=10.0))
        assert summary(verdict) == ("error", None)
        assert "they pass values of more than 4 MiB" in verdict.detail
    assert ask(function("return len(x)"), ["assert f('a' * 4_000_000) == 4_000_000"]).outcome == "pass"


def test_tests_that_hang_before_their_first_call_are_faulty_whatever_the_completion() -> None:
    settings = VerifySettings(timeout_s=0.5)
    hanging = [("while True: pass\nassert f(1) == 1", None), ("assert f(1) == 1", "import time\ntime.sleep(3)")]
    for test, setup in hanging:
        for completion in (function("return x"), "def f(x) return", "while True: pass"):
            verdict = ask(completion, [test], setup, settings)
            assert summary(verdict) == ("error", None), verdict
            assert verdict.detail == "the tests are faulty: they took 0.5 s before their first call"


def test_a_completion_that_hangs_or_keeps_every_processor_busy_is_no_error() -> None:
    settings = VerifySettings(timeout_s=3.0)
    assert summary(ask(function("while True: pass"), ["assert f(1) == 1"], settings=settings)) == ("timeout", 0.0)
    busy = "import hashlib, threading\ndef spin():\n    while True: hashlib.sha256(bytes(4 << 20))\n"
    busy += "for _ in range(30): threading.Thread(target=spin, daemon=True).start()\ndef f(x): return x"
    setup = "import time\nstarted = time.process_time()\nwhile time.process_time() - started < 0.3: pass"
    for test in ("assert f(1) == 1", "import time\nassert f(1) == 1\ntime.sleep(5)"):
        assert ask(busy, [test], setup, settings).outcome != "error"


def test_with_fraction_the_setup_is_new_for_each_test_too() -> None:
    settings = VerifySettings(timeout_s=5.0, code_reward=CodeReward.fraction)
    verdict = ask(
        function("x.clear()\nreturn 1"),
        ["assert f(G) == 1", "assert f(G[0]) == 1 and not G[0]", "assert f(G) == 2"],
        "G = [[1], [2]]",
        settings,
    )
    assert summary(verdict) == ("fail", 2 / 3)
