"""The fork server: a small clean process that turns each request into one isolated child.

It is started by exec, never forked from a process that holds a model. It gives up everything that a program must not have
before it serves, once; children inherit that. Each child is forked before its job is known, says that it is ready, reads
the job itself from the server's socket and runs it, so that the server, whose memory all children inherit, never sees a
job. The server waits, ends what is left, and says the child's exit status.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import marshal
import os
import signal
import socket
import struct
import sys
from types import ModuleType
from typing import Any, NoReturn

from posttrain.verify.sandbox import filesystem, rights
from posttrain.verify.sandbox.confinement import confine
from posttrain.verify.sandbox.protocol import GO, LONG, MAX_INLINE_BYTES, READY
from posttrain.verify.sandbox.system_calls import is_refusal

_DESCRIPTOR_BYTES = 4
_ROOM = socket.CMSG_SPACE(16 * _DESCRIPTOR_BYTES)
_REPORTS = 3
_encode = json.JSONEncoder(allow_nan=False).encode


class Server:
    """Holds what children inherit: the imported modules, the filters, the limits."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._control = socket.socket(fileno=config["control"])
        self._control.recv(len(GO))  # from here on this process, and so all its children, live in their cgroups
        os.sched_setaffinity(0, {config["core"]})  # the threads of a program take no time from the one beside it
        self._cpu_s: int = config["limits"]["cpu_s"]
        sys.path.extend(config["import_paths"])
        self._entry: ModuleType = importlib.import_module(config["entry"])
        self._entry.preload()
        for name in config["preload"]:
            importlib.import_module(name)
        self._confined = confine(config, self._control)

    def serve(self) -> None:
        """Until the other side closes the socket, or what a program left cannot be removed."""
        _forget_start()
        gc.collect()
        gc.freeze()
        self._control.send(b"{}")  # nothing was refused
        clean = True
        while clean:
            child = os.fork()
            if child == 0:
                self._become_program()
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            clean = self._clean()
            try:
                self._control.send(b"%d %d" % (status, clean))
            except OSError:  # the other side has closed
                return

    def _clean(self) -> bool:
        """Ends and reaps whatever the program left, and empties its scratch; False where that fails."""
        if not self._confined.own_processes:
            return True
        try:
            os.kill(-1, signal.SIGKILL)
            while True:
                os.waitpid(-1, 0)
        except (ProcessLookupError, ChildProcessError, PermissionError):  # the usual case: nothing is left
            pass
        return not self._confined.has_scratch or filesystem.empty_scratch()

    def _become_program(self) -> NoReturn:
        try:
            self._control.send(READY)
            job = self._prepare()
        except BaseException as error:
            with contextlib.suppress(OSError):  # `send` may be refused by now
                os.write(self._control.fileno(), f"{type(error).__name__}: {error}"[:500].encode())
            os._exit(1)
        try:
            status = self._entry.run(job, _report_value)
        except BaseException:  # nothing may unwind into the server's own loop
            status = 1
        os._exit(status)

    def _prepare(self) -> Any:
        """Receives the next job and gives up what only the server needs; the job, with its descriptors at 0, 1, …"""
        rights.limit_processor(self._cpu_s)
        if not self._confined.own_processes:
            rights.die_with_parent()
        content, received, _, _ = self._control.recvmsg(MAX_INLINE_BYTES, _ROOM)
        if not content:
            os._exit(0)
        descriptors = list(struct.unpack(f"{len(received[0][2]) // _DESCRIPTOR_BYTES}i", received[0][2]))
        if content == LONG:
            long_job = descriptors.pop()
            content = b"".join(iter(lambda: os.read(long_job, 1 << 20), b""))
        job = marshal.loads(content)  # noqa: S302 — written by our own side
        self._confined.filters.install_for_program()
        _place(descriptors)
        return job


def _place(descriptors: list[int]) -> None:
    """Puts stdin, stdout, stderr, the reports and what the job brought besides at 0, 1, … and closes everything else."""
    # what arrives fills the lowest numbers, so that every copy lies above the places to be filled
    copies = [os.dup(descriptor) for descriptor in descriptors]
    for place, copy in enumerate(copies):
        os.dup2(copy, place)
    os.closerange(len(copies), 1 << 16)


def report(line: bytes) -> None:
    """Writes to the report channel; blocks while the reader is behind."""
    while line:
        line = line[os.write(_REPORTS, line) :]


def _report_value(value: Any) -> None:
    """Writes one line of strict JSON: no NaN, no infinity."""
    report(_encode(value).encode() + b"\n")


def _forget_start() -> None:
    """Leaves children nothing of how the server was started."""
    os.environ.clear()
    sys.argv = ["program"]
    sys.path = [path for path in sys.path if path and os.path.exists(path)]


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
    except (Exception, SystemExit) as error:
        if not is_refusal(error):
            raise
        message = json.dumps({"refused": str(error)})
        os.write(config["control"], message.encode())
        os._exit(3)
    server.serve()
    os._exit(0)


if __name__ == "__main__":
    main()
