"""What a judge's server may not do: hold a task up, lead requests elsewhere, learn of other services, have its key kept."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from posttrain.config_verify import VerifySettings
from posttrain.verify.base import Verdict
from posttrain.verify.judge_client import MAX_REPLY_BYTES, JudgeClient, NoConnection
from tests.verify.judge_server import Reply, judge_server
from tests.verify.judging import judge

KEY = 'key-that-"nobody"-may-see'
SETTINGS = VerifySettings(judge_model="grader", judge_max_retries=0, judge_timeout_s=0.5)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path))
    monkeypatch.setenv("POSTTRAIN_JUDGE_API_KEY", KEY)


def ask(monkeypatch: pytest.MonkeyPatch, url: str) -> Verdict:
    monkeypatch.setenv("POSTTRAIN_JUDGE_URL", url)
    (verdict,) = judge("judge", [("Good day", {"criterion": "It is polite."})], "Say hello.", SETTINGS)
    return verdict


@contextmanager
def dripping_headers() -> Iterator[str]:
    """A server that sends a header every 50 ms for four seconds."""

    def serve(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            try:
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                for number in range(80):
                    time.sleep(0.05)
                    connection.sendall(b"X-%d: 1\r\n" % number)
            except OSError:  # the client has left
                return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        thread.join()


def test_headers_that_drip_are_held_to_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with dripping_headers() as url:
        verdict = ask(monkeypatch, url)
    assert (verdict.outcome, verdict.reward) == ("error", None)
    assert "no whole reply within 0.5 s" in verdict.detail
    assert verdict.seconds < 2


@pytest.mark.parametrize("status", [200, 400, 500])
def test_bodies_that_drip_are_held_to_the_deadline(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    with judge_server(Reply(status=status, drip_s=4)) as script:
        verdict = ask(monkeypatch, script.url)
    assert (verdict.outcome, verdict.reward) == ("error", None)
    assert "no whole reply within 0.5 s" in verdict.detail
    assert verdict.seconds < 2


@pytest.mark.parametrize("status", [200, 500])
def test_no_more_is_read_of_a_long_body_than_its_start(status: int) -> None:
    with judge_server(Reply(status=status, body=b"x" * (MAX_REPLY_BYTES * 8))) as script:
        client = JudgeClient(script.url, KEY, 20)
        reply = client.post({})
        client.close()
    assert (reply.status, len(reply.body)) == (status, MAX_REPLY_BYTES + 1)


def test_closing_breaks_off_what_is_under_way() -> None:
    with judge_server(Reply(wait_s=3)) as script, ThreadPoolExecutor(4) as threads:
        client = JudgeClient(script.url, KEY, 60)
        waiting = [threads.submit(client.post, {}) for _ in range(4)]
        while len(script.asked) < 4:
            time.sleep(0.01)
        started = time.monotonic()
        client.close()
        assert all(isinstance(reply.exception(), NoConnection) for reply in waiting)
        with pytest.raises(NoConnection, match="closed"):
            client.post({})
        assert time.monotonic() - started < 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_an_error_and_nothing_is_sent_on(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    with judge_server() as other:
        with judge_server(Reply(status=status, headers={"Location": f"{other.url}/chat/completions"})) as script:
            verdict = ask(monkeypatch, script.url)
        assert (len(script.asked), other.asked) == (1, [])
    assert (verdict.outcome, verdict.reward) == ("error", None)
    assert f"HTTP {status}: a redirect, which is not followed" in verdict.detail


def test_no_setting_of_another_service_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, "of-another-service")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Custom: of-another-service\nAuthorization: of-another-service")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://of-another-service/v1")
    with judge_server() as script:
        assert ask(monkeypatch, script.url).outcome == "pass"
    assert script.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert "of-another-service" not in str(script.headers[0])


@pytest.mark.parametrize("key", [KEY, "k" * 400])
def test_a_key_that_the_server_repeats_in_a_grade_is_kept_nowhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str
) -> None:
    monkeypatch.setenv("POSTTRAIN_JUDGE_API_KEY", key)
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in key)
    reply = Reply(f'{{"reason": "Bearer {escaped}, {escaped}", "score": 1}}')
    with judge_server(reply) as script:
        verdict = ask(monkeypatch, script.url)
    assert (verdict.outcome, verdict.detail) == ("pass", "score 1: Bearer …, …")
    assert key[:20].encode() not in (tmp_path / "judge.sqlite").read_bytes()


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=500, body=KEY.encode()), Reply(status=401, body=json.dumps({"error": KEY}).encode()), Reply(json.dumps({"reason": "", "score": KEY})),
        Reply(json.dumps({"reason": KEY, KEY: 1})), Reply(finish_reason=KEY), Reply(KEY),
    ],
)  # fmt: skip
def test_no_error_shows_the_key(monkeypatch: pytest.MonkeyPatch, reply: Reply) -> None:
    with judge_server(reply) as script:
        verdict = ask(monkeypatch, script.url)
    assert (verdict.outcome, verdict.reward) == ("error", None)
    assert "nobody" not in verdict.detail


def test_a_reason_that_no_text_can_hold_costs_no_grade(monkeypatch: pytest.MonkeyPatch) -> None:
    with judge_server(Reply('{"reason": "so \\ud800 so", "score": 0.5}')) as script:
        first, again = ask(monkeypatch, script.url), ask(monkeypatch, script.url)
    assert (first.outcome, first.reward, first.detail) == ("pass", 0.5, "score 0.5: so ? so")
    assert (again.detail, len(script.asked)) == (first.detail, 1)
