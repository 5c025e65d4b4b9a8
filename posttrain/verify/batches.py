"""What comes back from a verifier, whatever it is, as one sound verdict for each request."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Protocol

from posttrain.advantages import MAX_REWARD
from posttrain.errors import ConfigError, VerificationError
from posttrain.table_checks import OUTCOMES, UNJUDGED
from posttrain.verify import verdicts
from posttrain.verify.base import Part, Verdict, VerificationRequest

PART_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")  # it becomes part of the names of metrics


class Judges(Protocol):
    """The part of a verifier that judges."""

    def verify(self, requests: Sequence[VerificationRequest]) -> list[Verdict]: ...


def verify_safely(
    verifier: Judges,
    requests: Sequence[VerificationRequest],
    fatal: tuple[type[Exception], ...] = (VerificationError, ConfigError),
) -> list[Verdict]:
    """One sound verdict for each request, in order; what is not sound becomes `error`, for the rows that it concerns.

    A call that raises, or that gives another number of verdicts than it had requests, is repeated row by row.

    Args:
        fatal: what is passed on, because it is of no row: nothing can be verified here, or a setting cannot be used.
    """
    if not requests:
        return []
    try:
        found: Any = verifier.verify(requests)
        fault = "" if isinstance(found, list) and len(found) == len(requests) else _wrong_number(found, len(requests))
    except fatal:
        raise
    except Exception as error:
        found, fault = [], f"{type(error).__name__}: {error}"
    if not fault:
        return [sound(verdict) for verdict in found]
    if len(requests) == 1:
        return [verdicts.errored(fault)]
    return [verdict for request in requests for verdict in verify_safely(verifier, [request], fatal)]


def sound(verdict: Any) -> Verdict:
    """`verdict` if a VERDICTS table can hold it, else an `error` that says what is wrong with it."""
    try:
        fault = _fault(verdict)
        return verdicts.errored(f"the verifier gave {fault}") if fault else _as_plain(verdict)
    except Exception as error:  # fields may hold anything
        return verdicts.errored(f"the verifier gave a verdict that cannot be read ({type(error).__name__}: {error})")


def is_finite(value: Any) -> bool:
    """Whether `value` is a finite integer or float, of Python or numpy; True is none."""
    if isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, OverflowError):
        return False


def _as_plain(verdict: Verdict) -> Verdict:
    """Of our own types alone: a subclass may have more fields, and numpy's numbers are no JSON."""
    parts = tuple(Part(part.name, part.outcome, _plain(part.reward), float(part.weight)) for part in verdict.parts)
    detail = verdicts.clean(str(verdict.detail))
    return Verdict(verdict.outcome, _plain(verdict.reward), detail, float(verdict.seconds), parts)


def _plain(reward: float | None) -> float | None:
    return None if reward is None else float(reward)


def _wrong_number(found: Any, num_requests: int) -> str:
    given = f"{len(found)} verdicts" if isinstance(found, list) else f"a {type(found).__name__}"
    return f"the verifier gave {given} for {num_requests} completions; wanted is a list with one verdict for each"


def _fault(verdict: Any) -> str:
    if not isinstance(verdict, Verdict):
        return f"a {type(verdict).__name__} for a verdict"
    if verdict.outcome not in OUTCOMES:
        return f"the outcome {verdict.outcome!r}, which is none of {', '.join(OUTCOMES)}"
    if not (is_finite(verdict.seconds) and verdict.seconds >= 0):
        return f"{verdict.seconds!r} seconds"
    fault = next(filter(None, map(_part_fault, verdict.parts)), "")
    if not fault and len({part.name for part in verdict.parts}) < len(verdict.parts):
        fault = "two parts of the same name"
    return fault or next(filter(None, (_reward_fault(said) for said in (verdict, *verdict.parts))), "")


def _part_fault(part: Any) -> str:
    if not isinstance(part, Part) or part.outcome not in OUTCOMES or not is_finite(part.weight):
        return f"the part {part!r}"
    if not PART_NAME.fullmatch(part.name):
        return f"a part with the name {part.name!r}; a name has up to 64 letters, digits, '_', '.' and '-'"
    return ""


def _reward_fault(said: Verdict | Part) -> str:
    if (said.reward is None) != (said.outcome in UNJUDGED):
        return f"the outcome {said.outcome} with the reward {said.reward!r}"
    if said.reward is None:
        return ""
    if not is_finite(said.reward):
        return f"the reward {said.reward!r}, which is no finite number"
    return "" if abs(said.reward) <= MAX_REWARD else f"the reward {said.reward!r:.40}, which is beyond ±{MAX_REWARD:g}"
