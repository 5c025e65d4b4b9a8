"""How programs are usually judged: an interpreter for each execution, or a manager and a process for each sample."""

from __future__ import annotations

import ast
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.measure import elapsed_s
from posttrain.verify.base import VerificationRequest

Outcomes = list[str]
Judge = Callable[[Sequence[VerificationRequest]], Outcomes]
WORKER_COUNTS = (2, 4)
MAX_OUTPUT_BYTES = 1 << 20
UNPARSEABLE_STATUS = 99
PYTHON = (sys.executable, "-I", "-S", "-c")  # no site packages, no environment: the interpreter's fastest start
PRIME_CODE = Path(__file__).with_name("verification_prime_code.py")
# Set inside the child: a function run between fork and exec would keep subprocess from using vfork.
LIMITS = (
    "import resource as r\nfor limit in ((r.RLIMIT_AS, 256 << 20), (r.RLIMIT_CPU, 3), (r.RLIMIT_NOFILE, 64),"
    " (r.RLIMIT_FSIZE, 16 << 20), (r.RLIMIT_CORE, 0)):\n    r.setrlimit(limit[0], (limit[1], limit[1]))\n"
)
FORKS = (
    "import os, time\nstarted = time.perf_counter()\nfor _ in range(1000):\n    os.waitpid(os.fork() or os._exit(0), 0)\n"
    "print(1000 / (time.perf_counter() - started))"
)


def fenced(completion: str) -> str:
    """The program of a completion, as prime_code takes it: what the last fence holds, or everything."""
    return completion.split("```python")[-1].split("```")[0]


def at_best_workers(judge: Callable[..., Outcomes], sample: Sequence[VerificationRequest]) -> Judge:
    """`judge` with as many at a time as is fastest on a sample."""
    choices = [partial(judge, num_workers=count) for count in WORKER_COUNTS]
    return min(choices, key=lambda choice: elapsed_s(lambda: choice(sample)))


@contextmanager
def prime_code(manner: str, timeout_s: float) -> Iterator[Callable[..., Outcomes]]:
    """The prime_code pattern, `usual` or at its `best`, ready to take batches in an interpreter of its own."""
    command = [sys.executable, *(["-S", "-E", "-s"] if manner == "best" else []), str(PRIME_CODE), manner]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin and stdout

        def judge(requests: Sequence[VerificationRequest], num_workers: int) -> Outcomes:
            samples = [(fenced(request.completion), request.answer) for request in requests]
            print(json.dumps({"samples": samples, "num_workers": num_workers, "timeout_s": timeout_s}), file=stdin, flush=True)
            return json.loads(stdout.readline())

        yield judge


def by_interpreters(requests: Sequence[VerificationRequest], num_workers: int, timeout_s: float) -> Outcomes:
    """One interpreter for each execution; it can read files, use the network and leave processes behind."""
    with ThreadPoolExecutor(num_workers) as threads:
        return list(threads.map(partial(_judge, timeout_s=timeout_s), requests))


def _judge(request: VerificationRequest, timeout_s: float) -> str:
    source, answer = fenced(request.completion), request.answer
    if answer["mode"] != "program":
        status, printed = execute(LIMITS + _printing(source, answer), "", timeout_s)
        return _outcome(status, lambda: [ast.literal_eval(line) for line in printed.splitlines()] == answer["outputs"])
    for typed, expected in zip(answer["inputs"], answer["outputs"], strict=True):
        status, printed = execute(LIMITS + _compiled(source, "exec") + "exec(code, {'__name__': '__main__'})", typed, timeout_s)
        outcome = _outcome(status, lambda printed=printed, expected=expected: printed.split() == expected.split())
        if outcome != "pass":
            return outcome
    return "pass"


def _outcome(status: int | None, is_right: Callable[[], bool]) -> str:
    if status is None:
        return "timeout"
    if status == UNPARSEABLE_STATUS:
        return "unparseable"
    return "pass" if status == 0 and is_right() else "fail"


def _compiled(source: str, mode: str) -> str:
    return (
        f"try:\n    code = compile({source!r}, '<completion>', {mode!r})\n"
        f"except (SyntaxError, ValueError):\n    raise SystemExit({UNPARSEABLE_STATUS})\n"
    )


def _printing(source: str, answer: dict[str, Any]) -> str:
    """A script that prints the program's value for every input."""
    if answer["mode"] == "expression":
        lines = [
            _compiled(source, "eval"),
            f"for value in {answer['inputs']!r}:",
            f"    print(eval(code, {{{answer['variable']!r}: value}}))",
        ]
    else:
        lines = [_compiled(source, "exec"), "names = {'__name__': 'completion'}", "exec(code, names)"]
        lines += [f"for arguments in {answer['inputs']!r}:", f"    print(repr(names[{answer['name']!r}](*arguments)))"]
    return "\n".join(lines)


def execute(script: str, typed: str, timeout_s: float) -> tuple[int | None, str]:
    """Runs a script; its exit status, None when it was stopped, and what it printed.

    Reads by itself: `subprocess` has no cap on output, and its wait with a time limit sleeps and looks again.
    """
    process = subprocess.Popen(
        [*PYTHON, script],
        stdin=subprocess.PIPE if typed else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout
    with process.stdout as stdout:
        if process.stdin:
            with process.stdin as stdin:
                stdin.write(typed.encode())
        printed, complete = _read_until(stdout.fileno(), time.monotonic() + timeout_s)
    if not complete:
        process.kill()
    status = process.wait()
    return (status if complete else None), printed.decode()


def _read_until(descriptor: int, deadline: float) -> tuple[bytes, bool]:
    """What comes before the deadline and within the cap, and whether that is all."""
    poller, printed = select.poll(), b""
    poller.register(descriptor, select.POLLIN)
    while (left_s := deadline - time.monotonic()) > 0 and len(printed) <= MAX_OUTPUT_BYTES:
        if poller.poll(left_s * 1000):
            chunk = os.read(descriptor, 1 << 16)
            printed += chunk
            if not chunk:
                return printed, True
    return printed, False


def forks_per_s(num_workers: int) -> float:
    """Forks a second of bare interpreters together: what nothing that runs each program in its own process can pass."""
    children = [subprocess.Popen([*PYTHON, FORKS], stdout=subprocess.PIPE, text=True) for _ in range(num_workers)]
    return sum(float(child.communicate()[0]) for child in children)
