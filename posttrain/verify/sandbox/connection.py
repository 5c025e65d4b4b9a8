"""One fork server as its user sees it: start, execute, close. Every read is bounded in bytes and in time."""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from posttrain.errors import VerificationError

Ended = Literal["exited", "timeout", "output_limit"]
READY = b"ready"
START_TIMEOUT_S = 120.0  # imports of the entry module on a busy machine
GRACE_S = 10.0
_MAX_POLL_S = 60.0  # poll counts milliseconds in 32 bits
_LIBRARY = Path(__file__).parents[3]
_SEALS = fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_warned: set[str] = set()
logger = logging.getLogger("posttrain")


class SandboxFault(Exception):
    """The sandbox itself failed: nothing is known about the program."""


class SandboxRefused(VerificationError):
    """The kernel refuses the isolation that the settings require."""


class Connection:
    """A running fork server.

    Raises:
        SandboxRefused: the kernel refuses the isolation and the policy is `require`.
        SandboxFault: the server did not start.
    """

    def __init__(self, python: str, config: Mapping[str, Any]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 — closed with the connection
        command = [python, "-s", "-S", "-P", "-B", "-X", "utf8", "-m", "posttrain.verify.sandbox.server"]
        try:
            self._process = subprocess.Popen(
                [*command, json.dumps({**config, "control": theirs.fileno()})],
                # a fixed hash seed: the order of a set must not change a verdict from run to run
                env={"PYTHONPATH": str(_LIBRARY), "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                cwd="/",
                pass_fds=[theirs.fileno()],
                close_fds=True,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
            )
        except OSError as error:
            self._control.close()
            raise SandboxFault(f"the sandbox's interpreter {python} does not start: {error}") from error
        finally:
            theirs.close()
        self._await_ready()

    def _await_ready(self) -> None:
        try:
            level = json.loads(self._receive(time.monotonic() + START_TIMEOUT_S))
        except SandboxFault:
            self.close()
            raise
        if level["level"] == "refused":
            self.close()
            raise SandboxRefused(
                f"the sandbox cannot isolate programs here: {level['why']}. Allow user namespaces (kernel setting "
                "user.max_user_namespaces, container security profile), or set verify.sandbox to weak: programs could then "
                "read files and the memory of this process."
            )
        if level["level"] == "weak" and level["why"] not in _warned:
            _warned.add(level["why"])
            logger.warning(
                "WEAK SANDBOX: %s is refused here. Programs can read files and may read the expected results from this "
                "process's memory; network, processes, signals, writing and resources stay bounded.",
                level["why"],
            )

    def execute(
        self, content: bytes, stdin: bytes, timeout_s: float, max_bytes: int
    ) -> tuple[Ended, int, tuple[bytes, ...], bytes]:
        """How the child ended, its exit status, the lines it reported and what it printed.

        Raises:
            SandboxFault: the server died or the child could not be isolated.
        """
        with _channels(content, stdin) as (ours, theirs):
            try:
                socket.send_fds(self._control, [b"run"], theirs)
            except OSError as error:
                raise SandboxFault(self._why("the sandbox's server has gone")) from error
            finally:
                _close(theirs)
            stdout, reports = bytearray(), bytearray()
            streams = dict(zip(ours, (stdout, reports), strict=True))
            ended = self._collect(streams, time.monotonic() + timeout_s, max_bytes)
            status = self._status()
            if not _drain(streams, max_bytes):
                ended = "output_limit" if ended == "exited" else ended
        first, *lines = bytes(reports).split(b"\n")
        if ended == "timeout" and not reports:  # the time was over before the program began
            return ended, status, (), b""
        if first != READY:
            raise SandboxFault(f"a program could not be isolated: {first[:500].decode(errors='replace')}")
        return ended, status, tuple(line for line in lines if line), bytes(stdout)

    def _collect(self, streams: Mapping[int, bytearray], deadline: float, max_bytes: int) -> Ended:
        """Reads until the server reports the child's end; kills the child at the deadline or past `max_bytes`."""
        poller = select.poll()
        for descriptor in (self._control.fileno(), *streams):
            poller.register(descriptor, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            for descriptor, _ in poller.poll(math.ceil(min(left, _MAX_POLL_S) * 1000)):
                if descriptor == self._control.fileno():
                    return "exited"
                if not _read(descriptor, streams[descriptor]):
                    poller.unregister(descriptor)
                if len(streams[descriptor]) > max_bytes:
                    return self._kill("output_limit")
        return self._kill("timeout")

    def _kill(self, ended: Ended) -> Ended:
        try:
            self._control.send(b"kill")
        except OSError as error:
            raise SandboxFault(self._why("the sandbox's server has gone")) from error
        return ended

    def _status(self) -> int:
        return int(self._receive(time.monotonic() + GRACE_S))

    def _receive(self, deadline: float) -> bytes:
        readable, _, _ = select.select([self._control], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            raise SandboxFault(self._why("the sandbox's server does not answer"))
        try:
            message = self._control.recv(4096)
        except OSError as error:
            raise SandboxFault(self._why("the sandbox's server has gone")) from error
        if not message:
            raise SandboxFault(self._why("the sandbox's server has gone"))
        return message

    def _why(self, what: str) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 2000))
        said = self._errors.read().decode(errors="replace").strip()
        return f"{what}: {said}" if said else what

    def close(self) -> None:
        """Ends the server; its process namespace, and so every process in it, dies with it."""
        self._control.close()
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


@contextmanager
def _channels(content: bytes, stdin: bytes) -> Iterator[tuple[tuple[int, int], list[int]]]:
    """Our ends (stdout, reports) and the child's (job, stdin, stdout, reports)."""
    opened: list[int] = []
    try:
        for name, text in (("job", content), ("stdin", stdin)):
            opened.append(os.memfd_create(name, os.MFD_ALLOW_SEALING))
            _fill(opened[-1], text)
        stdout_read, stdout_write = os.pipe()
        opened += [stdout_write]
        reports_read, reports_write = os.pipe()
        opened += [reports_write]
        try:
            yield (stdout_read, reports_read), opened
        finally:
            _close([stdout_read, reports_read])
    finally:
        _close(opened)


def _fill(descriptor: int, text: bytes) -> None:
    """Writes and seals: the reader starts at the beginning and can change nothing."""
    view = memoryview(text)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(descriptor, *_SEALS)


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _read(descriptor: int, into: bytearray) -> int:
    chunk = os.read(descriptor, 1 << 16)
    into += chunk
    return len(chunk)


def _drain(streams: Mapping[int, bytearray], max_bytes: int) -> bool:
    """Reads what is left once every writer is gone; whether it stayed within `max_bytes`."""
    for descriptor, collected in streams.items():
        os.set_blocking(descriptor, False)
        try:
            while len(collected) <= max_bytes and _read(descriptor, collected):
                pass
        except BlockingIOError:
            pass
        if len(collected) > max_bytes:
            return False
    return True
