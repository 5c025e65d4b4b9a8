"""Worker processes of a verifier of the user's own: each has a hard limit of time, and a dead one costs its row alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from multiprocessing import Pipe
from typing import Any, Self

from posttrain.errors import VerificationError
from posttrain.verify import verdicts
from posttrain.verify.base import Part, Verdict, VerificationRequest
from posttrain.verify.lending import Lending

START_LIMIT_S = 300.0  # imports alone can take minutes on a cold disk
_END_LIMIT_S = 1.0
_MODULE = "posttrain.verify.own_worker"
_BOOT = "import importlib, json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); importlib.import_module(sys.argv.pop(1)).main()"


class WorkerLost(Exception):
    """A worker had to be ended, or ended by itself; `verdict` is for the completion that it was at."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__(verdict.detail)


class OwnWorker:
    """One process, started by exec, with the search path of this one, so that it finds the same modules."""

    is_used_up = False  # one that is lost raises

    def __init__(self, name: str, target: str, settings_json: str) -> None:
        """Raises VerificationError when the verifier does not start."""
        self._connection, theirs = Pipe()
        arguments = [json.dumps(sys.path), _MODULE, str(theirs.fileno()), name, target, settings_json]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        try:
            self._receive(START_LIMIT_S)
        except WorkerLost as lost:
            raise VerificationError(f"the verifier {name!r} ({target}) does not start in a process of its own: {lost}") from lost

    def judge(self, requests: Sequence[VerificationRequest], limit_s: float) -> list[Verdict]:
        """One verdict for each request.

        Raises:
            WorkerLost: the process died, or was ended at its limit; it cannot be used again.
            VerificationError: the verifier says that nothing can be verified here.
        """
        try:
            self._connection.send_bytes(json.dumps([asdict(request) for request in requests]).encode())
        except OSError:
            raise self._died() from None
        answer = json.loads(self._receive(limit_s))
        if isinstance(answer, dict):
            raise VerificationError(str(answer["refused"]))
        return [_read_verdict(row) for row in answer]

    def close(self) -> None:
        """Ends the process and everything that it started."""
        self._connection.close()
        self._end(_END_LIMIT_S)

    def _receive(self, limit_s: float) -> bytes:
        try:
            if self._connection.poll(limit_s):
                return self._connection.recv_bytes()
        except (EOFError, OSError):
            raise self._died() from None
        if self._process.poll() is not None:  # what it started may still hold the other end
            raise self._died()
        self._end(0.0)
        raise WorkerLost(replace(verdicts.timed_out(f"stopped after {limit_s:g} s"), seconds=limit_s))

    def _died(self) -> WorkerLost:
        self._end(_END_LIMIT_S)
        return WorkerLost(verdicts.errored(f"the verifier's process ended with status {self._process.returncode}"))

    def _end(self, limit_s: float) -> None:
        """Gives the process `limit_s` to go by itself, then kills what is left of it and of what it started."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class OwnWorkers:
    """A few workers, each started when it is first needed and replaced when it is lost. A context manager; thread-safe."""

    def __init__(self, name: str, target: str, settings_json: str, timeout_s: float, num_workers: int) -> None:
        self._timeout_s = timeout_s
        self._workers = Lending(num_workers, lambda: OwnWorker(name, target, settings_json))

    def __enter__(self) -> Self:
        self._workers.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._workers.__exit__(*exception)

    def judge(self, requests: Sequence[VerificationRequest]) -> list[Verdict]:
        """One verdict for each request; where the worker is lost they are tried one by one, so that one row alone is lost."""
        try:
            with self._workers.lend() as worker:
                return worker.judge(requests, self._timeout_s * len(requests))
        except WorkerLost as lost:
            if len(requests) == 1:
                return [lost.verdict]
        return [verdict for request in requests for verdict in self.judge([request])]


def _read_verdict(row: dict[str, Any]) -> Verdict:
    parts = tuple(Part(**part) for part in row.pop("parts"))
    return Verdict(**row, parts=parts)
