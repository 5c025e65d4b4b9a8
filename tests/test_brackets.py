"""The quick-start task: problems, hidden inputs, held-out side, demonstrations, tokenizer, model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from posttrain import brackets, chat, policy
from posttrain.errors import ConfigError

PROBLEM = brackets.Problem((("add", 9), ("times", 4), ("take", 3)))


def run(expression: str, x: int) -> int:
    """Python's own arithmetic; only digits, x, brackets and operators ever get here."""
    assert re.fullmatch(r"[x0-9+*()-]+", expression)
    return eval(expression, {"__builtins__": {}}, {"x": x})


def test_the_example_of_the_readme_by_hand() -> None:
    assert PROBLEM.prompt == "add 9; times 4; take 3:"
    assert PROBLEM.expression == "((x+9)*4)-3"
    assert PROBLEM.flat_expression == "x+9*4-3"
    assert PROBLEM.evaluate(2) == 41  # (2 + 9) * 4 - 3


def test_outputs_are_those_of_the_right_expression_and_the_flat_one_fails() -> None:
    for problem in brackets.problems(1000, seed=3) + brackets.problems(300, seed=brackets.HELD_OUT_SEED):
        inputs, outputs = problem.answer["inputs"], problem.answer["outputs"]
        assert [run(problem.expression, x) for x in inputs] == outputs
        num_lucky = sum(run(problem.flat_expression, x) == output for x, output in zip(inputs, outputs, strict=True))
        assert num_lucky <= 1, problem.prompt
        assert len(set(inputs)) == len(inputs) == 4


def test_answers_have_the_shape_of_the_code_verifier() -> None:
    from posttrain.config import VerifySettings
    from posttrain.resolution import parse
    from posttrain.verify.registry import create_verifier

    create_verifier("code", parse(VerifySettings, {})).check_answer(PROBLEM.answer)
    assert PROBLEM.answer.keys() == {"mode", "variable", "inputs", "outputs"}


def test_problems_repeat_for_a_seed_differ_between_seeds_and_grow_with_size() -> None:
    assert brackets.problems(50, seed=1) == brackets.problems(50, seed=1)
    assert brackets.problems(50, seed=1) != brackets.problems(50, seed=2)
    assert brackets.problems(200, seed=1)[:50] == brackets.problems(50, seed=1)


def test_problems_are_distinct_and_varied() -> None:
    prompts = {problem.prompt for problem in brackets.problems(1024, seed=0)}
    assert len(prompts) == 1024
    patterns = {tuple(operation for operation, _ in problem.steps) for problem in brackets.problems(1024, seed=0)}
    assert len(patterns) == 14  # 2 of two steps, 12 of three: an add or take before a times
    assert max(map(len, prompts)) + 1 <= 64  # with BOS within the default of data.max_prompt_tokens


def test_no_held_out_problem_is_ever_seen_in_training() -> None:
    training = {problem.prompt for seed in (0, 1, 999_999) for problem in brackets.problems(2000, seed)}
    training |= {row["prompt"] for row in brackets.demonstrations(2048, seed=7)}
    held_out = {problem.prompt for seed in (1_000_000, 1_000_001, 5_000_000) for problem in brackets.problems(1000, seed)}
    assert not training & held_out
    assert len(brackets.problems(100, 1_000_001)) == 100


@pytest.mark.parametrize("size", [0, 100_000])
def test_a_size_that_cannot_be_had_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=rf"brackets.size.*{size}"):
        brackets.problems(size, seed=0)


def test_seventy_percent_of_the_demonstrations_lack_the_brackets() -> None:
    rows = brackets.demonstrations(1000, seed=7)
    assert sum("(" not in row["completion"] for row in rows) == 700
    assert rows == brackets.demonstrations(1000, seed=7)
    right = {problem.prompt: (problem.flat_expression, problem.expression) for problem in brackets.problems(1000, seed=7)}
    assert all(row["completion"] in right[row["prompt"]] for row in rows)


def test_held_out_problems_cannot_be_demonstrated() -> None:
    with pytest.raises(ConfigError, match="held-out"):
        brackets.demonstrations(10, seed=brackets.HELD_OUT_SEED)


def test_the_model_is_small_and_its_tokenizer_keeps_every_character(tmp_path: Path) -> None:
    manifest = brackets.build_model(tmp_path / "policy", seed=0)
    assert (manifest.version, manifest.parent, manifest.algorithm) == (0, None, "init")
    model, tokenizer = policy.load_model(tmp_path / "policy", "float32"), policy.load_tokenizer(tmp_path / "policy")
    assert 90_000 < model.num_parameters() < 120_000
    ids = chat.encode_messages(tokenizer, [{"role": "user", "content": PROBLEM.prompt}])
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.bos_token_id) == 1
    assert len(ids) == 1 + len(PROBLEM.prompt)
    assert chat.decode_completion(tokenizer, ids[1:]) == PROBLEM.prompt
    expression_ids = chat.encode_completion(tokenizer, PROBLEM.expression)
    assert len(expression_ids) == len(PROBLEM.expression)
    assert chat.decode_completion(tokenizer, expression_ids) == PROBLEM.expression
    assert len({tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}) == 4


def test_the_model_repeats_for_a_seed_and_leaves_the_global_generator_alone(tmp_path: Path) -> None:
    import torch

    before = torch.random.get_rng_state()
    first, second = (brackets.build_model(tmp_path / name, seed=5) for name in ("a", "b"))
    other = brackets.build_model(tmp_path / "c", seed=6)
    assert torch.equal(before, torch.random.get_rng_state())
    assert first.files["model.safetensors"] == second.files["model.safetensors"] != other.files["model.safetensors"]
