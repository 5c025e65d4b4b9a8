"""Expected outputs that no completion can give are refused; the largest and deepest that can come back are not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from posttrain.config_verify import VerifySettings
from posttrain.errors import ConfigError
from posttrain.verify.code import CodeVerifier
from tests.verify.judging import judge, outcomes


def function(*outputs: Any, **options: Any) -> dict[str, Any]:
    return {"mode": "function", "name": "f", "inputs": [[1] for _ in outputs], "outputs": list(outputs), **options}


def program(output: str) -> dict[str, Any]:
    return {"mode": "program", "inputs": [""], "outputs": [output]}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("answer", "field", "part"),
    [
        (function(1, math.nan), "answer.outputs[1]", "nan is not JSON"), (function([{"a": -math.inf}]), "answer.outputs[0]", "-inf is not JSON"),
        (function({1: 2}), "answer.outputs[0]", "keys are not all text"), (function({1, 2}), "answer.outputs[0]", "a set is not JSON"), (function([(1, 2)]), "answer.outputs[0]", "a tuple is not JSON"),
        (function(10**4300), "answer.outputs[0]", "more than 4,300 digits"), (function([-(10**4300)]), "answer.outputs[0]", "more than 4,300 digits"), (function(nested(201)), "answer.outputs[0]", "more than 200 deep"),
        (function(nested(100_000)), "answer.outputs[0]", "more than 200 deep"), (function("a" * 600_000, "b" * 600_000), "answer.outputs", "1,048,576 bytes of JSON, these have 1,200,028"),
        (program("\ud800"), "answer.outputs[0]", "no program can print it: surrogates not allowed at character 0"), (program("ü" * 600_000), "answer.outputs[0]", "1,048,576 bytes, this has 1,200,000"),
    ],
)  # fmt: skip
def test_an_output_that_cannot_come_back_is_refused(answer: dict[str, Any], field: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part) as caught:
        CodeVerifier(VerifySettings()).check_answer(answer)
    assert caught.value.field == field


def test_the_largest_and_deepest_outputs_pass() -> None:
    deep = "v = 1\n    for _ in range(200): v = [v]\n    return v"
    pairs = [
        (f"def f(x):\n    {deep}", function(nested(200))), (f"def f(x):\n    {deep}", function(nested(200), unordered="nested")), ("def f(x): return 10 ** 4299", function(10**4299)),
        ("def f(x): return 'a' * 524273", function("a" * 524_273, "a" * 524_273)), ("print('ü' * 524287)", program("ü" * 524_287)), ("print(end='ü' * 524288)", program("ü" * 524_288)),
    ]  # fmt: skip
    settings = VerifySettings(timeout_s=10.0)
    assert [verdict.detail for verdict in judge("code", pairs, settings=settings)] == ["1 cases"] * 3 + ["2 cases"] + [
        "1 cases"
    ] * 2


@pytest.mark.parametrize("name", ["class", "None", "lambda", "ﬁ", "a b", "", "1"])
def test_a_name_that_code_cannot_define_is_refused(name: str) -> None:
    for answer in (
        {"mode": "function", "name": name, "inputs": [[1]], "outputs": [1]},
        {"mode": "expression", "variable": name, "inputs": [1], "outputs": [1]},
        {"mode": "assertions", "name": name, "tests": ["assert True"]},
    ):
        with pytest.raises(ConfigError, match="not a Python name"):
            CodeVerifier(VerifySettings()).check_answer(answer)
    assert outcomes(
        "code", [("def größe(x): return x", {"mode": "function", "name": "größe", "inputs": [[1]], "outputs": [1]})]
    ) == ["pass"]
