"""Entry module of the sandbox for maths: parses both sides with math-verify and compares them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

Report = Callable[[Any], None]


def preload() -> None:
    """Imports the library and fills its caches, once, before any fork."""
    logging.disable(logging.CRITICAL)
    _equal(_parse("$\\frac{1}{2}$"), _parse("The answer is 0.5"))


def run(job: dict[str, Any], report: Report) -> int:
    """Reports a score, an unparseable completion, or a fault of our own."""
    expected = _parse_answer(job["expected"])
    if expected is None:
        report({"fault": f"the dataset's answer {job['expected'][:200]!r} cannot be parsed"})
        return 1
    try:
        found = _parse_answer(job["found"]) if job["boxed"] else _parse(job["found"])
        if found is None:
            report({"unparseable": "no mathematical answer found"})
            return 0
        equal = _equal_with_percent(expected, found, job["asks_percent"])
    except BaseException as error:
        return _report_exception(expected, error, report)
    report({"score": float(equal), "detail": f"expected {expected}, found {found}"[:500]})
    return 0


def _report_exception(expected: Any, error: BaseException, report: Report) -> int:
    """The library failed on this completion; if it also fails without it, the fault is not the completion's."""
    if _equal(expected, expected):
        report({"unparseable": f"math-verify cannot handle it ({type(error).__name__})"})
        return 0
    report({"fault": f"math-verify failed: {type(error).__name__}: {error}"[:500]})
    return 1


def _parse_answer(text: str) -> Any:
    stripped = text.strip().strip("$").strip()
    found = _parse(f"${stripped}$")
    return _parse(stripped) if found is None else found


def _parse(text: str) -> Any:
    """The last expression that math-verify finds, or None."""
    from math_verify import parse

    sys.set_int_max_str_digits(0)
    found = parse(text, fallback_mode="no_fallback", parsing_timeout=None)  # type: ignore[arg-type]
    return found[0] if found else None


def _equal(expected: Any, found: Any) -> bool:
    from math_verify import verify

    return bool(verify([expected], [found], timeout_seconds=None, raise_on_error=True))


def _equal_with_percent(expected: Any, found: Any, asks_percent: bool) -> bool:
    """Compares values, percentages as hundredths; in a question for percent a number without a sign is in percent."""
    expected_value, expected_is_percent = _split_percent(expected)
    found_value, found_is_percent = _split_percent(found)
    if asks_percent and not expected_is_percent:
        return _equal(expected_value, found_value)
    if asks_percent and not found_is_percent and _equal(expected_value, found_value):
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
