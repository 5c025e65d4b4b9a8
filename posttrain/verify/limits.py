"""What a verifier states of its bounds, for the column `limits` of VERDICTS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.config_verify import VerifySettings


def sandbox_limits(settings: VerifySettings) -> Mapping[str, Any]:
    """The limits of a verifier that works in the sandbox, and how little isolation it accepts."""
    return {"timeout_s": settings.timeout_s, "memory_mib": settings.memory_mib, "sandbox": settings.sandbox.value}
