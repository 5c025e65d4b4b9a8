r"""Judges mathematical answers with math-verify, in the sandbox, where a power tower costs its time limit and nothing else.

Which part of a completion is its answer:
- the content of the last complete \boxed{…} or \fbox{…}, with nested braces; earlier boxes are taken as retracted;
- with only a box that is never closed (a completion cut off): no answer, `unparseable`;
- without any box: what math-verify finds last in the final 4,000 characters ("the final answer is …" before others).

What the library leaves open is decided here (math-verify's own behaviour changes between versions):
- `2 2/3` is the mixed number 8/3; `4 10/3` is no number; Unicode minus signs are minus signs;
- 28%, 28 percent and 0.28 are equal; 28 equals 28% only if the question asks "what percent", and an answer of 28 to
  such a question means 28%, so that neither 0.28 nor 2800% meets it;
- units are ignored when math-verify knows them, but 5 km is not 5 m; an unevaluated sum such as 1+1 counts as its value;
- `1 000 000` in a box and `1\,000\,000` anywhere are a million; 1e3 is 1000;
- compared as text, apart from case: words, clock times (3:15), ranges (5..6), statements of inequality (\ne 5), numbers
  side by side ({7 8}), chains such as a=b=5, and a word before a number (5 apples and 6 pears);
- `x = 5` is 5 when its left side is a name; 2+3=5 is an equation, not 5.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from posttrain.config_verify import VerifySettings
from posttrain.verify import verdicts
from posttrain.verify.answers import is_number, refuse
from posttrain.verify.base import Verdict, VerificationRequest
from posttrain.verify.maths_text import BOX, last_box, normalise
from posttrain.verify.sandbox.pool import Sandbox, SandboxLimits
from posttrain.verify.scorers import judge_report, scorer_sandbox

MAX_BOX_CHARACTERS = 2_000
MAX_TAIL_CHARACTERS = 4_000
_ASKS_PERCENT = re.compile(r"\b(?:what|which|how many)\s+per\s?cent|\b(?:as a|in)\s+per\s?cent", re.IGNORECASE)


class MathsVerifier:
    """The answer is a number or a text in LaTeX or plain notation. Reward 1.0 or 0.0."""

    name = "maths"
    version = "1"

    def __init__(self, settings: VerifySettings) -> None:
        self._settings = settings
        self._limits = SandboxLimits(memory_mib=settings.memory_mib, cpu_s=math.ceil(settings.timeout_s) + 1)

    def check_answer(self, answer: Any) -> None:
        """Raises ConfigError for anything but a number or a text that is not blank."""
        if is_number(answer) or (isinstance(answer, str) and answer.strip()):
            return
        raise refuse("answer", answer, "it is neither a number nor a text", r'Give the value, such as "\\frac{8}{3}" or 12.')

    def verify(self, requests: Sequence[VerificationRequest]) -> list[Verdict]:
        """One verdict for each request, in order.

        Raises:
            VerificationError: the sandbox cannot isolate programs on this machine.
        """
        with scorer_sandbox("posttrain.verify.maths_check", self._limits, self._settings, len(requests)) as sandbox:
            judge = verdicts.guarded(self.check_answer, lambda request: self._judge(sandbox, request))
            return verdicts.collect(sandbox.map(judge, requests), requests, self.name)

    def _judge(self, sandbox: Sandbox, request: VerificationRequest) -> Verdict:
        answer = str(request.answer)
        boxed = last_box(request.completion)
        if boxed is None and BOX.search(request.completion):
            return verdicts.unparseable("the box is never closed")
        found = request.completion[-MAX_TAIL_CHARACTERS:] if boxed is None else boxed
        if boxed is not None and len(boxed) > MAX_BOX_CHARACTERS:
            return verdicts.unparseable(f"the boxed answer is longer than {MAX_BOX_CHARACTERS} characters")
        if not found.strip():
            return verdicts.unparseable("the completion holds no answer")
        job = {
            "expected": normalise(last_box(answer) or answer),
            "found": normalise(found, boxed is not None),
            "boxed": boxed is not None,
            "asks_percent": bool(_ASKS_PERCENT.search(request.prompt)),
        }
        return judge_report(sandbox.execute(job, "", self._settings.timeout_s), self._settings.timeout_s)
