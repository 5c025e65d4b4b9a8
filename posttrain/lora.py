"""LoRA by PEFT: an adapter on all linear layers but the head, on frozen weights of a base policy.

The layers are put into the transformers model itself. Wrapped in a PeftModel, TRL would copy the adapter as a reference.
A policy trained so is a directory like any other, with merged weights; beside them `adapter/` holds what training goes on from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain import policy, random_state
from posttrain.config_base import Dtype
from posttrain.config_dpo import DpoLearnerSettings
from posttrain.errors import PolicyError

ADAPTER = "adapter"
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
BASE_HASH = "base_policy_hash"  # in the header of WEIGHTS
TRAINED = r"\.lora_[AB]\."  # in the names of the adapter's parameters
PEFT_PREFIX = "base_model.model."  # what a PeftModel's names begin with: any PEFT loader then takes the adapter
NAME = "default"


@dataclass(frozen=True)
class Adapter:
    """Tensors by PEFT's names, and PEFT's configuration."""

    weights: Mapping[str, Any]
    config: Any


def load_adapted(policy_directory: Path, base_directory: Path, settings: DpoLearnerSettings) -> Any:
    """The base in float32 with the policy's adapter in it; a fresh one, which changes nothing yet, if the policy is the base.

    Raises:
        PolicyError: policy or base is incomplete or altered; the adapter is missing, of another base, or of other settings.
    """
    base_hash = policy.policy_hash(base_directory)
    model = policy.load_model(base_directory, Dtype.float32.value, settings.trust_remote_code)
    _inject(model, settings)
    if policy.policy_hash(policy_directory) != base_hash:
        policy.read_policy(policy_directory)
        _load_weights(model, policy_directory, base_hash)
    return model


def take_adapter(model: Any) -> Adapter:
    """The adapter as it is now; the model is afterwards a plain one whose weights have it merged."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    config = model.peft_config[NAME]
    config.target_modules = sorted(config.target_modules)  # a set would be written in another order each time
    config.inference_mode = True
    adapter = Adapter({PEFT_PREFIX + name: value.detach().cpu().clone() for name, value in _weights(model).items()}, config)
    for name, module in list(model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge()
            model.set_submodule(name, module.get_base_layer())
    del model.peft_config
    return adapter


def write_adapter(adapter: Adapter, base_hash: str, directory: Path) -> None:
    """Writes `adapter/` into a policy directory, as PEFT reads it; the header of its weights names the base policy."""
    from safetensors.torch import save_file

    target = directory / ADAPTER
    target.mkdir()
    save_file({name: value.contiguous() for name, value in adapter.weights.items()}, target / WEIGHTS, {BASE_HASH: base_hash})
    adapter.config.save_pretrained(str(target))


def _inject(model: Any, settings: DpoLearnerSettings) -> None:
    import torch
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,  # pyright: ignore[reportArgumentType]: PEFT takes any number
        lora_dropout=0.0,
        target_modules="all-linear",  # of PEFT: all but the head
        task_type="CAUSAL_LM",
    )
    with random_state.untouched():
        torch.manual_seed(settings.seed)
        inject_adapter_in_model(config, model, NAME)


def _weights(model: Any) -> dict[str, Any]:
    from peft import get_peft_model_state_dict

    return get_peft_model_state_dict(model, adapter_name=NAME)


def _load_weights(model: Any, policy_directory: Path, base_hash: str) -> None:
    from peft import set_peft_model_state_dict
    from safetensors import safe_open

    source = policy_directory / ADAPTER / WEIGHTS
    if not source.is_file():
        raise PolicyError(
            f"{policy_directory}: it has no {ADAPTER}/, so LoRA cannot go on from it. Give it as the base to start anew."
        )
    with safe_open(source, "pt") as file:
        found = (file.metadata() or {}).get(BASE_HASH)
        weights = {name.removeprefix(PEFT_PREFIX): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if found != base_hash:
        raise PolicyError(
            f"{source}: the adapter belongs to the base policy {found}, this run's is {base_hash}. Give its own base."
        )
    _check_fits(source, weights, model)
    set_peft_model_state_dict(model, weights, adapter_name=NAME)


def _check_fits(source: Path, weights: Mapping[str, Any], model: Any) -> None:
    settings = json.loads(source.with_name(CONFIG).read_text())
    config = model.peft_config[NAME]
    for field in ("r", "lora_alpha"):
        found, wanted = settings.get(field), getattr(config, field)
        if found != wanted:
            raise PolicyError(
                f"{source.parent}: the adapter has {field} = {found}, the settings say {wanted}. Keep them in one run."
            )
    expected = {name: value.shape for name, value in _weights(model).items()}
    if expected != {name: value.shape for name, value in weights.items()}:
        raise PolicyError(f"{source}: its tensors are not those of an adapter on this base's linear layers. Start from the base.")
