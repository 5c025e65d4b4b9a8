"""Judges generated Python by running it, in the sandbox, on inputs whose expected outputs never leave this process.

Three modes, by the answer's `mode`:
`expression` — the completion is one Python expression in `variable`; one fence or one pair of backticks around it is ignored.
`function` — the completion defines the function `name`; every input is a list of arguments.
`program` — the completion is a whole program; every input is its stdin, every output what it must print.

In the last two modes the code is taken from a fenced block; see `fences`. `if __name__ == "__main__":` holds in mode
program alone. All cases must pass, within `timeout_s` of running time together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from posttrain.config_verify import VerifySettings
from posttrain.verify import verdicts
from posttrain.verify.answers import refuse, require_keys
from posttrain.verify.base import Verdict, VerificationRequest
from posttrain.verify.compare import NotJson, equal_text, equal_values, read_json
from posttrain.verify.fences import extract_code, extract_expression
from posttrain.verify.sandbox.pool import Sandbox, SandboxLimits, SandboxResult

_KEYS = {"expression": "variable", "function": "name", "program": None}
_REMEDY = (
    'Use {"mode": "expression", "variable": "x", "inputs": […], "outputs": […]}, {"mode": "function", "name": "solve", '
    '"inputs": [[…], …], "outputs": […]} or {"mode": "program", "inputs": ["stdin", …], "outputs": ["stdout", …]}.'
)


class CodeVerifier:
    """See the module. Reward 1.0 when every case passes, else 0.0."""

    name = "code"
    version = "1"

    def __init__(self, settings: VerifySettings) -> None:
        self._settings = settings
        self._limits = SandboxLimits(memory_mib=settings.memory_mib, cpu_s=math.ceil(settings.timeout_s) + 1)

    def check_answer(self, answer: Any) -> None:
        """Raises ConfigError for an answer that is not one of the three shapes, or that has no case."""
        mode = answer.get("mode") if isinstance(answer, dict) else None
        if mode not in _KEYS:
            raise refuse("answer.mode", answer, f"the mode must be one of {', '.join(_KEYS)}", _REMEDY)
        own_key = _KEYS[mode]
        require_keys(answer, ["mode", "inputs", "outputs", *([own_key] if own_key else [])], _REMEDY)
        if own_key and not (isinstance(answer[own_key], str) and answer[own_key].isidentifier()):
            raise refuse(f"answer.{own_key}", answer[own_key], "it is not a Python name", _REMEDY)
        _check_cases(mode, answer["inputs"], answer["outputs"])

    def verify(self, requests: Sequence[VerificationRequest]) -> list[Verdict]:
        """One verdict for each request, in order.

        Raises:
            VerificationError: the sandbox cannot isolate programs on this machine.
        """
        workers = min(len(requests), Sandbox.default_workers())
        sandbox = Sandbox("posttrain.verify.programs", self._limits, policy=self._settings.sandbox, num_workers=workers)
        with sandbox:
            judge = verdicts.guarded(self.check_answer, lambda request: self._judge(sandbox, request))
            return verdicts.collect(sandbox.map(judge, requests), requests, self.name)

    def _judge(self, sandbox: Sandbox, request: VerificationRequest) -> Verdict:
        answer = request.answer
        source = _extract(request.completion, answer)
        if not source.strip():
            return verdicts.unparseable("the completion holds no code")
        if answer["mode"] == "program":
            return self._judge_program(sandbox, source, answer)
        job = {key: value for key, value in answer.items() if key != "outputs"} | {"source": source}
        result = sandbox.execute(job, "", self._settings.timeout_s)
        verdict = _stopped(result, self._settings.timeout_s) or _judge_values(result, answer["outputs"])
        return replace(verdict, seconds=result.seconds)

    def _judge_program(self, sandbox: Sandbox, source: str, answer: dict[str, Any]) -> Verdict:
        seconds, limit = 0.0, self._settings.timeout_s
        for case, (stdin, expected) in enumerate(zip(answer["inputs"], answer["outputs"], strict=True)):
            if seconds >= limit:
                return replace(verdicts.timed_out(f"{case} cases took {limit:g} s"), seconds=seconds)
            result = sandbox.execute({"mode": "program", "source": source}, stdin, limit - seconds)
            seconds += result.seconds
            verdict = _stopped(result, limit) or _judge_text(result, expected, case)
            if verdict:
                return replace(verdict, seconds=seconds)
        return replace(verdicts.passed(f"{len(answer['outputs'])} cases"), seconds=seconds)


def _extract(completion: str, answer: dict[str, Any]) -> str:
    if answer["mode"] == "expression":
        return extract_expression(completion)
    return extract_code(completion, answer.get("name"))


def _stopped(result: SandboxResult, timeout_s: float) -> Verdict | None:
    """The verdict on code that was stopped or could not be compiled."""
    if result.ended == "timeout":
        return verdicts.timed_out(f"stopped after {timeout_s:g} s")
    if result.ended == "output_limit":
        return verdicts.failed("stopped: it wrote more than allowed")
    message = _read_report(result.reports[-1:])
    return verdicts.unparseable(str(message["unparseable"])) if "unparseable" in message else None


def _judge_values(result: SandboxResult, outputs: list[Any]) -> Verdict:
    for case, expected in enumerate(outputs):
        message = _read_report(result.reports[case : case + 1])
        if "value" not in message:
            return verdicts.failed(f"case {case}: {_runtime_error(message, result)}")
        if not equal_values(expected, message["value"]):
            return verdicts.failed(f"case {case}: expected {_show(expected)}, found {_show(message['value'])}")
    if len(result.reports) != len(outputs):
        return verdicts.failed(f"{len(result.reports)} values for {len(outputs)} cases")
    return verdicts.passed(f"{len(outputs)} cases")


def _judge_text(result: SandboxResult, expected: str, case: int) -> Verdict | None:
    if result.exit_status != 0:
        return verdicts.failed(f"case {case}: {_runtime_error(_read_report(result.reports[-1:]), result)}")
    found = result.stdout.decode("utf-8", "replace")
    if not equal_text(expected, found):
        return verdicts.failed(f"case {case}: expected {_show(expected)}, found {_show(found)}")
    return None


def _read_report(lines: Sequence[bytes]) -> dict[str, Any]:
    """One line that the program's process reported; anything that is no mapping counts as nothing."""
    try:
        message = read_json(lines[0]) if lines else {}
    except NotJson as error:
        return {"error": f"a value that is not plain JSON ({error})"}
    return message if isinstance(message, dict) else {}


def _runtime_error(message: dict[str, Any], result: SandboxResult) -> str:
    if "error" in message:
        return f"runtime error: {_show(message['error'])}"
    return f"runtime error: the process ended with status {result.exit_status}"


def _show(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):  # an integer of too many digits, a value nested too deeply
        return "a value too large to show"
    return text if len(text) <= 200 else f"{text[:200]}…"


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
    for number, value in enumerate(outputs):
        if mode == "program" and not isinstance(value, str):
            raise refuse(f"answer.outputs[{number}]", value, "in mode program an output is the text to print", _REMEDY)
