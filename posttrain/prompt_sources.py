"""Readers of prompts: each turns a source into raw prompts, before any tokenising."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

from posttrain import brackets
from posttrain.config_base import ModelData
from posttrain.errors import ConfigError, ContractError
from posttrain.sources import Message, Source, dataset_label, is_message, open_dataset, parse_source, read_file

REASONING_GYM = "reasoning_gym:"
DATASET_OPTIONS = ("split", "config", "prompt_column", "answer_column", "answer_after")


@dataclass(frozen=True)
class RawPrompt:
    """A prompt as its source gives it; `answer` is plain Python data that JSON can hold."""

    prompt_id: str
    messages: tuple[Message, ...]
    verifier: str
    answer: Any
    source: str


def read_prompts(field: str, text: str, data: ModelData, source_name: str) -> list[RawPrompt]:
    """Every prompt of a source, in its order. `field` is the setting that `text` comes from, `source_name` what to call it.

    Raises:
        ConfigError: the source, an option or a file cannot be used.
        ContractError: a row has another shape.
        InfrastructureError: the dataset host cannot be reached.
    """
    source = replace(parse_source(field, text), text=source_name)
    if source.is_file:
        return _from_rows(read_file(source), Path(source_name).name, source, data)
    if source.name == "brackets":
        return _from_brackets(source)
    if source.name.startswith(REASONING_GYM):
        return _from_reasoning_gym(source, data.verifier)
    return _from_dataset(source, data)


def _from_brackets(source: Source) -> list[RawPrompt]:
    source.check_options(("size", "seed"))
    seed = source.integer("seed", 0)
    return [
        RawPrompt(f"brackets:{seed}:{index}", _user(problem.prompt), "code", problem.answer, source.text)
        for index, problem in enumerate(brackets.problems(source.integer("size", 1024), seed))
    ]


def _from_reasoning_gym(source: Source, verifier: str) -> list[RawPrompt]:
    """The verifier `reasoning_gym` gets the whole entry, which its scorer needs; any other gets the answer's text."""
    name, size = source.name.removeprefix(REASONING_GYM), source.integer("size", 500)
    seed = source.integer("seed", 0)
    return [
        RawPrompt(
            f"{name}:{seed}:{index}",
            _user(entry["question"]),
            verifier,
            {"dataset": name, "entry": entry} if verifier == "reasoning_gym" else entry["answer"],
            source.text,
        )
        for index, entry in enumerate(islice(_generate(source, name, size, seed), size))
    ]


def _generate(source: Source, name: str, size: int, seed: int) -> Iterator[dict[str, Any]]:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=1, cutoff=0.5)
        remedy = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(sorted(DATASETS))}."
        raise ConfigError(source.field, source.text, f"reasoning-gym has no generator {name!r}", remedy)
    source.check_options(item.name for item in fields(DATASETS[name][1]))
    options = {key: _plain(value) for key, value in source.options.items()}
    try:
        yield from reasoning_gym.create_dataset(name, **{**options, "size": size, "seed": seed})
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(source.field, source.text, f"{name} refuses its options ({error})", "Correct the options.") from error


def _plain(value: str) -> Any:
    """An option's value as JSON (numbers, true, false, lists), else as text."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def _from_dataset(source: Source, data: ModelData) -> list[RawPrompt]:
    source.check_options(DATASET_OPTIONS)
    split = source.options.get("split", "train")
    columns = {source.options.get(f"{name}_column", name): name for name in ("prompt", "answer")}
    near = difflib.get_close_matches(source.name, ("brackets", REASONING_GYM), n=1, cutoff=0.6)
    remedy = f"Did you mean {near[0]!r}?" if near else "Check the id, `split` and `config`, or give a .jsonl or .parquet file."
    found = open_dataset(source, split, remedy)
    rows = ({columns.get(key, key): value for key, value in row.items()} for row in found)
    marker = source.options.get("answer_after")
    if marker:
        rows = ({**row, "answer": _after(marker, row, number, source)} for number, row in enumerate(rows))
    return _from_rows(rows, dataset_label(source, split), source, data)


def _after(marker: str, row: Mapping[str, Any], number: int, source: Source) -> str:
    """The answer behind the last marker of a worked solution, as in GSM8K: `… #### 18`."""
    _, found, answer = str(row.get("answer")).rpartition(marker)
    if not found:
        why = f"the answer has no {marker!r}"
        raise ContractError(source.text, "answer", str(number), row.get("answer"), why, "Check the option answer_after.")
    return answer.strip()


def _from_rows(rows: Iterable[Mapping[str, Any]], label: str, source: Source, data: ModelData) -> list[RawPrompt]:
    """Rows with `prompt` (text or messages) or `messages`, `answer`, and where given `prompt_id`, `verifier`, `source`."""
    return [
        RawPrompt(
            str(row["prompt_id"]) if row.get("prompt_id") is not None else f"{label}:{number}",
            _messages(row, number, source),
            _text(row, "verifier", number, source) or data.verifier,
            _answer(row, number, source),
            _text(row, "source", number, source) or source.text,
        )
        for number, row in enumerate(rows)
    ]


def _text(row: Mapping[str, Any], column: str, number: int, source: Source) -> str:
    value = row.get(column)
    if value is not None and not isinstance(value, str):
        raise ContractError(source.text, column, str(number), value, "it is not a text", "Write a text, or leave the column out.")
    return value or ""


def _answer(row: Mapping[str, Any], number: int, source: Source) -> Any:
    if "answer" not in row:
        remedy = f"Columns found: {', '.join(row)}."
        raise ContractError(source.text, "answer", str(number), None, "the row has no answer", remedy)
    return row["answer"]


def _messages(row: Mapping[str, Any], number: int, source: Source) -> tuple[Message, ...]:
    column = "messages" if row.get("messages") is not None else "prompt"
    value = row.get(column)
    if isinstance(value, str):
        return _user(value)
    if not isinstance(value, list) or not value or not all(is_message(item) for item in value):
        remedy = f"Give `prompt` as text, or messages with role and content as texts. Columns found: {', '.join(row)}."
        raise ContractError(source.text, column, str(number), value, "it is not a prompt", remedy)
    return tuple({"role": item["role"], "content": item["content"]} for item in value)


def _user(text: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": text},)
