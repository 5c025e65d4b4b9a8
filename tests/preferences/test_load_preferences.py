"""Pairs of every source and format → PREFERENCES; ids worked out character by character."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from posttrain import brackets, chat, tables
from posttrain.config_dpo import PreferenceData
from posttrain.errors import ConfigError, ContractError
from posttrain.preference_sources import split_texts
from posttrain.preferences import LoadedPreferences, load_preferences
from posttrain.resolution import parse
from tests.tiny_models import BOS_ID, CHAT_TEMPLATE, EOS_ID, build_tiny_tokenizer

END_TEMPLATE = CHAT_TEMPLATE.replace("{{ message['content'] }}\n", "{{ message['content'] }}<|end|>\n")
USER = {"role": "user", "content": "hi"}


def ids_of(text: str) -> list[int]:
    """Character by character; `<s>` and `</s>` are single ids."""
    tokenizer = build_tiny_tokenizer()
    parts = text.replace("</s>", "\0").replace("<s>", "\1")
    return [{"\0": EOS_ID, "\1": BOS_ID}.get(part, tokenizer.convert_tokens_to_ids(part)) for part in parts]


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def load(source: str | Path, tokenizer: Any = None, **values: Any) -> LoadedPreferences:
    settings = {"model": "any", "preferences": str(source), **values}
    tokenizer = tokenizer or build_tiny_tokenizer(CHAT_TEMPLATE)
    loaded = load_preferences(str(source), tokenizer, parse(PreferenceData, settings), field="data.preferences")
    tables.validate(loaded.table, "PREFERENCES")
    return loaded


def load_rows(tmp_path: Path, *rows: Any, tokenizer: Any = None, **values: Any) -> LoadedPreferences:
    return load(jsonl(tmp_path / "p.jsonl", *rows), tokenizer, **values)


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def reasons(loaded: LoadedPreferences) -> list[tuple[str, str]]:
    return [(pair.pair_id, pair.reason) for pair in loaded.rejected]


GOOD = {"prompt": "q?", "chosen": "yes", "rejected": "no"}
CONVERSATION = "<s>user: hi\nassistant: "


@pytest.mark.parametrize(
    ("row", "prompt", "chosen", "rejected"),
    [
        ({"prompt": "q?", "chosen": " a", "rejected": " b"}, "q?", " a</s>", " b</s>"),
        ({"chosen": "q? a", "rejected": "q? b"}, "q?", " a</s>", " b</s>"),
        ({"prompt": [USER], "chosen": [assistant("a")], "rejected": [assistant("b")]}, CONVERSATION, "a</s>", "b</s>"),
        ({"chosen": [USER, assistant("a")], "rejected": [USER, assistant("b")]}, CONVERSATION, "a</s>", "b</s>"),
        ({"prompt": [USER], "chosen": "a", "rejected": "b"}, CONVERSATION, "a</s>", "b</s>"),
        ({"prompt": "hi", "chosen": [USER, assistant("a")], "rejected": [USER, assistant("b")]}, CONVERSATION, "a</s>", "b</s>"),
        ({"prompt": "hi", "chosen": [assistant("a")], "rejected": [assistant("b")]}, CONVERSATION, "a</s>", "b</s>"),
    ],
)
def test_every_format_gives_the_ids_of_prompt_and_answers(
    tmp_path: Path, row: dict[str, Any], prompt: str, chosen: str, rejected: str
) -> None:
    found = load_rows(tmp_path, row).table.to_pylist()[0]
    assert [found[f"{part}_ids"] for part in ("prompt", "chosen", "rejected")] == [ids_of(t) for t in (prompt, chosen, rejected)]


def test_parquet_jsonl_and_a_dataset_directory_with_other_columns_give_the_same_ids(tmp_path: Path) -> None:
    rows = [{**GOOD, "chosen": f"yes {number}"} for number in range(40)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    (tmp_path / "set").mkdir()
    jsonl(tmp_path / "set" / "train.jsonl", *({"prompt": r["prompt"], "good": r["chosen"], "bad": r["rejected"]} for r in rows))
    found = [
        load(tmp_path / "p.parquet").table,
        load_rows(tmp_path, *rows).table,
        load(f"{tmp_path / 'set'}?split=train&chosen_column=good&rejected_column=bad").table,
    ]
    ids = [[table[column].to_pylist() for column in ("prompt_ids", "chosen_ids", "rejected_ids")] for table in found]
    assert ids[0] == ids[1] == ids[2]
    assert [table["pair_id"][39].as_py() for table in found] == ["p.parquet:39", "p.jsonl:39", "set:train:39"]
    assert len(set(found[0]["prompt_id"].to_pylist())) == 1


@pytest.mark.parametrize("add_bos", [True, False])
@pytest.mark.parametrize("template", [CHAT_TEMPLATE, CHAT_TEMPLATE.replace("{{ bos_token }}", "")])
def test_exactly_one_bos_whoever_writes_it(tmp_path: Path, add_bos: bool, template: str) -> None:
    tokenizer = build_tiny_tokenizer(template, add_bos)
    conversation = {"chosen": [USER, assistant("a")], "rejected": [USER, assistant("b")]}
    rendered = chat.render_messages(tokenizer, [USER])
    explicit = {"prompt": rendered, "chosen": "a", "rejected": "c"}
    table = load_rows(
        tmp_path, conversation, explicit, {**GOOD, "prompt": "<s>q?"}, {**GOOD, "chosen": "b"}, tokenizer=tokenizer
    ).table
    by_chat, by_text, with_bos, plain = table["prompt_ids"].to_pylist()
    assert by_chat == by_text == ids_of(rendered if "<s>" in rendered or not add_bos else f"<s>{rendered}")
    assert with_bos == ids_of("<s>q?")
    assert plain == ids_of("<s>q?" if add_bos else "q?")
    assert all(BOS_ID not in side for column in ("chosen_ids", "rejected_ids") for side in table[column].to_pylist())


def test_an_end_token_in_the_text_is_not_doubled(tmp_path: Path) -> None:
    rows = [{**GOOD, "chosen": "yes</s>"}, {**GOOD, "chosen": "yes!</s></s></s>"}]
    table = load_rows(tmp_path, *rows).table
    assert table["chosen_ids"].to_pylist() == [ids_of("yes</s>"), ids_of("yes!</s>")]
    assert table["rejected_ids"].to_pylist() == [ids_of("no</s>")] * 2


def test_a_conversation_ends_with_the_templates_end_of_turn_and_plain_text_with_eos(tmp_path: Path) -> None:
    tokenizer = build_tiny_tokenizer(END_TEMPLATE)
    tokenizer.add_tokens(["<|end|>"], special_tokens=True)
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    conversation = {"chosen": [USER, assistant("a<|end|>")], "rejected": [USER, assistant("b")]}
    table = load_rows(tmp_path, conversation, GOOD, tokenizer=tokenizer).table
    assert table["chosen_ids"].to_pylist() == [[*ids_of("a"), end], ids_of("yes</s>")]
    assert table["rejected_ids"].to_pylist() == [[*ids_of("b"), end], ids_of("no</s>")]


def test_a_think_tag_of_the_generation_prompt_is_not_doubled(tmp_path: Path) -> None:
    template = CHAT_TEMPLATE.replace("assistant: ", "assistant: <think>\n")
    rows = [
        {"prompt": [USER], "chosen": "<think>\na</think>yes", "rejected": "<think>b</think>no"},
        {"prompt": [USER], "chosen": "c</think>yes", "rejected": "\n<think>\n\nd</think>no"},
        {"prompt": "hi", "chosen": "<think>e", "rejected": "no"},
    ]
    table = load_rows(tmp_path, *rows, tokenizer=build_tiny_tokenizer(template)).table
    assert table["prompt_ids"].to_pylist()[0] == ids_of("<s>user: hi\nassistant: <think>\n")
    assert table["chosen_ids"].to_pylist() == [ids_of(f"{text}</s>") for text in ("a</think>yes", "c</think>yes", "<think>e")]
    assert table["rejected_ids"].to_pylist()[:2] == [ids_of(f"{text}</s>") for text in ("b</think>no", "\nd</think>no")]


def test_with_the_quick_starts_tokenizer_messages_and_text_are_the_same(tmp_path: Path) -> None:
    tokenizer = brackets.build_tokenizer()
    text = {"prompt": "add 9:", "chosen": "x+9", "rejected": "x"}
    messages = {"prompt": [{"role": "user", "content": "add 9:"}], "chosen": "x+9", "rejected": "x+8"}
    first, second = load_rows(tmp_path, text, messages, tokenizer=tokenizer).table.to_pylist()
    assert first["prompt_ids"] == second["prompt_ids"] == tokenizer("add 9:")["input_ids"]
    assert first["prompt_id"] == second["prompt_id"]


@pytest.mark.parametrize(
    ("chosen", "rejected", "split"),
    [
        ("The sky is blue", "The sky is blue and vast", ("The sky is blue", "", " and vast")),
        ("Yes ", "No", ("", "Yes ", "No")),
        ("a b", "a c", ("a", " b", " c")),
        ("a  b", "a  c", ("a ", " b", " c")),
        ("same", "same", ("same", "", "")),
        ("", "x", ("", "", "x")),
        ("naïve 🙂", "naïve 🙁", ("naïve", " 🙂", " 🙁")),
    ],
)
def test_an_implicit_prompt_joins_to_the_texts_again(chosen: str, rejected: str, split: tuple[str, str, str]) -> None:
    assert split_texts(chosen, rejected) == split
    prompt, chosen_rest, rejected_rest = split_texts(rejected, chosen)
    assert (prompt + chosen_rest, prompt + rejected_rest) == (rejected, chosen)


def test_the_implicit_pairs_of_the_field_report(tmp_path: Path) -> None:
    loaded = load_rows(
        tmp_path,
        {"chosen": "The sky is blue", "rejected": "The sky is blue and vast"},
        {"chosen": "yes ", "rejected": "no"},
        {"chosen": [USER, assistant("a")], "rejected": [USER, assistant("a")]},
        {"chosen": "same", "rejected": "same"},
        tokenizer=build_tiny_tokenizer(CHAT_TEMPLATE, add_bos=True),
    )
    assert reasons(loaded) == [
        ("p.jsonl:0", "an answer is empty"),
        ("p.jsonl:2", "chosen and rejected are identical"),
        ("p.jsonl:3", "chosen and rejected are identical"),
    ]
    row = loaded.table.to_pylist()[0]
    assert (row["prompt_ids"], row["chosen_ids"], row["rejected_ids"]) == ([BOS_ID], ids_of("yes </s>"), ids_of("no</s>"))


def test_an_empty_prompt_begins_with_bos_or_the_pair_is_rejected(tmp_path: Path) -> None:
    without = build_tiny_tokenizer()
    without.bos_token = None
    empty = {"prompt": "", "chosen": "yes", "rejected": "no"}
    loaded = load_rows(tmp_path, empty, GOOD, tokenizer=without)
    assert [name for name, _ in reasons(loaded)] == ["p.jsonl:0"] and "no BOS" in loaded.rejected[0].reason
    assert load_rows(tmp_path, empty).table["prompt_ids"].to_pylist() == [[BOS_ID]]


def test_the_system_prompt_goes_before_conversations_without_their_own(tmp_path: Path) -> None:
    own = {"role": "system", "content": "own"}
    rows = [{"chosen": [*start, assistant("a")], "rejected": [*start, assistant("b")]} for start in ([USER], [own, USER])]
    table = load_rows(tmp_path, *rows, system_prompt="be brief").table
    texts = ("<s>system: be brief\nuser: hi\nassistant: ", "<s>system: own\nuser: hi\nassistant: ")
    assert table["prompt_ids"].to_pylist() == [ids_of(text) for text in texts]
    with pytest.raises(ConfigError, match="data.system_prompt.*'p.jsonl:0' is plain text"):
        load_rows(tmp_path, GOOD, system_prompt="be brief")


def test_each_side_has_its_own_budget(tmp_path: Path) -> None:
    rows = [
        {"prompt": "four", "chosen": "abcdefghijklm", "rejected": "xy"},
        {"prompt": "twelve chars", "chosen": "a", "rejected": "b"},
        {"prompt": "nine char", "chosen": "ab", "rejected": "ac"},
        {"prompt": "four", "chosen": "abcdefgh", "rejected": "abcdef"},
        {"prompt": "four", "chosen": "abcde", "rejected": "b"},
    ]
    loaded = load_rows(tmp_path, *rows, max_pair_tokens=10)
    assert loaded.table["pair_id"].to_pylist() == ["p.jsonl:0", "p.jsonl:4"]
    assert loaded.table["chosen_ids"].to_pylist() == [ids_of("abcdef"), ids_of("abcde</s>")]  # EOS only where it fits
    assert loaded.table["rejected_ids"].to_pylist() == [ids_of("xy</s>"), ids_of("b</s>")]
    truncated = "chosen and rejected become identical by truncation to data.max_pair_tokens = 10"
    assert reasons(loaded) == [
        ("p.jsonl:1", "the prompt leaves no room for an answer in data.max_pair_tokens = 10"),
        ("p.jsonl:2", truncated),
        ("p.jsonl:3", truncated),
    ]


def test_the_start_of_a_huge_text_has_the_ids_that_the_whole_has(tmp_path: Path) -> None:
    text = "the quick brown fox; " * 50_000
    row = load_rows(tmp_path, {**GOOD, "chosen": text}, max_pair_tokens=1000).table.to_pylist()[0]
    assert row["chosen_ids"] == build_tiny_tokenizer()(text)["input_ids"][: 1000 - len("q?")]
    assert len(chat.encode_completion(build_tiny_tokenizer(), text, 1000)) < len(text)
    assert len(chat.encode_completion(build_tiny_tokenizer(), text, 10**6)) == len(text)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"chosen": "", "rejected": "no"}, "an answer is empty"),
        ({"chosen": "yes", "rejected": " \n"}, "an answer is empty"),
        ({"chosen": "yes", "rejected": "</s>"}, "an answer is empty"),
        ({"chosen": "yes", "rejected": "</s></s>"}, "an answer is empty"),
        ({"chosen": "ye</s>s", "rejected": "no"}, "goes on behind its end token"),
        ({"prompt": [USER], "chosen": "yes", "rejected": "n</s>o</s>"}, "goes on behind its end token"),
        ({"chosen": [], "rejected": [assistant("no")]}, "an answer is empty"),
        ({"chosen": "same", "rejected": "same"}, "chosen and rejected are identical"),
        ({"chosen": "É", "rejected": "Ü"}, "chosen and rejected have the same token ids"),  # both unknown
        ({"chosen": "a\ud800", "rejected": "no"}, "lone surrogate"),
        ({"prompt": "\udfff", "chosen": "yes", "rejected": "no"}, "lone surrogate"),
        ({"chosen": [assistant("a"), USER, assistant("b")], "rejected": [assistant("c")]}, "more than one message"),
        ({"chosen": [assistant("a"), USER, assistant("b")], "rejected": [assistant("a"), USER, assistant("c")]}, "more than one"),
        ({"chosen": [USER], "rejected": [assistant("c")]}, "not the assistant's message"),
        ({"prompt": None, "chosen": [USER, assistant("a")], "rejected": [assistant("b")]}, "share no leading message"),
        ({"prompt": [USER, assistant("so")], "chosen": "a", "rejected": "b"}, "ends with the assistant's message"),
        ({"prompt": [{"role": "user", "content": " "}], "chosen": "a", "rejected": "b"}, "last message is empty"),
        ({"prompt": [], "chosen": [assistant("a")], "rejected": [assistant("b")]}, "last message is empty"),
        ({"tools": [{"name": "f"}]}, "tools"),
        ({"chosen": [assistant("a") | {"tool_calls": [1]}], "rejected": [assistant("b")]}, "tool calls"),
    ],
)
def test_what_cannot_be_learned_from_is_left_out_with_its_reason(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    loaded = load_rows(tmp_path, {**GOOD, **row}, {**GOOD, "chosen": "another"})
    assert loaded.table["pair_id"].to_pylist() == ["p.jsonl:1"]
    assert [name for name, _ in reasons(loaded)] == ["p.jsonl:0"] and reason in loaded.rejected[0].reason


def test_roles_that_the_template_refuses_leave_the_pair_out(tmp_path: Path) -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHAT_TEMPLATE
    rows = [{"prompt": [{"role": "system", "content": "s"}, USER], "chosen": "a", "rejected": "b"}, GOOD]
    loaded = load_rows(tmp_path, *rows, tokenizer=build_tiny_tokenizer(refusing))
    assert loaded.table["pair_id"].to_pylist() == ["p.jsonl:1"] and "no system role" in loaded.rejected[0].reason


def test_duplicates_keep_the_first_and_contradictions_go_both(tmp_path: Path) -> None:
    rows = [
        {"pair_id": "a", **GOOD},
        {"pair_id": "again", **GOOD},
        {"pair_id": "other prompt", **GOOD, "prompt": "r?"},
        {"pair_id": "for", "prompt": "s?", "chosen": "one", "rejected": "two"},
        {"pair_id": "against", "prompt": "s?", "chosen": "two", "rejected": "one"},
    ]
    loaded = load_rows(tmp_path, *rows)
    assert loaded.table["pair_id"].to_pylist() == ["a", "other prompt"]
    contradicted = "another pair prefers the other way round"
    assert reasons(loaded) == [
        ("again", "the same pair stands before it"), ("for", contradicted), ("against", contradicted)
    ]  # fmt: skip


def test_optional_columns_are_kept_and_scores_become_the_margin(tmp_path: Path) -> None:
    rows = [
        {**GOOD, "pair_id": 7, "prompt_id": "p", "source": "book", "margin": 2},
        {**GOOD, "chosen": "yes 2", "score_chosen": 8, "score_rejected": 7.5},
        {**GOOD, "chosen": "yes 3", "score_chosen": 8},
    ]
    table = load_rows(tmp_path, *rows).table
    assert table["margin"].to_pylist() == [2.0, 0.5, None]
    first = table.to_pylist()[0]
    assert (first["pair_id"], first["prompt_id"], first["source"]) == ("7", "p", "book")
    assert table["prompt_id"].to_pylist()[1].startswith("prompt:")


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"chosen": 5}, "chosen"),
        ({"chosen": None}, "chosen"),
        ({"rejected": ["no"]}, "rejected"),
        ({"rejected": [{"role": "assistant", "content": None}]}, "rejected"),
        ({"rejected": [{"role": "assistant", "content": "no"}]}, "rejected"),
        ({"prompt": 1}, "prompt"),
        ({"prompt": "other", "chosen": [USER, assistant("a")], "rejected": [USER, assistant("b")]}, "prompt"),
        ({"margin": "2"}, "margin"),
        ({"margin": True}, "margin"),
        ({"margin": float("nan")}, "margin"),
        ({"margin": 10**400}, "margin"),
        ({"score_chosen": float("inf"), "score_rejected": 0}, "score_chosen"),
        ({"source": 5}, "source"),
        ({"pair_id": [1]}, "pair_id"),
        ({"prompt_id": True}, "prompt_id"),
    ],
)
def test_a_value_of_another_kind_is_named_by_row_and_column(tmp_path: Path, row: dict[str, Any], column: str) -> None:
    with pytest.raises(ContractError, match=rf"p\.jsonl, column '{column}', row 1: "):
        load_rows(tmp_path, {**GOOD, "chosen": "first"}, {**GOOD, **row})


def test_a_missing_column_and_a_repeated_id_are_named(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="column 'rejected', row 0.*Columns found: prompt, chosen"):
        load_rows(tmp_path, {"prompt": "q?", "chosen": "yes"})
    (tmp_path / "set").mkdir()
    jsonl(tmp_path / "set" / "train.jsonl", GOOD)
    with pytest.raises(ContractError, match="no column 'good'.*Columns found"):
        load(f"{tmp_path / 'set'}?chosen_column=good")
    with pytest.raises(ContractError, match="pair_id.*'twin'.*occurs twice|occurs twice.*'twin'"):
        load_rows(tmp_path, {**GOOD, "pair_id": "twin"}, {**GOOD, "pair_id": "twin", "chosen": "x"})


def test_one_row_is_enough_and_no_row_is_an_error_with_counts(tmp_path: Path) -> None:
    assert load_rows(tmp_path, GOOD).table.num_rows == 1
    with pytest.raises(ConfigError, match="no pair is left: the source is empty"):
        load_rows(tmp_path)
    same = {"chosen": "same", "rejected": "same"}
    with pytest.raises(
        ConfigError, match=r"all 3 were rejected \(2 × chosen and rejected are identical; 1 × an answer is empty\)"
    ):
        load_rows(tmp_path, same, {"chosen": "", "rejected": "a"}, same)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere/missing.jsonl", "no such file"),
        ("nowhere/missing.arrow", "no such file"),
        ("somebody/data?colum=3", "no option 'colum'"),
        ("somebody/data", "neither such a file nor such a dataset.*arrow"),
        ("pairs.csv", "neither such a file nor such a dataset"),
    ],
)
def test_a_wrong_source_says_what_to_write(source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        load(source)
    assert error.value.field == "data.preferences"


def test_a_tokenizer_that_cannot_stop_is_refused(tmp_path: Path) -> None:
    tokenizer = build_tiny_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(ConfigError, match="no EOS token"):
        load_rows(tmp_path, GOOD, tokenizer=tokenizer)


def test_a_copy_goes_by_the_users_own_name_without_credentials(tmp_path: Path) -> None:
    data = parse(PreferenceData, {"model": "any", "preferences": "p"})
    path = jsonl(tmp_path / "copy.jsonl", GOOD)
    name = "https://me:p4ss@host/p.jsonl"
    row = load_preferences(str(path), build_tiny_tokenizer(), data, field="data.preferences", source_name=name).table.to_pylist()[
        0
    ]
    assert (row["pair_id"], row["source"]) == ("p.jsonl:0", "https://***@host/p.jsonl")


def arrow(path: Path, *rows: dict[str, Any]) -> Path:
    defaults = {"prompt_id": "p", "prompt_ids": [1, 5], "source": "rollouts", "margin": 1.0}
    return tables.write_table(tables.from_rows("PREFERENCES", [{**defaults, **row} for row in rows]), "PREFERENCES", path)


def test_the_ids_of_an_arrow_table_are_taken_as_they_are(tmp_path: Path) -> None:
    path = arrow(
        tmp_path / "p.arrow", *({"pair_id": f"{n}", "chosen_ids": [4, n + 5, 4], "rejected_ids": [9]} for n in range(50))
    )
    assert load(path).table.equals(tables.read_table(path, "PREFERENCES"))
    cut = load(path, max_pair_tokens=3)
    assert cut.table["chosen_ids"].to_pylist() == [[4]]
    assert {pair.reason for pair in cut.rejected} == {"the same pair stands before it"} and len(cut.rejected) == 49


def test_an_arrow_table_of_another_tokenizer_names_pair_and_id(tmp_path: Path) -> None:
    rows = [{"pair_id": f"pair {n}", "chosen_ids": [4], "rejected_ids": [64 + n]} for n in range(2)]
    assert len(build_tiny_tokenizer()) == 65
    with pytest.raises(ContractError, match=r"'rejected_ids'.*pair_id='pair 1'.*only 65 ids.*\(value 65\)"):
        load(arrow(tmp_path / "p.arrow", *rows))
