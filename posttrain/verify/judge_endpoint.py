"""An OpenAI-compatible endpoint that is asked for grades: retried, bounded in time and number, silent about its key.

Address and key are where a judge runs, not what it says, so they come from the environment of the machine that verifies:
POSTTRAIN_JUDGE_URL, such as http://judge:8000/v1, and POSTTRAIN_JUDGE_API_KEY where the server wants one.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from posttrain.config_verify import VerifySettings
from posttrain.verify.answers import refuse
from posttrain.verify.compare import read_json
from posttrain.verify.judge_client import MAX_REPLY_BYTES, JudgeClient, NoConnection, Reply
from posttrain.verify.judge_prompt import RESPONSE_FORMAT

URL_VARIABLE, KEY_VARIABLE = "POSTTRAIN_JUDGE_URL", "POSTTRAIN_JUDGE_API_KEY"
MAX_REPLY_TOKENS = 4_096  # room for judges that think first
MAX_FAILURES_IN_ROW = 32
MAX_RETRY_DELAY_S = 120.0
_FIRST_DELAY_S, _MAX_BACKOFF_S = 0.5, 30.0
_TRANSIENT = (408, 409, 425, 429)
_REFUSALS = (400, 413, 422)
_NO_KEY = "none"  # a server that wants no key takes any


class JudgeFailed(Exception):
    """The judge gave no grade, and that says nothing about the completion."""


class JudgeRefused(JudgeFailed):
    """The endpoint does not accept this very request: too long, or not to be answered."""


class _NotAsked(JudgeFailed):
    """No more requests may be sent."""


class _Transient(Exception):
    """Another try may succeed, after `delay_s` where the server names a time."""

    def __init__(self, why: str, delay_s: float | None = None) -> None:
        super().__init__(why)
        self.delay_s = delay_s


def judge_url() -> str:
    """The endpoint's address.

    Raises:
        ConfigError: there is none, or it is none that could be asked. A password in it is not shown.
    """
    url = os.environ.get(URL_VARIABLE, "").strip()
    remedy = "Set it to the address of an OpenAI-compatible server, such as http://judge:8000/v1, on every pool that verifies."
    if not url:
        raise refuse(URL_VARIABLE, url, "the verifier judge has no endpoint to ask", remedy)
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        usable = False
    if "@" in url or "?" in url:
        raise refuse(URL_VARIABLE, "…", "it carries more than an address", f"Give the key in {KEY_VARIABLE}. {remedy}")
    if not usable:
        raise refuse(URL_VARIABLE, url, "it is no http address", remedy)
    return url


def judge_key() -> str:
    """The endpoint's key, or a stand-in where there is none.

    Raises:
        ConfigError: it could not stand in a header. It is not shown.
    """
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise refuse(KEY_VARIABLE, "…", "it holds characters that no key has", "Copy it again, without line breaks.")
    return key or _NO_KEY


class Endpoint:
    """The endpoint within one verification: counts its requests, and gives up on a server that answers nobody. Thread-safe.

    Raises:
        ConfigError: see `judge_url` and `judge_key`.
    """

    def __init__(self, settings: VerifySettings) -> None:
        self._settings = settings
        self._key = judge_key()
        self._client = JudgeClient(judge_url(), self._key, settings.judge_timeout_s)
        self._lock = threading.Lock()
        self._num_requests = self._failures_in_row = 0

    def close(self) -> None:
        """Closes its connections."""
        self._client.close()

    def ask(self, messages: list[dict[str, str]]) -> str:
        """The text of the reply.

        Raises:
            JudgeRefused: the server accepts no such request.
            JudgeFailed: there was no reply in all tries, or no more requests may be sent.
        """
        try:
            body = self._ask(messages)
        except (JudgeRefused, _NotAsked):
            raise
        except JudgeFailed:
            with self._lock:
                self._failures_in_row += 1
            raise
        with self._lock:
            self._failures_in_row = 0
        return self._text(body)

    def hide(self, text: str) -> str:
        """`text` without the key, which a server may repeat, also as Python or JSON write it."""
        if self._key != _NO_KEY:
            for written in (self._key, repr(self._key)[1:-1], json.dumps(self._key)[1:-1]):
                text = text.replace(written, "…")
        return text

    def _ask(self, messages: list[dict[str, str]]) -> bytes:
        num_tries, last = self._settings.judge_max_retries + 1, ""
        for number in range(num_tries):
            self._spend()
            try:
                return self._post(messages)
            except _Transient as failure:
                last, delay_s = str(failure), failure.delay_s
            if delay_s is not None and delay_s > MAX_RETRY_DELAY_S:
                raise JudgeFailed(f"{last}; the server asks to wait {delay_s:.0f} s")
            if number + 1 < num_tries:
                time.sleep(_backoff_s(number) if delay_s is None else delay_s)
        raise JudgeFailed(f"no grade in {num_tries} {'try' if num_tries == 1 else 'tries'}; the last: {last}")

    def _spend(self) -> None:
        """Takes one request from the budget."""
        with self._lock:
            if self._failures_in_row >= MAX_FAILURES_IN_ROW:
                raise _NotAsked(f"not asked: the judge failed {MAX_FAILURES_IN_ROW} times in a row")
            if self._num_requests >= self._settings.judge_max_requests:
                raise _NotAsked(f"not asked: verify.judge_max_requests = {self._settings.judge_max_requests} are spent")
            self._num_requests += 1

    def _post(self, messages: list[dict[str, str]]) -> bytes:
        content = {
            "model": self._settings.judge_model, "messages": messages, "temperature": 0, "response_format": RESPONSE_FORMAT,
            "max_completion_tokens": MAX_REPLY_TOKENS,
        }  # fmt: skip
        try:
            reply = self._client.post(content)
        except TimeoutError:
            raise _Transient(f"no whole reply within {self._settings.judge_timeout_s:g} s") from None
        except NoConnection as error:
            raise _Transient(f"no connection ({error})") from None
        if not 200 <= reply.status < 300:
            raise self._status_failure(reply)
        if len(reply.body) > MAX_REPLY_BYTES:
            raise JudgeFailed(f"the reply is longer than {MAX_REPLY_BYTES} bytes")
        return reply.body

    def _status_failure(self, reply: Reply) -> Exception:
        why = f"HTTP {reply.status}: {self.hide(reply.body.decode('utf-8', 'replace'))[:300]}"
        if 300 <= reply.status < 400:
            return JudgeFailed(f"HTTP {reply.status}: a redirect, which is not followed; set {URL_VARIABLE} to the new address")
        if reply.status in _REFUSALS:
            return JudgeRefused(why)
        if reply.status in _TRANSIENT or reply.status >= 500:
            return _Transient(why, _retry_after_s(reply.headers.get("retry-after")))
        return JudgeFailed(why)

    def _text(self, body: bytes) -> str:
        """The text of a finished chat completion."""
        try:
            choice = read_json(body)["choices"][0]
            content, finished = choice["message"]["content"], choice["finish_reason"]
        except (ValueError, LookupError, TypeError) as error:
            raise JudgeFailed(f"the reply is no chat completion ({type(error).__name__})") from None
        if not isinstance(content, str) or finished != "stop":
            raise JudgeFailed(f"the reply was not finished (finish_reason {self.hide(repr(finished)):.40})")
        return content


def _backoff_s(number: int) -> float:
    return min(_FIRST_DELAY_S * 2.0**number, _MAX_BACKOFF_S) * random.uniform(0.75, 1)


def _retry_after_s(header: str | None) -> float | None:
    """Seconds that a Retry-After header asks for, given as such or as a date; None where it says nothing usable."""
    if header is None:
        return None
    try:
        return max(0.0, float(header)) if header.strip()[:1].isdigit() else max(0.0, _until(header))
    except (ValueError, TypeError, OverflowError):
        return None


def _until(date: str) -> float:
    return parsedate_to_datetime(date).timestamp() - time.time()
