"""The trusting side of the sandbox: hands jobs to fork servers and reads, within bounds, what comes back."""

from __future__ import annotations

import json
import os
import queue
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from posttrain.verify.sandbox.connection import Connection, Ended, SandboxFault, SandboxRefused

Item = TypeVar("Item")
Value = TypeVar("Value")
MAX_WORKERS = 16


@dataclass(frozen=True)
class SandboxLimits:
    """What one execution may use. `memory_mib` comes on top of an idle interpreter."""

    memory_mib: int = 256
    cpu_s: int = 3
    scratch_mib: int = 16
    num_files: int = 64
    num_threads: int = 32
    max_output_bytes: int = 1 << 20


@dataclass(frozen=True)
class SandboxResult:
    """How an execution ended and what it wrote; none of it is to be trusted.

    `ended` is `exited`, `timeout` or `output_limit`; `exit_status` is negative for a signal; `reports` are the lines of
    the report channel, `stdout` what the program printed.
    """

    ended: Ended
    exit_status: int
    reports: tuple[bytes, ...]
    stdout: bytes
    seconds: float


class Sandbox:
    """A set of fork servers that run one entry module's `run(job, report)`. Use it as a context manager; thread-safe.

    Args:
        entry: module with `preload()`, called once in each server, and `run(job, report) -> int`, called in each child.
        limits: of one execution.
        policy: `require` raises where the kernel refuses namespaces; `weak` goes on without them.
        packages: directories of third-party packages that the entry module imports; none for untrusted programs.
        num_workers: executions at the same time; by default one for each core.
        python: the interpreter.
    """

    def __init__(
        self,
        entry: str,
        limits: SandboxLimits,
        *,
        policy: str = "require",
        packages: Sequence[str] = (),
        num_workers: int = 0,
        python: str = sys.executable,
    ) -> None:
        self._config = {"entry": entry, "limits": asdict(limits), "policy": policy, "packages": list(packages)}
        self._limits, self._python = limits, python
        self.num_workers = num_workers or self.default_workers()
        self._idle: queue.SimpleQueue[Connection | None] = queue.SimpleQueue()

    @staticmethod
    def default_workers() -> int:
        return min(MAX_WORKERS, os.cpu_count() or 1)

    def __enter__(self) -> Self:
        """Starts nothing yet: each server starts with its first job."""
        for _ in range(self.num_workers):
            self._idle.put(None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Ends every server and with it whatever still runs inside."""
        for _ in range(self.num_workers):
            connection = self._idle.get()
            if connection is not None:
                connection.close()

    def map(self, judge: Callable[[Item], Value], items: Sequence[Item]) -> Iterator[Value]:
        """`judge` of every item, in order, as many at a time as there are workers."""
        with ThreadPoolExecutor(self.num_workers) as threads:
            yield from threads.map(judge, items)

    def execute(self, job: Any, stdin: str, timeout_s: float) -> SandboxResult:
        """Runs one job; a fault of the sandbox itself is tried once more on a fresh server.

        Raises:
            SandboxRefused: the kernel refuses the isolation that the policy requires.
            SandboxFault: the sandbox failed twice; nothing is known about the job.
        """
        content = json.dumps(job).encode()
        typed = stdin.encode("utf-8", "surrogatepass")
        try:
            return self._execute_once(content, typed, timeout_s)
        except SandboxFault:
            return self._execute_once(content, typed, timeout_s)

    def _execute_once(self, content: bytes, stdin: bytes, timeout_s: float) -> SandboxResult:
        with self._connection() as connection:
            started = time.monotonic()
            ended, status, reports, stdout = connection.execute(content, stdin, timeout_s, self._limits.max_output_bytes)
            return SandboxResult(ended, status, reports, stdout, time.monotonic() - started)

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """An idle server; one that failed is ended and its place is free for a new one."""
        connection = self._idle.get()
        try:
            connection = connection or Connection(self._python, self._config)
            yield connection
        except BaseException:
            if connection is not None:
                connection.close()
            connection = None
            raise
        finally:
            self._idle.put(connection)


__all__ = ["Sandbox", "SandboxFault", "SandboxLimits", "SandboxRefused", "SandboxResult"]
