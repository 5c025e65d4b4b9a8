"""Judges hostile completions and looks at the host. Also a script, for use as another user or where the kernel refuses things:
it judges all of them and prints what happened.
"""

from __future__ import annotations

import io
import json
import logging
import os
import secrets
import socket
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from posttrain.config_verify import SandboxPolicy, VerifySettings
from posttrain.verify.base import Verdict, VerificationRequest
from posttrain.verify.code import CodeVerifier
from tests.verify.attacks import ATTACKS, Attack

SETTINGS = VerifySettings(timeout_s=1.0, memory_mib=150 + os.getpid() % 100)  # the number marks our processes


@dataclass(frozen=True)
class Host:
    """What a breach would read, reach or change."""

    directory: Path
    nonce: str
    listener: socket.socket
    datagrams: socket.socket
    unix: socket.socket
    abstract: socket.socket

    @property
    def secret(self) -> Path:
        return self.directory / "secret"


@contextmanager
def host() -> Iterator[Host]:
    nonce = f"nonce-{secrets.token_hex(8)}"
    with tempfile.TemporaryDirectory() as directory, ExitStack() as opened:
        kinds = [
            (socket.AF_INET, socket.SOCK_STREAM),
            (socket.AF_INET, socket.SOCK_DGRAM),
            *[(socket.AF_UNIX, socket.SOCK_STREAM)] * 2,
        ]
        endpoints = [opened.enter_context(socket.socket(*kind)) for kind in kinds]
        addresses = [("127.0.0.1", 0), ("127.0.0.1", 0), f"{directory}/socket", "\0" + nonce.replace("nonce", "abstract")]
        for endpoint, address in zip(endpoints, addresses, strict=True):
            endpoint.bind(address)
            endpoint.setblocking(False)
            if endpoint.type == socket.SOCK_STREAM:
                endpoint.listen()
        Path(directory).chmod(0o755)  # what a program may not read must be closed by the sandbox, not by luck
        made = Host(Path(directory), nonce, *endpoints)
        made.secret.write_text(made.nonce)
        yield made


def changes(target: Host) -> list[str]:
    """What the host shows of an attack: read from outside, empty when it held."""
    found = [f"a new file {path}" for path in target.directory.iterdir() if path.name not in ("secret", "socket")]
    if target.secret.read_text() != target.nonce:
        found.append("the secret file was changed")
    probes = {
        "tcp": target.listener.accept,
        "udp": lambda: target.datagrams.recv(64),
        "unix": target.unix.accept,
        "abstract": target.abstract.accept,
    }
    for name, probe in probes.items():
        try:
            probe()
            found.append(f"a {name} message arrived")
        except BlockingIOError:
            pass
    return found + [f"process {process} survives" for process in sandbox_processes()]


def sandbox_processes() -> list[int]:
    """Processes of our sandboxes: forked children keep the command line of their server."""
    mark = f'"memory_mib": {SETTINGS.memory_mib}'.encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if b"posttrain.verify.sandbox.server" in command and mark in command:
            found.append(int(entry.name))
    return found


def judge(attack: Attack, target: Host) -> Verdict:
    return CodeVerifier(SETTINGS).verify([_request(attack, target)])[0]


def _request(attack: Attack, target: Host) -> VerificationRequest:
    replacements = {
        "SECRET": repr(str(target.secret)), "DIRECTORY": repr(str(target.directory)), "PARENT": str(os.getpid()),
        "TCP": str(target.listener.getsockname()[1]), "UDP": str(target.datagrams.getsockname()[1]),
        "UNIX": repr(str(target.directory / "socket")), "ABSTRACT": repr(target.nonce.replace("nonce", "abstract")),
    }  # fmt: skip
    body = attack.body
    for word, value in replacements.items():
        body = body.replace(f"<{word}>", value)
    source = "import os, sys, ctypes\nlibc = ctypes.CDLL(None)\ndef solve(x):\n" + textwrap.indent(
        textwrap.dedent(body).strip(), "    "
    )
    expected = target.nonce if attack.breached == "nonce" else attack.breached
    answer = {"mode": "function", "name": "solve", "inputs": [[1], [2]], "outputs": [expected, expected]}
    return VerificationRequest(attack.name, 0, "", source, answer, "stop")


def main() -> None:
    """Judges all of them with one verifier, at the policy given as first argument, and prints what happened."""
    settings = SETTINGS.model_copy(update={"sandbox": SandboxPolicy(sys.argv[1])})
    said = io.StringIO()
    logging.basicConfig(stream=said, format="%(message)s", level=logging.INFO)
    with host() as target:
        verdicts = CodeVerifier(settings).verify([_request(attack, target) for attack in ATTACKS])
        found = {attack.name: (verdict.outcome, verdict.detail) for attack, verdict in zip(ATTACKS, verdicts, strict=True)}
        result = {"user": os.geteuid(), "said": said.getvalue(), "found": found, "changes": changes(target)}
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
