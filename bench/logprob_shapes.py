"""The model and the rows that the comparisons of logprobs share."""

from __future__ import annotations

from typing import Any

import numpy as np

VOCABULARY, HIDDEN, LAYERS = 32_000, 384, 6  # Llama's first vocabulary; 10.6 M parameters in layers, 12.3 M in the head
SIGMA = 0.8  # of the logarithm of lengths: the longest of eight is 2.2 times the mean
FIRST_ID = 4


def build_model(vocabulary: int = VOCABULARY, hidden: int = HIDDEN, layers: int = LAYERS) -> Any:
    """A Llama with random float32 weights, always the same."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=2048,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def build_tokenizer() -> Any:
    """TRL wants one, though every id is given: a few words, with a padding and an end token."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


class Rows:
    """Draws ids of lognormal lengths."""

    def __init__(self, seed: int) -> None:
        self._draw = np.random.default_rng(seed)

    def ids(self, median: int, longest: int) -> list[int]:
        """At least two ids, at most `longest`."""
        length = int(np.clip(np.exp(self._draw.normal(np.log(median), SIGMA)), 2, longest))
        return self._draw.integers(FIRST_ID, VOCABULARY, length).tolist()


def layer_parameters(model: Any) -> int:
    """Parameters that every input token is multiplied with."""
    return sum(parameter.numel() for parameter in model.model.layers.parameters())


def matrix_flops_per_s() -> float:
    """Float32 operations a second of a large matrix product on this machine, now."""
    import torch

    from bench.measure import elapsed_s

    left, right, out = torch.randn(2048, 1024), torch.randn(1024, 2048), torch.empty(2048, 2048)
    seconds = min(elapsed_s(lambda: torch.mm(left, right, out=out)) for _ in range(5))
    return 2 * 2048 * 2048 * 1024 / seconds
