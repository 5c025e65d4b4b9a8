"""Models of the Hugging Face hub: safetensors only, and errors that a person can read."""

from __future__ import annotations

from pathlib import Path

from posttrain.errors import PolicyError

FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.txt", "tokenizer.model", "spiece.model"]
CODE_FILES = ["*.py"]


def fetch_model(source: str | Path, trust_remote_code: bool = False) -> Path:
    """The local directory of `source`: itself when it is one, else the hub's snapshot, from the local cache when it is complete.

    Raises:
        PolicyError: no such directory; the id is unknown, private, or has no safetensors; the hub cannot be reached.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.is_absolute() or str(source).startswith((".", "~")) or str(source).count("/") > 1 or path.exists():
        raise PolicyError(f"{source}: no such model directory.")
    return _download(str(source), trust_remote_code)


def _download(model_id: str, trust_remote_code: bool) -> Path:
    import httpx
    from huggingface_hub import list_repo_files, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        snapshot = Path(snapshot_download(model_id, allow_patterns=FILES + (CODE_FILES if trust_remote_code else [])))
        if not any(snapshot.glob("*.safetensors")):
            pickles = [name for name in list_repo_files(model_id) if name.endswith((".bin", ".pt", ".pth"))]
            found = f"only pickle files: {', '.join(pickles)}" if pickles else "none at all"
            raise PolicyError(f"model {model_id!r} has no .safetensors weights ({found}). Convert it, or take another model.")
        return snapshot
    except GatedRepoError as error:
        raise PolicyError(f"model {model_id!r} is gated: accept its terms on the hub and set HF_TOKEN. ({error})") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise PolicyError(f"model {model_id!r}: no such local directory, and the hub has no such model. ({error})") from error
    except (OSError, RuntimeError, httpx.HTTPError) as error:  # offline mode, no connection, no cached copy
        raise PolicyError(
            f"model {model_id!r}: not in the local cache, and the hub cannot be reached ({type(error).__name__}: {error}). "
            "Go online once, or give a local model directory."
        ) from error
