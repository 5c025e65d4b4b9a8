"""A weighted sum of other verifiers' rewards.

The answer is {"parts": [{"name": "correct", "verifier": "maths", "weight": 1.0, "answer": …}, {"verifier": "format",
"weight": 0.1, "answer": …}]}; a part without a name is called as its verifier. A weight may be negative.

- The reward is the sum of weight × reward over the parts.
- An `error` of a part makes the whole an `error`: a sum with a part missing would be a wrong reward.
- A part that abstains adds nothing, and the other weights stay as they are: raised in its place they would pay a completion
  more for making a part abstain. When every part abstains, the whole does.
- The parts that weigh most, of those that judged, decide the outcome: `pass` when each of them passes, else the outcome of
  the first that does not. Lighter parts shape the reward alone, so that a small bonus for form is no matter of right or wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from posttrain.advantages import MAX_REWARD
from posttrain.config_verify import VerifySettings
from posttrain.errors import ConfigError
from posttrain.table_checks import UNJUDGED
from posttrain.verify import verdicts
from posttrain.verify.answers import refuse, require_keys
from posttrain.verify.base import Part, Verdict, VerificationRequest, Verifier
from posttrain.verify.batches import PART_NAME, is_finite, verify_safely

_REMEDY = 'Use {"parts": [{"name": "correct", "verifier": "maths", "weight": 1.0, "answer": …}, …]}.'


class WeightedVerifier:
    """See the module. Each part's verifier is called once for all completions."""

    name = "weighted"

    def __init__(self, settings: VerifySettings, create: Callable[[str, VerifySettings], Verifier]) -> None:
        self._settings, self._create = settings, create
        self._verifiers: dict[str, Verifier] = {}

    @property
    def version(self) -> str:
        """Its own, and those of the verifiers that it has asked."""
        asked = ", ".join(f"{name} {verifier.version}" for name, verifier in sorted(self._verifiers.items()))
        return f"1 ({asked})" if asked else "1"

    @property
    def limits(self) -> Mapping[str, Any]:
        """The limits of each verifier that it has asked."""
        return {name: dict(verifier.limits) for name, verifier in sorted(self._verifiers.items())}

    def check_answer(self, answer: Any) -> None:
        """Raises ConfigError for another shape, an unknown verifier, or an answer that a part's verifier refuses."""
        parts = require_keys(answer, ["parts"], _REMEDY)["parts"]
        if not isinstance(parts, list) or not parts:
            raise refuse("answer.parts", parts, "it is not a list, or an empty one", _REMEDY)
        for number, part in enumerate(parts):
            self._check_part(f"answer.parts[{number}]", part)
        names = [part_name(part) for part in parts]
        if len(set(names)) < len(names):
            raise refuse("answer.parts", names, "two parts have the same name", "Give every part a name of its own.")

    def verify(self, requests: Sequence[VerificationRequest]) -> list[Verdict]:
        """One verdict for each request, in order.

        Raises:
            VerificationError: from a part's verifier, that it cannot verify on this machine.
        """
        problems = [self._problem(request.answer) for request in requests]
        asked: dict[str, list[tuple[int, int]]] = {}  # verifier → (row, part)
        for row, request in enumerate(requests):
            for number, part in enumerate([] if problems[row] else request.answer["parts"]):
                asked.setdefault(part["verifier"], []).append((row, number))
        said: dict[tuple[int, int], Verdict] = {}
        for name, places in asked.items():
            wanted = [replace(requests[row], answer=requests[row].answer["parts"][number]["answer"]) for row, number in places]
            said.update(zip(places, verify_safely(self._verifier(name), wanted), strict=True))
        return [
            verdicts.errored(problem) if problem else _summed(request.answer["parts"], row, said)
            for row, (request, problem) in enumerate(zip(requests, problems, strict=True))
        ]

    def _verifier(self, name: str) -> Verifier:
        if name not in self._verifiers:
            self._verifiers[name] = self._create(name, self._settings)
        return self._verifiers[name]

    def _problem(self, answer: Any) -> str:
        try:
            self.check_answer(answer)
        except ConfigError as error:
            return str(error)
        return ""

    def _check_part(self, field: str, part: Any) -> None:
        require_keys(part, ["verifier", "weight", "answer"], _REMEDY, optional=["name"])
        if not isinstance(part["verifier"], str) or part["verifier"] == self.name:
            raise refuse(f"{field}.verifier", part["verifier"], "it is not the name of a single verifier", _REMEDY)
        if not isinstance(part_name(part), str) or not PART_NAME.fullmatch(part_name(part)):
            why = "a name has up to 64 letters, digits, '_', '.' and '-'"
            raise refuse(f"{field}.name", part_name(part), why, "It becomes part of the names of metrics.")
        if not is_finite(part["weight"]):
            raise refuse(f"{field}.weight", part["weight"], "it is not a finite number", _REMEDY)
        if abs(part["weight"]) > MAX_REWARD:
            raise refuse(f"{field}.weight", part["weight"], f"it is beyond ±{MAX_REWARD:g}", "No reward may be that large.")
        try:
            self._verifier(part["verifier"]).check_answer(part["answer"])
        except ConfigError as error:
            why = f"part {part_name(part)!r}: {error.why}"
            raise refuse(f"{field}.{error.field}", error.value, why, error.remedy) from error


def part_name(part: Mapping[str, Any]) -> Any:
    """The name under which a part is logged."""
    return part.get("name", part["verifier"])


def _summed(parts: Sequence[Mapping[str, Any]], row: int, said: Mapping[tuple[int, int], Verdict]) -> Verdict:
    each = [said[row, number] for number in range(len(parts))]
    logged = tuple(
        Part(part_name(part), verdict.outcome, verdict.reward, float(part["weight"]))
        for part, verdict in zip(parts, each, strict=True)
    )
    detail = "; ".join(_describe(part, verdict) for part, verdict in zip(logged, each, strict=True))
    reward = sum(part.weight * part.reward for part in logged if part.reward is not None)
    outcome = _outcome(logged)
    return Verdict(
        outcome=outcome,
        reward=None if outcome in UNJUDGED else reward,
        detail=verdicts.clean(detail),
        seconds=sum(verdict.seconds for verdict in each),
        parts=logged,
    )


def _outcome(parts: Sequence[Part]) -> str:
    if any(part.outcome == "error" for part in parts):
        return "error"
    judged = [part for part in parts if part.reward is not None]
    if not judged:
        return "abstain"
    most = max(part.weight for part in judged)
    return next((part.outcome for part in judged if part.weight == most and part.outcome != "pass"), "pass")


def _describe(part: Part, verdict: Verdict) -> str:
    reward = "" if part.reward is None else f" {part.reward:g}"
    return f"{part.name}: {part.outcome}{reward}" + (f" ({verdict.detail})" if verdict.detail else "")
