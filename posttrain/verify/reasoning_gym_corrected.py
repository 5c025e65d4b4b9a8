"""Scorers in place of those of reasoning-gym that evaluate the completion's text. Runs in the sandbox.

- countdown, puzzle24: an expression of whole numbers, + - * / and brackets that uses each of the item's numbers once, as often as
  the item holds it, and is exactly the target. (puzzle24's own scorer takes any four numbers in range, and rounds.)
- string_insertion, spiral_matrix, binary_matrix, n_queens: their own, with literals read where they evaluate text.
"""

from __future__ import annotations

import ast
import operator
import re
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

MAX_CHARACTERS = 400
CORRECTED = frozenset({"countdown", "puzzle24", "string_insertion", "spiral_matrix", "binary_matrix", "n_queens"})
_EXPRESSION = re.compile(r"[0-9+\-*/()\s]+")
_OPERATIONS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def scorer(name: str, dataset: Any) -> Callable[[Any, dict[str, Any]], float]:
    """What scores answers of the generator `name`: text and item → 0 to 1."""
    if name == "countdown":
        return lambda answer, entry: score_expression(answer, entry["metadata"]["numbers"], entry["metadata"]["target"])
    if name == "puzzle24":
        return lambda answer, entry: score_expression(answer, entry["metadata"]["numbers"], 24)
    if name in CORRECTED:
        vars(sys.modules[type(dataset).__module__])["eval"] = ast.literal_eval
    return lambda answer, entry: dataset.score_answer(answer=answer, entry=entry)


def score_expression(text: str, numbers: list[int], target: int) -> float:
    """1.0 when `text` is an expression of exactly `numbers` whose value is `target`, else 0.0."""
    if len(text) > MAX_CHARACTERS or not _EXPRESSION.fullmatch(text):
        return 0.0
    used: list[int] = []
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body, used)
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
        return 0.0
    return float(value == target and sorted(used) == sorted(numbers))


def _value(node: ast.expr, used: list[int]) -> Fraction:
    """The value of an expression; its numbers are added to `used`. Raises ValueError for any other operation, such as a power."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, used)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value(node.left, used), _value(node.right, used))
    raise ValueError(f"{type(node).__name__} is not allowed")
