"""The logprob kernel against one row at a time, and the reference precompute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from posttrain import tables
from posttrain.config import LearnerSettings
from posttrain.errors import PolicyError
from posttrain.logprobs import add_reference_logprobs, token_logprobs
from tests.learner.scored_tables import random_scored, scored_row, scored_table
from tests.tiny_models import build_tiny_model, build_tiny_policy

PROMPTS = [[1, 5, 6], [7], [0, 0, 9, 9, 9, 9, 9], [8, 2]]
COMPLETIONS = [[5, 6, 7, 8, 2], [0, 2], [4], [9] * 30]


def plain(model: object, prompt: list[int], completion: list[int], temperature: float) -> np.ndarray:
    ids = torch.tensor([prompt + completion])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0].double() / temperature  # type: ignore[operator]
    every = torch.log_softmax(logits, -1)
    return np.array([every[len(prompt) + t - 1, token].item() for t, token in enumerate(completion)])


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_packs_equal_single_rows(temperature: float) -> None:
    model = build_tiny_model()
    found = token_logprobs(model, PROMPTS, COMPLETIONS, temperature)
    for row, values in enumerate(found):
        assert values.dtype == np.float32
        assert values == pytest.approx(plain(model, PROMPTS[row], COMPLETIONS[row], temperature), abs=5e-6)


def test_many_small_packs_give_the_same_in_the_same_order() -> None:
    model = build_tiny_model()
    whole = token_logprobs(model, PROMPTS, COMPLETIONS, 1.0)
    for first, second in zip(whole, token_logprobs(model, PROMPTS, COMPLETIONS, 1.0, max_pack_tokens=8), strict=True):
        assert first == pytest.approx(second, abs=5e-6)


def test_an_empty_completion_has_no_logprobs() -> None:
    found = token_logprobs(build_tiny_model(), [[1, 2], [1, 2]], [[], [5]], 1.0)
    assert [len(values) for values in found] == [0, 1]
    assert token_logprobs(build_tiny_model(), [], [], 1.0) == []


def test_bfloat16_weights_still_give_a_float32_log_softmax() -> None:
    model = build_tiny_model().to(torch.bfloat16)
    found = token_logprobs(model, PROMPTS, COMPLETIONS, 1.0)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[7, 0, 2]])).logits[0, :2].float()
    assert found[1] == pytest.approx(torch.log_softmax(logits, -1)[[0, 1], [0, 2]].numpy(), abs=0.05)
    assert all(value != torch.tensor(value).bfloat16().item() for value in found[1])


def test_reference_logprobs_stand_only_on_rows_that_are_trained(tmp_path: Path) -> None:
    reference = build_tiny_policy(tmp_path / "reference", seed=3)
    scored = scored_table(
        [
            scored_row("a", 0, [5, 6, 2], advantage=1.0),
            scored_row("a", 1, [7, 2], advantage=-1.0),
            scored_row("a", 2, [8, 2], advantage=None),
            scored_row("b", 0, [5, 2], advantage=0.0),
        ]
    )
    found = add_reference_logprobs(scored, reference, LearnerSettings(kl_coef=0.1, temperature=0.8))
    values = found["reference_logprobs"].to_pylist()
    model = build_tiny_model(seed=3)
    assert values[0] == pytest.approx(plain(model, [1, 8, 9], [5, 6, 2], 0.8), abs=5e-6)
    assert values[1] == pytest.approx(plain(model, [1, 8, 9], [7, 2], 0.8), abs=5e-6)
    assert values[2:] == [None, None]
    assert found.drop_columns("reference_logprobs").equals(scored.drop_columns("reference_logprobs"))


def test_without_kl_no_reference_is_loaded(tmp_path: Path) -> None:
    scored = random_scored(2)
    assert add_reference_logprobs(scored, tmp_path / "nowhere", LearnerSettings(kl_coef=0.0)) is scored
    with pytest.raises(PolicyError):
        add_reference_logprobs(scored, tmp_path / "nowhere", LearnerSettings(kl_coef=0.1))


def test_an_empty_shard_needs_no_reference(tmp_path: Path) -> None:
    assert add_reference_logprobs(tables.empty("SCORED"), tmp_path / "nowhere", LearnerSettings(kl_coef=0.1)).num_rows == 0
