"""Verifiers by the name that a prompt carries."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from posttrain.config_verify import VerifySettings
from posttrain.errors import ConfigError
from posttrain.verify.base import Verifier
from posttrain.verify.code import CodeVerifier
from posttrain.verify.exact import ExactVerifier
from posttrain.verify.last_number import LastNumberVerifier
from posttrain.verify.maths import MathsVerifier
from posttrain.verify.reasoning_gym import ReasoningGymVerifier

VERIFIERS: Mapping[str, Callable[[VerifySettings], Verifier]] = {
    "exact": ExactVerifier,
    "last_number": LastNumberVerifier,
    "maths": MathsVerifier,
    "reasoning_gym": ReasoningGymVerifier,
    "code": CodeVerifier,
}


def create_verifier(name: str, settings: VerifySettings) -> Verifier:
    """The verifier called `name`.

    Raises:
        ConfigError: there is none; names the nearest one.
    """
    if name in VERIFIERS:
        return VERIFIERS[name](settings)
    near = difflib.get_close_matches(name, VERIFIERS, n=1, cutoff=0.5)
    remedy = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(VERIFIERS)}."
    raise ConfigError("verifier", name, "no such verifier", remedy)
