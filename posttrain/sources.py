"""Where rows come from: `generator?size=…&seed=…`, a .jsonl or .parquet file, or a dataset id with options."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl

import pyarrow as pa

from posttrain.errors import ConfigError, InfrastructureError

FILE_ENDINGS = (".jsonl", ".parquet")
OTHER_FILES = (".json", ".csv", ".tsv", ".txt", ".arrow", ".gz", ".zst", ".zip")  # endings that no dataset id has
BATCH_ROWS = 16  # rows of a parquet file that are in memory at once: each may hold megabytes
Message = dict[str, str]


@dataclass(frozen=True)
class Source:
    """A parsed source: `name` (what is opened) before the question mark, `options` after it; a file has no options.

    `text` is what errors and tables call it.
    """

    field: str
    text: str
    name: str
    options: Mapping[str, str]

    @property
    def is_file(self) -> bool:
        return self.name.endswith(FILE_ENDINGS)

    def check_options(self, known: Iterable[str]) -> None:
        """Raises ConfigError for an option that is not `known`, with the nearest name."""
        names = sorted(known)
        for option in self.options:
            if option not in names:
                near = difflib.get_close_matches(option, names, n=1, cutoff=0.5)
                remedy = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(names)}."
                raise ConfigError(self.field, self.text, f"{self.name} has no option {option!r}", remedy)

    def integer(self, option: str, default: int) -> int:
        """The option as a whole number, 0 or more.

        Raises:
            ConfigError: the value is something else.
        """
        value = self.options.get(option, str(default))
        if not value.isdecimal():
            raise ConfigError(self.field, self.text, f"option {option!r} is {value!r}", "Write a whole number, 0 or more.")
        return int(value)


def parse_source(field: str, text: str) -> Source:
    """Splits `name?option=value&…`; a text that ends with .jsonl or .parquet is a path and taken literally.

    Raises:
        ConfigError: malformed or repeated options; `field` is the setting it names.
    """
    if text.endswith(FILE_ENDINGS):
        return Source(field, text, text, {})
    name, _, query = text.partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise ConfigError(field, text, f"the options are malformed ({error})", "Write name?option=value&option=value.") from error
    options = dict(pairs)
    if len(options) < len(pairs):
        raise ConfigError(field, text, "an option stands twice", "Leave one of them out.")
    return Source(field, text, name, options)


def read_file(source: Source) -> list[dict[str, Any]]:
    """The rows of a .jsonl or .parquet file as dictionaries.

    Raises:
        ConfigError: the file is missing or is not what its name says; names the line.
    """
    return list(iterate_file(source))


def iterate_file(source: Source) -> Iterator[dict[str, Any]]:
    """The same, a few rows in memory at a time: a column may hold more than 2 GiB (apache/arrow#44164).

    Raises:
        ConfigError: as `read_file`, but as late as the faulty row.
    """
    path = Path(source.name)
    if not path.is_file():
        raise ConfigError(source.field, source.text, "there is no such file", "Give the path of a .jsonl or .parquet file.")
    yield from (_iterate_parquet if path.suffix == ".parquet" else _iterate_jsonl)(source, path)


def dataset_label(source: Source, split: str) -> str:
    """What ids of a dataset's rows begin with: its name, whatever directory it lies in, and the split."""
    name = Path(source.text.partition("?")[0]).name if Path(source.name).is_dir() else source.name
    return f"{name}:{split}"


def open_dataset(source: Source, split: str, remedy: str) -> Iterable[dict[str, Any]]:
    """The rows of a Hugging Face dataset, by id or local directory.

    Raises:
        ConfigError: there is no such dataset, or it cannot be loaded.
        InfrastructureError: the dataset host cannot be reached.
    """
    import datasets
    from datasets import config
    from datasets.exceptions import DatasetsError

    if Path(source.name).is_file():
        raise ConfigError(source.field, source.text, "it is neither a .jsonl nor a .parquet file", "Convert the file.")
    try:
        rows = datasets.load_dataset(source.name, source.options.get("config"), split=split)
    except ConnectionError as error:
        if config.HF_HUB_OFFLINE or source.name.endswith(OTHER_FILES):  # no retry helps
            why = f"there is neither such a file nor such a dataset within reach ({error})"
            raise ConfigError(source.field, source.text, why, remedy) from error
        message = f"setting {source.field!r} = {source.text!r}: the dataset host cannot be reached ({error}). {remedy}"
        raise InfrastructureError(message) from error
    except (OSError, ValueError, DatasetsError) as error:
        cause = f": {error.__cause__}" if error.__cause__ else ""
        raise ConfigError(source.field, source.text, f"the dataset cannot be loaded ({error}{cause})", remedy) from error
    return cast("Iterable[dict[str, Any]]", rows)


def _iterate_parquet(source: Source, path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path, memory_map=True)
        _unique((name, None) for name in file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(source.field, source.text, f"not a readable parquet file ({error})", "Write the file again.") from error


def _iterate_jsonl(source: Source, path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _parse_line(source, number, line)


def _parse_line(source: Source, number: int, line: bytes) -> dict[str, Any]:
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")  # editors begin a file with a byte-order mark
        row = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        why = f"line {number} is not JSON in UTF-8 ({error})"
        raise ConfigError(source.field, source.text, why, "Correct the line.") from error
    if not isinstance(row, dict):
        raise ConfigError(source.field, source.text, f"line {number} is not a JSON object", "Write one object a line.")
    return row


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs as a dictionary; raises ValueError for a name that stands twice, of which the last would win."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} stands twice")
        found[name] = value
    return found


def is_message(item: Any) -> bool:
    """Whether `item` is a chat message: role and content, both texts."""
    return isinstance(item, dict) and isinstance(item.get("role"), str) and isinstance(item.get("content"), str)


def is_unicode(*texts: str) -> bool:
    """Whether UTF-8 can hold the texts; a lone surrogate, which JSON may escape, it cannot."""
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError:
        return False
    return True


def with_system(messages: tuple[Message, ...], system_prompt: str) -> tuple[Message, ...]:
    """The conversation with `system_prompt` before it, unless that is empty or the conversation has a system message."""
    if not system_prompt or messages[0]["role"] == "system":
        return messages
    return ({"role": "system", "content": system_prompt}, *messages)
