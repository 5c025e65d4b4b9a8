"""What an engine knows about the policy that it claims to serve."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from posttrain.errors import PolicyError
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
    path = Path(directory) / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise PolicyError(f"{path}: cannot be read ({error}). The directory is no policy, or half-written.") from error
    shape = {key: value for key, value in config.items() if key not in VOLATILE_KEYS}
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()


def check_same_architecture(served: Served, other: Served) -> None:
    """Raises PolicyError when `other` cannot take the place of `served` in a running engine."""
    if served.architecture != other.architecture:
        raise PolicyError(
            f"{other.directory}: another architecture than that of {served.directory}, which the engine was started on "
            "(their config.json differ). Ask shared_engine for an engine; it starts a new one."
        )
