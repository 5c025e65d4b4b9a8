"""What a verifier states of its bounds, for the column `limits` of VERDICTS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.config_verify import VerifySettings
from posttrain.verify.sandbox.launch import level_in_use


def sandbox_limits(settings: VerifySettings) -> Mapping[str, Any]:
    """The limits of a verifier that works in the sandbox, and the level of isolation that it ran at; read after `verify`."""
    return {"timeout_s": settings.timeout_s, "memory_mib": settings.memory_mib, "sandbox": level_in_use(settings.sandbox)}
