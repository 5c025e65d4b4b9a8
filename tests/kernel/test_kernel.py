"""The kernel on whole models against one unpadded row at a time; models that cannot be packed."""

from __future__ import annotations

import copy
import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from posttrain.logprobs import score_rows, token_logprobs
from posttrain.packed_attention import IMPLEMENTATION, packed_attention
from posttrain.packed_model import why_not_packed
from posttrain.padded_logprobs import score_padded
from tests.kernel import kernel_models
from tests.kernel.kernel_models import assert_same_gradients, build, gradients, plain_logprobs, rows_of

EXTRAS = ("entropy", "mean_logits", "is_top1", "log_sum_sq_probs")
PACKED = [kernel_models.llama, kernel_models.tied_llama, kernel_models.qwen2, kernel_models.qwen3, kernel_models.gpt2]


def weighted_loss(model: Any, temperature: float, **values: Any) -> torch.Tensor:
    """A different weight for each token, so that no two can be exchanged."""
    prompts, completions = rows_of()
    total = torch.zeros(())
    for rows, scores in score_rows(model, prompts, completions, temperature, **values):
        total = total + (scores.logprobs * torch.cat([weights(row, len(completions[row])) for row in rows])).sum()
    return total


def weights(row: int, length: int) -> torch.Tensor:
    return torch.sin(torch.arange(length) + 10.0 * row)


def plain_loss(model: Any, temperature: float) -> torch.Tensor:
    rows = list(zip(*rows_of(), strict=True))
    return sum(
        ((plain_logprobs(model, *row, temperature) * weights(number, len(row[1]))).sum() for number, row in enumerate(rows)),
        start=torch.zeros(()),
    )


@pytest.mark.parametrize("max_pack_tokens", [4096, 90, 10])  # all rows together, a few, less than a row
@pytest.mark.parametrize("family", PACKED)
def test_logprobs_equal_single_rows(family: Any, max_pack_tokens: int) -> None:
    model = build(family)
    prompts, completions = rows_of()
    found = token_logprobs(model, prompts, completions, 0.7, max_pack_tokens=max_pack_tokens)
    assert why_not_packed(model) is None
    for row, values in enumerate(found):
        assert values.dtype == np.float32 and len(values) == len(completions[row])
        with torch.no_grad():
            expected = plain_logprobs(model, prompts[row], completions[row], 0.7)
        assert values == pytest.approx(expected.numpy(), abs=1e-5)


@pytest.mark.parametrize("max_pack_tokens", [4096, 90])
@pytest.mark.parametrize("family", PACKED)
def test_gradients_of_every_parameter_equal_single_rows(family: Any, max_pack_tokens: int) -> None:
    mine, plain = build(family), build(family)
    weighted_loss(mine, 0.7, max_pack_tokens=max_pack_tokens).backward()
    plain_loss(plain, 0.7).backward()
    assert_same_gradients(gradients(mine), gradients(plain))


@pytest.mark.parametrize("family", PACKED)
def test_extras_equal_those_of_padded_rows(family: Any) -> None:
    model = build(family)
    prompts, completions = rows_of()
    with torch.no_grad():
        ((rows, found),) = score_rows(model, prompts, completions, 1.3, extras=EXTRAS)
        expected = score_padded(model, [prompts[row] for row in rows], [completions[row] for row in rows], 1.3, EXTRAS)
    assert torch.equal(found.is_top1, expected.is_top1)
    for name in ("logprobs", "entropy", "mean_logits", "log_sum_sq_probs"):
        assert (getattr(found, name) - getattr(expected, name)).abs().max() < 1e-5, name


def test_gradient_checkpointing_gives_the_same_gradients_within_packed_attention() -> None:
    mine, plain = build(kernel_models.qwen3), build(kernel_models.qwen3)
    mine.train()
    mine.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="open packed_attention"):
        weighted_loss(mine, 1.0)
    with packed_attention(mine):
        weighted_loss(mine, 1.0).backward()
    plain_loss(plain, 1.0).backward()
    assert_same_gradients(gradients(mine), gradients(plain))


def test_lora_adapters_get_the_same_gradients_and_can_be_switched_off() -> None:
    from peft import LoraConfig, get_peft_model

    base = build(kernel_models.llama)
    mine, plain = (get_peft_model(copy.deepcopy(base), LoraConfig(target_modules=["q_proj", "down_proj"])) for _ in range(2))
    state = {name: torch.randn_like(value) * 0.1 for name, value in mine.state_dict().items() if "lora" in name}
    for model in (mine, plain):
        model.load_state_dict(state, strict=False)
    weighted_loss(mine, 1.0).backward()
    plain_loss(plain, 1.0).backward()
    assert why_not_packed(mine) is None
    assert_same_gradients(gradients(mine), gradients(plain))
    with mine.disable_adapter():
        without = token_logprobs(mine, *rows_of(), 1.0)
    for one, other in zip(without, token_logprobs(base, *rows_of(), 1.0), strict=True):
        assert one == pytest.approx(other, abs=1e-6)


def test_the_model_is_left_as_it_was() -> None:
    model = build(kernel_models.qwen2).train()
    before = model.config.to_dict() | {"attention": model.config._attn_implementation}
    token_logprobs(model, *rows_of(), 1.0)
    assert model.training and before == model.config.to_dict() | {"attention": model.config._attn_implementation}
    assert "forward" not in vars(model) and not gradients(model)


def test_a_config_that_was_replaced_by_a_copy_does_not_stop_packing() -> None:
    model = build(kernel_models.qwen2)
    layers_config = model.config
    model.config = copy.deepcopy(model.config)  # as after every update by TRL
    assert why_not_packed(model) is None
    assert layers_config._attn_implementation == model.config._attn_implementation != IMPLEMENTATION


def test_the_same_rows_give_the_same_bits_with_and_without_gradient() -> None:
    model = build(kernel_models.llama)
    ((_, with_gradient),) = score_rows(model, *rows_of(), 1.0)
    with torch.no_grad():
        ((_, without),) = score_rows(model, *rows_of(), 1.0)
    assert with_gradient.logprobs.requires_grad and torch.equal(with_gradient.logprobs.detach(), without.logprobs)


def test_bfloat16_agrees_with_padded_bfloat16() -> None:
    model = build(kernel_models.qwen3).to(torch.bfloat16)
    prompts, completions = rows_of()
    with torch.no_grad():
        ((rows, found),) = score_rows(model, prompts, completions, 1.0)
        expected = score_padded(model, [prompts[row] for row in rows], [completions[row] for row in rows], 1.0)
    assert why_not_packed(model) is None and found.logprobs.dtype == torch.float32
    assert (found.logprobs - expected.logprobs).abs().mean() < 0.05


@pytest.mark.parametrize("wrong", [-1, kernel_models.VOCABULARY])
def test_an_id_that_the_model_lacks_is_refused_also_as_the_last_of_a_completion(wrong: int) -> None:
    with pytest.raises(ValueError, match="the model has 0 to 60"):
        token_logprobs(build(kernel_models.llama), [[1, 2]], [[3, wrong]], 1.0)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_never_give_finite_logprobs(broken: float) -> None:
    model = build(kernel_models.llama)
    assert why_not_packed(model) is None
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[0, 0] = broken
    for values in token_logprobs(model, [[1, 2], [1, 2], [4]], [[3, 4], [5, 6, 7], [8]], 1.0):
        assert not np.isfinite(values).any()


def test_the_probe_leaves_the_mode_of_every_part() -> None:
    model = build(kernel_models.qwen2).train()
    model.model.layers[0].eval()
    before = [module.training for module in model.modules()]
    assert why_not_packed(model) is None and before == [module.training for module in model.modules()]


# --- models that cannot be packed ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        (kernel_models.bloom, "probe failed"),  # ALiBi, which knows nothing of position ids
        (kernel_models.mamba, "probe failed"),  # no attention at all
        (kernel_models.gemma2, "transforms its logits (final_logit_softcapping)"),
    ],
)
def test_a_model_that_cannot_be_packed_is_padded_and_says_so_once(
    family: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = build(family)
    prompts, completions = rows_of()
    with caplog.at_level(logging.WARNING, logger="posttrain"):
        found = token_logprobs(model, prompts, completions, 0.7)
        token_logprobs(model, prompts, completions, 0.7)
    (message,) = [record.getMessage() for record in caplog.records if record.name == "posttrain"]
    assert message.startswith(f"{type(model).__name__}: rows are padded, not packed, because") and reason in message
    for row in (0, 3, 5):
        with torch.no_grad():
            expected = plain_logprobs(model, prompts[row], completions[row], 0.7)
        assert found[row] == pytest.approx(expected.numpy(), abs=2e-5)


def test_rows_longer_than_a_sliding_window_are_padded_the_others_are_packed(caplog: pytest.LogCaptureFixture) -> None:
    model = build(kernel_models.mistral)
    prompts, completions = [[1, 2, 3], [1, 2, 3], [4] * 20, [5] * 20], [[5, 6], [7, 8, 9], [3] * 20, [2] * 7]
    with caplog.at_level(logging.WARNING, logger="posttrain"):
        found = token_logprobs(model, prompts, completions, 1.0, max_pack_tokens=20)
    assert why_not_packed(model) is None
    (message,) = [record.getMessage() for record in caplog.records if record.name == "posttrain"]
    assert "a row is longer than its sliding_window of 16" in message
    for row, values in enumerate(found):
        with torch.no_grad():
            assert values == pytest.approx(plain_logprobs(model, prompts[row], completions[row], 1.0).numpy(), abs=1e-5)


def test_layers_that_attend_in_their_own_way_are_noticed_by_their_number() -> None:
    model = build(kernel_models.qwen2)
    model.model.layers[1].self_attn.config = SimpleNamespace(_attn_implementation="sdpa")  # blind to the switch
    assert why_not_packed(model) == "1 of its 2 layers use exchangeable attention"


def test_logprobs_that_differ_on_the_probe_are_noticed() -> None:
    model = build(kernel_models.gpt2)
    inner = model.transformer.forward
    model.transformer.forward = lambda *args, position_ids=None, **kwargs: inner(*args, **kwargs)
    reason = why_not_packed(model)
    assert reason is not None and "logprobs of packs are off by" in reason


def test_attention_dropout_in_training_is_not_computed_on_packs(caplog: pytest.LogCaptureFixture) -> None:
    model = build(lambda: kernel_models.llama(attention_dropout=0.1)).train()
    with caplog.at_level(logging.WARNING, logger="posttrain"):
        list(score_rows(model, [[1, 2]], [[3, 4]], 1.0))
    assert "attention dropout is on" in caplog.text
