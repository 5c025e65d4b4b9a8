"""The judge's endpoint: what it is asked, and every way in which it may fail to give a grade."""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from posttrain.config_verify import VerifySettings
from posttrain.errors import ConfigError
from posttrain.verify import judge_endpoint
from posttrain.verify.base import Verdict
from posttrain.verify.registry import create_verifier
from tests.verify.judge_server import GOOD, Reply, Script, judge_server
from tests.verify.judging import judge

KEY = "key-that-nobody-may-see"
ANSWER = {"criterion": "It is polite."}
SETTINGS = VerifySettings(judge_model="grader", judge_max_retries=1, judge_timeout_s=5)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("POSTTRAIN_JUDGE_API_KEY", KEY)
    monkeypatch.setenv("POSTTRAIN_JUDGE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setattr(judge_endpoint, "_FIRST_DELAY_S", 0.01)


def ask(
    monkeypatch: pytest.MonkeyPatch, script: Script, *completions: str, settings: VerifySettings = SETTINGS, answer: Any = ANSWER
) -> list[Verdict]:
    monkeypatch.setenv("POSTTRAIN_JUDGE_URL", script.url)
    return judge("judge", [(completion, answer) for completion in completions], "Say hello.", settings)


def test_the_score_is_the_reward_and_pass_score_decides_the_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    with judge_server() as script:
        (default,) = ask(monkeypatch, script, "Good day")
        (strict,) = ask(monkeypatch, script, "Good day", answer={**ANSWER, "pass_score": 0.8})
    assert (default.outcome, default.reward, default.detail) == ("pass", 0.7, "score 0.7: fine")
    assert (strict.outcome, strict.reward) == ("fail", 0.7)


def test_what_the_endpoint_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with judge_server() as script:
        ask(monkeypatch, script, "Good day", answer={**ANSWER, "reference": "Hello, dear"})
    (asked,) = script.asked
    assert (asked["model"], asked["temperature"]) == ("grader", 0)
    assert asked["response_format"]["json_schema"]["schema"]["required"] == ["reason", "score"]
    for text in ("Say hello.", "It is polite.", "Hello, dear", "Good day"):
        assert text in asked["messages"][1]["content"]
    assert script.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_another_services_key_is_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTTRAIN_JUDGE_API_KEY")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai")
    with judge_server() as script:
        assert ask(monkeypatch, script, "hi")[0].outcome == "pass"
    assert script.headers[0]["Authorization"] == "Bearer none"


BUSY = Reply(status=429, headers={"Retry-After": "1"}, body=b'{"error": {"message": "busy"}}')
BROKEN = Reply(status=503, body=b"out of order")


def test_a_busy_server_is_asked_again_after_the_time_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.monotonic()
    with judge_server(BUSY, Reply()) as script:
        (verdict,) = ask(monkeypatch, script, "hi")
    assert verdict.outcome == "pass"
    assert len(script.asked) == 2
    assert time.monotonic() - started >= 1


@pytest.mark.parametrize(
    ("replies", "num_requests", "why"),
    [
        ([BROKEN], 2, "JudgeFailed: no grade in 2 tries; the last: HTTP 503: out of order"),
        ([BROKEN, BUSY], 2, "no grade in 2 tries; the last: HTTP 429"),
        ([Reply(status=429, headers={"Retry-After": "900"})], 1, "the server asks to wait 900 s"),
        ([Reply(status=401, body=f"wrong key: {KEY}".encode())], 1, "HTTP 401: wrong key: …"),
        ([Reply(status=404, body=b"no such model")], 1, "HTTP 404: no such model"),
        ([Reply(body=b"<html>welcome</html>")], 1, "the reply is no chat completion"),
        ([Reply(body=b'{"choices": []}')], 1, "the reply is no chat completion (IndexError)"),
        ([Reply(GOOD[:20], finish_reason="length")], 1, "the reply was not finished (finish_reason 'length')"),
        ([Reply(GOOD[:20])], 1, "the reply is no grade: it is not JSON"),
        ([Reply('{"reason": "", "score": 1.5}')], 1, "its score 1.5 is no number from 0 to 1"),
        ([Reply('{"reason": "", "score": -0.1}')], 1, "its score -0.1 is no number"),
        ([Reply('{"reason": "", "score": NaN}')], 1, "it is not JSON"),
        ([Reply('{"reason": "", "score": true}')], 1, "its score of type bool is no number"),
        ([Reply('{"reason": "", "score": "1"}')], 1, "its score of type str is no number"),
        ([Reply('{"reason": "", "score": 0, "score": 1}')], 1, "the reply is no grade: it has score or reason twice"),
        ([Reply('{"score": 1}')], 1, "it is not an object with score and reason alone"),
        ([Reply('{"reason": 1, "score": 1}')], 1, "its reason is not a text"),
        ([Reply("[" * 100_000)], 1, "it is not JSON"),
        ([Reply(wait_s=2)], 2, "the last: no whole reply within 0.3 s"),
        ([Reply(drip_s=2)], 2, "the last: no whole reply within 0.3 s"),
        ([Reply(body=b" " * (1 << 20) + b"{}")], 1, "the reply is longer than 1048576 bytes"),
    ],
)  # fmt: skip
def test_a_judge_that_fails_is_an_error_without_reward(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, replies: list[Reply], num_requests: int, why: str
) -> None:
    caplog.set_level(logging.DEBUG)
    settings = SETTINGS.model_copy(update={"judge_timeout_s": 0.3}) if "0.3 s" in why else SETTINGS
    with judge_server(*replies) as script:
        (verdict,) = ask(monkeypatch, script, "hi", settings=settings)
    assert (verdict.outcome, verdict.reward) == ("error", None)
    assert why in verdict.detail
    assert len(script.asked) == num_requests
    assert verdict.seconds < 5
    assert KEY not in verdict.detail + caplog.text


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        script = Script((), url=f"http://127.0.0.1:{free.getsockname()[1]}/v1")
        (verdict,) = ask(monkeypatch, script, "hi")
    assert (verdict.outcome, verdict.reward) == ("error", None)
    assert "no grade in 2 tries; the last: no connection (ConnectError)" in verdict.detail


REFUSAL = Reply(status=400, body=b'{"error": {"message": "too long"}}')


def test_a_refused_completion_is_its_own_doing_only_if_an_empty_one_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with judge_server(REFUSAL, Reply()) as script:
        (verdict,) = ask(monkeypatch, script, "much too long")
    assert (verdict.outcome, verdict.reward) == ("unparseable", 0.0)
    assert "much too long" in str(script.asked[0])
    assert "much too long" not in str(script.asked[1])
    with judge_server(REFUSAL) as script:
        (known,) = ask(monkeypatch, script, "another")
        assert (known.outcome, len(script.asked)) == ("unparseable", 1)  # that the empty one is answered is known
        (verdict,) = ask(monkeypatch, script, "another", answer={"criterion": "It is short."})
    assert (verdict.outcome, verdict.reward) == ("error", None)


def test_an_empty_completion_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    with judge_server() as script:
        (verdict,) = ask(monkeypatch, script, " \n")
    assert (verdict.outcome, verdict.reward, script.asked) == ("unparseable", 0.0, [])


def test_the_budget_ends_the_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SETTINGS.model_copy(update={"judge_max_requests": 3})
    with judge_server() as script:
        found = ask(monkeypatch, script, *"abcdef", settings=settings)
        again = ask(monkeypatch, script, *"abcdef", settings=settings)
    assert sorted(verdict.outcome for verdict in found) == ["error"] * 3 + ["pass"] * 3
    assert "verify.judge_max_requests = 3 are spent" in next(verdict.detail for verdict in found if verdict.reward is None)
    assert [verdict.outcome for verdict in again] == ["pass"] * 6  # what was asked once is known
    assert len(script.asked) == 6


def test_a_dead_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SETTINGS.model_copy(update={"judge_max_retries": 0})
    with judge_server(BROKEN) as script:
        found = ask(monkeypatch, script, *(f"completion {number}" for number in range(200)), settings=settings)
    assert {verdict.outcome for verdict in found} == {"error"}
    assert "not asked: the judge failed 32 times in a row" in found[-1].detail
    assert len(script.asked) < 32 + 16


def test_equal_questions_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with judge_server(Reply(wait_s=0.1)) as script:
        found = ask(monkeypatch, script, *["same"] * 20)
        other = ask(monkeypatch, script, "same", settings=SETTINGS.model_copy(update={"judge_model": "another"}))
    assert {(verdict.outcome, verdict.reward) for verdict in [*found, *other]} == {("pass", 0.7)}
    assert len(script.asked) == 2


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("polite", "it is not a mapping"), ({}, "'criterion' is missing"), ({"criterion": " "}, "blank"), ({**ANSWER, "score": 1}, "no such key"),
        ({**ANSWER, "reference": 5}, "not a text"), ({**ANSWER, "pass_score": 0}, "not above 0"), ({**ANSWER, "pass_score": True}, "not above 0"),
    ],
)  # fmt: skip
def test_answers_of_the_wrong_shape_are_refused_beforehand(answer: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        create_verifier("judge", SETTINGS).check_answer(answer)


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("POSTTRAIN_JUDGE_URL", "", "no endpoint to ask"), ("POSTTRAIN_JUDGE_URL", "judge:8000", "no http address"),
        ("POSTTRAIN_JUDGE_URL", f"http://user:{KEY}@judge/v1", "more than an address"), ("POSTTRAIN_JUDGE_URL", f"http://judge/v1?key={KEY}", "more than"),
        ("POSTTRAIN_JUDGE_API_KEY", f"{KEY}\nsecond", "characters that no key has"), ("POSTTRAIN_JUDGE_API_KEY", f"{KEY}é", "characters that"),
    ],
)  # fmt: skip
def test_endpoints_that_cannot_be_asked_are_refused_beforehand(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, why: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=why) as raised:
        create_verifier("judge", SETTINGS).check_answer(ANSWER)
    assert variable in str(raised.value)
    assert KEY not in str(raised.value)


def test_a_model_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"verify\.judge_model"):
        create_verifier("judge", VerifySettings()).check_answer(ANSWER)
