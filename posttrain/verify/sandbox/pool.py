"""The trusting side of the sandbox: hands jobs to fork servers and reads, within bounds, what comes back."""

from __future__ import annotations

import marshal
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self, TypeVar

from posttrain.verify.lending import Lending
from posttrain.verify.sandbox.cgroups import Place, writable_places
from posttrain.verify.sandbox.connection import Connection, Ended, Job, SandboxFault
from posttrain.verify.sandbox.launch import ACCEPTED, SandboxRefused

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
        policy: how little isolation may run, see `config_verify.SandboxPolicy`.
        packages: what third-party packages are shown: whole site-packages directories, or single files and directories of them.
        preload: modules that the servers import before they fork.
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
        preload: Sequence[str] = (),
        num_workers: int = 0,
        python: str = sys.executable,
    ) -> None:
        self._config = {
            "entry": entry,
            "limits": asdict(limits),
            "packages": list(packages),
            "import_paths": _import_paths(packages),
            "preload": list(preload),
        }
        self._limits, self._levels, self._python = limits, ACCEPTED[policy], python
        self.num_workers = num_workers or self.default_workers()
        self._servers = Lending(self.num_workers, self._start)

    def _start(self) -> Connection:
        return Connection(self._python, self._levels, self._config, self._places)

    @cached_property
    def _places(self) -> list[Place]:
        """Looked for by the first server: most sandboxes of a verifier start none."""
        return writable_places()

    @staticmethod
    def default_workers() -> int:
        return min(MAX_WORKERS, len(os.sched_getaffinity(0)))

    def __enter__(self) -> Self:
        """Starts nothing yet: each server starts with its first job."""
        self._servers.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        """Ends every server and with it whatever still runs inside."""
        self._servers.__exit__(*exception)

    def map(self, judge: Callable[[Item], Value], items: Sequence[Item]) -> Iterator[Value]:
        """`judge` of every item, in order, as many at a time as there are workers."""
        with ThreadPoolExecutor(self.num_workers) as threads:
            yield from threads.map(judge, items)

    def execute(
        self, job: Any, stdin: str, timeout_s: float, *, report_timeout_s: float = math.inf, descriptors: Sequence[int] = ()
    ) -> SandboxResult:
        """Runs one job; a fault of the sandbox itself is tried once more on a fresh server.

        Args:
            job: what the entry module's `run` gets: plain values.
            stdin: what the program finds to read.
            timeout_s: wall time.
            report_timeout_s: the longest time between two reported lines.
            descriptors: open files that the program finds at 4, 5, …; the caller keeps and closes its own. A job with any is
                tried only once: the other end may have noticed.

        Raises:
            SandboxRefused: the machine allows no level that the policy accepts.
            SandboxFault: the sandbox failed twice; nothing is known about the job.
        """
        typed = stdin.encode("utf-8", "surrogatepass")
        prepared = Job(marshal.dumps(job), typed, timeout_s, report_timeout_s, descriptors)
        try:
            return self._execute_once(prepared)
        except SandboxFault:
            if descriptors:
                raise
            return self._execute_once(prepared)

    def _execute_once(self, job: Job) -> SandboxResult:
        with self._servers.lend() as connection:
            started = time.monotonic()
            ended, status, reports, stdout = connection.execute(job, self._limits.max_output_bytes)
            return SandboxResult(ended, status, reports, stdout, time.monotonic() - started)


def _import_paths(packages: Sequence[str]) -> list[str]:
    """The directories from which what is shown is imported."""
    names = ("site-packages", "dist-packages")
    return list(dict.fromkeys(path if os.path.basename(path) in names else os.path.dirname(path) for path in packages))


__all__ = ["Sandbox", "SandboxFault", "SandboxLimits", "SandboxRefused", "SandboxResult"]
