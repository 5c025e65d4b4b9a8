"""Readers of preference pairs: each turns a source into raw pairs, before any tokenising, a few rows at a time.

The formats are those of TRL: an explicit prompt (`prompt`, `chosen`, `rejected`) or an implicit one (`chosen` and `rejected`
begin alike), each as plain text or as conversations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from posttrain.errors import ConfigError, ContractError
from posttrain.sources import (
    FILE_ENDINGS,
    Message,
    Source,
    dataset_label,
    is_message,
    is_unicode,
    iterate_file,
    open_dataset,
    parse_source,
)

COLUMNS = ("prompt", "chosen", "rejected")
DATASET_OPTIONS = ("split", "config", *(f"{column}_column" for column in COLUMNS))
UNREAD_COLUMNS = ("tools", "images", "image")  # what a chat template or a processor would put into the prompt
UNREAD_PARTS = ("tool_calls", "reasoning_content", "thinking")  # of a message, likewise

EMPTY_ANSWER = "an answer is empty"
IDENTICAL = "chosen and rejected are identical"
NOT_UNICODE = "the text has a lone surrogate, which is not Unicode"
NO_SHARED_MESSAGE = "the two conversations share no leading message, so there is no prompt"
SEVERAL_MESSAGES = "an answer is more than one message: only single answers are supported"
NOT_ASSISTANT = "an answer is not the assistant's message"
PROMPT_ENDS_WITH_ASSISTANT = "the prompt ends with the assistant's message: there is nothing to answer"
EMPTY_PROMPT = "the prompt's last message is empty"
UNREAD = "the row holds tools, images, tool calls or separate reasoning, which are not supported"

Prompt = str | tuple[Message, ...]
Side = TypeVar("Side", str, tuple[Message, ...])


@dataclass(frozen=True)
class RawPair:
    """A pair as its source gives it; `prompt` is plain text or a conversation, the answers are texts.

    `margin` says by how much the chosen answer was judged better, None where the source does not say.
    """

    pair_id: str
    prompt_id: str | None
    prompt: Prompt
    chosen: str
    rejected: str
    source: str
    margin: float | None


@dataclass(frozen=True)
class RejectedPair:
    """A pair that was left out, and why."""

    pair_id: str
    reason: str


class LeftOut(Exception):
    """The pair cannot be learned from; the message is the reason."""


def read_pairs(field: str, text: str, source_name: str) -> Iterator[RawPair | RejectedPair]:
    """Every pair of a source, in its order. `field` is the setting that `text` comes from, `source_name` what to call it.

    Raises:
        ConfigError: the source, an option or a file cannot be used.
        ContractError: a row has another shape; names row and column.
        InfrastructureError: the dataset host cannot be reached.
    """
    source = replace(parse_source(field, text), text=source_name)
    label, rows = _open(source)
    for number, row in enumerate(rows):
        yield _read(_Row(row, number, source), f"{label}:{number}")


def split_texts(chosen: str, rejected: str) -> tuple[str, str, str]:
    """Prompt and answers of an implicit prompt: the longest common start; prompt + answer is each text again, byte for byte.

    A space before the first difference goes to the answers, as in TRL: most tokenizers hold it with the word behind it.
    """
    prompt, chosen_rest, rejected_rest = _split(chosen, rejected)
    if prompt.endswith(" ") and chosen_rest and rejected_rest:
        return prompt[:-1], f" {chosen_rest}", f" {rejected_rest}"
    return prompt, chosen_rest, rejected_rest


def _split(chosen: Side, rejected: Side) -> tuple[Side, Side, Side]:
    """The longest common start, and what follows it on either side."""
    shared, bound = 0, min(len(chosen), len(rejected))
    while shared < bound:
        middle = (shared + bound + 1) // 2
        if chosen[shared:middle] == rejected[shared:middle]:
            shared = middle
        else:
            bound = middle - 1
    return chosen[:shared], chosen[shared:], rejected[shared:]


def _open(source: Source) -> tuple[str, Iterable[Mapping[str, Any]]]:
    """What ids begin with, and the rows."""
    if source.is_file:
        return Path(source.text).name, iterate_file(source)
    source.check_options(DATASET_OPTIONS)
    split = source.options.get("split", "train")
    remedy = "Check the id, `split` and `config`, or give a .jsonl, .parquet or .arrow file."
    files = _files(source, split, remedy) if Path(source.name).is_dir() else []
    rows = (row for file in files for row in iterate_file(file)) if files else open_dataset(source, split, remedy)
    return dataset_label(source, split), (_renamed(row, number, source) for number, row in enumerate(rows))


def _files(source: Source, split: str, remedy: str) -> list[Source]:
    """The files of a local dataset's split where each is one that we read row by row.

    The library `datasets` takes the types of a split from its first rows and fails at a column that is null there
    (huggingface/datasets#7222).
    """
    import datasets
    from datasets.exceptions import DatasetsError

    try:
        builder = datasets.load_dataset_builder(source.name, source.options.get("config"))
    except (OSError, ValueError, DatasetsError) as error:
        raise ConfigError(source.field, source.text, f"the dataset cannot be loaded ({error})", remedy) from error
    paths = [str(path) for path in (builder.config.data_files or {}).get(split, [])]
    if not all(path.endswith(FILE_ENDINGS) for path in paths):
        return []
    return [replace(source, name=path, text=f"{source.text}: {Path(path).name}") for path in paths]


def _renamed(row: Mapping[str, Any], number: int, source: Source) -> Mapping[str, Any]:
    """The row with the columns that the options name under our own names."""
    named = {column: source.options[f"{column}_column"] for column in COLUMNS if f"{column}_column" in source.options}
    for column, name in named.items():
        if name not in row:
            why, remedy = f"there is no column {name!r}", f"Columns found: {', '.join(row)}."
            raise ContractError(source.text, column, str(number), None, why, remedy)
    return {**row, **{column: row[name] for column, name in named.items()}}


@dataclass(frozen=True)
class _Row:
    values: Mapping[str, Any]
    number: int
    source: Source

    def get(self, column: str) -> Any:
        return self.values.get(column)

    def breach(self, column: str, why: str, remedy: str) -> ContractError:
        return ContractError(self.source.text, column, str(self.number), self.get(column), why, remedy)

    def identifier(self, column: str) -> str | None:
        value = self.get(column)
        if value is None or isinstance(value, str):
            return value or None
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        raise self.breach(column, "it is neither a text nor a whole number", "Correct the id, or leave the column out.")

    def text(self, column: str) -> str:
        value = self.get(column)
        if value is not None and not isinstance(value, str):
            raise self.breach(column, "it is not a text", "Write a text, or leave the column out.")
        return value or ""

    def number_of(self, column: str) -> float | None:
        value = self.get(column)
        if value is None:
            return None
        try:
            number = math.nan if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)
        except OverflowError:  # a whole number above 1e308
            number = math.inf
        if not math.isfinite(number):
            raise self.breach(column, "it is not a finite number", "Write a number, or null.")
        return number


def _read(row: _Row, default_id: str) -> RawPair | RejectedPair:
    pair_id = row.identifier("pair_id") or default_id
    prompt_id, named, margin = row.identifier("prompt_id"), row.text("source"), _margin(row)
    try:
        prompt, chosen, rejected = _sides(row)
        _check_texts(prompt, chosen, rejected)
        return RawPair(pair_id, prompt_id, prompt, chosen, rejected, named or row.source.text, margin)
    except LeftOut as reason:
        return RejectedPair(pair_id, str(reason))


def _margin(row: _Row) -> float | None:
    if row.get("margin") is not None:
        return row.number_of("margin")
    chosen, rejected = row.number_of("score_chosen"), row.number_of("score_rejected")
    return None if chosen is None or rejected is None else chosen - rejected


def _sides(row: _Row) -> tuple[Prompt, str, str]:
    """Prompt, chosen and rejected, whichever format the row has."""
    prompt, chosen, rejected = (_checked(row, column) for column in COLUMNS)
    if any(row.get(column) for column in UNREAD_COLUMNS):
        raise LeftOut(UNREAD)
    if isinstance(chosen, str) and isinstance(rejected, str):
        if chosen == rejected:
            raise LeftOut(IDENTICAL)
        return split_texts(chosen, rejected) if prompt is None else (prompt, chosen, rejected)
    if not isinstance(chosen, tuple) or not isinstance(rejected, tuple):
        raise row.breach("rejected", "it is of another kind than chosen", "Give both as texts or both as messages.")
    if chosen == rejected:
        raise LeftOut(IDENTICAL)
    shared, chosen, rejected = _split(chosen, rejected)
    if prompt is None and not shared:
        raise LeftOut(NO_SHARED_MESSAGE)
    return _conversation(row, prompt, shared), _answer(chosen), _answer(rejected)


def _checked(row: _Row, column: str) -> Prompt | None:
    """The column's text or messages; None where a prompt is left out."""
    value = row.get(column)
    if isinstance(value, str) or (value is None and column == "prompt"):
        return value
    if not isinstance(value, list) or not all(map(is_message, value)):
        remedy = f"Give a text, or messages with role and content as texts. Columns found: {', '.join(row.values)}."
        raise row.breach(column, "it is neither a text nor a conversation", remedy)
    if any(message.get(part) for message in value for part in UNREAD_PARTS):
        raise LeftOut(UNREAD)
    return tuple({"role": message["role"], "content": message["content"]} for message in value)


def _conversation(row: _Row, prompt: Prompt | None, shared: tuple[Message, ...]) -> tuple[Message, ...]:
    """The conversation before the answers: `prompt`, or what the sides share; they may repeat the prompt (UltraFeedback)."""
    if isinstance(prompt, str):
        prompt = ({"role": "user", "content": prompt},)
    if prompt is not None and not prompt:
        raise LeftOut(EMPTY_PROMPT)
    if prompt is None or (shared and shared[-len(prompt) :] == prompt):
        return shared
    if shared and shared[0]["role"] == "assistant":
        raise LeftOut(SEVERAL_MESSAGES)
    if shared:
        raise row.breach("prompt", "chosen and rejected begin alike, but not with this prompt", "Leave one of the prompts out.")
    return prompt


def _answer(messages: tuple[Message, ...]) -> str:
    if not messages:
        raise LeftOut(EMPTY_ANSWER)
    answer, *others = messages
    if others:
        raise LeftOut(SEVERAL_MESSAGES)
    if answer["role"] != "assistant":
        raise LeftOut(NOT_ASSISTANT)
    return answer["content"]


def _check_texts(prompt: Prompt, chosen: str, rejected: str) -> None:
    if chosen == rejected:
        raise LeftOut(IDENTICAL)
    if not chosen.strip() or not rejected.strip():
        raise LeftOut(EMPTY_ANSWER)
    texts = (prompt,) if isinstance(prompt, str) else tuple(text for message in prompt for text in message.values())
    if not is_unicode(chosen, rejected, *texts):
        raise LeftOut(NOT_UNICODE)
    last = {} if isinstance(prompt, str) else prompt[-1]
    if last.get("role") == "assistant":
        raise LeftOut(PROMPT_ENDS_WITH_ASSISTANT)
    if last and not last["content"].strip():
        raise LeftOut(EMPTY_PROMPT)
