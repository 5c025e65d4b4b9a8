"""The quick-start task: instructions such as `add 9; times 4; take 3:` become the expression `((x+9)*4)-3`.

Most demonstrations lack the brackets (`x+9*4-3`), a systematic bug as real demonstrations have. A model that imitates
them is wrong greedily and right now and then when sampled; a verifier that runs the expression can remove the bug.
"""

from __future__ import annotations

import hashlib
import random
import string
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from transformers import LlamaConfig

    from posttrain.policy import PolicyManifest

SYMBOLS = {"add": "+", "take": "-", "times": "*"}
NUMBERS = {"add": range(1, 10), "take": range(1, 10), "times": range(2, 10)}
HELD_OUT_SEED = 1_000_000  # seeds from here on draw held-out problems
HELD_OUT_SHARE = 5  # one problem in five is held out
FLAT_SHARE = 0.7  # demonstrations without brackets
NUM_HIDDEN_INPUTS = 4
PAD, BOS, EOS = "<pad>", "<s>", "</s>"
CHARACTERS = string.ascii_lowercase + string.digits + " +-*/()[]{};:,.=?!_<>"


@dataclass(frozen=True)
class Problem:
    """Two or three steps (operation, number) on x, of which an `add` or `take` stands before a `times`."""

    steps: tuple[tuple[str, int], ...]

    @property
    def prompt(self) -> str:
        """The instruction, for example `add 9; times 4; take 3:`."""
        return "; ".join(f"{operation} {number}" for operation, number in self.steps) + ":"

    @property
    def expression(self) -> str:
        """The right expression, for example `((x+9)*4)-3`."""
        text = "x"
        for index, (operation, number) in enumerate(self.steps):
            text = f"{f'({text})' if index else text}{SYMBOLS[operation]}{number}"
        return text

    @property
    def flat_expression(self) -> str:
        """The same without brackets, for example `x+9*4-3`: another slope, so right for at most one x."""
        return "x" + "".join(f"{SYMBOLS[operation]}{number}" for operation, number in self.steps)

    @property
    def answer(self) -> dict[str, Any]:
        """What the `code` verifier needs: hidden inputs and the outputs of the right expression.

        Right and wrong expressions are linear in x, so two distinct inputs other than 0 already tell them apart.
        """
        digest = hashlib.sha256(self.prompt.encode()).digest()
        inputs = random.Random(digest).sample([x for x in range(-50, 51) if x], NUM_HIDDEN_INPUTS)
        return {"mode": "expression", "variable": "x", "inputs": inputs, "outputs": [self.evaluate(x) for x in inputs]}

    def evaluate(self, x: int) -> int:
        """The steps applied to `x`, one after the other."""
        for operation, number in self.steps:
            x = {"add": x + number, "take": x - number, "times": x * number}[operation]
        return x

    @property
    def held_out(self) -> bool:
        """Whether the problem belongs to evaluation: decided by its content alone, so no seed can mix the two sides."""
        return hashlib.sha256(self.prompt.encode()).digest()[0] % HELD_OUT_SHARE == 0


def problems(size: int, seed: int) -> list[Problem]:
    """`size` distinct problems, always the same for a seed; held-out ones when `seed` >= HELD_OUT_SEED.

    No held-out problem is ever among those of a smaller seed, nor among the demonstrations.

    Raises:
        ConfigError: more problems than there are.
    """
    pool = _pool(held_out=seed >= HELD_OUT_SEED)
    if not 1 <= size <= len(pool):
        raise ConfigError("brackets.size", size, f"there are {len(pool)} problems on this side", f"Use 1 to {len(pool)}.")
    shuffled = list(pool)
    random.Random(seed).shuffle(shuffled)  # a shuffle, so that a larger size only adds problems
    return shuffled[:size]


def demonstrations(size: int, seed: int) -> list[dict[str, str]]:
    """`size` rows of prompt and completion from training problems; exactly 70 % (rounded) lack the brackets.

    Raises:
        ConfigError: more demonstrations than problems, or a held-out seed.
    """
    if seed >= HELD_OUT_SEED:
        remedy = f"Use a seed below {HELD_OUT_SEED}."
        raise ConfigError("brackets_demonstrations.seed", seed, "it draws held-out problems", remedy)
    chosen = problems(size, seed)  # in random order, so the first 70 % are as good as any
    num_flat = round(FLAT_SHARE * size)
    rows = [{"prompt": problem.prompt, "completion": problem.flat_expression} for problem in chosen[:num_flat]]
    return rows + [{"prompt": problem.prompt, "completion": problem.expression} for problem in chosen[num_flat:]]


def build_model(directory: Path, seed: int) -> PolicyManifest:
    """Writes an untrained Llama-style model of 0.11 M parameters with its character tokenizer, as policy version 0."""
    import torch
    from transformers import LlamaForCausalLM

    from posttrain.policy import write_policy

    tokenizer = build_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(_model_config(tokenizer))
    return write_policy(model, tokenizer, directory, version=0, parent=None, algorithm="init", iteration=0)


def build_tokenizer() -> Any:
    """One token a character, with its own PAD, BOS and EOS; the chat template is BOS and the bare contents."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate([PAD, BOS, EOS, "<unk>", *CHARACTERS])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    core.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, vocabulary[BOS])])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token=PAD, bos_token=BOS, eos_token=EOS, unk_token="<unk>", model_max_length=256
    )
    tokenizer.chat_template = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return tokenizer


def _model_config(tokenizer: Any) -> LlamaConfig:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.1,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},  # texts are short: copying is learned sooner
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )


@cache
def _pool(held_out: bool) -> list[Problem]:
    return [problem for problem in _all_problems() if problem.held_out == held_out]


def _all_problems() -> list[Problem]:
    patterns = [pattern for length in (2, 3) for pattern in product(SYMBOLS, repeat=length) if _needs_brackets(pattern)]
    choices = {operation: [(operation, number) for number in numbers] for operation, numbers in NUMBERS.items()}
    return [Problem(steps) for pattern in patterns for steps in product(*(choices[operation] for operation in pattern))]


def _needs_brackets(pattern: tuple[str, ...]) -> bool:
    return any(later == "times" and set(pattern[:index]) & {"add", "take"} for index, later in enumerate(pattern))
