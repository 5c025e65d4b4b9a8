"""What a scorer's reports mean: nothing that a completion can do is an error, and seconds are those of the executions."""

from __future__ import annotations

import time
from typing import Any

import pytest

from posttrain.config_verify import VerifySettings
from posttrain.verify import verdicts
from posttrain.verify.base import Verdict
from posttrain.verify.sandbox.connection import Connection
from posttrain.verify.sandbox.pool import SandboxResult
from posttrain.verify.scorers import judge_report
from tests.verify.judging import judge, request

READY = b'{"ready": true}'


@pytest.mark.parametrize(
    ("status", "reports", "outcome", "reward"),
    [
        (0, (READY, b'{"score": 1.0}'), "pass", 1.0), (0, (READY, b'{"score": 0.5}'), "fail", 0.5), (0, (READY, b'{"unparseable": "x"}'), "unparseable", 0.0),
        (-11, (READY,), "unparseable", 0.0), (1, (READY,), "unparseable", 0.0), (-9, (READY,), "timeout", 0.0), (-24, (READY,), "timeout", 0.0),
        (-11, (), "error", None), (-24, (), "error", None), (-9, (), "error", None), (1, (b'{"fault": "x"}',), "error", None),
    ],
)  # fmt: skip
def test_after_ready_whatever_goes_wrong_is_the_completions_doing(
    status: int, reports: tuple[bytes, ...], outcome: str, reward: float | None
) -> None:
    verdict = judge_report(SandboxResult("exited", status, reports, b"", 0.25), 2.0)
    assert (verdict.outcome, verdict.reward, verdict.seconds) == (outcome, reward, 0.25)


def test_stated_seconds_are_kept_and_others_measured() -> None:
    def accept(answer: Any) -> None:
        del answer

    def slow(stated: float) -> Verdict:
        time.sleep(0.05)
        return Verdict("pass", 1.0, "", stated)

    assert verdicts.guarded(accept, lambda _: slow(7.0))(request("", "")).seconds == 7.0
    assert 0.05 <= verdicts.guarded(accept, lambda _: slow(0.0))(request("", "")).seconds < 5


def test_the_start_of_a_server_takes_nothing_from_a_programs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Connection.__init__

    def slow_start(self: Connection, *arguments: Any) -> None:
        time.sleep(1.5)
        start(self, *arguments)

    monkeypatch.setattr(Connection, "__init__", slow_start)
    answer = {"mode": "program", "inputs": [""], "outputs": ["1"]}
    (verdict,) = judge("code", [("print(1)", answer)], settings=VerifySettings(timeout_s=1.0))
    assert verdict.outcome == "pass"
    assert verdict.seconds < 1.0
