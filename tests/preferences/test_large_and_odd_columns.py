"""Columns that are larger than 2 GiB, null at first, empty, or in any order of files."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from posttrain.config_dpo import PreferenceData
from posttrain.errors import ConfigError
from posttrain.preferences import LoadedPreferences, load_preferences
from posttrain.resolution import parse
from tests.tiny_models import build_tiny_tokenizer

MEBIBYTE = 1 << 20
FIRST = {"prompt": "q?", "chosen": "yes", "rejected": "no", "source": None, "margin": None, "tools": []}
SECOND = {"prompt": "r?", "chosen": "one", "rejected": "two", "source": "book", "margin": 0.5, "tools": []}


def load(source: Path) -> LoadedPreferences:
    data = parse(PreferenceData, {"model": "any", "preferences": str(source)})
    return load_preferences(str(source), build_tiny_tokenizer(), data, field="data.preferences")


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows) if rows else pa.table({"chosen": pa.nulls(0), "rejected": pa.nulls(0)}), path)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("order", list(itertools.permutations([[FIRST], [SECOND], []])))
def test_shards_that_are_null_or_empty_are_read_in_any_order(tmp_path: Path, ending: str, order: tuple[list[Any], ...]) -> None:
    for number, rows in enumerate(order):
        write(tmp_path / f"train-0000{number}-of-00003.{ending}", rows)
    rows = {row["prompt_ids"][0]: row for row in load(tmp_path).table.to_pylist()}
    assert len(rows) == 2
    first, second = (rows[build_tiny_tokenizer().convert_tokens_to_ids(letter)] for letter in "qr")
    assert (first["margin"], second["margin"], second["source"]) == (None, 0.5, "book")


def test_a_column_that_only_a_later_row_has_is_not_lost(tmp_path: Path) -> None:
    rows = [{"chosen": "a", "rejected": "b", "margin": 1}, {"chosen": "c", "rejected": "d", "margin": 0.5, "source": "book"}]
    write(tmp_path / "p.jsonl", rows)
    table = load(tmp_path / "p.jsonl").table
    assert table["margin"].to_pylist() == [1.0, 0.5]
    assert table["source"].to_pylist()[1] == "book"


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    names = ["prompt", "chosen", "rejected", "chosen"]
    pq.write_table(
        pa.table([pa.array(["q?"]), pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], names=names), tmp_path / "p.parquet"
    )
    (tmp_path / "p.jsonl").write_text('{"prompt": "q?", "chosen": "a", "rejected": "b", "chosen": "c"}\n')
    for ending in ("parquet", "jsonl"):
        with pytest.raises(ConfigError, match="'chosen' stands twice"):
            load(tmp_path / f"p.{ending}")


def test_a_file_without_rows_is_an_error_that_says_so(tmp_path: Path) -> None:
    write(tmp_path / "p.parquet", [])
    with pytest.raises(ConfigError, match="the source is empty"):
        load(tmp_path / "p.parquet")


@pytest.mark.slow
def test_three_gibibytes_of_strings_in_one_column_need_little_memory(tmp_path: Path) -> None:
    """A small file: one value of 1 MiB, 3,072 times in 32-bit strings of one row group, and a short pair behind them."""
    indices = pa.array([0] * 3072 + [1], pa.int32())
    columns = {
        name: pa.DictionaryArray.from_arrays(indices, pa.array(["x" * MEBIBYTE, last]))
        for name, last in (("chosen", "yes"), ("rejected", "no"))
    }
    path = tmp_path / "p.parquet"
    limits = {"row_group_size": len(indices), "dictionary_pagesize_limit": 4 * MEBIBYTE}
    pq.write_table(pa.table(columns), path, store_schema=False, **limits)
    assert pq.read_schema(path).field("chosen").type == pa.string()
    script = f"""
        import collections, pathlib, resource
        from tests.preferences.test_large_and_odd_columns import load
        def peak_mib():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        load(pathlib.Path({str(tmp_path)!r}, "small.jsonl"))  # imports
        before = peak_mib()
        loaded = load(pathlib.Path({str(path)!r}))
        print(loaded.table.num_rows, peak_mib() - before, collections.Counter(pair.reason for pair in loaded.rejected))
    """
    write(tmp_path / "small.jsonl", [FIRST])
    finished = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    num_pairs, grown_mib, rejected = finished.stdout.split(maxsplit=2)
    assert (num_pairs, rejected.strip()) == ("1", "Counter({'chosen and rejected are identical': 3072})")
    assert int(grown_mib) < 512
