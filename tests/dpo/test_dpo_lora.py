"""LoRA: merged weights for engines, an adapter beside them from which training goes on exactly, bound to its base."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from posttrain import lora, policy
from posttrain.config_dpo import DpoLearnerSettings
from posttrain.errors import PolicyError
from posttrain.packed_model import why_not_packed
from posttrain.trainer_state import load_trainer_state
from tests.dpo.counting import counted
from tests.dpo.pair_tables import random_pairs, same, update, values_of, weights, with_reference
from tests.tiny_models import build_tiny_policy, build_tiny_tokenizer

SETTINGS = DpoLearnerSettings(
    pairs_per_step=4, pairs_per_microbatch=2, learning_rate=1e-2, num_epochs=2, lora_rank=4, lora_alpha=8.0, nll_coef=0.2
)
PROMPT = torch.tensor([[1, 8, 9, 10, 11, 12]])


@pytest.fixture
def start(tmp_path: Path) -> Path:
    return build_tiny_policy(tmp_path / "policy-0")


def adapter(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "adapter" / "adapter_model.safetensors")


def test_the_policy_has_merged_weights_and_its_manifest_names_the_adapter(start: Path) -> None:
    written, state, metrics = update(start, [with_reference(random_pairs(6), start)], SETTINGS, "1")
    manifest = policy.read_policy(written)
    added = manifest.files.keys() - policy.read_policy(start).files.keys()
    assert added == {"adapter/adapter_model.safetensors", "adapter/adapter_config.json"}
    before, after = weights(start), weights(written)
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if "proj" in name}  # every linear layer; neither head, embedding nor norms
    assert all(".lora_" in name for name in load_trainer_state(state).shapes)
    assert values_of(metrics, "train/chosen_logprob_drift")[0] == pytest.approx(0, abs=1e-4)  # a fresh adapter changes nothing
    assert values_of(metrics, "train/reward_margin")[-1] > 0.1


def test_peft_loads_the_adapter_on_the_base_and_gets_the_merged_policy(start: Path) -> None:
    from peft import PeftModel

    written, _, _ = update(start, [with_reference(random_pairs(6), start)], SETTINGS, "1")
    merged = policy.load_model(written, "float32")
    adapted = PeftModel.from_pretrained(policy.load_model(start, "float32"), written / "adapter")
    with torch.no_grad():
        torch.testing.assert_close(adapted(PROMPT).logits, merged(PROMPT).logits, rtol=1e-4, atol=1e-4)


def test_the_merged_weights_are_base_plus_scaled_product(start: Path) -> None:
    written, _, _ = update(start, [with_reference(random_pairs(6), start)], SETTINGS, "1")
    name = "model.layers.1.self_attn.q_proj"
    parts = adapter(written)
    a, b = (parts[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
    expected = weights(start)[f"{name}.weight"] + 8.0 / 4 * b @ a
    torch.testing.assert_close(weights(written)[f"{name}.weight"], expected, rtol=1e-5, atol=1e-6)


def test_parts_equal_one_call_bit_for_bit_and_are_written_alike(start: Path) -> None:
    shards = [with_reference(random_pairs(9), start)]
    whole, _, whole_metrics = update(start, shards, SETTINGS, "whole", iteration=2)
    directory, state, losses = start, None, []
    for part in (1, 2):
        directory, state, metrics = update(
            directory, shards, SETTINGS, f"part-{part}", state=state, base=start, iteration=part, part=part, num_parts=2
        )
        losses += values_of(metrics, "train/loss")
    assert losses == values_of(whole_metrics, "train/loss")
    assert same(weights(whole), weights(directory)) and same(adapter(whole), adapter(directory))
    files = [policy.read_policy(path).files for path in (whole, directory)]
    assert files[0] == files[1]  # also the order of names in adapter_config.json


def test_a_full_update_goes_on_from_the_merged_weights(start: Path) -> None:
    written, _, _ = update(start, [with_reference(random_pairs(4), start)], SETTINGS, "1")
    full = SETTINGS.model_copy(update={"lora_rank": 0})
    after, _, _ = update(written, [with_reference(random_pairs(4), written)], full, "2")
    assert not (after / "adapter").exists()


def test_a_policy_of_lora_can_be_the_base_of_another_adapter(start: Path) -> None:
    first, _, _ = update(start, [with_reference(random_pairs(4), start)], SETTINGS, "1")
    second, _, metrics = update(first, [with_reference(random_pairs(4), first)], SETTINGS, "2")
    assert values_of(metrics, "train/chosen_logprob_drift")[0] == pytest.approx(0, abs=1e-4)
    with safe_open(second / "adapter" / "adapter_model.safetensors", "pt") as file:
        assert file.metadata()[lora.BASE_HASH] == policy.policy_hash(first)


def test_an_adapter_of_another_base_is_refused_and_both_are_named(start: Path, tmp_path: Path) -> None:
    shards = [with_reference(random_pairs(4), start)]
    written, state, _ = update(start, shards, SETTINGS, "1")
    other = build_tiny_policy(tmp_path / "other", seed=1)
    with pytest.raises(PolicyError, match="belongs to the base policy") as caught:
        update(written, shards, SETTINGS, "2", state=state, base=other, reference_hash=policy.policy_hash(start))
    assert policy.policy_hash(start) in str(caught.value) and policy.policy_hash(other) in str(caught.value)


def test_a_policy_without_an_adapter_is_refused(start: Path, tmp_path: Path) -> None:
    other = build_tiny_policy(tmp_path / "other", seed=1)
    with pytest.raises(PolicyError, match="it has no adapter/"):
        update(other, [with_reference(random_pairs(2), start)], SETTINGS, "1", base=start)


@pytest.mark.parametrize(("field", "value"), [("lora_rank", 2), ("lora_alpha", 4.0)])
def test_other_settings_than_the_adapters_are_refused(start: Path, field: str, value: float) -> None:
    shards = [with_reference(random_pairs(2), start)]
    written, _, _ = update(start, shards, SETTINGS, "1")
    with pytest.raises(PolicyError, match="the settings say"):
        update(written, shards, SETTINGS.model_copy(update={field: value}), "2", base=start)


def test_an_altered_adapter_is_refused(start: Path) -> None:
    shards = [with_reference(random_pairs(2), start)]
    written, _, _ = update(start, shards, SETTINGS, "1")
    config = written / "adapter" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"r": 8}))
    with pytest.raises(PolicyError, match="adapter_config.json' was altered"):
        update(written, shards, SETTINGS, "2", base=start)


def test_neither_a_reference_nor_a_copy_of_the_adapter_is_made(monkeypatch: pytest.MonkeyPatch, start: Path) -> None:
    from posttrain.dpo_learner import DpoLearner
    from posttrain.dpo_rows import sorted_pairs

    pairs = sorted_pairs([with_reference(random_pairs(8), start)], policy.policy_hash(start))
    model = lora.load_adapted(start, start, SETTINGS)
    assert why_not_packed(model) is None
    learner = DpoLearner(model, policy.load_tokenizer(start), SETTINGS, lora.TRAINED)
    with counted(monkeypatch) as counts:
        learner.update(pairs, 0, 1, 1)
    assert counts == {"loaded": 0, "built": 0, "no_grad": 0, "grad": 8}
    assert list(model.peft_config) == ["default"] and not any(".ref." in name for name, _ in model.named_parameters())


def test_gradient_checkpointing_trains_the_adapter_alike(start: Path) -> None:
    shards = [with_reference(random_pairs(4), start)]
    plain, _, _ = update(start, shards, SETTINGS, "plain")
    saving, _, _ = update(start, shards, SETTINGS.model_copy(update={"gradient_checkpointing": True}), "saving")
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(saving)[name], value, rtol=1e-4, atol=1e-5)


def test_a_fresh_adapter_follows_the_seed_alone(start: Path) -> None:
    first, again, other = (
        dict(lora.load_adapted(start, start, SETTINGS.model_copy(update={"seed": seed})).state_dict()) for seed in (0, 0, 1)
    )
    assert same(first, again) and not same(first, other)


def test_gpt2_with_its_transposed_layers_is_merged_and_goes_on(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=2, n_positions=64, eos_token_id=2))
    base = tmp_path / "policy-0"
    policy.write_policy(model, build_tiny_tokenizer(), base, version=0, parent=None, algorithm="random", iteration=0)
    shards = [with_reference(random_pairs(8), base)]
    first, state, _ = update(base, shards, SETTINGS, "1", part=1, num_parts=2)
    second, _, _ = update(first, shards, SETTINGS, "2", base=base, state=state, part=2, num_parts=2)
    whole, _, _ = update(base, shards, SETTINGS, "whole")
    assert same(weights(second), weights(whole)) and not same(weights(base), weights(whole))
    assert weights(whole).keys() == weights(base).keys()


def test_an_adapter_alone_is_no_policy_and_a_merged_one_is(start: Path, tmp_path: Path) -> None:
    written, _, _ = update(start, [with_reference(random_pairs(4), start)], SETTINGS, "1")
    policy.import_policy(written, tmp_path / "imported")
    assert same(weights(tmp_path / "imported"), weights(written)) and not (tmp_path / "imported" / "adapter").exists()
    alone = tmp_path / "alone"
    shutil.copytree(written / "adapter", alone)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(written / name, alone / name)
    with pytest.raises(PolicyError, match="weights are an adapter's, without its base.*merge_and_unload"):
        policy.import_policy(alone, tmp_path / "policy-of-adapter")
