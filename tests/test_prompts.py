"""Prompts of every source → PROMPTS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from posttrain import brackets, tables
from posttrain.config import DataSettings
from posttrain.errors import ConfigError, ContractError, InfrastructureError
from posttrain.prompts import LoadedPrompts, hold_out, load_prompts
from posttrain.resolution import parse
from tests.tiny_models import BOS_ID, CHAT_TEMPLATE, UNKNOWN_ID, build_tiny_tokenizer

ODD_NAMES = ["my data.jsonl", "a%20b.jsonl", "a#b.jsonl", "a?size=3&x.jsonl", "größe.jsonl", "日本.jsonl"]


def load(source: str | Path, *, field: str = "data.prompts", source_name: str | None = None, **values: Any) -> LoadedPrompts:
    data = parse(DataSettings, {"verifier": "exact", "max_prompt_tokens": 64, **values})
    tokenizer = build_tiny_tokenizer(CHAT_TEMPLATE)
    loaded = load_prompts(str(source), tokenizer, data, field=field, source_name=source_name)
    tables.validate(loaded.table, "PROMPTS")
    return loaded


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def test_brackets_become_prompts_for_the_code_verifier() -> None:
    table = load("brackets?size=20&seed=4").table
    problems = brackets.problems(20, seed=4)
    assert table["prompt_id"].to_pylist() == [f"brackets:4:{n}" for n in range(20)]
    assert set(table["verifier"].to_pylist()) == {"code"}
    assert [json.loads(answer) for answer in table["answer"].to_pylist()] == [problem.answer for problem in problems]
    assert table["messages"].to_pylist()[3] == [{"role": "user", "content": problems[3].prompt}]


def test_prompt_ids_are_the_rendered_template_with_one_bos(tmp_path: Path) -> None:
    row = load(jsonl(tmp_path / "p.jsonl", {"prompt": "1+1?", "answer": "2"}), system_prompt="be brief").table.to_pylist()[0]
    letters = build_tiny_tokenizer().convert_tokens_to_ids(list("system: be brief\nuser: 1+1?\nassistant: "))
    assert row["prompt_ids"] == [BOS_ID, *letters]
    assert [message["role"] for message in row["messages"]] == ["system", "user"]
    assert (row["answer"], row["verifier"], row["prompt_id"]) == ('"2"', "exact", "p.jsonl:0")


def test_a_row_may_bring_messages_id_verifier_and_source(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "own"}, {"role": "user", "content": "1+1?"}]
    row = {"prompt_id": 7, "messages": messages, "answer": 2, "verifier": "last_number", "source": "book"}
    found = load(jsonl(tmp_path / "p.jsonl", row), system_prompt="be brief").table.to_pylist()[0]
    assert found["messages"] == messages  # the row's own system message goes before the setting's
    assert (found["prompt_id"], found["verifier"], found["source"], found["answer"]) == ("7", "last_number", "book", "2")


def test_parquet_and_jsonl_give_the_same_rows(tmp_path: Path) -> None:
    rows = [{"prompt_id": f"r{n}", "prompt": f"{n}+1?", "answer": str(n + 1), "source": "same"} for n in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    assert load(tmp_path / "p.parquet").table == load(jsonl(tmp_path / "p.jsonl", *rows)).table


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_odd_file_names_are_taken_literally(tmp_path: Path, name: str, ending: str) -> None:
    path = tmp_path / name.replace("jsonl", ending)
    if ending == "jsonl":
        jsonl(path, {"prompt": "?", "answer": "1"})
    else:
        pq.write_table(pa.table({"prompt": ["?"], "answer": ["1"]}), path)
    assert load(path).table["prompt_id"].to_pylist() == [f"{path.name}:0"]


def test_answers_of_any_json_type_are_kept_exactly(tmp_path: Path) -> None:
    answers = ["18", 2**53 + 1, 0.5, 3]
    path = jsonl(tmp_path / "p.jsonl", *({"prompt": "?", "answer": answer} for answer in answers))
    found = [json.loads(answer) for answer in load(path, verifier="last_number").table["answer"].to_pylist()]
    assert found == answers
    assert [type(answer) for answer in found] == [str, int, float, int]


def test_reasoning_gym_gives_plain_answers_to_other_verifiers() -> None:
    source = "reasoning_gym:chain_sum?size=30&seed=3&min_terms=2&max_terms=2&min_digits=1&max_digits=1"
    table = load(source, verifier="last_number", max_prompt_tokens=200).table
    assert table.num_rows == 30
    for messages, answer in zip(table["messages"].to_pylist(), table["answer"].to_pylist(), strict=True):
        left, sign, right, equals = messages[0]["content"].split(": ")[1].split()
        assert equals == "="
        assert int(json.loads(answer)) == int(left) + int(sign + right)
    assert load(source, verifier="last_number", max_prompt_tokens=200).table == table


def test_reasoning_gym_gives_its_own_verifier_the_whole_entry() -> None:
    table = load("reasoning_gym:chain_sum?size=2&seed=3", verifier="reasoning_gym", max_prompt_tokens=200).table
    answer = json.loads(table["answer"].to_pylist()[0])
    assert answer["dataset"] == "chain_sum"
    assert {"question", "answer", "metadata"} <= answer["entry"].keys()


def test_the_seed_of_a_generator_is_fixed_when_none_is_given() -> None:
    settings: dict[str, Any] = {"verifier": "exact", "max_prompt_tokens": 200}
    assert (
        load("reasoning_gym:chain_sum?size=5", **settings).table["prompt_ids"]
        == (load("reasoning_gym:chain_sum?size=5&seed=0", **settings).table["prompt_ids"])
    )


def test_a_local_dataset_directory_with_other_columns_and_worked_answers(tmp_path: Path) -> None:
    directory = tmp_path / "grade school"
    directory.mkdir()
    jsonl(
        directory / "train.jsonl", {"question": "6*3?", "answer": "6 #### threes\n#### 18"}, {"question": "2?", "answer": "####2"}
    )
    options = "prompt_column=question&answer_column=answer&answer_after=####"
    table = load(f"{directory}?split=train&{options}", verifier="last_number").table
    assert table["answer"].to_pylist() == ['"18"', '"2"']
    assert table["prompt_id"].to_pylist() == ["grade school:train:0", "grade school:train:1"]
    jsonl(directory / "train.jsonl", {"question": "6*3?", "answer": "18"})
    with pytest.raises(ContractError, match="row 0.*no '####'.*'18'"):
        load(f"{directory}?{options}", verifier="last_number")


def test_a_long_prompt_is_reported_by_id_and_left_out_whole(tmp_path: Path) -> None:
    overhead = len("user: ") + len("\nassistant: ") + 1  # and BOS
    fits, too_long = "x" * (64 - overhead), "x" * (65 - overhead)
    rows = [{"prompt_id": name, "prompt": text, "answer": "1"} for name, text in (("fits", fits), ("long", too_long))]
    loaded = load(jsonl(tmp_path / "p.jsonl", *rows))
    assert loaded.table["prompt_id"].to_pylist() == ["fits"]
    assert len(loaded.table["prompt_ids"].to_pylist()[0]) == 64
    assert [(item.prompt_id, item.reason) for item in loaded.rejected] == [("long", "longer than data.max_prompt_tokens = 64")]


def test_unicode_control_characters_nul_and_one_megabyte(tmp_path: Path) -> None:
    texts = {
        "emoji": "👩‍🚀 naïve 日本 \u202e", "control": "a\x00b\x1b[31m\x07\r\n", "nul": "\x00",
        "blank": " \t\n\u3000", "empty": "", "surrogate": "a\ud800", "huge": "x" * 1_000_000,
    }  # fmt: skip
    rows = [{"prompt_id": name, "prompt": text, "answer": "1"} for name, text in texts.items()]
    loaded = load(jsonl(tmp_path / "p.jsonl", *rows))
    kept = {row["prompt_id"]: row for row in loaded.table.to_pylist()}
    assert kept.keys() == {"emoji", "control", "nul"}
    assert all(kept[name]["messages"][0]["content"] == texts[name] for name in kept)
    assert UNKNOWN_ID in kept["nul"]["prompt_ids"]
    reasons = {item.prompt_id: item.reason for item in loaded.rejected}
    assert reasons["blank"] == reasons["empty"] == "the text is empty"
    assert "surrogate" in reasons["surrogate"]
    assert reasons["huge"].startswith("longer than")


def test_an_empty_source_and_a_source_of_rejected_prompts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no prompt is left: the source is empty"):
        load(jsonl(tmp_path / "empty.jsonl"))
    rows = [{"prompt": " ", "answer": "1"}, {"prompt": "x" * 100, "answer": "1"}]
    with pytest.raises(ConfigError, match=r"all 2 were rejected.*'p.jsonl:0': the text is empty; 'p.jsonl:1': longer than"):
        load(jsonl(tmp_path / "p.jsonl", *rows))


def test_duplicate_ids_are_refused(tmp_path: Path) -> None:
    row = {"prompt_id": "twin", "prompt": "?", "answer": "1"}
    with pytest.raises(ContractError, match=r"prompt_id.*row 1.*occurs twice.*'twin'"):
        load(jsonl(tmp_path / "p.jsonl", row, row))


@pytest.mark.parametrize(
    ("verifier", "answer"), [("last_number", "twelve"), ("code", {"mode": "expression", "inputs": []}), ("reasoning_gym", "7")]
)
def test_a_wrong_answer_is_refused_before_anything_is_generated(tmp_path: Path, verifier: str, answer: Any) -> None:
    good = {"prompt_id": "good", "prompt": "?", "answer": "1"}
    bad = {"prompt_id": "bad", "prompt": "?", "answer": answer, "verifier": verifier}
    with pytest.raises(ConfigError, match=rf"prompt 'bad', verifier '{verifier}'"):
        load(jsonl(tmp_path / "p.jsonl", good, bad))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("brackets?sise=3", "no option 'sise'.*'size'"),
        ("brackets?size=many", "option 'size' is 'many'"),
        ("brackets?size", "malformed"),
        ("brackets?size=1&size=2", "twice"),
        ("bracket?split=train", "Did you mean 'brackets'"),
        ("reasoning_gym:chain_sums?size=3", "no generator 'chain_sums'.*'chain_sum'"),
        ("reasoning_gym:chain_sum?min_term=3", "no option 'min_term'.*'min_terms'"),
        ("reasoning_gym:chain_sum?min_terms=5&max_terms=2", "refuses its options.*max_terms"),
        ("reasoning_gym:chain_sum?min_terms=two", "refuses its options"),
        ("somebody/data?colum=3", "no option 'colum'"),
        ("nowhere/missing.jsonl", "no such file"),
    ],
)
def test_a_wrong_source_says_what_to_write(source: str, message: str) -> None:
    with pytest.raises((ConfigError, InfrastructureError), match=message):
        load(source)


def test_an_unknown_verifier_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'last_numbr'.*'last_number'"):
        load(jsonl(tmp_path / "p.jsonl", {"prompt": "?", "answer": "1"}), verifier="last_numbr")


@pytest.mark.parametrize("source", ["x.json", "somebody/nothing?split=train"])
def test_offline_no_retry_can_help_a_source_that_is_neither_file_nor_dataset(source: str) -> None:
    with pytest.raises(ConfigError, match=r"neither such a file nor such a dataset.*give a .jsonl or .parquet file") as error:
        load(source)
    assert (error.value.field, error.value.value) == ("data.prompts", source)


def test_a_host_that_cannot_be_reached_is_worth_a_retry_unless_a_file_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route to host")  # what datasets raises after its own retries, which take half a minute

    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(InfrastructureError, match=r"'somebody/nothing'.*no route to host"):
        load("somebody/nothing")
    with pytest.raises(ConfigError, match="neither such a file"):
        load("folder/x.json")


def test_a_broken_dataset_directory_is_a_wrong_setting(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"prompt": "?", "answer": "1"}\n{"prompt": "', encoding="utf-8")
    with pytest.raises(ConfigError, match="the dataset cannot be loaded.*JSON parse error"):
        load(tmp_path)


def test_a_local_copy_goes_by_the_users_own_name(tmp_path: Path) -> None:
    rows = [{"prompt": "1+1?", "answer": "2"}, {"prompt": " ", "answer": "1"}]
    copies = [tmp_path / name for name in ("0f3a", "77bc")]
    for directory in copies:
        directory.mkdir()
    loaded = [load(jsonl(copy / "p.jsonl", *rows), source_name="s3://bucket/set/p.jsonl") for copy in copies]
    assert loaded[0] == loaded[1]
    row = loaded[0].table.to_pylist()[0]
    assert (row["prompt_id"], row["source"]) == ("p.jsonl:0", "s3://bucket/set/p.jsonl")
    with pytest.raises(ConfigError, match="'data.prompts' = 's3://bucket/set/p.jsonl'.*no such file"):
        load(tmp_path / "gone.jsonl", source_name="s3://bucket/set/p.jsonl")


def test_credentials_of_a_source_reach_neither_table_nor_error(tmp_path: Path) -> None:
    name = "https://me:p4ss@host/p.jsonl"
    table = load(jsonl(tmp_path / "p.jsonl", {"prompt": "?", "answer": "1"}), source_name=name).table
    assert table["source"].to_pylist() == ["https://***@host/p.jsonl"]
    with pytest.raises(ConfigError) as error:
        load(tmp_path / "gone.jsonl", source_name=name)
    assert "p4ss" not in str(error.value)


@pytest.mark.parametrize("directory", ["first", "second"])
def test_where_a_dataset_lies_changes_no_id(tmp_path: Path, directory: str) -> None:
    path = tmp_path / directory / "sums"
    path.mkdir(parents=True)
    jsonl(path / "train.jsonl", {"prompt": "?", "answer": "1"})
    assert load(path).table["prompt_id"].to_pylist() == ["sums:train:0"]


def test_moving_a_file_leaves_the_content_hash_as_it_was(tmp_path: Path) -> None:
    row = {"prompt": "?", "answer": "1"}
    first = load(jsonl(tmp_path / "p.jsonl", row)).table
    (tmp_path / "elsewhere").mkdir()
    second = load(jsonl(tmp_path / "elsewhere" / "p.jsonl", row)).table
    assert first["source"] != second["source"]
    assert tables.content_hash(first) == tables.content_hash(second)
    other = load(jsonl(tmp_path / "p.jsonl", {**row, "answer": "2"})).table
    assert tables.content_hash(first) != tables.content_hash(other)


@pytest.mark.parametrize("rows", [[], [{"prompt": "?", "answer": "twelve", "verifier": "last_number"}]])
def test_faults_of_evaluation_prompts_name_their_own_setting(tmp_path: Path, rows: list[Any]) -> None:
    with pytest.raises(ConfigError) as error:
        load(jsonl(tmp_path / "p.jsonl", *rows), field="data.evaluation_prompts")
    assert error.value.field.startswith("data.evaluation_prompts")


@pytest.mark.parametrize("column", ["verifier", "source"])
@pytest.mark.parametrize("value", [5, ["exact"], True])
def test_a_verifier_or_source_that_is_no_text_is_named_by_row(tmp_path: Path, column: str, value: Any) -> None:
    good = {"prompt": "?", "answer": "1"}
    with pytest.raises(ContractError, match=rf"column '{column}', row 1: it is not a text"):
        load(jsonl(tmp_path / "p.jsonl", good, {**good, column: value}))


def test_a_byte_order_mark_begins_a_file_but_no_other_line(tmp_path: Path) -> None:
    line = b'{"prompt": "?", "answer": "1"}\n'
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + line * 2)
    assert load(path).table["prompt_id"].to_pylist() == ["p.jsonl:0", "p.jsonl:1"]
    path.write_bytes(line + b"\xef\xbb\xbf" + line)
    with pytest.raises(ConfigError, match="line 2 is not JSON"):
        load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "?", "answer": "1"}\n{"prompt"', "line 2 is not JSON"),
        (b'\n[1, 2]\n', "line 2 is not a JSON object"),
        (b'{"prompt": "\xff"}', "line 1 is not JSON in UTF-8"),
        (b"[" * 100_000, "line 1 is not JSON"),
        (b'{"question": "?", "answer": "1"}', "row 0.*not a prompt.*Columns found: question, answer"),
        (b'{"prompt": [{"role": "user", "content": [1]}], "answer": "1"}', "row 0.*not a prompt"),
        (b'{"prompt": "?"}', "row 0.*no answer.*Columns found: prompt"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named_by_line_or_row(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "p.jsonl").write_bytes(content)
    with pytest.raises((ConfigError, ContractError), match=message):
        load(tmp_path / "p.jsonl")


def test_a_file_that_is_not_parquet_and_a_file_of_another_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "p.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(ConfigError, match="not a readable parquet file"):
        load(tmp_path / "p.parquet")
    (tmp_path / "p.csv").write_text("prompt,answer\n?,1\n")
    with pytest.raises(ConfigError, match="neither a .jsonl nor a .parquet file"):
        load(tmp_path / "p.csv")


def test_hold_out_removes_evaluation_prompts_from_training_by_content(tmp_path: Path) -> None:
    training = load(jsonl(tmp_path / "t.jsonl", *({"prompt": f"{n}?", "answer": "1"} for n in range(4))))
    evaluation = load(jsonl(tmp_path / "e.jsonl", {"prompt": "2?", "answer": "1"}, {"prompt": "9?", "answer": "1"}))
    kept = hold_out(training, evaluation.table)
    assert kept.table["prompt_id"].to_pylist() == ["t.jsonl:0", "t.jsonl:1", "t.jsonl:3"]
    assert [(item.prompt_id, "held out" in item.reason) for item in kept.rejected] == [("t.jsonl:2", True)]
    with pytest.raises(ConfigError, match="no prompt is left"):
        hold_out(training, training.table)


def test_a_verifier_that_no_row_asks_for_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load("brackets?size=2&seed=4", verifier="exact")
    assert "asks for the verifier 'exact': every row names its own (code)" in caplog.text
    caplog.clear()
    load(jsonl(tmp_path / "a.jsonl", {"prompt": "a", "answer": "b"}), verifier="exact")
    load("brackets?size=2&seed=4", verifier="code")
    assert caplog.text == ""
