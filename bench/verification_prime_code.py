"""The pattern of verl's `prime_code` scorer in an interpreter of its own: python bench/verification_prime_code.py usual|best

For every sample a `multiprocessing.Manager` with a shared list and a `Process` that runs all tests in itself, under a
guard and a time limit, and appends its result; a `ProcessPoolExecutor` calls that, as verl's prime reward manager does.
`usual` forks from a process that has imported torch, as that manager has, and runs for every program the star imports
that verl puts before it; `best` is spared both. Written anew, and in either case without what costs verl more: no model in
the process that forks, no second run, test by test, of a sample that fails; what programs import is imported before.

Reads lines of JSON {"samples": [[source, answer], …], "num_workers", "timeout_s"}; writes a line for each, the outcomes.
"""

from __future__ import annotations

import builtins
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import MutableSequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NoReturn

from verification_plain import OUTCOMES, kind_of

PRELOADED = (
    "bisect", "collections", "copy", "datetime", "functools", "heapq", "io", "itertools", "json", "math", "operator", "random",
    "re", "statistics", "string", "typing",
)  # fmt: skip
FORBIDDEN = {
    os: ("chdir", "chmod", "chown", "chroot", "fchdir", "fchmod", "fchown", "fork", "forkpty", "getcwd", "kill", "killpg",
         "lchown", "putenv", "remove", "removedirs", "rename", "renames", "replace", "rmdir", "setuid", "system", "truncate",
         "unlink"),
    shutil: ("chown", "move", "rmtree"),
    subprocess: ("Popen",),
    builtins: ("exit", "quit"),
}  # fmt: skip
STARS = (*PRELOADED, "builtins", "sys")
PRELUDE = "".join(f"from {name} import *\nimport {name}\n" for name in STARS)


def main() -> None:
    """Serves batches until stdin ends."""
    usual = sys.argv[1] == "usual"
    for name in (*PRELOADED, *(["torch"] if usual else [])):
        importlib.import_module(name)
    for line in sys.stdin:
        batch = json.loads(line)
        with ProcessPoolExecutor(batch["num_workers"]) as executor:
            judge = partial(judge_sample, timeout_s=batch["timeout_s"], prelude=PRELUDE if usual else "")
            print(json.dumps(list(executor.map(judge, batch["samples"]))), flush=True)


def judge_sample(sample: tuple[str, dict[str, Any]], timeout_s: float, prelude: str) -> str:
    """One manager and one process for one sample."""
    with multiprocessing.Manager() as manager:
        results = manager.list()
        process = multiprocessing.Process(target=run_tests, args=(*sample, timeout_s, prelude, results))
        process.start()
        process.join(timeout_s + 1)
        if process.is_alive():
            process.kill()
            process.join()
        return results[0] if len(results) else "timeout"


def run_tests(source: str, answer: dict[str, Any], timeout_s: float, prelude: str, results: MutableSequence[str]) -> None:
    """Runs the program, which could reach the list as well, and appends the outcome."""
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    guard()
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        exec(prelude, {})  # noqa: S102 - apart from the program, which else would not miss the imports that it forgot
        results.append(OUTCOMES[kind_of(source, answer)])
    except TimeLimitError:
        results.append("timeout")


class TimeLimitError(BaseException):
    """The time is over."""


def stop(number: int, frame: Any) -> NoReturn:
    """Ends a program from its own process."""
    raise TimeLimitError


def guard() -> None:
    """Takes away what would do harm by mistake; not a barrier, and no limit of memory, as verl calls it."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for module, names in FORBIDDEN.items():
        for name in names:
            setattr(module, name, None)


if __name__ == "__main__":
    main()
