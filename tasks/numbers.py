"""Whole numbers are accepted where a float is declared: 0/1 rewards and `lr=1` are floats (flyteorg/flyte#2916)."""

from __future__ import annotations

from typing import Any

from flytekit.core.context_manager import FlyteContext
from flytekit.core.type_engine import SimpleTransformer, TypeEngine
from flytekit.models.literals import Literal
from flytekit.models.types import LiteralType


class NumberTransformer(SimpleTransformer[float]):
    """flytekit's float transformer, except that an int (never a bool) is converted instead of refused."""

    def __init__(self, original: SimpleTransformer[float]) -> None:
        super().__init__(
            "float", float, original.get_literal_type(), original._to_literal_transformer, original._from_literal_transformer
        )

    def to_literal(self, ctx: FlyteContext, python_val: Any, python_type: type[float], expected: LiteralType) -> Literal:
        value = float(python_val) if type(python_val) is int else python_val
        return super().to_literal(ctx, value, python_type, expected)

    def assert_type(self, t: type[float], v: Any) -> None:
        super().assert_type(t, float(v) if type(v) is int else v)


def accept_whole_numbers() -> None:
    """Puts the transformer in the place of flytekit's own, which `TypeEngine.register` alone would refuse."""
    registry: dict[type, Any] = getattr(TypeEngine, "_REGISTRY")  # noqa: B009  there is no public way to replace one
    if not isinstance(registry[float], NumberTransformer):
        registry[float] = NumberTransformer(registry[float])
