"""Runs the cases of the modes expression, function and program, and compares what comes back with what is expected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from posttrain.config_verify import VerifySettings
from posttrain.verify import verdicts
from posttrain.verify.base import Verdict
from posttrain.verify.code_answers import equality
from posttrain.verify.code_tally import Tally
from posttrain.verify.compare import (
    MAX_COMPARISONS,
    Comparisons,
    Equality,
    NotJson,
    TooManyComparisons,
    equal_text,
    equal_values,
    read_json,
)
from posttrain.verify.sandbox.pool import Sandbox, SandboxResult

WROTE_TOO_MUCH = "stopped: it wrote more than allowed"


def judge_values(sandbox: Sandbox, source: str, answer: dict[str, Any], settings: VerifySettings) -> Verdict:
    """The verdict in the modes expression and function.

    One process computes the values of all cases. Where each case counts, those after the one that ended it run in a new one.
    """
    inputs, outputs = answer["inputs"], answer["outputs"]
    own = {key: answer[key] for key in ("mode", "variable", "name") if key in answer}
    tally, compare = Tally(len(outputs), settings), _Comparer(equal_values, equality(answer))
    while tally.is_open:
        done = tally.num_judged
        job = {**own, "source": source, "inputs": inputs[done:]}
        result = sandbox.execute(job, "", tally.left_s, report_timeout_s=tally.case_limit_s)
        tally.seconds += result.seconds
        whole = judge_start(result.reports) or _too_many(result, len(outputs) - done)
        if whole:
            return tally.ended_by(whole)
        for verdict in _judge_reports(result, outputs[done:], compare, settings):
            tally.add(verdict)
    return tally.verdict()


def judge_program(sandbox: Sandbox, source: str, answer: dict[str, Any], settings: VerifySettings) -> Verdict:
    """The verdict in mode program; every case has a process of its own."""
    tally, compare = Tally(len(answer["outputs"]), settings), _Comparer(equal_text, equality(answer))
    for stdin, expected in zip(answer["inputs"], answer["outputs"], strict=True):
        if not tally.is_open:
            break
        result = sandbox.execute({"mode": "program", "source": source}, stdin, tally.case_s)
        tally.seconds += result.seconds
        whole = judge_start(result.reports)
        if whole:
            return tally.ended_by(whole)
        tally.add(_stopped(result, settings) or _judge_text(result, expected, compare))
    return tally.verdict()


def judge_start(reports: Sequence[bytes]) -> Verdict | None:
    """The verdict on code that could not even be compiled, or that raised before it defined anything."""
    message = read_report(reports[-1:])
    if "unparseable" in message:
        return verdicts.unparseable(str(message["unparseable"]))
    return verdicts.failed(f"runtime error: {show(message['undefined'])}") if "undefined" in message else None


def read_report(lines: Sequence[bytes]) -> dict[str, Any]:
    """One line that the program's process reported; anything that is no mapping counts as nothing."""
    try:
        message = read_json(lines[0]) if lines else {}
    except NotJson as error:
        return {"error": f"a value that is not plain JSON ({error})"}
    return message if isinstance(message, dict) else {}


def show(value: Any) -> str:
    """`value` for a detail, cut."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):  # an integer of too many digits, a value nested too deeply
        return "a value too large to show"
    return text if len(text) <= 200 else f"{text[:200]}…"


class _Comparer:
    """Compares the outputs of one completion with what is expected; all its cases share one bound on the comparisons."""

    def __init__(self, equal: Callable[[Any, Any, Equality, Comparisons], bool], wanted: Equality) -> None:
        self._equal, self._wanted, self._work = equal, wanted, Comparisons()

    def judge(self, expected: Any, found: Any) -> Verdict:
        """`pass` or `fail`."""
        try:
            equal = self._equal(expected, found, self._wanted, self._work)
        except TooManyComparisons:
            why = f"not equal when sorted, and pairing its items takes more than {MAX_COMPARISONS:,} comparisons"
            return verdicts.failed(f"{why}: expected {show(expected)}, found {show(found)}")
        return verdicts.passed() if equal else verdicts.failed(f"expected {show(expected)}, found {show(found)}")


def _too_many(result: SandboxResult, num_cases: int) -> Verdict | None:
    if len(result.reports) <= num_cases:
        return None
    return verdicts.failed(f"{len(result.reports)} values for {num_cases} cases")


def _judge_reports(result: SandboxResult, outputs: list[Any], compare: _Comparer, settings: VerifySettings) -> Iterator[Verdict]:
    """One verdict for each case up to the one at which the process ended, if it ended early."""
    stopped = _stopped(result, settings)
    lines = result.reports[: len(outputs) - 1] if stopped else result.reports
    for expected, line in zip(outputs, lines, strict=False):
        yield _judge_value(read_report([line]), expected, compare, result)
    if len(lines) < len(outputs) and (stopped or not lines or "error" not in read_report(lines[-1:])):
        yield stopped or verdicts.failed(_runtime_error({}, result))


def _judge_value(message: dict[str, Any], expected: Any, compare: _Comparer, result: SandboxResult) -> Verdict:
    if "value" not in message:
        return verdicts.failed(_runtime_error(message, result))
    return compare.judge(expected, message["value"])


def _judge_text(result: SandboxResult, expected: str, compare: _Comparer) -> Verdict:
    if result.exit_status != 0:
        return verdicts.failed(_runtime_error(read_report(result.reports[-1:]), result))
    try:
        found = result.stdout.decode()
    except UnicodeDecodeError as error:
        return verdicts.failed(f"it printed what is not UTF-8 ({error.reason} at byte {error.start})")
    return compare.judge(expected, found)


def _stopped(result: SandboxResult, settings: VerifySettings) -> Verdict | None:
    if result.ended == "output_limit":
        return verdicts.failed(WROTE_TOO_MUCH)
    limit = min(settings.timeout_s, settings.case_timeout_s or settings.timeout_s)
    return verdicts.timed_out(f"stopped after {limit:g} s") if result.ended == "timeout" else None


def _runtime_error(message: dict[str, Any], result: SandboxResult) -> str:
    if "error" in message:
        return f"runtime error: {show(message['error'])}"
    return f"runtime error: the process ended with status {result.exit_status}"
