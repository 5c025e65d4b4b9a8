"""Prompts of any source → the PROMPTS table: encoded once, ids kept, answers checked before anything is generated."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from posttrain import tables
from posttrain.config_base import ModelData
from posttrain.config_verify import VerifySettings
from posttrain.errors import ConfigError, ContractError
from posttrain.prompt_sources import RawPrompt, read_prompts
from posttrain.sources import is_unicode, with_system
from posttrain.tracking_credentials import mask_credentials

if TYPE_CHECKING:
    from posttrain.verify.base import Verifier

NUM_SHOWN = 3
logger = logging.getLogger("posttrain")


@dataclass(frozen=True)
class RejectedPrompt:
    """A prompt that was left out, and why."""

    prompt_id: str
    reason: str


@dataclass(frozen=True)
class LoadedPrompts:
    """The PROMPTS table and every prompt that is not in it."""

    table: pa.Table
    rejected: tuple[RejectedPrompt, ...]


def load_prompts(
    source: str,
    tokenizer: Any,
    data: ModelData,
    *,
    field: str,
    source_name: str | None = None,
    verification: VerifySettings | None = None,
) -> LoadedPrompts:
    """Reads `source`, encodes every prompt and checks every answer against its verifier.

    Sources:
        `brackets?size=…&seed=…`, whose verifier is `code`.
        `reasoning_gym:chain_sum?size=…&seed=…`, with any option of the generator.
        The path of a .jsonl or .parquet file with the columns `prompt` (text) or `messages`, `answer` (any JSON), and where
        given `prompt_id`, `verifier`, `source`.
        Else a Hugging Face dataset id, with the options `split` (train), `config`, `prompt_column`, `answer_column` and
        `answer_after`: with `####` the answer is what stands behind the last `####`, as in GSM8K.

    The verifier of a row is its own column `verifier`, else `data.verifier`. The answer of reasoning-gym prompts is
    `{"dataset", "entry"}` when that verifier is `reasoning_gym`, else the answer's text. A row's own system message goes
    before `data.system_prompt`. A prompt that is empty or longer than `data.max_prompt_tokens` is rejected, never truncated.

    Args:
        field: the setting that `source` comes from, which errors name.
        source_name: what errors, the column `source` and the ids of rows without one call the source: the user's own text where
            `source` is a local copy of it. Credentials in it are masked.
        verification: settings of the verifiers that check the answers; by default our own verifiers as they come.

    Raises:
        ConfigError: an unusable source or option, an unknown verifier, an answer of the wrong shape (names the prompt),
            or no prompt left (says how many were rejected and why).
        ContractError: a row of another shape, or a prompt_id that occurs twice.
        InfrastructureError: the dataset host cannot be reached.
    """
    name = mask_credentials(source_name or source)
    raw = read_prompts(field, source, data, name)
    _check_ids(raw, name)
    _check_answers(raw, field, verification or VerifySettings())
    _warn_of_unused_verifier(raw, name, data)
    rows: list[dict[str, Any]] = []
    rejected: list[RejectedPrompt] = []
    for prompt in raw:
        encoded = _encode(prompt, tokenizer, data)
        if isinstance(encoded, str):
            rejected.append(RejectedPrompt(prompt.prompt_id, encoded))
        else:
            rows.append(encoded)
    if not rows:
        remedy = "Give prompts, or raise data.max_prompt_tokens."
        raise ConfigError(field, name, f"no prompt is left{_why(rejected)}", remedy)
    return LoadedPrompts(tables.from_rows("PROMPTS", rows), tuple(rejected))


def hold_out(training: LoadedPrompts, evaluation: pa.Table) -> LoadedPrompts:
    """`training` without the prompts whose token ids also occur in `evaluation`; they join the rejected ones.

    Raises:
        ConfigError: no training prompt is left.
    """
    held_out = {tuple(prompt_ids) for prompt_ids in evaluation["prompt_ids"].to_pylist()}
    overlaps = [tuple(prompt_ids) in held_out for prompt_ids in training.table["prompt_ids"].to_pylist()]
    ids = training.table.filter(pa.array(overlaps))["prompt_id"].to_pylist()
    rejected = tuple(RejectedPrompt(prompt_id, "the same prompt is held out for evaluation") for prompt_id in ids)
    table = training.table.filter(pa.array([not overlap for overlap in overlaps]))
    if not table.num_rows:
        raise ConfigError("data.prompts", None, f"no prompt is left{_why(rejected)}", "Evaluate on other prompts.")
    return LoadedPrompts(table, (*training.rejected, *rejected))


def _encode(prompt: RawPrompt, tokenizer: Any, data: ModelData) -> dict[str, Any] | str:
    """A PROMPTS row, or the reason why the prompt is rejected."""
    from posttrain import chat

    if not prompt.messages[-1]["content"].strip():
        return "the text is empty"
    if not is_unicode(*(text for message in prompt.messages for text in (message["role"], message["content"]))):
        return "the text has a lone surrogate, which is not Unicode"
    messages = with_system(prompt.messages, data.system_prompt)
    prompt_ids = chat.encode_messages(tokenizer, list(messages))
    if len(prompt_ids) > data.max_prompt_tokens:
        return f"longer than data.max_prompt_tokens = {data.max_prompt_tokens}"
    return {
        "prompt_id": prompt.prompt_id,
        "messages": list(messages),
        "prompt_ids": prompt_ids,
        "verifier": prompt.verifier,
        "answer": _as_json(prompt),
        "source": prompt.source,
    }


def _as_json(prompt: RawPrompt) -> str:
    try:
        # ASCII, so that a lone surrogate in an answer survives as an escape
        return json.dumps(prompt.answer, allow_nan=False)
    except (TypeError, ValueError) as error:
        row = f"prompt_id={prompt.prompt_id!r}"
        raise ContractError("PROMPTS", "answer", row, prompt.answer, f"JSON cannot hold the answer ({error})") from error


def _check_ids(raw: Sequence[RawPrompt], source: str) -> None:
    seen: set[str] = set()
    for number, prompt in enumerate(raw):
        if prompt.prompt_id in seen:
            remedy = "Make the ids distinct."
            raise ContractError(source, "prompt_id", str(number), prompt.prompt_id, "the id occurs twice", remedy)
        seen.add(prompt.prompt_id)


def _check_answers(raw: Sequence[RawPrompt], field: str, settings: VerifySettings) -> None:
    from posttrain.verify.registry import create_verifier

    verifiers: dict[str, Verifier] = {}
    for prompt in raw:
        if prompt.verifier not in verifiers:
            verifiers[prompt.verifier] = create_verifier(prompt.verifier, settings)
        try:
            verifiers[prompt.verifier].check_answer(prompt.answer)
        except ConfigError as error:
            why = f"prompt {prompt.prompt_id!r}, verifier {prompt.verifier!r}: {error.why}"
            raise ConfigError(f"{field}: answer", error.value, why, error.remedy) from error


def _warn_of_unused_verifier(raw: Sequence[RawPrompt], name: str, data: ModelData) -> None:
    """Whoever names a verifier wants it to judge; rows that name their own take it from them without a word."""
    named = sorted({prompt.verifier for prompt in raw})
    default = type(data).model_fields["verifier"].default
    if raw and data.verifier not in named and data.verifier != default:
        message = "no prompt of %s asks for the verifier %r: every row names its own (%s)"
        logger.warning(message, name, data.verifier, ", ".join(named))


def _why(rejected: Sequence[RejectedPrompt]) -> str:
    if not rejected:
        return ": the source is empty"
    shown = "; ".join(f"{prompt.prompt_id!r}: {prompt.reason}" for prompt in rejected[:NUM_SHOWN])
    return f": all {len(rejected)} were rejected ({shown}{'; …' if len(rejected) > NUM_SHOWN else ''})"
