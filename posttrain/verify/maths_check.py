"""Entry module of the sandbox for maths: parses both sides with math-verify and compares them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from posttrain.verify import maths_text, units

RELATIVE_TOLERANCE = 5e-6  # six significant digits
Report = Callable[[Any], None]


def preload() -> None:
    """Imports the library and fills its caches, once, before any fork."""
    logging.disable(logging.CRITICAL)
    _equal(_parse("$\\frac{1}{2}$"), _parse("The answer is 0.5"))


def run(job: dict[str, Any], report: Report) -> int:
    """Reports `ready` once the expected answer is understood, then a score or why the completion has none."""
    try:
        understood = maths_text.is_text(job["expected"]) or _equals_itself(job["expected"])
        problem = "cannot be parsed"
    except Exception as error:
        understood, problem = False, f"cannot be judged: {type(error).__name__}: {error}"
    if not understood:
        report({"fault": f"the dataset's answer {job['expected'][:200]!r} {problem}"[:500]})
        return 1
    report({"ready": True})
    try:
        report(_judge(job))
    except BaseException as error:
        report({"unparseable": f"math-verify cannot handle it ({type(error).__name__})"})
    return 0


def _equals_itself(text: str) -> bool:
    expected = _parse_answer(text)
    return expected is not None and _equal(expected, expected)


def _judge(job: dict[str, Any]) -> dict[str, Any]:
    expected, found = job["expected"], job["found"]
    stated = maths_text.stated_last(found)
    if maths_text.is_text(expected) or (job["boxed"] and maths_text.is_text(stated)):
        return _score(maths_text.equal_as_text(expected, stated), expected, stated)
    if units.contradict(expected, found, job["units_required"]):
        return _score(False, expected, found)
    if not job["boxed"]:
        return _compare(expected, _parse_prose(found), job)
    aligned = maths_text.align_equations(expected, stated)
    if aligned is None:
        return _score(False, expected, found)
    expected, found = units.without_units(*aligned)
    return _compare(expected, _parse_answer(found), job)


def _compare(expected_text: str, found: Any, job: dict[str, Any]) -> dict[str, Any]:
    if found is None:
        return {"unparseable": "no mathematical answer found"}
    expected = _parse_answer(expected_text)
    return _score(_equal_with_percent(expected, found, job["percent"], job["asks_percent"]), expected, found)


def _score(equal: bool, expected: Any, found: Any) -> dict[str, Any]:
    return {"score": float(equal), "detail": f"expected {_show(expected)}, found {_show(found)}"}


def _show(value: Any) -> str:
    try:
        return str(value)[:240]
    except Exception:  # nested too deeply to print
        return f"a {type(value).__name__}"


def _parse_answer(text: str) -> Any:
    """The value of the whole text as LaTeX, or None: patterns for numbers in prose would pick a fragment of it."""
    from math_verify import LatexExtractionConfig

    stripped = text.strip().strip("$").strip()
    return None if "$" in stripped or not stripped else _parse(f"${stripped}$", [LatexExtractionConfig()])


def _parse_prose(prose: str) -> Any:
    """The value that prose states: as a whole where it is one expression, else what math-verify finds last."""
    if maths_text.is_hedge(prose):
        return None
    whole = maths_text.expression(prose)
    if whole is not None and units.unit(whole) is None:
        found = _parse_answer(maths_text.value(whole) or whole)
        if found is not None or not maths_text.is_single(whole):
            return found
    return _parse(maths_text.without_false_values(prose))


def _parse(text: str, patterns: Sequence[Any] = ()) -> Any:
    """The last expression that math-verify finds by `patterns`, by default LaTeX and plain numbers; or None."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    sys.set_int_max_str_digits(0)
    patterns = patterns or [LatexExtractionConfig(), ExprExtractionConfig()]
    found = parse(text, patterns, fallback_mode="no_fallback", parsing_timeout=None)  # type: ignore[arg-type]
    return found[0] if found else None


def _equal(expected: Any, found: Any) -> bool:
    from math_verify import verify

    return bool(verify([expected], [found], timeout_seconds=None, raise_on_error=True)) and _near(expected, found)


def _near(expected: Any, found: Any) -> bool:
    """Whether two numbers are near for their size: math-verify rounds to six decimals, which makes all tiny ones equal."""
    from sympy import Expr

    if not all(isinstance(side, Expr) and side.is_number for side in (expected, found)):
        return True
    one, other = expected.evalf(), found.evalf()
    difference = abs(one - other).evalf()
    return not difference.is_comparable or bool(difference <= RELATIVE_TOLERANCE * max(abs(one), abs(other)))


def _equal_with_percent(expected: Any, found: Any, rule: str, asks_percent: bool) -> bool:
    """Compares values, percentages by `rule`; in a question for percent a number without a sign is in percent."""
    expected_value, expected_is_percent = _split_percent(expected)
    found_value, found_is_percent = _split_percent(found)
    alike = expected_is_percent == found_is_percent
    if rule == "sign":
        return alike and _equal(expected_value, found_value)
    if asks_percent and not expected_is_percent:
        return _equal(expected_value, found_value)
    if (asks_percent or rule == "bare") and not alike and _equal(expected_value, found_value):
        return True
    return _equal(_hundredths(expected_value, expected_is_percent), _hundredths(found_value, found_is_percent))


def _split_percent(value: Any) -> tuple[Any, bool]:
    """math-verify writes 28% as a product with an unevaluated hundredth."""
    from sympy import Mul, Rational, UnevaluatedExpr

    hundredth = UnevaluatedExpr(Rational(1, 100))
    if isinstance(value, Mul) and hundredth in value.args:
        return Mul(*[factor for factor in value.args if factor != hundredth]), True
    return value, False


def _hundredths(value: Any, is_percent: bool) -> Any:
    return value / 100 if is_percent else value
