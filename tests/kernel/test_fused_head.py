"""The hook in TRL's place: the same numbers as TRL's own padded head, and a model that is afterwards as before."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import DPOTrainer, GRPOTrainer
from trl.trainer.utils import FusedCausalLMOutput, add_fused_lm_head

from posttrain.config import LearnerSettings
from posttrain.fused_head import packed_head
from posttrain.grpo_rows import plan_epochs, trained_groups
from posttrain.grpo_trainer import RecordedRolloutTrainer
from tests.kernel import kernel_models
from tests.kernel.kernel_models import VOCABULARY, assert_same_gradients, build, gradients, plain_logprobs
from tests.learner.scored_tables import random_scored
from tests.tiny_models import build_tiny_model, build_tiny_tokenizer

OUTPUTS = ("log_probs", "entropy", "mean_logits", "is_top1", "log_sum_sq_probs")
PROMPTS = [[5, 6, 7], [5, 6, 7], [0, 0, 9, 8, 0], [3]]  # 0 is also the padding
COMPLETIONS = [[8, 9, 0, 4], [2, 0], [7], [6, 5, 4, 3, 2, 0]]


def left_padded() -> dict[str, torch.Tensor]:
    """GRPO's shape: prompts end and completions begin in one column; the last row has no label."""
    width, length = max(map(len, PROMPTS)), max(map(len, COMPLETIONS))
    rows = [(width - len(prompt), prompt, completion) for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True)]
    return padded([*rows, (width - 2, [4, 4], [])], width + length)


def right_padded() -> dict[str, torch.Tensor]:
    """DPO's shape: rows begin in the first column."""
    rows = [(0, prompt, completion) for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True)]
    return padded([*rows, (0, [4, 4], [])], 12)


def padded(rows: list[tuple[int, list[int], list[int]]], width: int) -> dict[str, torch.Tensor]:
    ids, mask, labels = (torch.full((len(rows), width), fill) for fill in (0, 0, -100))
    for row, (start, prompt, completion) in enumerate(rows):
        first, end = start + len(prompt), start + len(prompt) + len(completion)
        ids[row, start:end] = torch.tensor(prompt + completion)
        mask[row, start:end] = 1
        labels[row, first:end] = torch.tensor(completion).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def patched(family: Callable[[], Any]) -> Any:
    model = build(family)
    add_fused_lm_head(model, temperature=0.7, outputs=OUTPUTS)
    return model


@pytest.mark.parametrize("batch", [left_padded(), right_padded()], ids=["left", "right"])
@pytest.mark.parametrize("family", [kernel_models.llama, kernel_models.tied_llama, kernel_models.qwen2, kernel_models.qwen3])
def test_scores_and_gradients_equal_those_of_trl(family: Any, batch: dict[str, torch.Tensor]) -> None:
    mine, peer = patched(family), patched(family)
    expected = peer(**batch, use_cache=False, fused_lm_head=True)
    with packed_head(mine, temperature=0.7, outputs=OUTPUTS):
        found = mine(**batch, use_cache=False, fused_lm_head=True)
        (torch.sin(torch.arange(found.log_probs.numel())).view_as(found.log_probs) * found.log_probs).sum().backward()
    (torch.sin(torch.arange(found.log_probs.numel())).view_as(found.log_probs) * expected.log_probs).sum().backward()
    for name in ("log_probs", "entropy", "mean_logits", "log_sum_sq_probs", "loss"):
        one, other = getattr(found, name), getattr(expected, name)
        assert one.shape == other.shape and (one - other).abs().max() < 1e-5, name
    assert torch.equal(found.is_top1, expected.is_top1) and torch.equal(found.label_mask, expected.label_mask)
    assert (found.log_probs[batch["labels"][:, 1:] == -100] == 0).all()
    assert_same_gradients(gradients(mine), gradients(peer))


@pytest.mark.parametrize("batch", [left_padded(), right_padded()], ids=["left", "right"])
def test_absolute_positions_count_from_the_first_real_token(batch: dict[str, torch.Tensor]) -> None:
    model = patched(kernel_models.gpt2)
    with packed_head(model, temperature=0.7, outputs=("log_probs",)), torch.no_grad():
        found = model(**batch, fused_lm_head=True).log_probs
    for row, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        scored = found[row][batch["labels"][row, 1:] != -100]
        with torch.no_grad():
            assert (scored - plain_logprobs(model, prompt, completion, 0.7)).abs().max() < 1e-5


def test_only_what_the_trainer_reads_is_computed() -> None:
    model = patched(kernel_models.qwen3)
    with packed_head(model, temperature=0.7, outputs=("log_probs", "entropy")):
        found = model(**left_padded(), fused_lm_head=True)
    assert found.entropy is not None and not found.entropy.requires_grad
    assert (found.mean_logits, found.is_top1, found.log_sum_sq_probs) == (None, None, None)


def test_labels_with_a_gap_are_scored_where_they_are() -> None:
    mine, peer = patched(kernel_models.llama), patched(kernel_models.llama)
    batch = right_padded()
    batch["labels"][0, 4:6] = -100
    with packed_head(mine, temperature=0.7, outputs=("log_probs",)), torch.no_grad():
        found = mine(**batch, fused_lm_head=True).log_probs
    assert (found - peer(**batch, fused_lm_head=True).log_probs).abs().max() < 1e-5


def test_other_calls_go_where_they_went_before() -> None:
    model = patched(kernel_models.llama)
    batch = left_padded()
    with torch.no_grad():
        logits, generated = model(batch["input_ids"], batch["attention_mask"]).logits, generate(model)
        with packed_head(model, temperature=0.7, outputs=("log_probs",)):
            assert torch.equal(model(batch["input_ids"], batch["attention_mask"]).logits, logits)
            assert torch.equal(generate(model), generated)
            unlabelled = model(**batch | {"labels": torch.full_like(batch["labels"], -100)}, fused_lm_head=True)
    assert (unlabelled.log_probs == 0).all()


def generate(model: Any) -> torch.Tensor:
    ids = torch.tensor([[0, 5, 6], [1, 2, 3]])
    return model.generate(ids, attention_mask=(ids != 0).long(), max_new_tokens=5, do_sample=False, pad_token_id=0)


def test_afterwards_the_model_is_as_before_also_after_an_error() -> None:
    model = build(kernel_models.llama)
    attention = model.config._attn_implementation
    with pytest.raises(KeyError), packed_head(model, temperature=1.0, outputs=("log_probs",)):
        raise KeyError
    assert "forward" not in vars(model) and model.config._attn_implementation == attention
    model = patched(kernel_models.llama)
    trls = model.forward
    with packed_head(model, temperature=1.0, outputs=("log_probs",)):
        assert model.forward is not trls
    assert model.forward == trls


@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_in_bfloat16_autocast_equals_trl_as_far_as_bfloat16_goes(checkpointing: bool) -> None:
    mine, peer = patched(kernel_models.qwen3).train(), patched(kernel_models.qwen3).train()
    if checkpointing:
        mine.gradient_checkpointing_enable()
    with packed_head(mine, temperature=0.7, outputs=("log_probs",)):
        with torch.autocast("cpu", torch.bfloat16):
            found = mine(**left_padded(), fused_lm_head=True).log_probs
        found.sum().backward()
    with torch.autocast("cpu", torch.bfloat16):
        expected = peer(**left_padded(), fused_lm_head=True).log_probs
    expected.sum().backward()
    assert found.dtype == torch.float32 and (found - expected).abs().max() < 0.3
    mine_norm, peer_norm = (torch.cat([g.flatten() for g in gradients(model).values()]).norm() for model in (mine, peer))
    assert mine_norm == pytest.approx(peer_norm.item(), rel=0.05)


def test_checkpointed_gradients_equal_those_of_trl() -> None:
    mine, peer = patched(kernel_models.llama).train(), patched(kernel_models.llama)
    mine.gradient_checkpointing_enable()
    with packed_head(mine, temperature=0.7, outputs=("log_probs",)):
        mine(**left_padded(), fused_lm_head=True).log_probs.sum().backward()
    peer(**left_padded(), fused_lm_head=True).log_probs.sum().backward()
    assert_same_gradients(gradients(mine), gradients(peer))


def test_a_peft_model_is_scored_with_its_adapter() -> None:
    from peft import LoraConfig, get_peft_model

    adapter = LoraConfig(target_modules=["v_proj"], init_lora_weights=False)
    models = [get_peft_model(patched(kernel_models.llama), adapter) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    with packed_head(models[0], temperature=0.7, outputs=("log_probs",)):
        models[0](**left_padded(), fused_lm_head=True).log_probs.sum().backward()
    models[1](**left_padded(), fused_lm_head=True).log_probs.sum().backward()
    assert_same_gradients(gradients(models[0]), gradients(models[1]))


def test_a_model_that_cannot_be_packed_keeps_trls_head(caplog: pytest.LogCaptureFixture) -> None:
    model = patched(kernel_models.gemma2)
    trls = model.forward
    with caplog.at_level(logging.WARNING, logger="posttrain"), packed_head(model, temperature=0.7, outputs=("log_probs",)):
        assert model.forward == trls
    assert "rows are padded" in caplog.text


def test_a_row_beyond_the_window_goes_to_trls_head(caplog: pytest.LogCaptureFixture) -> None:
    mine, peer = patched(kernel_models.mistral), patched(kernel_models.mistral)
    batch = padded([(0, [1, 2, 3], [index % VOCABULARY for index in range(20)])], 24)
    with caplog.at_level(logging.WARNING, logger="posttrain"), packed_head(mine, temperature=0.7, outputs=("log_probs",)):
        found = mine(**batch, fused_lm_head=True).log_probs
    assert "sliding_window of 16" in caplog.text
    assert (found - peer(**batch, fused_lm_head=True).log_probs).abs().max() < 1e-5


def test_trl_still_asks_for_logprobs_the_way_the_hook_answers() -> None:
    advice = "Read TRL's changes, then adapt posttrain/fused_head.py and this test."
    for method in (GRPOTrainer._get_per_token_logps_and_entropies, DPOTrainer._compute_loss, DPOTrainer.compute_ref_log_probs):
        assert "labels=labels, fused_lm_head=True)" in inspect.getsource(method), advice
    assert {field.name for field in dataclasses.fields(FusedCausalLMOutput)} == {*OUTPUTS, "loss", "label_mask", "aux_loss"}, (
        advice
    )


def grpo_step(with_hook: bool, settings: LearnerSettings, directory: Path) -> tuple[Mapping[str, float], dict[str, torch.Tensor]]:
    """Metrics and gradients of one optimiser step of two microbatches, with ratios other than 1."""
    model, kept = build_tiny_model(), {}
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: kept.__setitem__(name, p.grad.clone()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    optimizers = optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    scored = random_scored(4, model=build_tiny_model(seed=0), behavior_noise=0.2)
    plan = plan_epochs(trained_groups(scored, settings), settings, iteration=0)
    trainer = RecordedRolloutTrainer(model, build_tiny_tokenizer(), settings, optimizers, plan, str(directory))
    if with_hook:
        with packed_head(model, temperature=settings.temperature, outputs=("log_probs", "entropy")):
            trainer.record_old_logprobs()
            trainer.train()
    else:
        trainer.record_old_logprobs()
        trainer.train()
    return trainer.step_metrics[0], kept


def test_loss_metrics_and_gradients_of_grpo_equal_those_without_the_hook(tmp_path: Path) -> None:
    settings = LearnerSettings(groups_per_step=4, groups_per_microbatch=2, temperature=0.8, max_completion_tokens=40)
    found, my_gradients = grpo_step(True, settings, tmp_path)
    expected, their_gradients = grpo_step(False, settings, tmp_path)
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert found["train/grad_norm"] > 0 and found["train/entropy"] > 0
    assert_same_gradients(my_gradients, their_gradients)
