"""The sandbox of the code verifier, beside the usual pattern: one interpreter with resource limits for each program."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.measure import Row, require_equal, side_by_side
from posttrain import brackets
from posttrain.config_verify import VerifySettings
from posttrain.verify.base import VerificationRequest
from posttrain.verify.compare import equal_values
from posttrain.verify.registry import create_verifier

NUM_PROGRAMS, NUM_LOOPING = 200, 2
NUM_WORKERS = 2
SETTINGS = VerifySettings(timeout_s=0.5)
PYTHON = (sys.executable, "-I", "-S", "-c")  # no site packages, no environment: the interpreter's fastest start
INPUTS = [3, 17, 208, 4096]
FUNCTIONS = {
    "pass": (
        "def solve(x):\n    return sum(int(digit) for digit in str(x))",
        "def solve(x):\n    total = 0\n    while x:\n        x, digit = divmod(x, 10)\n        total += digit\n    return total",
        "import math\ndef solve(x):\n    return math.floor(math.fsum(map(int, str(x))))",
        "from collections import Counter\ndef solve(x):\n    return sum(int(k) * n for k, n in Counter(str(x)).items())",
    ),
    "fail": (
        "def solve(x):\n    return x % 9",
        "def solve(x):\n    return str(x)",
        "def solve(x):\n    return [int(digit) for digit in str(x)][10]",
        "def solve(x):\n    raise ValueError(x)",
    ),
    "timeout": ("def solve(x):\n    while True:\n        pass",),
}
# Set inside the child: a function run between fork and exec would keep subprocess from using vfork.
LIMITS = (
    "import resource as r\nfor limit in ((r.RLIMIT_AS, 256 << 20), (r.RLIMIT_CPU, 2), (r.RLIMIT_NOFILE, 64),"
    " (r.RLIMIT_FSIZE, 1 << 20), (r.RLIMIT_CORE, 0)):\n    r.setrlimit(limit[0], (limit[1], limit[1]))\n"
)
FORKS = (
    "import os, time\nstarted = time.perf_counter()\nfor _ in range(1000):\n    os.waitpid(os.fork() or os._exit(0), 0)\n"
    "print(1000 / (time.perf_counter() - started))"
)


def compare() -> list[Row]:
    """All programs, and those that end: a loop costs both sides the same wait."""
    programs = shuffled_programs()
    verifier = create_verifier("code", SETTINGS)
    everything = [request for request, _ in programs]
    ending = [request for request, outcome in programs if outcome != "timeout"]
    outcomes = [verdict.outcome for verdict in verifier.verify(everything)]
    require_equal("verdicts", outcomes, peer_outcomes(everything))
    require_equal("verdicts and what the programs were written for", outcomes, [outcome for _, outcome in programs])
    limit = f"fork and wait alone: {forks_per_s():,.0f}/s"
    return [
        side_by_side(
            f"verification: sandbox vs `subprocess` with rlimits; {what}",
            lambda chosen=chosen: verifier.verify(chosen),
            lambda chosen=chosen: peer_outcomes(chosen),
            limit=limit,
            num_items=len(chosen),
            item="programs",
        )
        for what, chosen in (
            (f"{len(everything)} programs, {NUM_LOOPING} of them stopped after {SETTINGS.timeout_s:g} s", everything),
            (f"the {len(ending)} that end", ending),
        )
    ]


def shuffled_programs() -> list[tuple[VerificationRequest, str]]:
    """Programs with the outcome that each was written to have: half expressions, half functions."""
    problems = brackets.problems(NUM_PROGRAMS // 2, seed=0)
    sources = [
        (problem.answer, *((problem.flat_expression, "fail"), ("x / 0", "fail"), (problem.expression, "pass"))[min(row % 5, 2)])
        for row, problem in enumerate(problems)
    ]
    digit_sums = [sum(map(int, str(x))) for x in INPUTS]
    answer = {"mode": "function", "name": "solve", "inputs": [[x] for x in INPUTS], "outputs": digit_sums}
    kinds = ["timeout"] * NUM_LOOPING + ["fail"] * 40
    kinds += ["pass"] * (NUM_PROGRAMS - len(sources) - len(kinds))
    for row, kind in enumerate(kinds):
        sources.append((answer, FUNCTIONS[kind][row % len(FUNCTIONS[kind])], kind))
    random.Random(0).shuffle(sources)
    return [
        (VerificationRequest(f"bench:{row}", 0, "", source, answer, "stop"), outcome)
        for row, (answer, source, outcome) in enumerate(sources)
    ]


def peer_outcomes(requests: Sequence[VerificationRequest]) -> list[str]:
    """The usual pattern, as many at a time as there are workers."""
    with ThreadPoolExecutor(NUM_WORKERS) as threads:
        return list(threads.map(peer_outcome, requests))


def peer_outcome(request: VerificationRequest) -> str:
    """Runs one program in an interpreter of its own; it can read files, use the network and leave processes behind."""
    script = LIMITS + runnable(request.completion, request.answer)
    try:
        ended = subprocess.run([*PYTHON, script], capture_output=True, timeout=SETTINGS.timeout_s, text=True, check=False)
    except subprocess.TimeoutExpired:
        return "timeout"
    values = [ast.literal_eval(line) for line in ended.stdout.splitlines()]
    right = ended.returncode == 0 and equal_values(request.answer["outputs"], values)
    return "pass" if right else "fail"


def runnable(source: str, answer: dict[str, Any]) -> str:
    """The program followed by lines that print its value for every input."""
    if answer["mode"] == "expression":
        lines = [f"compute = lambda {answer['variable']}: ({source})"]
    else:
        lines = [source, f"compute = lambda arguments: {answer['name']}(*arguments)"]
    return "\n".join([*lines, f"for value in {answer['inputs']!r}:", "    print(repr(compute(value)))"])


def forks_per_s() -> float:
    """Forks a second of two bare interpreters together: what nothing that runs each program in its own process can pass."""
    children = [subprocess.Popen([*PYTHON, FORKS], stdout=subprocess.PIPE, text=True) for _ in range(NUM_WORKERS)]
    return sum(float(child.communicate()[0]) for child in children)
