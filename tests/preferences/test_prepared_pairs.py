"""From a source to pairs with reference logprobs, through the real tasks: what is held out, what is said, what is cached."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flytekit.core.local_cache
import pytest
from flytekit.core.local_cache import LocalTaskCache
from flytekit.types.directory import FlyteDirectory

from posttrain import resolution, tables
from posttrain.config_dpo import DpoSettings
from posttrain.errors import ConfigError
from tasks.preferences import PreparedPairs, prepare_preferences
from tests.tiny_models import CHAT_TEMPLATE, build_tiny_model, build_tiny_policy, build_tiny_tokenizer
from workflows.dpo import prepare_dpo

Changes = dict[str, Any]


def pair(prompt: Any, **changes: Any) -> Changes:
    return {"prompt": prompt, "chosen": "yes", "rejected": "no", **changes}


def asked(text: str) -> list[Changes]:
    return [{"role": "user", "content": text}]


def jsonl(path: Path, *rows: Changes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def settings(pairs: Path, **changes: Any) -> DpoSettings:
    flat = {
        "data.model": "unused", "data.preferences": str(pairs), "data.max_pair_tokens": 96, "data.max_completion_tokens": 8,
        "loop.num_shards": 1, **{name.replace("__", "."): value for name, value in changes.items()},
    }  # fmt: skip
    return resolution.resolve_as(DpoSettings, flat, "")


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PreparedPairs]:
    monkeypatch.setenv("POSTTRAIN_WORKSPACE", str(tmp_path / "workspace"))
    directory = FlyteDirectory(str(build_tiny_policy(tmp_path / "policy")))

    def run(pairs: Path, **changes: Any) -> PreparedPairs:
        given = settings(pairs, **changes)
        return prepare_preferences(policy_directory=directory, data=given.data, verification=given.verify, num_shards=1, seed=0)

    return run


def pair_ids(*files: Any) -> list[str]:
    return [pair_id for file in files for pair_id in tables.read_table(str(file), "PREFERENCES")["pair_id"].to_pylist()]


def test_a_prompt_to_generate_for_is_never_trained_on(
    tmp_path: Path, prepare: Callable[..., PreparedPairs], caplog: pytest.LogCaptureFixture
) -> None:
    pairs = jsonl(tmp_path / "p.jsonl", *(pair(asked(f"q{n}")) for n in range(20)))
    questions = jsonl(tmp_path / "q.jsonl", *({"prompt": f"q{n}", "answer": "1", "verifier": "exact"} for n in (3, 40)))
    with caplog.at_level(logging.WARNING, "posttrain"):
        prepared = prepare(pairs, data__evaluation_prompts=str(questions))
    kept = pair_ids(*prepared.shards, prepared.evaluation)
    assert sorted(kept) == sorted(f"p.jsonl:{n}" for n in range(20) if n != 3)
    assert "1 pairs are left out, the same prompt is held out for evaluation: p.jsonl:3" in caplog.text
    with pytest.raises(ConfigError, match="no pair is left"):
        prepare(jsonl(tmp_path / "only.jsonl", pair(asked("q3"))), data__evaluation_prompts=str(questions))


def test_pairs_that_cannot_be_held_out_or_evaluated_are_said(
    tmp_path: Path, prepare: Callable[..., PreparedPairs], caplog: pytest.LogCaptureFixture
) -> None:
    one = jsonl(tmp_path / "one.jsonl", pair("q?"))
    with caplog.at_level(logging.WARNING, "posttrain"):
        prepared = prepare(one)
    assert (pair_ids(*prepared.shards), pair_ids(prepared.evaluation)) == (["one.jsonl:0"], [])
    assert "no pair is held out" in caplog.text

    caplog.clear()
    held_out = jsonl(tmp_path / "held.jsonl", pair("r?"), pair("r?", chosen="same", rejected="same"))
    with caplog.at_level(logging.WARNING, "posttrain"):
        prepared = prepare(one, data__evaluation_preferences=str(held_out))
    assert pair_ids(prepared.evaluation) == ["held.jsonl:0"] and "no pair is held out" not in caplog.text
    assert "1 pairs are left out, chosen and rejected are identical: held.jsonl:1" in caplog.text


@pytest.fixture
def computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """Prepares a run with flytekit's cache on; returns how many tables of reference logprobs that computed."""
    monkeypatch.setenv("POSTTRAIN_WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.setenv("FLYTE_LOCAL_CACHE_ENABLED", "true")
    monkeypatch.setattr(flytekit.core.local_cache, "CACHE_LOCATION", str(tmp_path / "cache"))
    monkeypatch.setattr(LocalTaskCache, "_initialized", False)

    def run(pairs: Path, model: Path, **changes: Any) -> int:
        files = tmp_path / "workspace" / "artifacts" / "reference_pairs"
        before = len(list(files.glob("*/referenced.arrow")))
        prepare_dpo(settings=settings(pairs, data__model=str(model), **changes))
        return len(list(files.glob("*/referenced.arrow"))) - before

    yield run
    monkeypatch.undo()
    LocalTaskCache._initialized = False  # the next user opens the cache of its own place


@pytest.mark.slow
def test_reference_logprobs_are_computed_again_for_every_change_of_content_and_for_no_other(
    tmp_path: Path, computed: Callable[..., int]
) -> None:
    rows = [pair(asked("hi"), chosen=f"yes {'!' * (3 * n)}") for n in range(4)]
    model = tmp_path / "model"

    def save(seed: int, template: str = CHAT_TEMPLATE) -> None:
        build_tiny_model(seed).save_pretrained(model)
        build_tiny_tokenizer(template).save_pretrained(model)

    save(seed=0)
    two, four = jsonl(tmp_path / "two" / "p.jsonl", *rows[:2]), jsonl(tmp_path / "four" / "p.jsonl", *rows)
    elsewhere = jsonl(tmp_path / "elsewhere" / "p.jsonl", *rows)
    assert computed(two, model) == 2  # the shard, and the held-out pairs: none of a single prompt
    assert computed(four, model) == 1  # a row limit that was raised
    other_training = {"learner__beta": 0.7, "learner__loss_type": "ipo", "learner__seed": 5, "loop__num_iterations": 2}
    assert computed(elsewhere, model, **other_training, data__max_pair_tokens=48) == 0  # which cuts no answer
    assert computed(four, model, data__max_pair_tokens=32) == 1
    assert computed(four, model, learner__dtype="bfloat16") == 2
    save(seed=0, template=CHAT_TEMPLATE.replace("assistant: ", "answer: "))
    assert computed(four, model) == 2  # the tokenizer is a part of the reference
    save(seed=1)
    assert computed(four, model) == 2  # other weights under the same path
    save(seed=0)
    assert computed(four, model) == 0
