"""An OpenAI-compatible endpoint that is asked for grades: retried, bounded in time and number, silent about its key.

Address and key are where a judge runs, not what it says, so they come from the environment of the machine that verifies:
POSTTRAIN_JUDGE_URL, such as http://judge:8000/v1, and POSTTRAIN_JUDGE_API_KEY where the server wants one.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterable
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from posttrain.config_verify import VerifySettings
from posttrain.verify.answers import refuse
from posttrain.verify.compare import read_json
from posttrain.verify.judge_prompt import RESPONSE_FORMAT

if TYPE_CHECKING:
    from openai import APIStatusError

URL_VARIABLE, KEY_VARIABLE = "POSTTRAIN_JUDGE_URL", "POSTTRAIN_JUDGE_API_KEY"
MAX_REPLY_TOKENS = 4_096  # room for judges that think first
MAX_FAILURES_IN_ROW = 32
MAX_RETRY_DELAY_S = 120.0
_MAX_REPLY_BYTES = 1 << 20
_FIRST_DELAY_S, _MAX_BACKOFF_S = 0.5, 30.0
_TRANSIENT = (408, 409, 425, 429)
_REFUSALS = (400, 413, 422)


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
    return key or "none"  # else the client would look for a key of another service


class Endpoint:
    """The endpoint within one verification: counts its requests, and gives up on a server that answers nobody. Thread-safe.

    Raises:
        ConfigError: see `judge_url` and `judge_key`.
    """

    def __init__(self, settings: VerifySettings) -> None:
        import openai

        self._settings = settings
        self._key = judge_key()
        self._client = openai.OpenAI(
            api_key=self._key, base_url=judge_url(), max_retries=0, timeout=settings.judge_timeout_s
        )  # fmt: skip
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
        return _text(body)

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
        import httpx2
        import openai

        ends_at = time.monotonic() + self._settings.judge_timeout_s
        completions: Any = self._client.chat.completions.with_streaming_response
        try:
            with completions.create(
                model=self._settings.judge_model, messages=messages, temperature=0, response_format=RESPONSE_FORMAT,
                max_completion_tokens=MAX_REPLY_TOKENS,
            ) as response:  # fmt: skip
                return _read(response.iter_bytes(), ends_at, self._settings.judge_timeout_s)
        except openai.APIStatusError as error:
            raise self._status_failure(error) from None
        except (openai.APITimeoutError, httpx2.TimeoutException):
            raise _Transient(f"no reply within {self._settings.judge_timeout_s:g} s") from None
        except (openai.APIConnectionError, httpx2.HTTPError) as error:
            raise _Transient(f"no connection ({type(error.__cause__ or error).__name__})") from None

    def _status_failure(self, error: APIStatusError) -> Exception:
        why = f"HTTP {error.status_code}: {str(error.body or '').replace(self._key, '…')[:300]}"
        if error.status_code in _REFUSALS:
            return JudgeRefused(why)
        if error.status_code in _TRANSIENT or error.status_code >= 500:
            return _Transient(why, _retry_after_s(error.response.headers.get("retry-after")))
        return JudgeFailed(why)


def _read(chunks: Iterable[bytes], ends_at: float, timeout_s: float) -> bytes:
    """A whole reply; servers that keep a connection open with blanks are held to the deadline too."""
    body = b""
    for chunk in chunks:
        body += chunk
        if len(body) > _MAX_REPLY_BYTES:
            raise JudgeFailed(f"the reply is longer than {_MAX_REPLY_BYTES} bytes")
        if time.monotonic() > ends_at:
            raise _Transient(f"no whole reply within {timeout_s:g} s")
    return body


def _text(body: bytes) -> str:
    """The text of a finished chat completion."""
    try:
        choice = read_json(body)["choices"][0]
        content, finished = choice["message"]["content"], choice["finish_reason"]
    except (ValueError, LookupError, TypeError) as error:
        raise JudgeFailed(f"the reply is no chat completion ({type(error).__name__})") from None
    if not isinstance(content, str) or finished != "stop":
        raise JudgeFailed(f"the reply was not finished (finish_reason {finished!r:.40})")
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
