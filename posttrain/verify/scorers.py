"""Runs a library's scorer on untrusted text: in the sandbox, with the installed packages in view, bounded in everything."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from posttrain.config import VerifySettings
from posttrain.verify import verdicts
from posttrain.verify.answers import is_number
from posttrain.verify.base import Verdict
from posttrain.verify.compare import NotJson, read_json
from posttrain.verify.sandbox.pool import Sandbox, SandboxLimits, SandboxResult

PASS_SCORE = 0.99  # some scorers pay a little for junk; only this much counts as solved


def scorer_sandbox(entry: str, limits: SandboxLimits, settings: VerifySettings, num_requests: int) -> Sandbox:
    """A sandbox whose entry module may import the installed packages."""
    packages = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    workers = min(num_requests, Sandbox.default_workers())
    return Sandbox(entry, limits, policy=settings.sandbox, packages=packages, num_workers=workers)


def judge_report(result: SandboxResult, timeout_s: float) -> Verdict:
    """The verdict on what a scorer reported: `score` in [0, 1], `unparseable`, or `fault`; silence is a fault."""
    if result.ended == "timeout" or (not result.reports and result.exit_status in (-9, -24)):  # CPU limit: SIGKILL, SIGXCPU
        return verdicts.timed_out(f"stopped after {timeout_s:g} s")
    try:
        report = read_json(result.reports[0]) if result.reports else {}
    except NotJson as error:
        report = {"fault": str(error)}
    detail = str(report.get("detail", ""))
    if "unparseable" in report:
        return verdicts.unparseable(str(report["unparseable"]))
    score = report.get("score")
    if not is_number(score) or not (math.isfinite(score) and 0 <= score <= 1):
        silence = f"the scorer gave no score from 0 to 1 ({score}, status {result.exit_status})"
        return verdicts.errored(str(report.get("fault", silence)))
    return verdicts.passed(detail, float(score)) if score >= PASS_SCORE else verdicts.failed(detail, float(score))
