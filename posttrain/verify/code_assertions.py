"""Runs tests that are written as assertions, so that the completion cannot forge their verdict.

Two processes run side by side. The tests run in one, forked from a server that never runs a completion's code (`assertions`);
the completion runs in the other (`programs`, `program_calls`) and is asked for one value after another by a pipe between
the two. It never sees a test, an expected value or the channel of the verdict: only the arguments of each call. Whatever it
does to its own process — exits, patches, hangs, writes to every channel — the tests get a plain value, an exception, or nothing.

What remains open:
- It sees the arguments of each call, and a test believes values: one that compares with an argument after the call believes
  what the completion left in it, and `True == 1` holds as it does in Python.
- Values that are not plain (see `plain_values`) cannot cross: a completion that returns a generator, a file or an object of
  a class fails, though its tests might have accepted it; tests that pass a function or an object are an error.
- Two equal immutable values may be one object in a plain run and two here; only lists, sets and dicts keep their identity, and
  that within one call.
- Nothing else is shared: the tests do not see what the completion prints, its other names, its files, or what it does to
  modules, and it does not see the state of `random` that the tests have set.
- Tests that evaluate a returned text, or unpickle returned bytes, run the completion's code and hand it the verdict.
- Who breaks the parser of JSON or the interpreter in the tests' process by a value breaks the verdict.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from posttrain.config_verify import VerifySettings
from posttrain.verify import verdicts
from posttrain.verify.base import Verdict
from posttrain.verify.code_answers import sources_of_tests
from posttrain.verify.code_cases import WROTE_TOO_MUCH, judge_start, read_report
from posttrain.verify.code_tally import Tally
from posttrain.verify.sandbox.pool import Sandbox, SandboxFault, SandboxResult

_IN_STEP = 0.95  # the share of the longer running time that the shorter has at least, when both began together


def judge_assertions(
    submissions: Sandbox, testers: Sandbox, source: str, answer: dict[str, Any], settings: VerifySettings
) -> Verdict:
    """The verdict in mode assertions. Where each test counts or has a limit of its own, it also has processes of its own."""
    tests = sources_of_tests(answer)
    own = {"mode": "assertions", "name": answer["name"], "setup": answer.get("setup", "")}
    tally = Tally(len(tests), settings)
    apart = tally.each_counts or tally.case_limit_s < settings.timeout_s
    while tally.is_open:
        batch = tests[tally.num_judged :][: 1 if apart else None]
        limit_s = tally.case_s
        ran, told = _run_pair(submissions, testers, {**own, "source": source}, {**own, "tests": batch}, limit_s)
        tally.seconds += max(ran.seconds, told.seconds)
        if _ended_before_a_call(told) and _hang_alone(submissions, testers, own, batch, limit_s):
            return tally.ended_by(verdicts.errored(f"the tests are faulty: they took {limit_s:.3g} s before their first call"))
        whole = _judge_whole(ran, told)
        if whole:
            return tally.ended_by(whole)
        num_passed = min(_num_passed(told), len(batch) - (ran.ended != "exited"))
        for _ in range(num_passed):
            tally.add(verdicts.passed())
        if num_passed < len(batch):
            tally.add(_judge_failure(ran, told, limit_s))
    return tally.verdict()


def _run_pair(
    submissions: Sandbox, testers: Sandbox, submission: Any, tests: Any, timeout_s: float
) -> tuple[SandboxResult, SandboxResult]:
    """Runs both; once more where the sandbox failed, or where one had to wait for a new server of the other and lost its time."""
    try:
        ran, told = _run_pair_once(submissions, testers, submission, tests, timeout_s)
        late = min(ran.seconds, told.seconds) < _IN_STEP * max(ran.seconds, told.seconds)
        if not (late and "timeout" in (ran.ended, told.ended)):
            return ran, told
    except SandboxFault:
        pass
    return _run_pair_once(submissions, testers, submission, tests, timeout_s)


def _run_pair_once(
    submissions: Sandbox, testers: Sandbox, submission: Any, tests: Any, timeout_s: float
) -> tuple[SandboxResult, SandboxResult]:
    calls_read, calls_write = os.pipe()
    values_read, values_write = os.pipe()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(_run_end, submissions, submission, timeout_s, (calls_read, values_write))
        told = _run_end(testers, tests, timeout_s, (calls_write, values_read))
        return running.result(), told


def _run_end(sandbox: Sandbox, job: Any, timeout_s: float, descriptors: Sequence[int]) -> SandboxResult:
    """One end of the pair; closing its descriptors is what tells the other that it has ended."""
    try:
        return sandbox.execute(job, "", timeout_s, descriptors=descriptors)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _ended_before_a_call(told: SandboxResult) -> bool:
    return told.ended == "timeout" and not told.reports


def _hang_alone(submissions: Sandbox, testers: Sandbox, own: dict[str, Any], batch: list[str], limit_s: float) -> bool:
    """Whether the tests reach their limit before a call also beside a completion that does nothing, and so takes no processor."""
    idle = f"def {own['name']}(*arguments, **keywords): pass"
    _, told = _run_pair(submissions, testers, {**own, "setup": "", "source": idle}, {**own, "tests": batch}, limit_s)
    return _ended_before_a_call(told)


def _judge_whole(ran: SandboxResult, told: SandboxResult) -> Verdict | None:
    """The verdict where it does not matter how many tests have passed."""
    last = read_report(told.reports[-1:])
    if "fault" in last:
        return verdicts.errored(f"the tests are faulty: {last['fault']}")
    if told.ended != "timeout" and not last:
        return verdicts.errored(f"the tests ended before they began (status {told.exit_status})")
    start = judge_start(ran.reports)
    return None if "passed" in last else start


def _num_passed(told: SandboxResult) -> int:
    return sum("passed" in read_report([line]) for line in told.reports)


def _judge_failure(ran: SandboxResult, told: SandboxResult, limit_s: float) -> Verdict:
    """The verdict on the test after the last that passed."""
    if ran.ended == "output_limit":
        return verdicts.failed(WROTE_TOO_MUCH)
    if "timeout" in (ran.ended, told.ended):
        return verdicts.timed_out(f"stopped after {limit_s:.3g} s")
    last = read_report(told.reports[-1:])
    return verdicts.failed(str(last.get("failed", f"it broke the tests off (status {told.exit_status})")))
