"""Judges answers to reasoning-gym questions with the generator's own scorer, in the sandbox.

The answer is {"dataset": name, "entry": the generated item}. Scored is the content of the last <answer>…</answer> of the
completion, or without one the whole completion. The reward is the score; from 0.99 on the outcome is `pass`.

Some scorers of reasoning-gym pay for junk, hang, or evaluate the text that they score, which could then set its own score.
`reasoning_gym_corrected` replaces some of them; REFUSED names the generators whose answers are not judged, and why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.config_verify import VerifySettings
from posttrain.verify import verdicts
from posttrain.verify.answers import refuse, require_keys
from posttrain.verify.base import Verdict, VerificationRequest
from posttrain.verify.limits import sandbox_limits
from posttrain.verify.sandbox.pool import Sandbox
from posttrain.verify.scorers import installed, judge_report, scorer_sandbox

_EVALUATES = "its scorer evaluates the completion's text as code, so the completion could set its own score"
REFUSED = {
    **dict.fromkeys(
        ("polynomial_multiplication", "simple_integration", "intermediate_integration"), _EVALUATES
    ),
    **dict.fromkeys(
        ("boxnet", "propositional_logic", "rubiks_cube", "rush_hour"),
        "its items hold no answer of their own, so that nothing shows whether its scorer works",
    ),
    **dict.fromkeys(
        ("arc_agi", "rearc", "graph_color"), "its scorer needs tuples or keys that are numbers, which no JSON holds"
    ),
    "game_of_life_halting": "its scorer gives full reward to any text",
    "complex_arithmetic": "its scorer gives full reward to nan",
    "coin_flip": "its scorer gives full reward to 0 for any small probability",
    "composite": "its scorer needs the parts that it was made of, which no item names",
}  # fmt: skip
_REMEDY = 'Use {"dataset": "chain_sum", "entry": {"question": …, "answer": …, "metadata": {…}}}, as the generator made it.'


class ReasoningGymVerifier:
    """See the module."""

    name = "reasoning_gym"
    version = f"3 ({installed('reasoning-gym', 'sympy')})"

    def __init__(self, settings: VerifySettings) -> None:
        self._settings = settings
        self._known: frozenset[str] = frozenset()

    @property
    def limits(self) -> Mapping[str, Any]:
        """What bounded the verdicts; read after `verify`."""
        return sandbox_limits(self._settings)

    def check_answer(self, answer: Any) -> None:
        """Raises ConfigError for a wrong shape, an unknown generator, or one whose scorer cannot be trusted."""
        name, entry = (require_keys(answer, ("dataset", "entry"), _REMEDY)[key] for key in ("dataset", "entry"))
        if not isinstance(name, str) or name not in self._datasets():
            raise refuse("answer.dataset", name, "reasoning-gym has no such generator", _REMEDY)
        if name in REFUSED:
            raise refuse("answer.dataset", name, REFUSED[name], "Choose another generator, or judge its answers with exact.")
        if not isinstance(entry, dict) or not {"question", "answer", "metadata"} <= entry.keys():
            raise refuse("answer.entry", entry, "it is not an item with question, answer and metadata", _REMEDY)

    def verify(self, requests: Sequence[VerificationRequest]) -> list[Verdict]:
        """One verdict for each request, in order.

        Raises:
            VerificationError: the sandbox cannot isolate programs on this machine.
        """
        with scorer_sandbox("posttrain.verify.reasoning_gym_check", self._settings) as sandbox:
            judge = verdicts.guarded(self.check_answer, lambda request: self._judge(sandbox, request))
            return verdicts.collect(sandbox.map(judge, requests), requests, self.name)

    def _judge(self, sandbox: Sandbox, request: VerificationRequest) -> Verdict:
        text = extract_answer(request.completion)
        if not text:
            return verdicts.unparseable("the completion holds no answer")
        job = {**request.answer, "text": text}
        return judge_report(sandbox.execute(job, "", self._settings.timeout_s), self._settings.timeout_s)

    def _datasets(self) -> frozenset[str]:
        if not self._known:
            from reasoning_gym.factory import DATASETS

            self._known = frozenset(DATASETS)
        return self._known


def extract_answer(completion: str) -> str:
    """The content of the last <answer>…</answer>, or without one the whole completion; stripped."""
    end = completion.rfind("</answer>")
    start = completion.rfind("<answer>", 0, max(0, end))
    return (completion if start < 0 else completion[start + len("<answer>") : end]).strip()
