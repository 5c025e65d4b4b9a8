"""What an engine knows about the policy that it claims to serve."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.errors import ConfigError, PolicyError
from posttrain.policy import PolicyManifest, end_ids, load_tokenizer, read_policy

VOLATILE_KEYS = (
    "transformers_version",
    "dtype",
    "torch_dtype",
    "_name_or_path",
    "use_cache",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)


@dataclass(frozen=True)
class Served:
    """A verified policy directory and what was read from it."""

    directory: Path
    manifest: PolicyManifest
    end_ids: frozenset[int]
    architecture: str


def read_served(directory: Path, trust_remote_code: bool) -> Served:
    """Verifies every file of a policy directory.

    Raises:
        PolicyError: see `posttrain.policy.read_policy`, and when nothing could end a completion.
    """
    manifest = read_policy(directory)
    tokenizer = load_tokenizer(directory, trust_remote_code)
    return Served(Path(directory), manifest, end_ids(directory, tokenizer), architecture(directory))


def architecture(directory: Path) -> str:
    """Hash of everything in config.json that shapes the model: two policies that agree can be served by one engine.

    Raises:
        PolicyError: no readable config.json.
    """
    shape = {key: value for key, value in _read_config(directory).items() if key not in VOLATILE_KEYS}
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()


def check_context(directory: Path, context_tokens: int) -> None:
    """Refuses a context that the model has no positions for; engines find out late, or not at all.

    Raises:
        ConfigError: prompt + completion may be longer than the model's `max_position_embeddings`.
        PolicyError: no readable config.json.
    """
    limit = _read_config(directory).get("max_position_embeddings")
    if isinstance(limit, int) and context_tokens > limit:
        raise ConfigError(
            "data.max_completion_tokens",
            context_tokens,
            f"prompt and completion together may take so many tokens, the model has {limit} positions",
            "Lower max_prompt_tokens or max_completion_tokens.",
        )


def _read_config(directory: Path) -> dict[str, Any]:
    path = Path(directory) / "config.json"
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise PolicyError(f"{path}: cannot be read ({error}). The directory is no policy, or half-written.") from error


def check_same_architecture(served: Served, other: Served) -> None:
    """Raises PolicyError when `other` cannot take the place of `served` in a running engine."""
    if served.architecture != other.architecture:
        raise PolicyError(
            f"{other.directory}: another architecture than that of {served.directory}, which the engine was started on "
            "(their config.json differ). Ask shared_engine for an engine; it starts a new one."
        )
