"""Policies and prompts that the comparisons of engines share."""

from __future__ import annotations

from pathlib import Path

from posttrain import brackets, chat, policy
from posttrain.engines.base import GenerationRequest, SamplingParameters

MAX_MODEL_TOKENS = 112
LARGE = {
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "head_dim": 64,
    "initializer_range": 0.03,
}


def build_small(directory: Path, seed: int) -> Path:
    """The quick start's model, untrained: 0.1 M parameters in float32."""
    brackets.build_model(directory, seed)
    return directory


def build_large(directory: Path, seed: int) -> Path:
    """The same kind of model, wider and deeper: 11 M parameters in float32, 42 MB."""
    import torch
    from transformers import LlamaForCausalLM

    small = build_small(directory.with_name(f"{directory.name}-small"), seed)
    config = policy.load_model(small, "float32").config
    config.update(LARGE)
    torch.manual_seed(seed)
    tokenizer = policy.load_tokenizer(small)
    model = LlamaForCausalLM(config)
    policy.write_policy(model, tokenizer, directory, version=0, parent=None, algorithm="init", iteration=0)
    return directory


def greedy_requests(directory: Path, num_prompts: int) -> list[GenerationRequest]:
    """One request for each of `num_prompts` distinct problems of the quick start."""
    tokenizer = policy.load_tokenizer(directory)
    texts = [problem.prompt for problem in brackets.problems(num_prompts, seed=0)]
    encoded = [chat.encode_messages(tokenizer, [{"role": "user", "content": text}]) for text in texts]
    return [GenerationRequest(f"bench:{row}", 0, tuple(ids), seed=row) for row, ids in enumerate(encoded)]


def greedy(num_tokens: int) -> SamplingParameters:
    """The likeliest token each time, so that every engine must give the same ids."""
    return SamplingParameters(temperature=0.0, top_p=1.0, max_completion_tokens=num_tokens)
