"""Where rows come from: `generator?size=…&seed=…`, a .jsonl or .parquet file, or a dataset id with options."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pyarrow as pa

from posttrain.errors import ConfigError

FILE_ENDINGS = (".jsonl", ".parquet")
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
    path = Path(source.name)
    if not path.is_file():
        raise ConfigError(source.field, source.text, "there is no such file", "Give the path of a .jsonl or .parquet file.")
    return _read_parquet(source, path) if path.suffix == ".parquet" else _read_jsonl(source, path)


def _read_parquet(source: Source, path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path).read().to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError(source.field, source.text, f"not a readable parquet file ({error})", "Write the file again.") from error


def _read_jsonl(source: Source, path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                rows.append(_parse_line(source, number, line))
    return rows


def _parse_line(source: Source, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))  # editors begin a file with a byte-order mark
    except (ValueError, RecursionError) as error:
        why = f"line {number} is not JSON in UTF-8 ({error})"
        raise ConfigError(source.field, source.text, why, "Correct the line.") from error
    if not isinstance(row, dict):
        raise ConfigError(source.field, source.text, f"line {number} is not a JSON object", "Write one object a line.")
    return row


def is_message(item: Any) -> bool:
    """Whether `item` is a chat message: role and content, both texts."""
    return isinstance(item, dict) and isinstance(item.get("role"), str) and isinstance(item.get("content"), str)
