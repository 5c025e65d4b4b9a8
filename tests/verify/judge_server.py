"""A server that fails on purpose in the ways in which endpoints of judges fail; what a real one says is tested with vLLM."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

GOOD = '{"reason": "fine", "score": 0.7}'


@dataclass(frozen=True)
class Reply:
    """One scripted reply; `text` is what the judge says, `body` replaces the whole chat completion."""

    text: str = GOOD
    status: int = 200
    body: bytes | None = None
    finish_reason: str = "stop"
    headers: dict[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    drip_s: float = 0.0  # sends a blank every 50 ms for so long before the body


@dataclass
class Script:
    """Replies in the order of the requests, the last one for ever; `asked` holds what came in."""

    replies: Sequence[Reply]
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Message] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, content: dict[str, Any], headers: Message) -> Reply:
        with self.lock:
            self.asked.append(content)
            self.headers.append(headers)
            return self.replies[min(len(self.asked), len(self.replies)) - 1]


@contextmanager
def judge_server(*replies: Reply) -> Iterator[Script]:
    """Serves `replies` on loopback."""
    script = Script(replies or (Reply(),))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reply = script.take(content, self.headers)
            choice = {"index": 0, "finish_reason": reply.finish_reason, "message": {"role": "assistant", "content": reply.text}}
            body = json.dumps({"choices": [choice]}).encode() if reply.body is None else reply.body
            time.sleep(reply.wait_s)
            blanks = int(reply.drip_s / 0.05)
            self.send_response(reply.status)
            for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body) + blanks))
            self.end_headers()
            for _ in range(blanks):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.05)
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            del arguments

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *arguments: Any) -> None:  # clients that leave at their deadline
            del arguments

    server = Server(("127.0.0.1", 0), Handler)
    script.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
