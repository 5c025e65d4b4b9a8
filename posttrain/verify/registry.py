"""Verifiers by the name that a prompt carries."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from posttrain.config_verify import VerifySettings
from posttrain.errors import ConfigError
from posttrain.verify import plugins
from posttrain.verify.base import Verifier
from posttrain.verify.code import CodeVerifier
from posttrain.verify.exact import ExactVerifier
from posttrain.verify.format import FormatVerifier
from posttrain.verify.judge import JudgeVerifier
from posttrain.verify.last_number import LastNumberVerifier
from posttrain.verify.length import LengthVerifier
from posttrain.verify.maths import MathsVerifier
from posttrain.verify.reasoning_gym import ReasoningGymVerifier
from posttrain.verify.weighted import WeightedVerifier


def create_verifier(name: str, settings: VerifySettings) -> Verifier:
    """The verifier called `name`: one of ours, else one of `verify.plugins`, else an installed entry point.

    Raises:
        ConfigError: there is none (names the nearest one), or a user's verifier cannot be used.
    """
    own = plugins.configured(settings)
    for taken in own.keys() & VERIFIERS.keys():
        raise ConfigError(plugins.FIELD, taken, "a verifier of this name is built in", "Choose another name.")
    if name in VERIFIERS:
        return VERIFIERS[name](settings)
    target = plugins.find_target(name, settings)
    if target:
        return plugins.PluginVerifier(name, target, settings)
    known = [*VERIFIERS, *own]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    remedy = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}."
    raise ConfigError("verifier", name, "no such verifier", remedy)


def verifier_versions(prompts: pa.Table, settings: VerifySettings) -> str:
    """JSON object of the version of every verifier that judges completions of these PROMPTS, parts of sums included.

    Raises:
        ConfigError: as `create_verifier`.
    """
    columns = (prompts[name].to_pylist() for name in ("verifier", "answer"))
    names = {name for pair in zip(*columns, strict=True) for name in _names(*pair)}
    return json.dumps({name: create_verifier(name, settings).version for name in sorted(names)})


def _names(verifier: str, answer: str) -> list[str]:
    """The verifier and, of a sum, those of its parts; a malformed sum has none: it is refused where it is judged."""
    if verifier != WeightedVerifier.name:
        return [verifier]
    try:
        decoded: Any = json.loads(answer)
        return [verifier, *(str(part["verifier"]) for part in decoded["parts"])]
    except (ValueError, RecursionError, KeyError, TypeError):
        return [verifier]


VERIFIERS: Mapping[str, Callable[[VerifySettings], Verifier]] = {
    "exact": ExactVerifier,
    "last_number": LastNumberVerifier,
    "format": FormatVerifier,
    "length": LengthVerifier,
    "maths": MathsVerifier,
    "reasoning_gym": ReasoningGymVerifier,
    "code": CodeVerifier,
    "judge": JudgeVerifier,
    "weighted": lambda settings: WeightedVerifier(settings, create_verifier),
}
