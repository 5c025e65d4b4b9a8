r"""Judges mathematical answers with math-verify, in the sandbox, where a power tower costs its time limit and nothing else.

The answer is a number, a text in LaTeX or plain notation, or a mapping that sets rules for this answer alone:
{"value": "28%", "percent": "bare", "units": "required"}.

Which part of a completion is its answer:
- nothing before the last `</think>`; thinking that never ends holds no answer, `unparseable`; then, where there is one, the
  content of the last <answer>…</answer>. In it:
- the content of the last complete \boxed{…} or \fbox{…}, with nested braces; earlier boxes are taken as retracted, so several
  values belong into one box;
- with only a box that is never closed (a completion cut off): no answer, `unparseable`;
- without any box: the values that end the last line or follow its "answer is", if there are several (`x = 2 or x = 3`, `2, 3`
  with a space after the comma); else what math-verify finds last in the final 4,000 characters ("the final answer is …" before
  others).

What the library leaves open is decided here (math-verify's own behaviour changes between versions):
- `2 2/3` is the mixed number 8/3; `4 10/3` is no number; Unicode minus signs are minus signs;
- percentages, by the rule `verify.percent` or the answer's own. `sign`: 28% is met by 28% and 28 percent, 28 by 28. `hundredths`:
  28% and 0.28 are equal; 28 equals 28% only if the question asks "what percent", and an answer of 28 to such a question means
  28%, so that neither 0.28 nor 2800% meets it. `bare`: besides, 28 and 28% are equal whatever the question;
- units are ignored when math-verify knows them, but 5 km is not 5 m; where the answer's rule is `units: required`, 5 does not
  meet 5 km either. An unevaluated sum such as 1+1 counts as its value;
- several values are a set: their order does not matter, none may be missing, none too many; (3,2) in a box is an ordered pair
  where math-verify does not read an interval;
- a box, and prose that is one expression without words, is read whole or not at all; a final `!` is the factorial;
- two numbers are equal within 5e-7 and within 5e-6 of the larger; a dozen, thousand, million… multiplies the number before it;
- `1 000 000` in a box and `1\,000\,000` anywhere are a million; 1e3 is 1000;
- compared as text, apart from case: words, clock times (3:15), ranges (5..6), statements of inequality (\ne 5), numbers
  side by side ({7 8}), chains such as a=b=5, and a word before a number (5 apples and 6 pears);
- `x = 5` is 5 when its left side is a name; 2+3=5 is an equation, not 5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.config_verify import PercentRule, VerifySettings
from posttrain.verify import units, verdicts
from posttrain.verify.answers import is_number, refuse, require_keys
from posttrain.verify.base import Verdict, VerificationRequest
from posttrain.verify.fences import after_thinking
from posttrain.verify.limits import sandbox_limits
from posttrain.verify.maths_text import BOX, last_box, normalise, stated_list
from posttrain.verify.reasoning_gym import extract_answer
from posttrain.verify.sandbox.pool import Sandbox
from posttrain.verify.scorers import installed, judge_report, scorer_sandbox

MAX_BOX_CHARACTERS = 2_000
MAX_TAIL_CHARACTERS = 4_000
_ASKS_PERCENT = re.compile(r"\b(?:what|which|how many)\s+per\s?cent|\b(?:as a|in)\s+per\s?cent", re.IGNORECASE)


class MathsVerifier:
    """See the module. Reward 1.0 or 0.0."""

    name = "maths"
    version = f"3 ({installed('math-verify', 'latex2sympy2_extended', 'sympy')})"

    def __init__(self, settings: VerifySettings) -> None:
        self._settings = settings

    @property
    def limits(self) -> Mapping[str, Any]:
        """What bounded the verdicts; read after `verify`."""
        return {**sandbox_limits(self._settings), "percent": self._settings.percent.value}

    def check_answer(self, answer: Any) -> None:
        """Raises ConfigError for anything but a number, a text that is not blank, or a mapping of `value` and rules."""
        if isinstance(answer, dict):
            answer = _check_rules(answer)
        if is_number(answer) or (isinstance(answer, str) and answer.strip()):
            return
        raise refuse("answer", answer, "it is neither a number nor a text", r'Give the value, such as "\\frac{8}{3}" or 12.')

    def verify(self, requests: Sequence[VerificationRequest]) -> list[Verdict]:
        """One verdict for each request, in order.

        Raises:
            VerificationError: the sandbox cannot isolate programs on this machine.
        """
        with scorer_sandbox("posttrain.verify.maths_check", self._settings) as sandbox:
            judge = verdicts.guarded(self.check_answer, lambda request: self._judge(sandbox, request))
            return verdicts.collect(sandbox.map(judge, requests), requests, self.name)

    def _judge(self, sandbox: Sandbox, request: VerificationRequest) -> Verdict:
        rules = request.answer if isinstance(request.answer, dict) else {"value": request.answer}
        after = after_thinking(request.completion)
        if after.lstrip().startswith("<think>"):
            return verdicts.unparseable("the thinking never ends")
        stated = extract_answer(after)
        answer, boxed = str(rules["value"]), last_box(stated)
        if boxed is None and BOX.search(stated):
            return verdicts.unparseable("the box is never closed")
        found = stated[-MAX_TAIL_CHARACTERS:] if boxed is None else boxed
        if boxed is not None and len(boxed) > MAX_BOX_CHARACTERS:
            return verdicts.unparseable(f"the boxed answer is longer than {MAX_BOX_CHARACTERS} characters")
        if not found.strip():
            return verdicts.unparseable("the completion holds no answer")
        job = {
            **_found(found, boxed is not None),
            "expected": normalise(last_box(answer) or answer),
            "percent": rules.get("percent", self._settings.percent.value),
            "asks_percent": bool(_ASKS_PERCENT.search(request.prompt)),
            "units_required": rules.get("units") == "required",
        }
        return judge_report(sandbox.execute(job, "", self._settings.timeout_s), self._settings.timeout_s)


def _found(text: str, boxed: bool) -> dict[str, Any]:
    """What is compared, and whether it is an answer and nothing else, as in a box, or prose that holds one."""
    plain = normalise(text, boxed)
    values = None if boxed else stated_list(plain)
    return {"found": values or plain, "boxed": boxed or values is not None}


def _check_rules(answer: Mapping[str, Any]) -> Any:
    """The value of an answer with rules of its own."""
    remedy = 'Use {"value": "28%", "percent": "sign", "hundredths" or "bare", "units": "optional" or "required"}.'
    value = require_keys(answer, ("value",), remedy, optional=("percent", "units"))["value"]
    if answer.get("percent", "sign") not in list(PercentRule):
        raise refuse("answer.percent", answer["percent"], "no such rule", remedy)
    if answer.get("units", "optional") not in ("optional", "required"):
        raise refuse("answer.units", answer["units"], "no such rule", remedy)
    if answer.get("units") == "required" and units.unit(str(value)) is None:
        raise refuse("answer.value", value, "its units are required, but it ends in no known unit", remedy)
    return value
