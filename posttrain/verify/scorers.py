"""Runs a library's scorer on untrusted text: in the sandbox, with the installed packages in view, bounded in everything."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from posttrain.config_verify import VerifySettings
from posttrain.verify import verdicts
from posttrain.verify.base import PASS_SCORE, Verdict
from posttrain.verify.compare import NotJson, read_json
from posttrain.verify.sandbox.pool import Sandbox, SandboxLimits, SandboxResult


@dataclass
class _Shared:
    sandbox: Sandbox
    num_users: int = 0


_shared: dict[Hashable, _Shared] = {}
_lock = threading.Lock()


@contextmanager
def scorer_sandbox(entry: str, settings: VerifySettings) -> Iterator[Sandbox]:
    """A sandbox whose entry module may import the installed packages.

    Callers at the same time share one, and the last to leave ends it: a server takes seconds to import such a library.
    """
    key = (entry, settings.memory_mib, settings.timeout_s, settings.sandbox)
    with _lock:
        shared = _shared.get(key) or _Shared(_open_sandbox(entry, settings))
        _shared[key] = shared
        shared.num_users += 1
    try:
        yield shared.sandbox
    finally:
        with _lock:
            shared.num_users -= 1
            unused = shared.num_users == 0
            if unused:
                del _shared[key]
        if unused:
            shared.sandbox.__exit__(None, None, None)


def _open_sandbox(entry: str, settings: VerifySettings) -> Sandbox:
    limits = SandboxLimits(memory_mib=settings.memory_mib, cpu_s=math.ceil(settings.timeout_s) + 1)
    packages = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    return Sandbox(entry, limits, policy=settings.sandbox, packages=packages).__enter__()


def installed(*packages: str) -> str:
    """The versions of `packages` here, for a verifier's own version: an upgrade may change verdicts."""
    return ", ".join(f"{name} {_version(name)}" for name in packages)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def judge_report(result: SandboxResult, timeout_s: float) -> Verdict:
    """The verdict on what a scorer reported.

    First it says `ready`: the dataset's answer is one that it can judge, so that whatever goes wrong from there on is the
    completion's doing; before, it is a `fault`. Then it says `score` in [0, 1], or `unparseable`.
    """
    return replace(_judge_report(result, timeout_s), seconds=result.seconds)


def _judge_report(result: SandboxResult, timeout_s: float) -> Verdict:
    try:
        reports = [read_json(line) for line in result.reports]
    except NotJson as error:
        return verdicts.errored(str(error))
    ready = {"ready": True} in reports
    report = reports[-1] if reports and reports[-1] != {"ready": True} else {}
    if not report and (result.ended == "timeout" or result.exit_status in (-9, -24)):  # CPU limit: SIGKILL, SIGXCPU
        if not ready:
            return verdicts.errored(f"the dataset's answer was not understood within {timeout_s:g} s")
        return verdicts.timed_out(f"stopped after {timeout_s:g} s")
    if "score" in report:
        detail, score = str(report.get("detail", "")), float(report["score"])
        return verdicts.passed(detail, score) if score >= PASS_SCORE else verdicts.failed(detail, score)
    if ready:
        return verdicts.unparseable(str(report.get("unparseable", f"the scorer broke off on it (status {result.exit_status})")))
    return verdicts.errored(str(report.get("fault", f"the scorer said nothing (status {result.exit_status})")))
