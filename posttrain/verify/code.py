"""Judges generated Python by running it in the sandbox. What is expected never enters the process that runs it.

Four modes, by the answer's `mode`:
`expression` — the completion is one Python expression in `variable`; one fence or one pair of backticks around it is ignored.
`function` — the completion defines the function `name`; every input is a list of arguments.
`program` — the completion is a whole program; every input is its stdin, every output what it must print.
`assertions` — the completion defines the function `name`; `tests` is a list of sources, each one test, or one source.
A test calls `name`, or defines `check(candidate)`. `setup` is run first, in the tests' process and in the completion's, which so
can read it: hidden helpers belong into a test. See `code_assertions` for what this mode cannot see.

In all but the first the code is taken from a fenced block; see `fences`. `if __name__ == "__main__":` holds in mode program
alone.
In the first three, `"unordered": true` lets the items of a list, or the lines of a text, come in any order (only the
outermost; `"nested"` at every depth, and tokens within lines), and `"tolerance"` replaces that of floats; see `compare`.

All tests must pass, within `timeout_s` of running time together and `case_timeout_s` each. With `code_reward` fraction the
reward is the share of tests that pass, and a test that fails, raises or hangs does not cost those after it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Self

from posttrain.config_verify import VerifySettings
from posttrain.verify import verdicts
from posttrain.verify.base import Verdict, VerificationRequest
from posttrain.verify.code_answers import check_answer, sources_of_tests
from posttrain.verify.code_assertions import judge_assertions
from posttrain.verify.code_cases import judge_program, judge_values
from posttrain.verify.code_packages import Packages, find_packages
from posttrain.verify.fences import extract_code, extract_expression
from posttrain.verify.limits import sandbox_limits
from posttrain.verify.sandbox.pool import Sandbox, SandboxLimits

# entry modules, named whole: the lock of cached tasks finds what is loaded by name
_PROGRAMS, _TESTS = "posttrain.verify.programs", "posttrain.verify.assertions"


class CodeVerifier:
    """See the module. Reward 1.0 when every test passes, else 0.0, or the share of tests that pass.

    Raises:
        ConfigError: a package of `verify.packages` is not installed.
    """

    name = "code"
    version = "2"

    def __init__(self, settings: VerifySettings) -> None:
        self._settings = settings
        self._packages = find_packages(settings.packages)
        self._limits = SandboxLimits(memory_mib=settings.memory_mib, cpu_s=math.ceil(settings.timeout_s) + 1)

    @property
    def limits(self) -> Mapping[str, Any]:
        """What bounded the verdicts."""
        settings = self._settings
        own = {
            "case_timeout_s": settings.case_timeout_s,
            "packages": settings.packages,
            "code_reward": settings.code_reward.value,
        }
        return {**sandbox_limits(settings), **own}

    def check_answer(self, answer: Any) -> None:
        """Raises ConfigError for an answer that is not one of the four shapes, or that has no test."""
        check_answer(answer)

    def verify(self, requests: Sequence[VerificationRequest]) -> list[Verdict]:
        """One verdict for each request, in order.

        Raises:
            VerificationError: the sandbox cannot isolate programs on this machine.
        """
        with _Sandboxes(self._settings, self._limits, self._packages, len(requests)) as sandboxes:
            judge = verdicts.guarded(self.check_answer, lambda request: self._judge(sandboxes, request))
            return verdicts.collect(sandboxes.map(judge, requests), requests, self.name)

    def _judge(self, sandboxes: _Sandboxes, request: VerificationRequest) -> Verdict:
        answer = request.answer
        source = _extract(request.completion, answer)
        if not source.strip():
            return verdicts.unparseable("the completion holds no code")
        programs = sandboxes.choose(_PROGRAMS, source, answer.get("setup", ""))
        if answer["mode"] == "program":
            return judge_program(programs, source, answer, self._settings)
        if answer["mode"] == "assertions":
            tests = sandboxes.choose(_TESTS, answer.get("setup", ""), *sources_of_tests(answer))
            return judge_assertions(programs, tests, source, answer, self._settings)
        return judge_values(programs, source, answer, self._settings)


class _Sandboxes:
    """For completions and for tests: servers that hold the standard library, and others that have also imported the packages.

    All show the packages, so that the choice is a matter of speed alone. None starts before its first job.
    """

    def __init__(self, settings: VerifySettings, limits: SandboxLimits, packages: Packages, num_requests: int) -> None:
        self._packages = packages
        self._workers = min(num_requests, Sandbox.default_workers())
        self._made = {
            (entry, modules): Sandbox(
                entry, limits, policy=settings.sandbox, packages=packages.paths, preload=modules, num_workers=self._workers
            )
            for entry in (_PROGRAMS, _TESTS)
            for modules in ((), packages.modules)
        }

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for sandbox in self._made.values():
                stack.enter_context(sandbox)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def map(self, judge: verdicts.Judge, requests: Sequence[VerificationRequest]) -> Iterator[Verdict]:
        """The verdicts in order, as many at a time as each sandbox has workers: none waits for a place in another."""
        with ThreadPoolExecutor(max(1, self._workers)) as threads:
            yield from threads.map(judge, requests)

    def choose(self, entry: str, *sources: str) -> Sandbox:
        """The sandbox for these sources."""
        return self._made[entry, self._packages.modules if self._packages.mentioned_in(*sources) else ()]


def _extract(completion: str, answer: dict[str, Any]) -> str:
    if answer["mode"] == "expression":
        return extract_expression(completion)
    return extract_code(completion, answer.get("name"))
