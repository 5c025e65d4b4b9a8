"""Tiny models of every family that the kernel must handle, rows for them, and logprobs computed one row at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

VOCABULARY = 61
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}


def llama(**values: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SHAPE | {"tie_word_embeddings": False} | values))


def tied_llama() -> Any:
    return llama(tie_word_embeddings=True, num_key_value_heads=4)


def qwen2() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**SHAPE))


def qwen3() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=True))


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.2}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **shape, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0))


def mistral() -> Any:
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=16))


def bloom() -> Any:
    from transformers import BloomConfig, BloomForCausalLM

    return BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.2))


def mamba() -> Any:
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4))


def gemma2() -> Any:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    return Gemma2ForCausalLM(Gemma2Config(**SHAPE, head_dim=8))


def build(family: Callable[[], Any]) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return family().eval()


def rows_of(seed: int = 0) -> tuple[list[list[int]], list[list[int]]]:
    """Groups of 4, 3, 2 and 1 rows, interleaved: a long prompt, a prompt of one token, an empty completion, one of one token."""
    draw = np.random.default_rng(seed)
    prompts = [draw.integers(0, VOCABULARY, length).tolist() for length in (9, 1, 70, 5)]
    members = [0, 1, 0, 2, 0, 1, 2, 3, 0, 1]
    lengths = [7, 33, 1, 50, 0, 8, 60, 4, 11, 9]
    return [prompts[member] for member in members], [draw.integers(0, VOCABULARY, length).tolist() for length in lengths]


def plain_logprobs(model: Any, prompt: Sequence[int], completion: Sequence[int], temperature: float) -> torch.Tensor:
    """(T,) with a gradient: the whole row, unpadded, through the whole model."""
    ids = torch.tensor([*prompt, *completion])
    logits = model(input_ids=ids[None], use_cache=False).logits[0, len(prompt) - 1 : len(ids) - 1].float()
    every = torch.log_softmax(logits / temperature, -1)
    return every[torch.arange(len(completion)), ids[len(prompt) :]]


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_same_gradients(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-5) -> None:
    """Equal within `tolerance` of each tensor's largest entry."""
    assert found.keys() == expected.keys() and found
    for name, gradient in found.items():
        largest = max(expected[name].abs().max().item(), 1e-3)
        assert (gradient - expected[name]).abs().max().item() <= tolerance * largest, name
