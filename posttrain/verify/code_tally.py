"""From the verdicts on single tests to the one on a completion: all of them or a share, within the time for all."""

from __future__ import annotations

import math
from dataclasses import replace

from posttrain.config_verify import CodeReward, VerifySettings
from posttrain.verify import verdicts
from posttrain.verify.base import Verdict


class Tally:
    """Counts the tests of one completion. Its outcome is that of the first test that did not pass."""

    def __init__(self, num_tests: int, settings: VerifySettings) -> None:
        self._num_tests, self._settings = num_tests, settings
        self._first_failure: Verdict | None = None
        self._num_passed = 0
        self.num_judged = 0
        self.seconds = 0.0

    @property
    def each_counts(self) -> bool:
        """Whether tests go on after one that did not pass."""
        return self._settings.code_reward == CodeReward.fraction

    @property
    def left_s(self) -> float:
        """Seconds that all tests still have together."""
        return self._settings.timeout_s - self.seconds

    @property
    def case_s(self) -> float:
        """Seconds that the next test has."""
        return min(self.left_s, self.case_limit_s)

    @property
    def case_limit_s(self) -> float:
        """Seconds that a test has at most."""
        return self._settings.case_timeout_s or math.inf

    @property
    def is_open(self) -> bool:
        """Whether there is a test left to run, and reason and time to run it."""
        decided = self._first_failure is not None and not self.each_counts
        return self.num_judged < self._num_tests and not decided and self.left_s > 0

    def add(self, verdict: Verdict) -> None:
        """Counts the verdict on the next test."""
        if verdict.outcome == "pass":
            self._num_passed += 1
        elif self._first_failure is None:
            self._first_failure = replace(verdict, detail=f"case {self.num_judged}: {verdict.detail}")
        self.num_judged += 1

    def verdict(self) -> Verdict:
        """The verdict on the completion, with the seconds of its executions."""
        if self._num_passed == self._num_tests:
            return replace(verdicts.passed(f"{self._num_tests} cases"), seconds=self.seconds)
        first = self._first_failure or verdicts.timed_out(f"{self.num_judged} cases took {self._settings.timeout_s:g} s")
        if not self.each_counts:
            return replace(first, seconds=self.seconds)
        detail = verdicts.clean(f"{self._num_passed} of {self._num_tests} cases passed; {first.detail}")
        return replace(first, reward=self._num_passed / self._num_tests, detail=detail, seconds=self.seconds)

    def ended_by(self, verdict: Verdict) -> Verdict:
        """`verdict` for the completion as a whole, whatever was counted."""
        return replace(verdict, seconds=self.seconds)
