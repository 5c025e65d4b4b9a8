"""One fork server as its user sees it: start, execute, close. Every read is bounded in bytes and in time."""

from __future__ import annotations

import fcntl
import itertools
import json
import math
import os
import re
import select
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

from posttrain.verify.sandbox.cgroups import Cgroup, Place
from posttrain.verify.sandbox.launch import has_bubblewrap, spawn, start_strongest
from posttrain.verify.sandbox.protocol import GO, LONG, MAX_INLINE_BYTES, READY

Ended = Literal["exited", "timeout", "output_limit"]
_CREDENTIALS = struct.Struct("iII")  # process, user, group: the kernel's word, in this process's own numbers
START_TIMEOUT_S = 120.0  # imports of the entry module on a busy machine
GRACE_S = 10.0
_STATUS = re.compile(rb"(-?[0-9]+) ([01])")
_UNDISTURBED_MS = 20  # most programs end before; reading each of their lines as it comes would cost more than they do
_MAX_POLL_S = 60.0  # poll counts milliseconds in 32 bits
_num_started = itertools.count()
_SEALS = fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


@dataclass(frozen=True)
class Job:
    """One execution: the text for the entry module, the program's input, its limits, and descriptors that it gets besides."""

    content: bytes
    stdin: bytes
    timeout_s: float
    report_timeout_s: float
    descriptors: Sequence[int]


class SandboxFault(Exception):
    """The sandbox itself failed: nothing is known about the program."""


class Connection:
    """A running fork server.

    `is_used_up` says that the server has ended after its last program: what that left could not be removed.

    Raises:
        SandboxRefused: the machine allows no level that the policy accepts.
        SandboxFault: the server did not start.
    """

    is_used_up = False

    def __init__(self, python: str, levels: Sequence[str], config: Mapping[str, Any], places: list[Place]) -> None:
        self._python, self._config, self._places = python, config, places
        start_strongest(levels, self._start)

    def _start(self, level: str) -> str | None:
        """Starts a server at `level`; why the machine refuses it, or None."""
        if level == "bubblewrap" and not has_bubblewrap():
            return "bwrap is not installed"
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._control.settimeout(START_TIMEOUT_S)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 — closed with the connection
        try:
            cores = sorted(os.sched_getaffinity(0))
            config = {**self._config, "level": level, "core": cores[next(_num_started) % len(cores)]}
            self._process = spawn(self._python, config, theirs, self._errors)
        except OSError as error:
            self._control.close()
            self._errors.close()
            raise SandboxFault(f"the sandbox's interpreter {self._python} does not start: {error}") from error
        finally:
            theirs.close()
        return self._await_ready(level)

    def _await_ready(self, level: str) -> str | None:
        self._cgroup = Cgroup(self._places, self._config["limits"])
        try:
            self._cgroup.hold(self._process.pid)
            self._control.send(GO)
            message = json.loads(self._receive()[0])
        except (SandboxFault, OSError) as error:
            why = str(error) if isinstance(error, SandboxFault) else f"its cgroup: {error}"
            self.close()
            if level == "bubblewrap" and isinstance(error, SandboxFault):
                return why
            raise SandboxFault(why) from error
        self._control.settimeout(GRACE_S)
        if "refused" in message:
            self.close()
        return message.get("refused")

    def execute(self, job: Job, max_bytes: int) -> tuple[Ended, int, tuple[bytes, ...], bytes]:
        """How the child ended, its exit status, the lines it reported and what it printed.

        Raises:
            SandboxFault: the server died or the child could not be isolated.
        """
        child = self._await_child()
        try:
            with _channels(job) as (ours, theirs):
                self._send(job, theirs)
                stdout, reports = bytearray(), bytearray()
                streams = dict(zip(ours, (stdout, reports), strict=True))
                ended = self._collect(streams, job, max_bytes)
                if ended != "exited":
                    with suppress(ProcessLookupError):  # it ended by itself just now
                        signal.pidfd_send_signal(child, signal.SIGKILL)
                status = self._status()
                if not _drain(streams, max_bytes) and ended == "exited":
                    ended = "output_limit"
        finally:
            os.close(child)
        return ended, status, tuple(line for line in bytes(reports).split(b"\n") if line), bytes(stdout)

    def _await_child(self) -> int:
        """A handle on the process that will run the next job, as the kernel names it."""
        message, ancillary = self._receive()
        if message != READY:
            raise SandboxFault(f"a program could not be isolated: {message.decode(errors='replace')}")
        process, _, _ = _CREDENTIALS.unpack(ancillary[0][2])
        try:
            return os.pidfd_open(process)
        except ProcessLookupError as error:
            raise SandboxFault("a program's process ended before it had a job") from error

    def _send(self, job: Job, theirs: list[int]) -> None:
        content, descriptors = job.content, [*theirs, *job.descriptors]
        try:
            if len(content) >= MAX_INLINE_BYTES:
                theirs.append(_sealed("job", content))
                content, descriptors = LONG, [*descriptors, theirs[-1]]
            socket.send_fds(self._control, [content], descriptors)
        except OSError as error:
            raise SandboxFault(self._why("the sandbox's server has gone")) from error
        finally:
            _close(theirs)

    def _collect(self, streams: Mapping[int, bytearray], job: Job, max_bytes: int) -> Ended:
        """Reads until the server reports the child's end; kills the child at a deadline or past `max_bytes`."""
        started = last_report = time.monotonic()
        lines = _Lines()
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        if poller.poll(int(min(_UNDISTURBED_MS, job.timeout_s * 1000))):
            return "exited"
        for descriptor in streams:
            poller.register(descriptor, select.POLLIN)
        reports = list(streams)[1]
        while (left := min(started + job.timeout_s, last_report + job.report_timeout_s) - time.monotonic()) > 0:
            for descriptor, _ in poller.poll(math.ceil(min(left, _MAX_POLL_S) * 1000)):
                if descriptor == self._control.fileno():
                    return "exited"
                chunk = _read(descriptor, streams[descriptor])
                if not chunk:
                    poller.unregister(descriptor)
                elif descriptor == reports and lines.end_in(chunk):
                    last_report = time.monotonic()
                if len(streams[descriptor]) > max_bytes:
                    return "output_limit"
        return "timeout"

    def _status(self) -> int:
        message, _ = self._receive()
        found = _STATUS.fullmatch(message)
        if found is None:
            raise SandboxFault(f"a program could not be isolated: {message.decode(errors='replace')}")
        self.is_used_up = found[2] == b"0"
        return int(found[1])

    def _receive(self) -> tuple[bytes, list[tuple[int, int, bytes]]]:
        try:
            message, ancillary, _, _ = self._control.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
        except TimeoutError as error:
            raise SandboxFault(self._why("the sandbox's server does not answer")) from error
        except OSError as error:
            raise SandboxFault(self._why("the sandbox's server has gone")) from error
        if not message:
            raise SandboxFault(self._why("the sandbox's server has gone"))
        return message, ancillary

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
        self._cgroup.remove()


class _Lines:
    """Tells when a line that holds something has ended; blank lines are no reports."""

    _begun = False

    def end_in(self, chunk: bytes) -> bool:
        first, *others = chunk.split(b"\n")
        begun = self._begun or bool(first)
        self._begun = bool(others[-1]) if others else begun
        return bool(others) and (begun or any(others[:-1]))


@contextmanager
def _channels(job: Job) -> Iterator[tuple[tuple[int, int], list[int]]]:
    """Our ends (stdout, reports) and the child's (stdin, stdout, stderr, reports)."""
    opened: list[int] = []
    try:
        opened.append(_sealed("stdin", job.stdin) if job.stdin else os.open(os.devnull, os.O_RDONLY))
        stdout_read, stdout_write = os.pipe()
        opened += [stdout_write, os.open(os.devnull, os.O_WRONLY)]
        reports_read, reports_write = os.pipe()
        opened += [reports_write]
        try:
            yield (stdout_read, reports_read), opened
        finally:
            _close([stdout_read, reports_read])
    finally:
        _close(opened)


def _sealed(name: str, text: bytes) -> int:
    """A file in memory that its reader finds at its beginning and cannot change."""
    descriptor = os.memfd_create(name, os.MFD_ALLOW_SEALING)
    view = memoryview(text)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(descriptor, *_SEALS)
    return descriptor


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _read(descriptor: int, into: bytearray) -> bytes:
    chunk = os.read(descriptor, 1 << 16)
    into += chunk
    return chunk


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
