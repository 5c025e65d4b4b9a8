"""Tiny models and tokenizers for tests, built on the spot: random weights, a vocabulary of single characters."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")
PAD_ID, BOS_ID, EOS_ID, UNKNOWN_ID = range(4)
CHARACTERS = string.ascii_lowercase + string.digits + " \n.,:;!?()[]{}+-*/=<>|_'\""
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def build_tiny_tokenizer(chat_template: str | None = None, add_bos: bool = False) -> Any:
    """One id for each character of CHARACTERS; `add_bos` makes plain encoding start with BOS."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: number for number, token in enumerate((*SPECIAL_TOKENS, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS_ID)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = chat_template
    return fast


def build_tiny_model(
    seed: int = 0, tied: bool = True, hidden_size: int = 64, num_layers: int = 2, intermediate_size: int = 0
) -> Any:
    """A Qwen3 of about 0.1 M parameters with random weights that are large enough for peaked, seed-dependent logprobs."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(SPECIAL_TOKENS) + len(CHARACTERS),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size or 2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        initializer_range=0.15,
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config).eval()


def build_tiny_model_with_code(directory: Path) -> Path:
    """Writes a model directory whose classes stand in a Python file beside the weights."""
    import json

    build_tiny_model().save_pretrained(directory)
    build_tiny_tokenizer(CHAT_TEMPLATE).save_pretrained(directory)
    (directory / "modeling_own.py").write_text(
        "from transformers import Qwen3Config, Qwen3ForCausalLM\n\n\n"
        "class OwnConfig(Qwen3Config):\n    model_type = 'own'\n\n\n"
        "class OwnModel(Qwen3ForCausalLM):\n    config_class = OwnConfig\n"
    )
    config = json.loads((directory / "config.json").read_text())
    classes = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    config |= {"model_type": "own", "architectures": ["OwnModel"], "auto_map": classes}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def build_tiny_policy(
    directory: Path, seed: int = 0, tied: bool = True, hidden_size: int = 64, version: int = 0, intermediate_size: int = 0
) -> Path:
    """Writes a policy directory of a tiny random model and returns its path."""
    from posttrain.policy import write_policy

    model = build_tiny_model(seed, tied, hidden_size, intermediate_size=intermediate_size)
    tokenizer = build_tiny_tokenizer(CHAT_TEMPLATE)
    write_policy(model, tokenizer, directory, version=version, parent=None, algorithm="random", iteration=version)
    return directory
