"""50,000 executions through one sandbox: memory, descriptors, processes, mounts, cgroups and files stay as they were.

Some of the programs write scratch files, start threads, leave daemons, die by signals, ask for too much or never end. After every
thousand, when nothing runs, the state is written down. Asserted: every outcome, no slope in memory, and nothing left behind.
"""

from __future__ import annotations

import csv
import ctypes
import os
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path

import numpy as np

from bench.measure import Row
from bench.verification_corpus import build
from posttrain.config_verify import VerifySettings
from posttrain.verify.base import VerificationRequest
from posttrain.verify.code_cases import judge_values
from posttrain.verify.fences import extract_code
from posttrain.verify.sandbox.pool import Sandbox, SandboxLimits

NUM_EXECUTIONS, SAMPLE_EVERY = 50_000, 1_000
NUM_WARM = 5  # samples before memory has reached its height
MAX_SLOPE_BYTES = 16 << 10  # for each 1,000 executions; one Python object left by each would be 50 KB or more
MAX_LOOKS, NUM_EQUAL_LOOKS = 40, 3
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MARK = f"bench-endurance-{os.getpid()}"
SHARED_DIRECTORIES = ("/tmp", "/dev/shm", "/var/tmp")  # noqa: S108 - where leftovers are looked for
SETTINGS = VerifySettings(timeout_s=1.0)
ANSWER = {"mode": "function", "name": "solve", "inputs": [[1], [2]], "outputs": [1, 2]}
# of every thousand programs: how many, which outcomes they may have, what each does before it returns its argument
TROUBLE = (
    (10, {"pass"}, f"""
    for place in ("/tmp", "/dev/shm", "/var/tmp", "."):
        for number in range(20):
            try:
                open(f"{{place}}/{MARK}-{{x}}-{{number}}", "wb").write(b"0" * 4096)
            except OSError:
                pass"""),
    (10, {"pass"}, """
    import threading, time
    for _ in range(2):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()"""),
    (10, {"pass", "fail"}, """
    import os, time
    try:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(3600)
            os._exit(0)
    except OSError:
        pass"""),
    (10, {"fail"}, """
    import os, random, signal
    os.kill(os.getpid(), random.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM)))"""),
    (5, {"fail"}, """
    import sys
    while True:
        sys.stdout.write("flood" * 10000)"""),
    (5, {"fail"}, """
    x = len(bytearray(1 << 31))"""),
    (1, {"timeout"}, """
    while True:
        pass"""),
)  # fmt: skip


@dataclass(frozen=True)
class State:
    """What is in use between two executions. Bytes are resident memory; the servers' are summed over all of them."""

    executions: int
    seconds: float
    own_bytes: int
    server_bytes: int
    descriptors: int
    server_descriptors: int
    processes: int
    zombies: int
    mounts: int
    server_mounts: int
    cgroups: int
    files: int


def compare() -> list[Row]:
    """Writes all samples, prints a table and a statement, and raises ValueError where that does not hold; there is no peer."""
    states = endure(NUM_EXECUTIONS)
    path = Path(os.environ.get("POSTTRAIN_WORKSPACE", "workspace")) / "bench" / "verification_endurance.csv"
    write_csv(states, path)
    print_states(states)
    check(states)
    print(f"{statement(states)}\n{path}")
    return []


def endure(num_executions: int) -> list[State]:
    """The state before, after every SAMPLE_EVERY executions, and (last) when the sandbox is closed.

    Raises:
        ValueError: a wrong outcome.
    """
    adopt_orphans()
    before_tmp, tempfile.tempdir = tempfile.tempdir, tempfile.mkdtemp(prefix="posttrain-bench-")
    programs = mixed_programs()
    limits = SandboxLimits(memory_mib=SETTINGS.memory_mib, cpu_s=2)
    started = time.monotonic()
    states = [observe(0, started)]
    try:
        with Sandbox("posttrain.verify.programs", limits, policy=SETTINGS.sandbox) as sandbox:
            for done in range(0, num_executions, SAMPLE_EVERY):
                run_once(sandbox, programs)
                states.append(settled(done + SAMPLE_EVERY, started))
        states.append(settled(num_executions, started))
    finally:
        Path(tempfile.tempdir).rmdir()  # fails where something is left
        tempfile.tempdir = before_tmp
    return states


def adopt_orphans() -> None:
    """Whatever escapes from a server becomes a child of this process, where it is counted (prctl PR_SET_CHILD_SUBREAPER)."""
    if ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this process cannot adopt orphans")


def mixed_programs() -> list[tuple[VerificationRequest, set[str]]]:
    """SAMPLE_EVERY programs with the outcomes that they may have."""
    trouble = [
        (VerificationRequest("bench", 0, "", f"def solve(x):{body}\n    return x", ANSWER, "stop"), outcomes)
        for count, outcomes, body in TROUBLE
        for _ in range(count)
    ]
    functions = [program for program in build() if program.request.answer["mode"] == "function"]
    usual = [(program.request, {program.outcome}) for program in functions]
    programs = [*trouble, *(usual * 2)[: SAMPLE_EVERY - len(trouble)]]
    random.Random(0).shuffle(programs)
    return programs


def run_once(sandbox: Sandbox, programs: Sequence[tuple[VerificationRequest, set[str]]]) -> None:
    """One execution of every program."""

    def judge(program: tuple[VerificationRequest, set[str]]) -> None:
        request, outcomes = program
        source = extract_code(request.completion, request.answer["name"])
        verdict = judge_values(sandbox, source, request.answer, SETTINGS)
        if verdict.outcome not in outcomes:
            raise ValueError(f"{verdict.outcome} ({verdict.detail}), where {outcomes} was written:\n{source}")

    for _ in sandbox.map(judge, programs):
        pass


def settled(executions: int, started: float) -> State:
    """The state once the servers have put away the last program and wait for the next: the first that is seen several times."""
    looks = [observe(executions, started)]
    for _ in range(MAX_LOOKS):
        time.sleep(0.05)
        looks.append(observe(executions, started))
        if len({(state.processes, state.server_descriptors) for state in looks[-NUM_EQUAL_LOOKS:]}) == 1 < len(looks) - 1:
            break
    return looks[-1]


def observe(executions: int, started: float) -> State:
    """The state now, when no program runs."""
    ours = list(descendants(os.getpid()))
    directories = [Path(name) for name in SHARED_DIRECTORIES]
    return State(
        executions=executions,
        seconds=time.monotonic() - started,
        own_bytes=resident_bytes(os.getpid()),
        server_bytes=sum(map(resident_bytes, ours)),
        descriptors=len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        server_descriptors=sum(count(process, "fd") for process in ours),
        processes=len(ours),
        zombies=sum(status(process).get("State", "").startswith("Z") for process in ours),
        mounts=count(os.getpid(), "mounts"),
        server_mounts=sum(count(process, "mounts") for process in ours),
        cgroups=len(list(Path("/sys/fs/cgroup").rglob(f"posttrain-sandbox-{os.getpid()}-*"))),
        files=sum(len(list(directory.glob(f"*{MARK}*"))) for directory in directories) + len(os.listdir(tempfile.gettempdir())),  # noqa: PTH208
    )


def descendants(process: int) -> Iterator[int]:
    """The children of a process and theirs."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        if found := status(int(name)):
            children[int(found["PPid"])].append(int(name))
    todo = list(children[process])
    while todo:
        yield (found := todo.pop())
        todo += children[found]


def status(process: int) -> dict[str, str]:
    """/proc/…/status; empty when the process has gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def resident_bytes(process: int) -> int:
    """Memory that the process has in use, shared or not; 0 when it has gone."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def count(process: int, what: str) -> int:
    """Open descriptors (`fd`) or mounts of a process; 0 when it has gone, or where only the machine's administrator may look."""
    path = Path(f"/proc/{process}/{what}")
    try:
        return len(list(path.iterdir())) if path.is_dir() else len(path.read_text().splitlines())
    except OSError:
        return 0


def check(states: Sequence[State]) -> None:
    """Raises ValueError for memory that grows, or for anything that is more after the first thousand or after the end."""
    first, running, last = states[0], states[1:-1], states[-1]
    for name in ("descriptors", "processes", "zombies", "mounts", "cgroups", "files"):
        if getattr(last, name) > getattr(first, name):
            raise ValueError(f"{name}: {getattr(first, name)} before, {getattr(last, name)} when the sandbox was closed")
    for name in ("descriptors", "server_descriptors", "processes", "zombies", "mounts", "server_mounts", "cgroups", "files"):
        if len(values := {getattr(state, name) for state in running}) > 1:
            raise ValueError(f"{name} changed while the sandbox ran: {sorted(values)}")
    if len(running) > 2 * NUM_WARM:
        for name in ("own_bytes", "server_bytes"):
            if (slope := slope_bytes(running, name)) > MAX_SLOPE_BYTES:
                raise ValueError(f"{name} grows by {slope:,.0f} bytes for each 1,000 executions; allowed are {MAX_SLOPE_BYTES:,}")


def slope_bytes(running: Sequence[State], name: str) -> float:
    """Growth for each 1,000 executions: the line of least squares through all samples but the first NUM_WARM."""
    warm = running[NUM_WARM:]
    return float(np.polyfit([state.executions / 1000 for state in warm], [getattr(state, name) for state in warm], 1)[0])


def statement(states: Sequence[State]) -> str:
    """What was seen, in a sentence."""
    running, last = states[1:-1], states[-2]
    own, servers = (slope_bytes(running, name) / 1024 for name in ("own_bytes", "server_bytes"))
    return (
        f"\n{last.executions:,} executions in {last.seconds:.0f} s ({last.executions / last.seconds:,.0f}/s, stopped ones "
        f"included). For each 1,000 memory grows by {own:+.2f} KiB (this process) and {servers:+.2f} KiB (servers); allowed are "
        f"{MAX_SLOPE_BYTES >> 10}. Descriptors, processes, mounts, cgroups and files are the same after every 1,000, "
        "and nothing is left at the end."
    )


def print_states(states: Sequence[State]) -> None:
    """A Markdown table of every tenth sample, the first, and the end."""
    names = [field.name for field in fields(State)]
    print(
        "| " + " | ".join(name.replace("bytes", "MiB").replace("_", " ") for name in names) + " |\n" + "|---" * len(names) + "|"
    )
    for state in dict.fromkeys([*states[:2], *states[10:-1:10], states[-1]]):
        print("| " + " | ".join(shown(name, value) for name, value in asdict(state).items()) + " |")


def shown(name: str, value: float) -> str:
    """Bytes in MiB, seconds whole."""
    return f"{value / 2**20:.1f}" if name.endswith("bytes") else f"{value:,.0f}"


def write_csv(states: Sequence[State], path: Path) -> None:
    """All samples."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as sink:
        writer = csv.writer(sink)
        writer.writerow(field.name for field in fields(State))
        writer.writerows([astuple(state) for state in states])
