"""Shorthand for asking one verifier about a few completions."""

from __future__ import annotations

from typing import Any

from posttrain.config_verify import VerifySettings
from posttrain.verify.base import Verdict, VerificationRequest
from posttrain.verify.registry import create_verifier

SETTINGS = VerifySettings(timeout_s=2.0)


def request(completion: str, answer: Any, prompt: str = "") -> VerificationRequest:
    return VerificationRequest("p0", 0, prompt, completion, answer, "stop")


def judge(verifier: str, pairs: list[tuple[str, Any]], prompt: str = "", settings: VerifySettings = SETTINGS) -> list[Verdict]:
    return create_verifier(verifier, settings).verify([request(completion, answer, prompt) for completion, answer in pairs])


def outcomes(verifier: str, pairs: list[tuple[str, Any]], prompt: str = "") -> list[str]:
    return [verdict.outcome for verdict in judge(verifier, pairs, prompt)]
