"""The sandbox of the code verifier, beside the prime_code pattern of verl and beside one interpreter for each execution.

Every timed call of either side judges all programs, and its outcomes must be those that the programs were written to have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from bench.measure import Row, require_equal, side_by_side
from bench.verification_corpus import Program, build
from bench.verification_peers import Judge, Outcomes, at_best_workers, by_interpreters, forks_per_s, prime_code
from posttrain.config_verify import VerifySettings
from posttrain.verify.base import VerificationRequest
from posttrain.verify.registry import create_verifier
from posttrain.verify.sandbox.pool import Sandbox

SETTINGS = VerifySettings()
LOOP_SETTINGS = VerifySettings(timeout_s=0.5)
NUM_SAMPLE = 40  # on which a peer finds how many programs at a time are best for it
NUM_USUAL, NUM_PLAIN, NUM_ENDING = 1000, 200, 48  # parts of the corpus, which is shuffled, for rows that need not all of it
NUM_PEER_WORKERS = 2
PRIME_CODE = "verl's prime_code pattern"
SUBPROCESS = "one `subprocess` python each, same limits"
ENDLESS = (
    """def solve(x):
    low, high = 0, x
    while low < high:
        middle = (low + high) // 2
        low = middle
    return low
""",
    """def solve(x):
    steps = 0
    while x != 1:
        x = x * 3 if x % 2 else x + 2
        steps += 1
    return steps
""",
)
ENDLESS_ANSWER = {"mode": "function", "name": "solve", "inputs": [[6], [28]], "outputs": [2, 5]}


def compare() -> list[Row]:
    """The whole corpus against each peer; then what suits the last one best, and what both sides have to wait for."""
    programs = build()
    sample = [program.request for program in programs[:NUM_SAMPLE]]
    forks = forks_per_s(Sandbox.default_workers())
    rows: list[Row] = []
    for manner, name, chosen in (("usual", PRIME_CODE, programs[:NUM_USUAL]), ("best", f"{PRIME_CODE} at its best", programs)):
        with prime_code(manner, SETTINGS.timeout_s) as judge:
            rows.append(compare_on(chosen, name, at_best_workers(judge, sample), forks))
    interpreters = at_best_workers(partial(by_interpreters, timeout_s=SETTINGS.timeout_s), sample)
    rows.append(compare_on(programs, SUBPROCESS, interpreters, forks))
    plain = [program for program in programs if "import" not in program.source]
    rows.append(compare_on(plain[:NUM_PLAIN], f"{SUBPROCESS}, that imports nothing", interpreters, forks))
    return [*rows, compare_with_endless(programs[:NUM_ENDING], forks)]


def compare_on(programs: Sequence[Program], name: str, peer: Judge, forks: float) -> Row:
    """The sandbox beside one peer on programs that end."""
    requests = [program.request for program in programs]
    expected = [program.outcome for program in programs]
    return timed(f"verification: sandbox vs {name}; {len(programs):,} programs", requests, expected, peer, SETTINGS, forks)


def compare_with_endless(programs: Sequence[Program], forks: float) -> Row:
    """The sandbox beside one interpreter each, where a few programs never end."""
    endless = [
        VerificationRequest(f"bench:endless:{n}", 0, "", source, ENDLESS_ANSWER, "stop") for n, source in enumerate(ENDLESS)
    ]
    requests = [*endless, *(program.request for program in programs)]
    expected = ["timeout"] * len(endless) + [program.outcome for program in programs]
    what = f"{len(requests)} programs, {len(endless)} of them stopped after {LOOP_SETTINGS.timeout_s:g} s"
    peer = partial(by_interpreters, num_workers=NUM_PEER_WORKERS, timeout_s=LOOP_SETTINGS.timeout_s)
    return timed(f"verification: sandbox vs {SUBPROCESS}; {what}", requests, expected, peer, LOOP_SETTINGS, forks)


def timed(
    title: str, requests: Sequence[VerificationRequest], expected: Outcomes, peer: Judge, settings: VerifySettings, forks: float
) -> Row:
    """One row; a verifier that is made anew for each call remembers nothing."""

    def ours() -> None:
        found = create_verifier("code", settings).verify(requests)
        require_equal(
            "outcomes of the sandbox and what the programs were written for", [verdict.outcome for verdict in found], expected
        )

    def theirs() -> None:
        require_equal("outcomes of the peer and what the programs were written for", expected, peer(requests))

    row = side_by_side(title, ours, theirs, limit="", num_items=len(requests), item="programs")
    return replace(row, limit=f"fork and wait alone: {forks:,.0f}/s, of which ours reaches {row.ours / forks:.0%}")
