"""Warm start: supervised fine-tuning with TRL's SFTTrainer, fed with token ids."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import pyarrow as pa

from posttrain import tables
from posttrain.config import DataSettings, WarmStartSettings
from posttrain.errors import ConfigError, ContractError, TrainingError
from posttrain.sources import Message, is_message, parse_source, read_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from trl.trainer.sft_trainer import SFTTrainer

IGNORED = -100  # label of a token that is not trained
NUM_LOSS_POINTS = 50
WARMUP_SHARE = 0.05


@dataclass(frozen=True)
class Demonstration:
    """One example to imitate: the messages of the prompt and the text of the completion, without EOS."""

    messages: tuple[Message, ...]
    completion: str


def warm_start(policy_directory: Path, data: DataSettings, settings: WarmStartSettings, output_policy: Path) -> pa.Table:
    """Fine-tunes the policy on `settings.demonstrations` and writes the next version to `output_policy`.

    The loss is the mean negative logprob (nats) of the completion tokens of a step, EOS included.

    Returns:
        METRICS with `train/sft_loss` and `train/sft_token_accuracy` (about 50 points, iteration 0, step = optimiser step).

    Raises:
        ConfigError: the demonstrations cannot be read.
        ContractError: a demonstration is empty or does not fit the model's context.
        TrainingError: the loss or a weight is not finite; nothing is written.
    """
    from posttrain.policy import load_model, load_tokenizer, read_policy, write_policy

    manifest = read_policy(policy_directory)
    model = load_model(policy_directory, "float32", data.trust_remote_code)
    tokenizer = load_tokenizer(policy_directory, data.trust_remote_code)
    examples = encode(load_demonstrations(settings.demonstrations, data.system_prompt), tokenizer, _context(model))
    history = train(model, tokenizer, examples, settings)
    write_policy(
        model, tokenizer, output_policy, version=manifest.version + 1, parent=manifest.hash, algorithm="sft", iteration=0
    )
    return _metrics(history)


def load_demonstrations(source: str, system_prompt: str) -> list[Demonstration]:
    """Demonstrations from `brackets_demonstrations?size=…&seed=…` or from a .jsonl or .parquet file.

    A file has the columns `prompt` and `completion`: text, or messages (the completion then one assistant message).

    Raises:
        ConfigError: an unknown source or option, an empty set, or a row of another shape, by number.
    """
    parsed = parse_source("warm_start.demonstrations", source)
    if parsed.is_file:
        rows = read_file(parsed)
    elif parsed.name == "brackets_demonstrations":
        from posttrain import brackets

        parsed.check_options(("size", "seed"))
        rows = brackets.demonstrations(parsed.integer("size", 2048), parsed.integer("seed", 7))
    else:
        remedy = "Use brackets_demonstrations?size=…&seed=… or the path of a .jsonl or .parquet file."
        raise ConfigError(parsed.field, source, "no such demonstrations", remedy)
    if not rows:
        raise ConfigError(parsed.field, source, "it holds no demonstrations", "Leave the setting empty for no warm start.")
    system = ({"role": "system", "content": system_prompt},) if system_prompt else ()
    return [_demonstration(row, number, system) for number, row in enumerate(rows)]


def encode(demonstrations: Sequence[Demonstration], tokenizer: Any, context_tokens: int) -> list[dict[str, list[int]]]:
    """Token ids and labels of each demonstration: prompt tokens ignored, completion tokens and one EOS trained.

    Raises:
        ContractError: a demonstration is longer than `context_tokens`; it is never truncated.
    """
    from posttrain import chat

    examples: list[dict[str, list[int]]] = []
    for number, demonstration in enumerate(demonstrations):
        prompt_ids = chat.encode_messages(tokenizer, list(demonstration.messages))
        completion_ids = [*chat.encode_completion(tokenizer, demonstration.completion), _eos(tokenizer)]
        num_tokens = len(prompt_ids) + len(completion_ids)
        if num_tokens > context_tokens:
            why = f"{num_tokens} tokens do not fit the model's context of {context_tokens}"
            raise ContractError("demonstrations", "completion", str(number), demonstration.completion, why, "Leave the row out.")
        examples.append({"input_ids": prompt_ids + completion_ids, "labels": [IGNORED] * len(prompt_ids) + completion_ids})
    return examples


def train(
    model: PreTrainedModel, tokenizer: Any, examples: Sequence[Mapping[str, list[int]]], settings: WarmStartSettings
) -> list[dict[str, float]]:
    """Trains `model` in place and returns TRL's log: one dictionary of means for about 50 windows of steps.

    Raises:
        TrainingError: the loss or a weight is not finite.
    """
    with tempfile.TemporaryDirectory() as unused:  # the trainer wants a directory, and writes nothing to it
        trainer = _build_trainer(model, tokenizer, examples, settings, unused)
        trainer.train()
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise TrainingError(f"warm start: parameter {name!r} is not finite after training. {_REMEDY}")
    return [entry for entry in trainer.state.log_history if "loss" in entry]


_REMEDY = "No policy was written. Lower warm_start.learning_rate or look for damaged demonstrations."


def _build_trainer(
    model: PreTrainedModel,
    tokenizer: Any,
    examples: Sequence[Mapping[str, list[int]]],
    settings: WarmStartSettings,
    output_directory: str,
) -> SFTTrainer:
    import torch
    from datasets import Dataset
    from transformers.trainer_callback import PrinterCallback
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer

    from posttrain.trainer_progress import ShowProgress

    arguments = SFTConfig(
        output_dir=output_directory,
        max_steps=settings.num_steps,
        per_device_train_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=WARMUP_SHARE,
        seed=settings.seed % 2**32,  # numpy takes no more
        data_seed=settings.seed % 2**32,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        save_strategy="no",
        report_to="none",
        logging_steps=max(1, settings.num_steps // NUM_LOSS_POINTS),
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
    )
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else _eos(tokenizer)
    trainer = SFTTrainer(
        model=model,
        args=arguments,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([dict(row) for row in examples]),
        # labels are padded by length, so EOS stays trained when it is also the pad token (huggingface/trl#976)
        data_collator=DataCollatorForLanguageModeling(pad_token_id=pad_id),
        callbacks=[_stop_callback(), ShowProgress("warm start")],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _stop_callback() -> Any:
    from transformers import TrainerCallback

    class StopAtNonFiniteLoss(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
            loss = (logs or {}).get("loss")
            if loss is None:
                return
            if not math.isfinite(loss):
                raise TrainingError(f"warm start: the loss is {loss} at step {state.global_step}. {_REMEDY}")

    return StopAtNonFiniteLoss()


def _demonstration(row: Mapping[str, Any], number: int, system: tuple[Message, ...]) -> Demonstration:
    prompt, completion = row.get("prompt"), row.get("completion")
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if (
        isinstance(completion, list)
        and len(completion) == 1
        and is_message(completion[0])
        and completion[0]["role"] == "assistant"
    ):
        completion = completion[0]["content"]
    if not _is_prompt(prompt) or not isinstance(completion, str) or not completion:
        remedy = "A row needs `prompt` and `completion`: texts that are not empty, or messages with one assistant message."
        raise ContractError("demonstrations", None, str(number), dict(row), "it is not a demonstration", remedy)
    messages = tuple({"role": message["role"], "content": message["content"]} for message in prompt)
    return Demonstration((*system, *messages), completion)


def _is_prompt(prompt: Any) -> TypeGuard[list[Message]]:
    return isinstance(prompt, list) and bool(prompt) and all(map(is_message, prompt)) and bool(prompt[-1]["content"])


def _eos(tokenizer: Any) -> int:
    if tokenizer.eos_token_id is None:
        raise ConfigError("data.model", tokenizer.name_or_path, "its tokenizer has no EOS token", "Choose a model that can stop.")
    return int(tokenizer.eos_token_id)


def _context(model: PreTrainedModel) -> int:
    return int(getattr(model.config, "max_position_embeddings", sys.maxsize))


def _metrics(history: Sequence[Mapping[str, float]]) -> pa.Table:
    names = {"train/sft_loss": "loss", "train/sft_token_accuracy": "mean_token_accuracy"}
    return tables.from_rows(
        "METRICS",
        [
            {"iteration": 0, "step": int(entry["step"]), "name": name, "value": entry[key]}
            for entry in history
            for name, key in names.items()
        ],
    )
