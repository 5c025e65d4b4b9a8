"""The shape of a model, read from its directory without loading it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.errors import PolicyError

CONFIG = "config.json"
MAX_HEADER_BYTES = 100 << 20  # the limit of the safetensors format
BYTES_PER_WEIGHT = 2  # bfloat16, in which models are served
_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True)
class ModelShape:
    """What the formulas need of a transformer; every parameter counts as active."""

    num_parameters: int
    num_layers: int
    num_kv_heads: int
    head_dim: int

    @property
    def weight_bytes(self) -> int:
        """Size of the weights in bfloat16."""
        return BYTES_PER_WEIGHT * self.num_parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers, in bfloat16."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * BYTES_PER_WEIGHT


def model_shape(directory: str | Path) -> ModelShape:
    """The shape of the model in a policy directory, or of a `config.json` alone.

    Parameters are counted in the headers of the safetensors files; without any, the formula of a Llama-style model is used.

    Raises:
        PolicyError: there is no readable `config.json`, it lacks a size, a safetensors file is damaged, or a mixture of experts
            has none.
    """
    path = Path(directory) / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        sizes: Mapping[str, Any] = config.get("text_config") or config
        if not isinstance(sizes, dict):
            raise ValueError(f"text_config is {sizes!r}")
    except (OSError, ValueError, AttributeError) as error:
        raise PolicyError(f"{path} cannot be read ({error}). A policy directory holds the model's config.json.") from error
    layers, heads, hidden = (_size(sizes, names, path) for names in _NAMES.values())
    files = sorted(Path(directory).glob("*.safetensors"))
    return ModelShape(
        num_parameters=sum(map(count_parameters, files)) if files else _llama_parameters(sizes, path),
        num_layers=layers,
        num_kv_heads=_size(sizes, ("num_key_value_heads",), path, heads),
        head_dim=_size(sizes, ("head_dim",), path, hidden // heads),
    )


def count_parameters(path: Path) -> int:
    """Number of values in a safetensors file, from its header alone.

    Raises:
        PolicyError: the header cannot be read.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            content = file.read(min(length, MAX_HEADER_BYTES))
        if not 0 < length == len(content):
            raise ValueError(f"{len(content):,} of the {length:,} bytes of its header are there")
        header = json.loads(content)
        return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PolicyError(f"{path} is no complete safetensors file ({error!r}). Copy or download the model again.") from error


def _size(config: Mapping[str, Any], names: Sequence[str], path: Path, default: int | None = None) -> int:
    found = [config[name] for name in names if config.get(name) is not None]
    for value in found:
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    if default is not None and not found:
        return default
    raise PolicyError(f"{path} has no {' or '.join(names)}, so the size of the model is not known.")


def _llama_parameters(config: Mapping[str, Any], path: Path) -> int:
    """Embeddings, head, and per layer the projections of attention and of a gated MLP; norms are left out (below 0.01 %)."""
    experts = next((name for name in _EXPERTS if config.get(name)), None)
    if experts:
        raise PolicyError(f"{path} has {experts}: a mixture of experts is counted in its safetensors files, and there are none.")
    layers, heads, hidden = (_size(config, names, path) for names in _NAMES.values())
    vocabulary, intermediate = (_size(config, (name,), path) for name in ("vocab_size", "intermediate_size"))
    head_dim = _size(config, ("head_dim",), path, hidden // heads)
    kv_heads = _size(config, ("num_key_value_heads",), path, heads)
    attention = 2 * hidden * head_dim * (heads + kv_heads)
    embeddings = vocabulary * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return embeddings + layers * (attention + 3 * hidden * intermediate)
