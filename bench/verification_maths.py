"""The maths verifier, beside math-verify called in this process with its own time limits.

Ours costs more: every answer has a process of its own, and the data set's answer is parsed beside each completion. That
buys a limit in time and memory that holds in any thread and for any input, where the library's alarm works in the main
thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from bench.measure import Row, require_equal, side_by_side
from posttrain.config_verify import VerifySettings
from posttrain.verify.base import VerificationRequest
from posttrain.verify.registry import create_verifier

NUM_ANSWERS = 120
SHARE_WRONG = 0.4
SETTINGS = VerifySettings(timeout_s=10)


def compare() -> list[Row]:
    """Short answers of the usual kinds, in boxes."""
    requests = boxed_answers()
    verifier = create_verifier("maths", SETTINGS)
    require_equal("answers accepted", accepted_by_ours(requests), accepted_by_library(requests))
    return [
        side_by_side(
            f"verification: maths verifier vs math-verify in this process; {len(requests)} boxed answers",
            lambda: verifier.verify(requests),
            lambda: accepted_by_library(requests),
            limit="the peer parses and compares in one process, on one core, without isolation",
            num_items=len(requests),
            item="answers",
        )
    ]


def boxed_answers() -> list[VerificationRequest]:
    """Numbers, fractions, decimals, roots, sets, intervals and polynomials; some are wrong."""
    random = Random(0)
    requests: list[VerificationRequest] = []
    for row in range(NUM_ANSWERS):
        right, other = written(row, random.randint(2, 400), random.randint(2, 40))
        wrong, _ = written(row, random.randint(401, 900), random.randint(41, 80))
        completion = f"We simplify step by step and find \\boxed{{{wrong if random.random() < SHARE_WRONG else other}}}."
        requests.append(VerificationRequest(f"bench:{row}", 0, "What is the value?", completion, right, "stop"))
    return requests


def written(row: int, a: int, b: int) -> tuple[str, str]:
    """One value in two notations."""
    forms = (
        (str(a), str(a)),
        (f"\\frac{{{a}}}{{{b}}}", f"{a}/{b}"),
        (f"\\frac{{{a}}}{{4}}", f"{a / 4}"),
        (f"{b}\\sqrt{{{a}}}", f"\\sqrt{{{a}}} \\cdot {b}"),
        (f"\\{{{a}, {b}\\}}", f"\\{{{b}, {a}\\}}"),
        (f"[{b}, {a + b})", f"[{b},{a + b})"),
        (f"x^2+{2 * b}x+{b * b}", f"(x+{b})^2"),
        (f"{a * 1000}", f"{a},000"),
    )
    return forms[row % len(forms)]


def accepted_by_ours(requests: Sequence[VerificationRequest]) -> list[bool]:
    """Which answers the maths verifier passes."""
    return [verdict.outcome == "pass" for verdict in create_verifier("maths", SETTINGS).verify(requests)]


def accepted_by_library(requests: Sequence[VerificationRequest]) -> list[bool]:
    """Which answers math-verify accepts, called as its documentation shows."""
    from math_verify import parse, verify

    return [bool(verify(parse(f"${request.answer}$"), parse(request.completion))) for request in requests]
