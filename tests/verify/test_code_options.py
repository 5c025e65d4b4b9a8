"""Options of the code verifier: any order, tolerance, a share as the reward, a limit for each case, packages."""

from __future__ import annotations

import time
from typing import Any

import pytest

from posttrain.config_verify import CodeReward, VerifySettings
from posttrain.errors import ConfigError
from posttrain.verify.base import Verdict
from posttrain.verify.code import CodeVerifier
from posttrain.verify.code_packages import find_packages
from posttrain.verify.compare import Equality, Order, equal_text, equal_values
from tests.verify.judging import judge, outcomes

FRACTION = VerifySettings(timeout_s=3.0, code_reward=CodeReward.fraction)


def function(outputs: list[Any], inputs: list[list[Any]] | None = None, **options: Any) -> dict[str, Any]:
    inputs = [[number] for number in range(len(outputs))] if inputs is None else inputs
    return {"mode": "function", "name": "f", "inputs": inputs, "outputs": outputs, **options}


def program(*cases: tuple[str, str], **options: Any) -> dict[str, Any]:
    return {"mode": "program", "inputs": [case[0] for case in cases], "outputs": [case[1] for case in cases], **options}


def ask(completion: str, answer: Any, settings: VerifySettings = FRACTION) -> Verdict:
    (verdict,) = judge("code", [(completion, answer)], settings=settings)
    return verdict


def in_order(order: str, tolerance: float | None = None) -> Equality:
    return Equality(Order(order), tolerance)


@pytest.mark.parametrize(
    ("expected", "found", "orders"),
    [
        ([1, 2, 3], [3, 1, 2], "outermost nested"), ([1, 2, 2], [2, 1, 1], ""), ([1, 2], [1, 2, 2], ""), ([[1, 2], [3]], [[3], [1, 2]], "outermost nested"),
        ([[1, 2], [3]], [[3], [2, 1]], "nested"), ({"a": [1, 2]}, {"a": [2, 1]}, "nested"), ([{"a": 1}, {"b": 2}], [{"b": 2}, {"a": 1}], "outermost nested"),
        ([1, "1", None, True, [], {}], [{}, [], True, None, "1", 1], "outermost nested"), ([1, True], [True, 1], "outermost nested"), ([1, 0], [True, False], ""),
        ([0.1, 0.2], [0.2, 0.1 + 1e-12], "outermost nested"), ([0.1, 0.2], [0.2, 0.11], ""), ([1, 2.0], [2, 1], "outermost nested"), ("ab", "ba", ""), (5, 5, "kept outermost nested"),
        # sorting puts the equal first numbers of the pairs apart; an assignment is found
        ([[0.1, 3], [0.1, 5]], [[0.1, 5], [0.1 + 1e-12, 3]], "outermost nested"), ([[0.1, 3], [0.1, 3]], [[0.1, 5], [0.1 + 1e-12, 3]], ""),
    ],
)  # fmt: skip
def test_values_in_any_order(expected: Any, found: Any, orders: str) -> None:
    held = [order for order in ("kept", "outermost", "nested") if equal_values(expected, found, in_order(order))]
    assert held == orders.split()


@pytest.mark.parametrize(
    ("expected", "found", "orders"),
    [
        ("1 2\n3", "3\n1 2\n", "outermost nested"), ("1 2\n3", "3\n2 1", "nested"), ("1 2 3", "3 2 1", "nested"), ("1 2\n3", "1\n2 3", "kept"), ("1\n2", "1 2", "kept"), ("a\n\nb", "b\r\n a", "outermost nested"),
        ("1\n1\n2", "1\n2\n2", ""), ("0.5\n1.0", "1\n0.5000001", "outermost nested"), ("0.5\n1", "1.0\n0.5", ""), ("10\n9\nb", "b\n9\n10", "outermost nested"), ("", "\n", "kept outermost nested"),
    ],
)  # fmt: skip
def test_text_in_any_order(expected: str, found: str, orders: str) -> None:
    held = [order for order in ("kept", "outermost", "nested") if equal_text(expected, found, in_order(order))]
    assert held == orders.split()


def test_tolerance_replaces_that_of_floats_and_only_that() -> None:
    wide, exact = in_order("kept", 0.01), in_order("kept", 0)
    assert equal_values([1.0, "a"], [1.009, "a"], wide)
    assert not equal_values(1, 1.009, wide)
    assert not equal_values(1.0, 1.02, wide)
    assert not equal_values(0.3, 0.1 + 0.2, exact)
    assert equal_values(0.3, 0.3, exact)
    assert equal_text("x 2.50", "x 2.49", wide)
    assert not equal_text("250", "249", wide)
    assert not equal_text("0.3", "0.30000001", exact)


def test_a_hostile_list_costs_no_more_than_the_expected_one_is_long() -> None:
    started = time.monotonic()
    assert not equal_values([0.5] * 3, [0.5] * 1_000_000, in_order("nested"))
    assert not equal_values([0.5] * 200, [0.6] * 200, in_order("nested"))
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    assert not equal_values([[1], [2]], [[1], deep], in_order("nested"))
    assert not equal_text("1 2\n3", "1 " * 500_000, in_order("nested"))
    assert time.monotonic() - started < 5


def test_options_in_an_answer() -> None:
    pairs = [
        ("def f(x): return [3, 1]", function([[1, 3]], unordered=True)), ("def f(x): return [3, 1]", function([[1, 3]])), ("def f(x): return [[3, 1]]", function([[[1, 3]]], unordered="nested")),
        ("def f(x): return 1.04", function([1.0], tolerance=0.05)), ("print('b 1.04'); print('a')", program(("", "a\nb 1.0"), unordered=True, tolerance=0.05)),
        ("[x, 0]", {"mode": "expression", "variable": "x", "inputs": [1], "outputs": [[0, 1]], "unordered": True}),
    ]  # fmt: skip
    assert outcomes("code", pairs) == ["pass", "fail", "pass", "pass", "pass", "pass"]


@pytest.mark.parametrize(
    ("options", "part"),
    [({"unordered": 1}, "unordered"), ({"unordered": "deep"}, "nested"), ({"unordered": [1]}, "unordered"), ({"tolerance": -1}, "tolerance"), ({"tolerance": 1}, "below 1"),
     ({"tolerance": True}, "tolerance"), ({"tolerance": "1e-6"}, "tolerance"), ({"order": 1}, "no such key")],
)  # fmt: skip
def test_options_of_the_wrong_shape_are_refused(options: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        CodeVerifier(VerifySettings()).check_answer(function([1], **options))


def test_with_fraction_the_reward_is_the_share_of_cases_and_none_costs_those_after_it() -> None:
    """Of six cases of a function: passes, is wrong, raises, ends its process, hangs, passes."""
    body = "    import os\n    if x == 2: raise ValueError\n    if x == 3: os._exit(0)\n    while x == 4: pass\n    return x"
    settings = VerifySettings(timeout_s=10.0, case_timeout_s=0.5, code_reward=CodeReward.fraction)
    verdict = ask(f"def f(x):\n{body}", function([0, 5, 2, 3, 4, 5]), settings)
    assert (verdict.outcome, verdict.reward) == ("fail", 2 / 6)
    assert verdict.detail == "2 of 6 cases passed; case 1: expected 5, found 1"
    assert 0.5 < verdict.seconds < 5
    lines = "n = int(input())\nwhile n == 3: pass\nprint(1 // n)"
    verdict = ask(lines, program(("3", "0"), ("1", "1"), ("0", "0"), ("2", "0")), settings)
    assert (verdict.outcome, verdict.reward) == ("timeout", 2 / 4)
    assert verdict.detail == "2 of 4 cases passed; case 0: stopped after 0.5 s"


def test_with_fraction_all_or_nothing_keep_their_outcomes() -> None:
    pairs = [
        ("def f(x): return x", 1.0, "pass"),
        ("def f(x): return -1", 0.0, "fail"),
        ("def f(x) return", 0.0, "unparseable"),
        ("raise ValueError", 0.0, "fail"),
    ]
    verdicts = judge("code", [(code, function([0, 1])) for code, _, _ in pairs], settings=FRACTION)
    assert [(verdict.reward, verdict.outcome) for verdict in verdicts] == [pair[1:] for pair in pairs]


def test_with_fraction_the_total_limit_holds() -> None:
    settings = VerifySettings(timeout_s=1.0, code_reward=CodeReward.fraction)
    for answer, code in ((function([0] * 9), "import time\ndef f(x):\n    time.sleep(0.4)\n    return 0"), (program(*[("", "0")] * 9), "import time\ntime.sleep(0.4)\nprint(0)")):  # fmt: skip
        verdict = ask(code, answer, settings)
        assert (verdict.outcome, verdict.reward) == ("timeout", 2 / 9)
        assert verdict.seconds < 3


def test_a_case_has_its_own_limit() -> None:
    settings = VerifySettings(timeout_s=30.0, case_timeout_s=0.5)
    for answer, code in (
        (function([0, 1]), "def f(x):\n    while x: pass\n    return 0"),
        (program(("0", "0"), ("1", "1")), "n = int(input())\nwhile n: pass\nprint(0)"),
    ):
        verdict = ask(code, answer, settings)
        assert (verdict.outcome, verdict.reward, verdict.detail) == ("timeout", 0.0, "case 1: stopped after 0.5 s")
        assert 0.4 < verdict.seconds < 5


def test_packages_of_the_list_can_be_imported_and_no_other() -> None:
    """numpy numbers and arrays come back as plain values; pyarrow is installed and not on the list."""
    pairs = [
        ("import numpy as np\ndef f(x): return np.arange(3) + x", function([[0, 1, 2]])), ("import numpy as np\ndef f(x): return np.float64(0.5)", function([0.5])),
        ("import numpy as np\ndef f(x): return [np.int64(3), np.bool_(True), (np.str_('a'),)]", function([[3, True, ["a"]]])), ("from numpy import array\nprint(array([1, 2]).sum())", program(("", "3"))),
        ("def f(x): return __import__('num' + 'py').ones(2).tolist()", function([[1.0, 1.0]])), ("import numpy as np\nclass Own(np.ndarray): pass\ndef f(x): return np.ones(2).view(Own)", function([[1.0, 1.0]])),
        ("import pyarrow\ndef f(x): return 0", function([0])), ("import pytest\ndef f(x): return 0", function([0])), ("import numpy\ndef f(x): return numpy.array([1.0, numpy.nan])", function([[1.0, 1.0]])),
    ]  # fmt: skip
    assert outcomes("code", pairs) == ["pass"] * 5 + ["fail"] * 4
    asserted = {
        "mode": "assertions",
        "name": "f",
        "setup": "import numpy as np",
        "tests": ["assert np.allclose(f(2), np.ones(2))", "assert f(1) == [1.0]"],
    }
    (verdict,) = judge("code", [("def f(n): return np.ones(n)", asserted)])
    assert verdict.outcome == "pass"
    array_argument = {"mode": "assertions", "name": "f", "setup": "import numpy as np", "tests": ["assert f(np.ones(2)) == 2"]}
    (verdict,) = judge("code", [("def f(x): return x.sum()", array_argument)])
    assert (verdict.outcome, "they pass a value of type ndarray" in verdict.detail) == ("error", True)


def test_without_packages_there_is_the_standard_library_alone() -> None:
    completion = "def f(x):\n    import numpy\n    return 0"
    assert "ModuleNotFoundError" in ask(completion, function([0]), VerifySettings(packages="")).detail


def test_a_package_that_is_not_installed_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'no-such-thing'") as caught:
        CodeVerifier(VerifySettings(packages="numpy, no-such-thing"))
    assert caught.value.field == "verify.packages"


def test_only_sources_that_name_a_package_wait_for_its_import() -> None:
    packages = find_packages("numpy,math-verify")
    assert packages.modules == ("numpy", "math_verify")
    assert [path.rpartition("/")[2].partition("-")[0] for path in packages.paths] == [
        "numpy",
        "numpy.libs",
        "numpy",
        "math_verify",
        "math_verify",
    ]
    assert packages.mentioned_in("x = 1", "from numpy.linalg import norm")
    assert not packages.mentioned_in("import numpy_financial, mynumpy")
    assert not find_packages("").mentioned_in("import numpy")
