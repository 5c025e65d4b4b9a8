"""A policy is a directory: safetensors, tokenizer, generation config and `policy.json` with hashes and fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from posttrain.directories import hash_files, verify_files, write_aside
from posttrain.errors import InfrastructureError, PolicyError
from posttrain.fingerprint import Fingerprint, compute_fingerprint
from posttrain.hub import fetch_model

MANIFEST = "policy.json"
PEFT_CONFIG = "adapter_config.json"  # beside weights it says that they are an adapter's
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


@dataclass(frozen=True)
class PolicyManifest:
    """Content of `policy.json`. `parent` is the parent's policy hash, None for an imported or newly built model."""

    version: int
    parent: str | None
    algorithm: str
    iteration: int
    files: Mapping[str, str]  # relative path → sha256
    fingerprint: Fingerprint

    @property
    def hash(self) -> str:
        """sha256 over the manifest, hex: names weights, tokenizer and ancestry.

        The fingerprint is left out: it follows from the weights, and its last digits depend on the processor.
        """
        named = {key: value for key, value in asdict(self).items() if key != "fingerprint"}
        return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()


def write_policy(
    model: Any,
    tokenizer: Any,
    directory: Path,
    *,
    version: int,
    parent: str | None,
    algorithm: str,
    iteration: int,
    add_files: Callable[[Path], None] | None = None,
) -> PolicyManifest:
    """Writes a policy directory aside, then renames it; on any error nothing is left.

    Args:
        model: a transformers causal language model; the weights keep their dtype.
        tokenizer: its transformers tokenizer.
        parent: `policy_hash` of the policy this one was made from.
        add_files: writes further files into the directory; the manifest then names them too.

    Raises:
        PolicyError: the tokenizer has ids that the model has not, or the weights hold NaN or infinity.
        InfrastructureError: the disk is full or not writable.
    """
    _check_vocabulary(model, tokenizer)
    with _disk_faults(directory), write_aside(Path(directory)) as aside:
        with quiet_transformers():
            model.save_pretrained(aside)  # safetensors and generation_config.json
        tokenizer.save_pretrained(aside)
        if add_files is not None:
            add_files(aside)
        # from the written files, so that the fingerprint vouches for what others will load
        fingerprint = compute_fingerprint(partial(_load, aside, trust_remote_code=_is_custom(model)), tokenizer)
        manifest = PolicyManifest(version, parent, algorithm, iteration, hash_files(aside, MANIFEST), fingerprint)
        (aside / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1, sort_keys=True))
    return manifest


def import_policy(source: str | Path, directory: Path, trust_remote_code: bool = False) -> PolicyManifest:
    """Makes the policy of version 0 from a model: a local directory, or an id of the Hugging Face hub.

    Raises:
        PolicyError: no such directory or id, no tokenizer, weights that are not safetensors, or a hub that cannot be reached.
    """
    origin = fetch_model(source, trust_remote_code)
    check_model_files(origin)
    if (origin / MANIFEST).is_file():
        read_policy(origin)
    tokenizer = load_tokenizer(origin, trust_remote_code)
    try:
        model = _load(origin, "auto", trust_remote_code)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise PolicyError(f"{source}: the model cannot be loaded ({error}).") from error
    return write_policy(model, tokenizer, directory, version=0, parent=None, algorithm="import", iteration=0)


def read_policy(directory: Path) -> PolicyManifest:
    """The manifest of a policy directory whose every file was checked.

    Raises:
        PolicyError: no directory, half-written, a file missing, altered or unexpected, no tokenizer, no safetensors.
    """
    manifest = read_manifest(directory)
    check_model_files(directory)
    verify_files(Path(directory), manifest.files, MANIFEST)
    return manifest


def read_manifest(directory: Path) -> PolicyManifest:
    """The manifest alone, without a look at the files.

    Raises:
        PolicyError: no directory, or a manifest that is missing or malformed.
    """
    path = Path(directory) / MANIFEST
    if not path.parent.is_dir():
        raise PolicyError(f"{directory}: no such policy directory.")
    if not path.is_file():
        check_model_files(directory)
        raise PolicyError(f"{directory}: no {MANIFEST}: half-written, or a plain model directory. Import it with import_policy.")
    try:
        values = json.loads(path.read_text())
        fingerprint = Fingerprint(**{key: tuple(numbers) for key, numbers in values["fingerprint"].items()})
        plain = {key: value for key, value in values.items() if key != "fingerprint"}
        return _checked_types(PolicyManifest(**plain, fingerprint=fingerprint))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PolicyError(f"{path}: not a policy manifest ({error!r}). Make the directory again.") from error


def _checked_types(manifest: PolicyManifest) -> PolicyManifest:
    """The manifest, which came out of a file; raises TypeError for a field of another type."""
    fingerprint = manifest.fingerprint
    wanted = {
        "version": ([manifest.version], int),
        "parent": ([manifest.parent], str | None),
        "algorithm": ([manifest.algorithm], str),
        "iteration": ([manifest.iteration], int),
        "files": ([manifest.files], dict),
        "files' hashes": (dict(manifest.files or {}).values(), str),
        "fingerprint.probe_ids": (fingerprint.probe_ids, int),
        "fingerprint.logprobs": (fingerprint.logprobs, float),
        "fingerprint.bfloat16_logprobs": (fingerprint.bfloat16_logprobs, float),
    }
    for name, (values, kind) in wanted.items():
        for value in values:
            if not isinstance(value, kind):
                raise TypeError(f"{name}: {value!r}")
    return manifest


def policy_hash(directory: Path) -> str:
    """sha256 over the manifest content, hex. Does not read the weights; `read_policy` does."""
    return read_manifest(directory).hash


def load_model(directory: Path, dtype: str, trust_remote_code: bool = False) -> Any:
    """The model of a verified policy directory, on the CPU, in evaluation mode.

    Args:
        dtype: `float32` or `bfloat16`.

    Raises:
        PolicyError: see `read_policy`; or the model needs code of its own and is not trusted.
    """
    read_policy(directory)
    try:
        return _load(Path(directory), dtype, trust_remote_code)
    except ValueError as error:
        raise PolicyError(f"{directory}: the model cannot be loaded ({error}).") from error


def load_tokenizer(directory: Path, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a policy or model directory.

    Raises:
        PolicyError: there is none, or it cannot be read.
    """
    from transformers import AutoTokenizer

    _check_tokenizer(Path(directory))
    try:
        return AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise PolicyError(f"{directory}: the tokenizer cannot be read ({error}).") from error


def end_ids(directory: Path, tokenizer: Any) -> frozenset[int]:
    """Ids that end a completion: the tokenizer's EOS and those of the generation config.

    Raises:
        PolicyError: there is none, so that no completion could ever stop.
    """
    path = Path(directory) / "generation_config.json"
    configured = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
    listed = configured if isinstance(configured, list) else [configured]
    found = frozenset(int(token) for token in [tokenizer.eos_token_id, *listed] if token is not None)
    if not found:
        raise PolicyError(f"{directory}: neither the tokenizer nor generation_config.json names an end-of-sequence token.")
    return found


def check_model_files(directory: Path) -> None:
    """Refuses a model directory without safetensors or without tokenizer, and one of an adapter without its base.

    Raises:
        PolicyError: naming what is missing, and the pickle files found in its place.
    """
    directory = Path(directory)
    names = sorted(path.name for path in directory.iterdir())
    pickles = [name for name in names if name.endswith(PICKLE_SUFFIXES)]
    if not any(name.endswith(".safetensors") for name in names):
        if pickles:
            raise PolicyError(
                f"{directory}: the weights are pickle files ({', '.join(pickles)}), which can run code when loaded. "
                "Convert them to safetensors: load them in a trusted place and call save_pretrained."
            )
        raise PolicyError(f"{directory}: no .safetensors file: half-written, or not a model directory.")
    if PEFT_CONFIG in names:  # transformers would load the base from wherever it says, and nothing here would name its weights
        raise PolicyError(
            f"{directory}: {PEFT_CONFIG} says that the weights are an adapter's, without its base. "
            "Merge it: load it with PEFT's AutoPeftModelForCausalLM, call merge_and_unload and save_pretrained."
        )
    _check_tokenizer(directory)


def _check_tokenizer(directory: Path) -> None:
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        names = ", ".join(TOKENIZER_FILES)
        raise PolicyError(f"{directory}: no tokenizer ({names}). Save it there with tokenizer.save_pretrained.")


def _check_vocabulary(model: Any, tokenizer: Any) -> None:
    if len(tokenizer) > model.config.vocab_size:
        raise PolicyError(
            f"the tokenizer has {len(tokenizer)} ids, the model {model.config.vocab_size}: an id without a row would crash. "
            "Call model.resize_token_embeddings(len(tokenizer)), or take the model's own tokenizer."
        )


@contextmanager
def _disk_faults(directory: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except Exception as error:
        # tokenizers, written in Rust, reports a full disk as a bare Exception
        from_rust = type(error) is Exception and "(os error " in str(error)
        if not from_rust and not isinstance(error, (OSError, SafetensorError)):
            raise
        why = f"{directory}: the policy cannot be written ({error})"
        raise InfrastructureError(f"{why}. A policy that was there before is intact; free disk space and run again.") from error


def _is_custom(model: Any) -> bool:
    """Whether the model's class came from code beside its weights, which the caller has then already trusted."""
    return type(model).__module__.startswith("transformers_modules")


def _load(directory: Path, dtype: str, trust_remote_code: bool) -> Any:
    from transformers import AutoModelForCausalLM

    with quiet_transformers():
        model = AutoModelForCausalLM.from_pretrained(
            str(directory), dtype=dtype, local_files_only=True, use_safetensors=True, trust_remote_code=trust_remote_code
        )
    return model.eval()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without transformers' own progress bars, one for each file."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
