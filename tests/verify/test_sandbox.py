"""The sandbox itself: what it says when it cannot isolate, what it does when it breaks, what it leaves behind."""

from __future__ import annotations

import errno
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
from posttrain.verify.sandbox.system_calls import Refused, is_refusal
from tests.verify import hostile
from tests.verify.judging import judge

ROOT = Path(__file__).parents[2]
ENTRY = "posttrain.verify.programs"


def job(body: str) -> dict[str, object]:
    return {"mode": "function", "name": "solve", "inputs": [[1]], "source": f"def solve(x):\n    {body}"}


def values(reports: tuple[bytes, ...]) -> list[object]:
    return [json.loads(report).get("value") for report in reports]


def test_every_execution_has_an_empty_scratch_and_the_same_view() -> None:
    with Sandbox(ENTRY, SandboxLimits(), num_workers=1) as sandbox:
        view = "import os; open('left', 'w').close(); return [os.listdir('.'), os.listdir('/tmp'), sorted(os.listdir('/dev'))]"
        for _ in range(3):
            assert values(sandbox.execute(job(view), "", 5.0).reports) == [
                [["left"], ["left"], ["null", "random", "urandom", "zero"]]
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
        Sandbox(ENTRY, SandboxLimits(cpu_s=1 << 70), num_workers=1) as sandbox,
        pytest.raises(SandboxFault, match="could not be isolated"),
    ):
        sandbox.execute(job("return x"), "", 5.0)


@pytest.mark.parametrize("umask", [0o027, 0o077])
def test_what_the_starting_process_inherits_or_sets_changes_no_verdict(umask: int) -> None:
    """With umask 077 a root's server made a root directory that its unprivileged programs could not enter."""
    script = (
        "import os, signal\nfrom tests.verify.judging import judge\n"
        f"os.umask({umask})\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n"
        "source = 'import colorsys, signal\\ndef solve(x): return sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))'\n"
        "answer = {'mode': 'function', 'name': 'solve', 'inputs': [[1]], 'outputs': [[]]}\n"
        "print(judge('code', [(source, answer)])[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "outcome='pass'" in done.stdout, done.stdout + done.stderr


def test_libraries_that_the_programs_user_may_not_read_are_a_fault_not_a_verdict(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir(mode=0o000)
    with (
        Sandbox(ENTRY, SandboxLimits(), packages=[str(packages)], num_workers=1) as sandbox,
        pytest.raises(SandboxFault, match=f"may not read {packages}"),
    ):
        sandbox.execute(job("return x"), "", 5.0)


def test_a_time_limit_met_before_the_program_begins_is_a_timeout_not_a_fault() -> None:
    with Sandbox(ENTRY, SandboxLimits(), num_workers=1) as sandbox:
        assert sandbox.execute(job("return x"), "", 1e-9).ended == "timeout"


def test_an_endless_time_limit_is_possible() -> None:
    with Sandbox(ENTRY, SandboxLimits(), num_workers=1) as sandbox:
        assert values(sandbox.execute(job("return x"), "", 1e12).reports) == [1]


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (Refused("user namespaces"), True), (PermissionError(errno.EPERM, "x"), True), (OSError(errno.ENOSYS, "x"), True), (OSError(errno.EMFILE, "x"), False),
        (BlockingIOError(errno.EAGAIN, "x"), False), (ChildProcessError(errno.ECHILD, "x"), False), (OSError(errno.ENOMEM, "x"), False), (ValueError(), False),
    ],
)  # fmt: skip
def test_only_what_the_kernel_forbids_is_a_refusal(error: Exception, refused: bool) -> None:
    assert is_refusal(error) is refused


def test_a_shortage_at_the_start_is_a_fault_not_a_refusal() -> None:
    """Four descriptors are too few for isolation; told as a refusal it would advise the weak sandbox."""
    script = (
        "import resource\nfrom posttrain.verify.sandbox import pool\n"
        "import subprocess\n"
        "start = subprocess.Popen.__init__\n"
        "def limited(self, *a, **k): start(self, *a, **k, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4)))\n"
        "subprocess.Popen.__init__ = limited\n"
        f"with pool.Sandbox({ENTRY!r}, pool.SandboxLimits(), num_workers=1) as sandbox:\n"
        f"    try: sandbox.execute({job('return x')!r}, '', 5.0)\n"
        "    except pool.SandboxFault as error: print('fault', error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("fault"), done.stderr
    assert "Too many open files" in done.stdout


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
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            sandbox.execute(job("return x"), "", 5.0)
        assert len(os.listdir("/proc/self/fd")) == before
        assert len(hostile.sandbox_processes()) <= 3  # the watcher, the server, the next child


def test_two_hundred_programs_keep_their_order() -> None:
    answer = {"mode": "expression", "variable": "x", "inputs": [2, 3], "outputs": [4, 9]}
    pairs = [("x * x" if number % 3 else "x + x", answer) for number in range(200)]
    started = time.monotonic()
    found = [verdict.outcome for verdict in judge("code", pairs)]
    assert found == ["pass" if number % 3 else "fail" for number in range(200)]
    assert time.monotonic() - started < 20  # 1 s on an idle machine


def test_logging_is_not_needed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        judge("code", [("x", {"mode": "expression", "variable": "x", "inputs": [1], "outputs": [1]})])
    assert caplog.records == []
