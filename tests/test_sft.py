"""The warm start: what is trained, what is written, and that the quick-start model learns its bug."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from posttrain import brackets, policy, sft, tables
from posttrain.config import DataSettings, WarmStartSettings
from posttrain.errors import ConfigError, ContractError, TrainingError
from posttrain.resolution import parse
from tests.tiny_models import BOS_ID, CHAT_TEMPLATE, EOS_ID, build_tiny_model, build_tiny_policy, build_tiny_tokenizer

DATA = parse(DataSettings, {})


def settings(demonstrations: str | Path, **values: Any) -> WarmStartSettings:
    return parse(WarmStartSettings, {"demonstrations": str(demonstrations), "num_steps": 3, "batch_size": 2, **values})


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def letters(text: str) -> list[int]:
    return build_tiny_tokenizer().convert_tokens_to_ids(list(text))


def plain_loss(model: Any, rows: list[tuple[list[int], list[int]]]) -> float:
    """Mean negative logprob of all completion tokens, one row at a time without any padding."""
    import torch

    logprobs: list[float] = []
    for prompt_ids, completion_ids in rows:
        with torch.no_grad():
            all_logprobs = model(torch.tensor([prompt_ids + completion_ids])).logits[0].log_softmax(-1)
        logprobs += [all_logprobs[len(prompt_ids) - 1 + n, token].item() for n, token in enumerate(completion_ids)]
    return -sum(logprobs) / len(logprobs)


def test_prompt_tokens_are_ignored_completion_and_one_eos_are_trained() -> None:
    demonstration = sft.Demonstration(({"role": "user", "content": "1+1?"},), "2!")
    (example,) = sft.encode([demonstration], build_tiny_tokenizer(CHAT_TEMPLATE), 100)
    prompt_ids = [BOS_ID, *letters("user: 1+1?\nassistant: ")]
    assert example["input_ids"] == [*prompt_ids, *letters("2!"), EOS_ID]
    assert example["labels"] == [-100] * len(prompt_ids) + [*letters("2!"), EOS_ID]


@pytest.mark.parametrize("pad_token", ["<pad>", "</s>", None])
def test_the_loss_holds_one_eos_term_a_row_whatever_the_pad_token(pad_token: str | None) -> None:
    """huggingface/trl#976, with rows [5, 6, EOS] and [5, EOS]: five trained tokens, also when PAD is EOS or missing."""
    tokenizer, model = build_tiny_tokenizer(), build_tiny_model()
    tokenizer.pad_token = pad_token
    prompt_ids = [BOS_ID, *letters("a:")]
    rows = [(prompt_ids, [5, 6, EOS_ID]), (prompt_ids, [5, EOS_ID])]
    expected = plain_loss(model, rows)
    without_eos = plain_loss(model, [(prompt_ids, [5, 6]), (prompt_ids, [5])])
    examples = [{"input_ids": prompt + ids, "labels": [-100] * len(prompt) + ids} for prompt, ids in rows]
    (entry,) = sft.train(model, tokenizer, examples, settings("x", num_steps=1, learning_rate=1e-12))
    assert entry["loss"] == pytest.approx(expected, abs=2e-4)
    assert abs(expected - without_eos) > 0.01
    assert tokenizer.pad_token == pad_token


def test_a_warm_start_writes_the_next_version_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, scratch = tmp_path / "work", tmp_path / "scratch"
    work.mkdir()
    scratch.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    base = build_tiny_policy(tmp_path / "base", version=4)
    path = jsonl(tmp_path / "d.jsonl", {"prompt": "1+1?", "completion": "2"}, {"prompt": "2+2?", "completion": "4"})
    metrics = sft.warm_start(base, DATA, settings(path), tmp_path / "warm")
    manifest = policy.read_policy(tmp_path / "warm")
    assert (manifest.version, manifest.parent, manifest.algorithm) == (5, policy.policy_hash(base), "sft")
    assert manifest.files["tokenizer.json"] == policy.read_policy(base).files["tokenizer.json"]
    assert manifest.files["model.safetensors"] != policy.read_policy(base).files["model.safetensors"]
    tables.validate(metrics, "METRICS")
    losses = [row for row in metrics.to_pylist() if row["name"] == "train/sft_loss"]
    assert [row["step"] for row in losses] == [1, 2, 3]
    assert losses[2]["value"] < losses[0]["value"]
    assert not list(work.iterdir())
    assert not list(scratch.iterdir())
    assert sorted(os.listdir(tmp_path)) == ["base", "d.jsonl", "scratch", "warm", "work"]


def test_a_warm_start_repeats_for_a_seed(tmp_path: Path) -> None:
    base = build_tiny_policy(tmp_path / "base")
    source = "brackets_demonstrations?size=50&seed=1"
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        sft.warm_start(base, DATA, settings(source, seed=seed), tmp_path / name)
    weights = [policy.read_policy(tmp_path / name).files["model.safetensors"] for name in "abc"]
    assert weights[0] == weights[1] != weights[2]


def test_a_loss_that_is_not_finite_stops_before_anything_is_written(tmp_path: Path) -> None:
    base = build_tiny_policy(tmp_path / "base")
    with pytest.raises(TrainingError, match=r"(the loss is (nan|inf) at step|is not finite).*No policy was written"):
        sft.warm_start(
            base, DATA, settings("brackets_demonstrations?size=20", num_steps=6, learning_rate=1e38), tmp_path / "warm"
        )
    assert sorted(os.listdir(tmp_path)) == ["base"]


def test_a_demonstration_that_does_not_fit_the_model_is_named(tmp_path: Path) -> None:
    base = build_tiny_policy(tmp_path / "base")  # its context is 256 tokens
    path = jsonl(tmp_path / "d.jsonl", {"prompt": "?", "completion": "1"}, {"prompt": "?", "completion": "1" * 300})
    with pytest.raises(ContractError, match=r"row 1.*\d+ tokens do not fit the model's context of 256"):
        sft.warm_start(base, DATA, settings(path), tmp_path / "warm")
    assert not (tmp_path / "warm").exists()


def test_texts_messages_jsonl_and_parquet_are_the_same_demonstrations(tmp_path: Path) -> None:
    texts = [{"prompt": "1+1?", "completion": "2"}, {"prompt": "ä 👩‍🚀\x00", "completion": "\u202e1"}]
    messages = [
        {
            "prompt": [{"role": "user", "content": row["prompt"]}],
            "completion": [{"role": "assistant", "content": row["completion"]}],
        }
        for row in texts
    ]
    pq.write_table(pa.Table.from_pylist(texts), tmp_path / "my data#1%20.parquet")
    sources = [
        jsonl(tmp_path / "größe a?b=c.jsonl", *texts), jsonl(tmp_path / "m.jsonl", *messages), tmp_path / "my data#1%20.parquet"
    ]  # fmt: skip
    first, *others = (sft.load_demonstrations(str(source), "be brief") for source in sources)
    assert others == [first, first]
    assert [message["role"] for message in first[0].messages] == ["system", "user"]
    assert (first[1].messages[1]["content"], first[1].completion) == (texts[1]["prompt"], texts[1]["completion"])


def test_the_brackets_demonstrations_come_by_name() -> None:
    found = sft.load_demonstrations("brackets_demonstrations?size=10&seed=7", "")
    assert [(item.messages[0]["content"], item.completion) for item in found] == [
        (row["prompt"], row["completion"]) for row in brackets.demonstrations(10, 7)
    ]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("brackets_demonstrations?sice=3", "no option 'sice'.*'size'"),
        ("brackets", "no such demonstrations.*brackets_demonstrations"),
        ("nowhere.jsonl", "no such file"),
    ],
)
def test_wrong_demonstrations_say_what_to_write(source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sft.load_demonstrations(source, "")


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "?"}, {"prompt": "?", "completion": ""}, {"prompt": "", "completion": "1"}, {"prompt": [], "completion": "1"},
        {"prompt": "?", "completion": 2}, {"prompt": [{"role": "user"}], "completion": "1"},
        {"prompt": "?", "completion": [{"role": "user", "content": "1"}]}, {"prompt": "?", "completion": ["1"]},
    ],
)  # fmt: skip
def test_a_row_that_is_no_demonstration_is_named(tmp_path: Path, row: dict[str, Any]) -> None:
    path = jsonl(tmp_path / "d.jsonl", {"prompt": "?", "completion": "1"}, row)
    with pytest.raises(ContractError, match="row 1.*not a demonstration"):
        sft.load_demonstrations(str(path), "")


def test_an_empty_file_of_demonstrations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no demonstrations"):
        sft.load_demonstrations(str(jsonl(tmp_path / "d.jsonl")), "")


@pytest.mark.slow
def test_the_quick_start_model_learns_the_bug_and_sometimes_the_brackets(tmp_path: Path) -> None:
    """On held-out problems: the flat expression nearly always wins, the right one has about its share of 30 %."""
    brackets.build_model(tmp_path / "base", seed=0)
    sft.warm_start(
        tmp_path / "base", DATA, parse(WarmStartSettings, {"demonstrations": "brackets_demonstrations"}), tmp_path / "warm"
    )
    model, tokenizer = policy.load_model(tmp_path / "warm", "float32"), policy.load_tokenizer(tmp_path / "warm")

    def probability(problem: brackets.Problem, expression: str) -> float:
        import math

        prompt_ids = tokenizer(problem.prompt)["input_ids"]
        completion_ids = [*tokenizer(expression, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        return math.exp(-plain_loss(model, [(prompt_ids, completion_ids)]) * len(completion_ids))

    held_out = brackets.problems(60, seed=1_000_001)
    right = [probability(problem, problem.expression) for problem in held_out]
    flat = [probability(problem, problem.flat_expression) for problem in held_out]
    assert 0.2 < sum(right) / 60 < 0.45
    assert sum(flat) / 60 > 0.5
    assert sum(p > 0.5 for p in right) <= 3  # above one half means greedy gets it right
