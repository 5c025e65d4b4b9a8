"""One warm engine for each process: started once, its weights swapped from iteration to iteration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from posttrain.config import EngineName, RolloutSettings
from posttrain.engines.base import Engine
from posttrain.engines.served import architecture
from posttrain.errors import FingerprintError, InfrastructureError

Key = tuple[EngineName, str, int, bool, str]


@dataclass
class _Warm:
    key: Key
    engine: Engine


_warm: _Warm | None = None


def shared_engine(settings: RolloutSettings, policy_directory: Path) -> Engine:
    """The process's engine, serving the policy in `policy_directory`.

    Other engine settings or another architecture close the old engine and start a new one, and so does an engine that died.
    An engine that cannot reproduce the fingerprint is closed, so that a retry starts from nothing.

    Raises:
        PolicyError, FingerprintError, InfrastructureError: see `posttrain.engines.base.Engine.load_policy`.
    """
    global _warm
    directory = Path(policy_directory)
    shape = architecture(directory)
    key = (settings.engine, settings.dtype.value, settings.max_model_tokens, settings.trust_remote_code, shape)
    if _warm is None or _warm.key != key or _warm.engine.closed:
        close_shared_engine()
        _warm = _Warm(key, start_engine(settings, directory))
        return _warm.engine
    try:
        _warm.engine.load_policy(directory)
    except (FingerprintError, InfrastructureError):
        close_shared_engine()
        raise
    return _warm.engine


def close_shared_engine() -> None:
    """Frees the memory of the process's engine, if there is one."""
    global _warm
    if _warm is not None:
        _warm.engine.close()
        _warm = None


def start_engine(settings: RolloutSettings, directory: Path) -> Engine:
    """A new engine of the kind that `settings` names, serving `directory`; the caller closes it."""
    if settings.engine is EngineName.vllm:
        from posttrain.engines.vllm_engine import VllmEngine as Kind
    else:
        from posttrain.engines.transformers_engine import TransformersEngine as Kind
    trust = settings.trust_remote_code
    return Kind(directory, dtype=settings.dtype.value, max_model_tokens=settings.max_model_tokens, trust_remote_code=trust)
