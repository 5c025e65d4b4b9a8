"""One request to the judge's endpoint, bounded as a whole, whatever the server does.

One deadline holds from the connection to the last byte, headers and bodies of errors included, which needs an event loop: a
socket's own timeout begins anew with every byte. No redirect is followed, and no setting of another service is sent.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

MAX_REPLY_BYTES = 1 << 20


class NoConnection(Exception):
    """The server cannot be reached, or broke the connection off."""


@dataclass(frozen=True)
class Reply:
    """What came back; `body` has one byte more than MAX_REPLY_BYTES where there was more."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class JudgeClient:
    """Connections, and an event loop in a thread of its own. Thread-safe; must be closed."""

    def __init__(self, url: str, key: str, timeout_s: float) -> None:
        import httpx

        self._url, self._timeout_s = f"{url.rstrip('/')}/chat/completions", timeout_s
        headers = {"Authorization": f"Bearer {key}", "Accept": "application/json"}
        limits = httpx.Limits(max_connections=None)
        per_step_s = 2 * timeout_s  # the deadline of the whole comes first
        self._client = httpx.AsyncClient(headers=headers, timeout=per_step_s, limits=limits, follow_redirects=False)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="judge", daemon=True)
        self._thread.start()
        self._lock = threading.Lock()  # whatever is sent is known to the loop before it closes
        self._closed = False

    def close(self) -> None:
        """Breaks off what is under way, closes its connections and ends its thread."""
        with self._lock:
            self._closed = True
        asyncio.run_coroutine_threadsafe(self._break_off(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def post(self, content: Mapping[str, Any]) -> Reply:
        """The reply, of whatever status, to one request for a chat completion.

        Raises:
            TimeoutError: the reply was not whole at the deadline.
            NoConnection: see there, or the client is closed, or was while this waited.
        """
        with self._lock:
            if self._closed:
                raise NoConnection("closed")
            reply = asyncio.run_coroutine_threadsafe(self._post(content), self._loop)
        try:
            return reply.result()
        except CancelledError:
            raise NoConnection("closed") from None

    async def _post(self, content: Mapping[str, Any]) -> Reply:
        import httpx

        try:
            async with asyncio.timeout(self._timeout_s), self._client.stream("POST", self._url, json=content) as response:
                body = b""
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_REPLY_BYTES:
                        break
                return Reply(response.status_code, response.headers, body[: MAX_REPLY_BYTES + 1])
        except httpx.HTTPError as error:
            raise NoConnection(type(error).__name__) from None

    async def _break_off(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()
