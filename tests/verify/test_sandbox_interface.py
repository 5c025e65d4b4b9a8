"""What callers of the sandbox rely on: limits between reports, descriptors, packages, long jobs, and that nothing outlives them."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from posttrain.config_verify import VerifySettings
from posttrain.verify.base import VerificationRequest
from posttrain.verify.registry import create_verifier
from posttrain.verify.sandbox.launch import LEVELS
from posttrain.verify.sandbox.pool import Sandbox, SandboxFault, SandboxLimits
from tests.verify import hostile
from tests.verify.test_sandbox import ENTRY, ROOT, job, values

EXPRESSION = {"mode": "expression", "variable": "x", "inputs": [1], "outputs": [2]}
LIMITS = SandboxLimits(memory_mib=hostile.SETTINGS.memory_mib)


def function_job(source: str, inputs: list[list[object]]) -> dict[str, object]:
    return {"mode": "function", "name": "solve", "inputs": inputs, "source": source}


def package_paths(*names: str) -> list[str]:
    found = [importlib.util.find_spec(name) for name in names]
    return [str(Path(spec.origin).parent) for spec in found if spec and spec.origin]


def gone(deadline_s: float = 10.0) -> bool:
    deadline = time.monotonic() + deadline_s
    while hostile.sandbox_processes() and time.monotonic() < deadline:
        time.sleep(0.02)
    return hostile.sandbox_processes() == []


def test_the_time_between_two_reports_is_limited_by_itself() -> None:
    slow = "import time\ndef solve(x):\n    time.sleep(x)\n    return x"
    with Sandbox(ENTRY, SandboxLimits(), num_workers=1) as sandbox:
        steady = sandbox.execute(function_job(slow, [[0.3]] * 4), "", 10.0, report_timeout_s=1.0)
        stuck = sandbox.execute(function_job(slow, [[0], [30], [0]]), "", 20.0, report_timeout_s=0.5)
    assert (steady.ended, len(steady.reports)) == ("exited", 4)
    assert (stuck.ended, values(stuck.reports)) == ("timeout", [0])
    assert 0.5 <= stuck.seconds < 5


@pytest.mark.parametrize("dripped", [b"x", b"\n"])
def test_neither_half_a_line_nor_a_blank_one_counts_as_a_report(dripped: bytes) -> None:
    dripping = f"import os, time\ndef solve(x):\n    while True:\n        os.write(3, {dripped!r})\n        time.sleep(0.05)"
    with Sandbox(ENTRY, SandboxLimits(), num_workers=1) as sandbox:
        result = sandbox.execute(function_job(dripping, [[0]]), "", 20.0, report_timeout_s=0.5)
    assert result.ended == "timeout"
    assert result.seconds < 5


def test_descriptors_are_found_at_four_and_five_and_nothing_else_is_open() -> None:
    body = "import os; text = os.read(4, 100).decode(); os.write(5, text.upper().encode()); return [text, len(os.listdir('/proc')) if os.path.exists('/proc') else 0]"
    read_in, write_in = os.pipe()
    read_out, write_out = os.pipe()
    os.write(write_in, b"asked")
    try:
        with Sandbox(ENTRY, SandboxLimits(), num_workers=1) as sandbox:
            result = sandbox.execute(job(body), "", 5.0, descriptors=[read_in, write_out])
            closed = "import os\n    found = []\n    for n in range(64):\n        try: os.fstat(n); found.append(n)\n        except OSError: pass\n    return found"
            view = sandbox.execute(job(closed), "", 5.0)
        assert values(result.reports) == [["asked", 0]]
        assert os.read(read_out, 100) == b"ASKED"
        assert values(view.reports) == [[0, 1, 2, 3]]
    finally:
        for descriptor in (read_in, write_in, read_out, write_out):
            os.close(descriptor)


@pytest.mark.parametrize("size", [1_000, 32_700, 40_000, 3_000_000])
def test_a_job_of_any_length_arrives_whole(size: int) -> None:
    source = f"def solve(x):\n    return len({'y' * size!r}) + x"
    with Sandbox(ENTRY, SandboxLimits(), num_workers=1) as sandbox:
        assert values(sandbox.execute(function_job(source, [[1]]), "", 20.0).reports) == [size + 1]


def test_programs_see_the_packages_shown_to_them_and_no_others() -> None:
    body = "import sys\n    found = []\n    for name in ('yaml', 'pyarrow', 'pip', 'posttrain'):\n        try: __import__(name); found.append(name)\n        except ImportError: pass\n    return found"
    with (
        Sandbox(ENTRY, SandboxLimits(), num_workers=1) as bare,
        Sandbox(ENTRY, SandboxLimits(), packages=package_paths("yaml"), num_workers=1) as shown,
    ):
        assert values(bare.execute(job(body), "", 10.0).reports) == [["posttrain"]]  # in memory already; its files are not there
        assert values(shown.execute(job(body), "", 10.0).reports) == [["yaml", "posttrain"]]
        assert values(bare.execute(job("import posttrain; open(posttrain.__file__)"), "", 10.0).reports) == [None]


def test_preloaded_modules_are_there_before_the_program_starts() -> None:
    with Sandbox(ENTRY, SandboxLimits(), preload=["colorsys"], num_workers=1) as sandbox:
        assert values(sandbox.execute(job("import sys; return 'colorsys' in sys.modules"), "", 5.0).reports) == [True]


def test_what_a_program_leaves_in_the_scratch_is_gone_for_the_next_one() -> None:
    leave = "import os\n    os.makedirs('a/b/c'); open('a/b/f', 'w').write('x'); os.symlink('/', 'l'); os.chmod('a/b', 0); os.mkfifo('p') if False else None\n    return 1"
    with Sandbox(ENTRY, LIMITS, num_workers=1) as sandbox:
        for _ in range(3):
            assert values(sandbox.execute(job(leave), "", 5.0).reports) == [1]
            assert values(sandbox.execute(job("import os; return os.listdir('.')"), "", 5.0).reports) == [[]]


def test_a_tree_that_cannot_be_removed_costs_a_server_and_no_verdict() -> None:
    deep = "import os\n    for _ in range(3000): os.mkdir('d' * 200); os.chdir('d' * 200)\n    return 1"
    with Sandbox(ENTRY, LIMITS, num_workers=1) as sandbox:
        for _ in range(2):
            assert values(sandbox.execute(job(deep), "", 20.0).reports) == [1]
            assert values(sandbox.execute(job("import os; return os.listdir('.')"), "", 5.0).reports) == [[]]


@pytest.mark.parametrize("body", ["import time; time.sleep(1000)", "while True: pass"])
def test_a_running_program_ends_with_the_process_that_started_it(body: str) -> None:
    """Killed in the middle of an execution, the judging process can end nothing itself."""
    script = (
        "from posttrain.verify.sandbox.pool import Sandbox, SandboxFault, SandboxLimits\n"
        f"with Sandbox({ENTRY!r}, SandboxLimits(memory_mib={LIMITS.memory_mib}, cpu_s=900), num_workers=1) as sandbox:\n"
        f"    sandbox.execute({job('return x')!r}, '', 5.0)\n    print('started', flush=True)\n    sandbox.execute({job(body)!r}, '', 900.0)\n"
    )
    judging = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE)
    assert judging.stdout is not None
    assert judging.stdout.readline() == b"started\n"
    time.sleep(0.3)
    assert len(hostile.sandbox_processes()) == 3
    os.kill(judging.pid, signal.SIGKILL)
    judging.wait()
    judging.stdout.close()
    assert gone()


def test_servers_outlive_the_thread_that_started_them() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with Sandbox(ENTRY, LIMITS, num_workers=1) as sandbox:
        for _ in range(3):
            with ThreadPoolExecutor(1) as threads:
                assert values(threads.submit(sandbox.execute, job("return x"), "", 5.0).result().reports) == [1]
            assert len(hostile.sandbox_processes()) >= 2
    assert gone(1.0)


def test_random_numbers_are_the_same_in_every_run() -> None:
    found = set()
    for _ in range(2):
        with Sandbox(ENTRY, SandboxLimits(), num_workers=1) as sandbox:
            for _ in range(2):
                found.add(sandbox.execute(job("import random; return [random.random(), random.randrange(100)]"), "", 5.0).reports)
    assert len(found) == 1


@pytest.mark.parametrize(("name", "completion", "answer"), [("code", "x + 1", EXPRESSION), ("maths", "\\boxed{2}", 2)])
def test_verifiers_state_the_level_that_they_ran_at(name: str, completion: str, answer: object) -> None:
    verifier = create_verifier(name, VerifySettings(timeout_s=20.0))
    (verdict,) = verifier.verify([VerificationRequest("p", 0, "", completion, answer, "stop")])
    assert verdict.outcome == "pass"
    assert verifier.limits["sandbox"] in LEVELS


def test_every_server_has_a_core_of_its_own() -> None:
    view = job("import os; return sorted(os.sched_getaffinity(0))")
    with Sandbox(ENTRY, SandboxLimits(), num_workers=1) as one, Sandbox(ENTRY, SandboxLimits(), num_workers=1) as other:
        (first,), (second,) = (values(sandbox.execute(view, "", 5.0).reports)[0] for sandbox in (one, other))
    assert {first, second} <= os.sched_getaffinity(0)
    assert first != second or len(os.sched_getaffinity(0)) == 1


@pytest.mark.parametrize("mode", [0o000, 0o555])
def test_a_scratch_that_a_program_has_closed_is_open_again_for_the_next(mode: int) -> None:
    with Sandbox(ENTRY, LIMITS, num_workers=1) as sandbox:
        assert values(sandbox.execute(job(f"import os; os.chmod('/scratch', {mode}); return 1"), "", 5.0).reports) == [1]
        assert values(sandbox.execute(job("return open('file', 'w').write('ab')"), "", 5.0).reports) == [2]


def test_a_deep_tree_costs_no_server() -> None:
    deep = (
        "import os\n    for _ in range(500): os.mkdir('d'); os.chdir('d')\n    os.chmod('/scratch/d', 0)\n    return os.getpid()"
    )
    with Sandbox(ENTRY, LIMITS, num_workers=1) as sandbox:
        processes = [values(sandbox.execute(job(deep), "", 20.0).reports)[0] for _ in range(3)]
    assert processes == [processes[0], processes[0] + 1, processes[0] + 2]  # of one server, one after the other


def test_an_end_just_before_the_deadline_is_no_fault() -> None:
    """While the server empties a full scratch the process is gone already and the time runs out."""
    late = "import os, time\n    end = time.monotonic() + 0.27\n    for n in range(4000): open(f'f{n}', 'w').close()\n    time.sleep(max(0, end - time.monotonic()))\n    os._exit(0)"
    with Sandbox(ENTRY, LIMITS, num_workers=1) as sandbox:
        assert {sandbox.execute(job(late), "", 0.3).ended for _ in range(6)} <= {"exited", "timeout"}


def test_no_program_may_hold_up_who_opens_a_file() -> None:
    lease = "import fcntl, os; return fcntl.fcntl(os.open(os.__file__, os.O_RDONLY), 1024, 1)"
    with Sandbox(ENTRY, SandboxLimits(), num_workers=1) as sandbox:
        (report,) = sandbox.execute(job(lease), "", 5.0).reports
    assert b"PermissionError" in report


def test_an_input_that_fits_in_no_memory_is_no_programs_fault() -> None:
    with Sandbox(ENTRY, SandboxLimits(memory_mib=64), num_workers=1) as sandbox, pytest.raises(SandboxFault, match="MemoryError"):
        sandbox.execute(function_job("def solve(x):\n    return 1", [["y" * (200 << 20)]]), "", 20.0)
