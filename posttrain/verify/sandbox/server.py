"""The fork server: a small clean process that turns each request into one isolated child.

It is started by exec, never forked from a process that holds a model, and reads no job itself: the descriptors of a job
(the job, its input, the channels for what comes back) pass through it unread, so that the memory its children inherit
holds nothing of other jobs. It speaks over one socket: `run` with four descriptors → the child's exit status; `kill`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from types import ModuleType
from typing import Any, NoReturn

from posttrain.verify.sandbox import isolation
from posttrain.verify.sandbox.seccomp import Filter

READY = b"ready\n"
_STDIN, _STDOUT, _STDERR, _REPORTS = 0, 1, 2, 3


class Server:
    """Holds what children inherit: the imported entry module, the filter, the limits."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._control = socket.socket(fileno=config["control"])
        self._limits: dict[str, int] = config["limits"]
        self._packages: list[str] = config["packages"]
        sys.path.extend(self._packages)
        self._entry: ModuleType = importlib.import_module(config["entry"])
        self._entry.preload()
        self._idle_bytes = isolation.address_space_bytes()
        self._namespaces = self._has_nobody = False
        self._own_namespace = -1
        self._isolate(config["policy"])

    def _isolate(self, policy: str) -> None:
        try:
            self._has_nobody = isolation.enter_namespaces()
            self._namespaces = True
        except (isolation.Refused, OSError) as error:
            if policy != "weak" or not isolation.is_refusal(error):
                raise
            self._filter = Filter(read_only=True)
            self._announce("weak", str(error))
            return
        self._filter = Filter(read_only=False)
        _continue_in_child(self._control)
        self._own_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        isolation.enter_new_root(self._packages)
        self._announce("full", "")

    def _announce(self, level: str, why: str) -> None:
        self._control.send(json.dumps({"level": level, "why": why}).encode())

    def serve(self) -> None:
        """Until the other side closes the socket."""
        isolation.forget_environment()
        gc.collect()
        gc.freeze()
        while True:
            message, descriptors, _, _ = socket.recv_fds(self._control, 64, 4)
            if not message:
                return
            if message == b"run":  # a `kill` that crossed the end of its child is late, not wrong
                self._control.send(str(self._run(descriptors)).encode())

    def _run(self, descriptors: list[int]) -> int:
        if self._namespaces:
            isolation.new_process_namespace(self._own_namespace)
        child = os.fork()
        if child == 0:
            self._become_program(descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        ended = os.pidfd_open(child)
        try:
            readable, _, _ = select.select([ended, self._control], [], [])
            if ended not in readable:
                message = self._control.recv(64)
                os.kill(child, signal.SIGKILL)
                if not message:
                    os._exit(0)
        finally:
            os.close(ended)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def _become_program(self, descriptors: list[int]) -> NoReturn:
        try:
            job = _arrange_descriptors(descriptors)
            self._give_up_rights()
            report(READY)
        except BaseException as error:
            report(f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        try:
            status = self._entry.run(json.loads(job), _report_value)
        except BaseException:  # nothing may unwind into the server's own loop
            status = 1
        os._exit(status)

    def _give_up_rights(self) -> None:
        if self._namespaces:
            isolation.mount_scratch(self._limits["scratch_mib"])
            if self._has_nobody:
                isolation.become_nobody()
            isolation.check_readable(self._packages)
            isolation.limit_threads(self._limits["num_threads"])
        isolation.set_limits(self._limits, self._idle_bytes)
        isolation.drop_capabilities()
        self._filter.install()


def report(line: bytes) -> None:
    """Writes to the report channel; blocks while the reader is behind."""
    while line:
        line = line[os.write(_REPORTS, line) :]


def _report_value(value: Any) -> None:
    """Writes one line of strict JSON: no NaN, no infinity."""
    report(json.dumps(value, allow_nan=False).encode() + b"\n")


def _arrange_descriptors(descriptors: list[int]) -> bytes:
    """Reads the job, places stdin, stdout, stderr and the report channel at 0 to 3 and closes all others."""
    job, stdin, stdout, reports = (os.dup(descriptor) for descriptor in descriptors)  # above 3 by now
    os.dup2(stdin, _STDIN)
    os.dup2(stdout, _STDOUT)
    os.dup2(reports, _REPORTS)
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDERR)
    with os.fdopen(job, "rb", closefd=False) as source:
        content = source.read()
    os.closerange(_REPORTS + 1, 1 << 16)
    return content


def _continue_in_child(control: socket.socket) -> None:
    """Returns in a child, the first process of the new namespace; this process waits for its end."""
    child = os.fork()
    if child == 0:
        isolation.die_with_parent()
        return
    control.close()
    os._exit(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))


def _forget_inheritance() -> None:
    """Whatever mask, ignored signals and umask the starting process has, programs see the usual ones."""
    os.umask(0o022)  # the new root is made by root and read by nobody
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # the interpreter itself ignores these two
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def main() -> None:
    """Starts a server as its first argument, a JSON mapping, says; exits with 3 where isolation is refused."""
    config = json.loads(sys.argv[1])
    _forget_inheritance()
    try:
        server = Server(config)
    except (isolation.Refused, OSError) as error:
        if not isolation.is_refusal(error):
            raise
        message = json.dumps({"level": "refused", "why": str(error)})
        os.write(config["control"], message.encode())
        os._exit(3)
    server.serve()
    os._exit(0)


if __name__ == "__main__":
    main()
