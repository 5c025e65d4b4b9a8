"""The sandbox itself: what it says when it cannot isolate, what it does when it breaks, what it leaves behind."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from posttrain.verify.sandbox.pool import Sandbox, SandboxFault, SandboxLimits
from tests.verify import hostile
from tests.verify.judging import judge

ROOT = Path(__file__).parents[2]
ENTRY = "posttrain.verify.programs"
# a process that may not call unshare, as under the default profile of containers
WITHOUT_NAMESPACES = """
import ctypes, json, logging, struct, sys
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 272), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
text = b"".join(struct.pack("<HBBI", *row) for row in code)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(Program(len(code), text)), 0, 0) == 0
assert libc.unshare(0x10000000) == -1
logging.basicConfig(stream=sys.stderr, format="%(message)s")
from posttrain.config import VerifySettings
from posttrain.errors import VerificationError
from tests.verify.judging import judge
def solve(body, expected):
    answer = {"mode": "function", "name": "solve", "inputs": [[1]], "outputs": [expected]}
    return "def solve(x):\\n    " + body, answer
pairs = [solve("return x + 1", 2), solve("import subprocess; subprocess.run(['true']); return 1", 1), solve("import socket; socket.socket(); return 1", 1),
         solve("open('/tmp/new', 'w'); return 1", 1), solve("while True: pass", 1), solve("return len(bytearray(10 ** 10))", 1)]
try:
    print(json.dumps([verdict.outcome for verdict in judge("code", pairs, settings=VerifySettings(timeout_s=1.0, sandbox=sys.argv[1]))]))
except VerificationError as error:
    print(json.dumps(str(error)))
"""


def job(body: str) -> dict[str, object]:
    return {"mode": "function", "name": "solve", "inputs": [[1]], "source": f"def solve(x):\n    {body}"}


def values(reports: tuple[bytes, ...]) -> list[object]:
    return [json.loads(report).get("value") for report in reports]


def test_every_execution_has_an_empty_scratch_and_the_same_view() -> None:
    with Sandbox(ENTRY, SandboxLimits(), num_workers=1) as sandbox:
        view = "import os; open('left', 'w').close(); return [os.listdir('.'), os.getpid(), os.listdir('/tmp'), sorted(os.listdir('/dev'))]"
        for _ in range(3):
            assert values(sandbox.execute(job(view), "", 5.0).reports) == [
                [["left"], 1, ["left"], ["null", "random", "urandom", "zero"]]
            ]


def test_set_order_is_the_same_in_every_server() -> None:
    body = "return list({str(n) for n in range(50)})"
    found = []
    for _ in range(2):
        with Sandbox(ENTRY, SandboxLimits(), num_workers=1) as sandbox:
            found.append(sandbox.execute(job(body), "", 5.0).reports)
    assert found[0] == found[1]


def test_a_killed_server_costs_no_verdict() -> None:
    """Whoever kills a server (an out-of-memory killer, say), the job runs again on a new one."""
    with Sandbox(ENTRY, SandboxLimits(memory_mib=hostile.SETTINGS.memory_mib), num_workers=1) as sandbox:
        assert values(sandbox.execute(job("return x"), "", 5.0).reports) == [1]
        for process in hostile.sandbox_processes():
            os.kill(process, signal.SIGKILL)
        assert values(sandbox.execute(job("return x"), "", 5.0).reports) == [1]
    assert hostile.sandbox_processes() == []


def test_an_interpreter_that_is_missing_is_a_fault_not_a_verdict() -> None:
    with (
        Sandbox(ENTRY, SandboxLimits(), num_workers=1, python="/nowhere/python") as sandbox,
        pytest.raises(SandboxFault, match="/nowhere/python"),
    ):
        sandbox.execute(job("return x"), "", 5.0)


def test_a_server_that_cannot_start_says_why() -> None:
    with (
        Sandbox("posttrain.verify.no_such_entry", SandboxLimits(), num_workers=1) as sandbox,
        pytest.raises(SandboxFault, match="no_such_entry"),
    ):
        sandbox.execute(job("return x"), "", 5.0)


def test_a_child_that_cannot_be_isolated_is_a_fault_not_a_verdict() -> None:
    with (
        Sandbox(ENTRY, SandboxLimits(scratch_mib=-1), num_workers=1) as sandbox,
        pytest.raises(SandboxFault, match="could not be isolated"),
    ):
        sandbox.execute(job("return x"), "", 5.0)


def test_the_end_of_the_using_process_ends_its_sandbox() -> None:
    script = (
        "import os, signal\nfrom posttrain.verify.sandbox.pool import Sandbox, SandboxLimits\n"
        f"with Sandbox({ENTRY!r}, SandboxLimits(memory_mib={hostile.SETTINGS.memory_mib}), num_workers=1) as sandbox:\n"
        f"    sandbox.execute({job('return x')!r}, '', 5.0)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=60)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while hostile.sandbox_processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert hostile.sandbox_processes() == []


def test_descriptors_and_processes_do_not_grow() -> None:
    with Sandbox(ENTRY, SandboxLimits(memory_mib=hostile.SETTINGS.memory_mib), num_workers=1) as sandbox:
        sandbox.execute(job("return x"), "", 5.0)
        before = len(os.listdir("/proc/self/fd")), len(hostile.sandbox_processes())
        for _ in range(50):
            sandbox.execute(job("return x"), "", 5.0)
        assert (len(os.listdir("/proc/self/fd")), len(hostile.sandbox_processes())) == before


def test_two_hundred_programs_keep_their_order() -> None:
    answer = {"mode": "expression", "variable": "x", "inputs": [2, 3], "outputs": [4, 9]}
    pairs = [("x * x" if number % 3 else "x + x", answer) for number in range(200)]
    started = time.monotonic()
    found = [verdict.outcome for verdict in judge("code", pairs)]
    assert found == ["pass" if number % 3 else "fail" for number in range(200)]
    assert time.monotonic() - started < 20  # 1 s on an idle machine


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the planted filter has x86-64 numbers")
def test_where_namespaces_are_refused_require_stops_and_says_what_to_do() -> None:
    done = run_without_namespaces("require")
    assert "namespaces" in json.loads(done.stdout)
    assert "verify.sandbox to weak" in json.loads(done.stdout)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the planted filter has x86-64 numbers")
def test_where_namespaces_are_refused_weak_still_bounds_everything_but_reading() -> None:
    done = run_without_namespaces("weak")
    assert json.loads(done.stdout) == ["pass", "fail", "fail", "fail", "timeout", "fail"]
    assert done.stderr.count("WEAK SANDBOX") == 1


def run_without_namespaces(policy: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NAMESPACES, policy],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done


def test_logging_is_not_needed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        judge("code", [("x", {"mode": "expression", "variable": "x", "inputs": [1], "outputs": [1]})])
    assert caplog.records == []
