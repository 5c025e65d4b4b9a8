"""The arithmetic of PPO, GRPO and DPO, against values worked by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from posttrain.errors import PolicyError
from posttrain.planner.algorithms import compare_algorithms
from posttrain.planner.costs import AlgorithmCost
from posttrain.planner.hardware import GPUS, H100, decoding
from posttrain.planner.model import ModelShape, model_shape
from posttrain.planner.rendering import plan_html, plan_text
from posttrain.planner.units import bytes_text, count_text, gpu_time_text

QWEN3_8B = ModelShape(num_parameters=8_190_000_000, num_layers=36, num_kv_heads=8, head_dim=128)
QWEN3_32B = ModelShape(num_parameters=32_800_000_000, num_layers=64, num_kv_heads=8, head_dim=128)
TINY = ModelShape(num_parameters=107_000, num_layers=3, num_kv_heads=4, head_dim=16)


def sixty_thousand_pairs(model: ModelShape) -> list[AlgorithmCost]:
    return compare_algorithms(model, num_pairs=60_000, mean_sequence_tokens=768, num_epochs=2)


def test_memory_of_every_algorithm() -> None:
    costs = sixty_thousand_pairs(QWEN3_8B)
    assert [cost.name for cost in costs] == [
        "PPO-RLHF", "GRPO, kl_coef > 0", "GRPO, kl_coef = 0", "DPO", "DPO, reference precomputed",
    ]  # fmt: skip
    assert [cost.bytes_per_parameter for cost in costs] == [38, 20, 18, 18, 16]
    assert [round(cost.resident_bytes / 1e9) for cost in costs] == [311, 164, 147, 147, 131]
    assert [round(cost.resident_bytes / 1e9) for cost in sixty_thousand_pairs(QWEN3_32B)] == [1246, 656, 590, 590, 525]
    assert [len(cost.models) for cost in costs] == [5, 3, 2, 2, 1]


def test_train_side_flop_of_every_algorithm() -> None:
    costs = sixty_thousand_pairs(QWEN3_8B)
    assert [cost.flop_per_parameter_token for cost in costs] == [20, 10, 8, 8, 6]
    assert [cost.once_flop_per_parameter_token for cost in costs] == [0, 0, 0, 0, 2]


def test_a_pair_costs_12_n_s_for_the_policy_and_4_n_s_for_the_reference() -> None:
    costs = compare_algorithms(QWEN3_8B, num_pairs=1, mean_sequence_tokens=768, num_epochs=1)
    flop_per_gpu_s = H100.peak_flop_per_s * 0.4
    precomputed, loaded = costs[-1], costs[-2]
    assert precomputed.train_gpu_s * flop_per_gpu_s == pytest.approx(12 * 8.19e9 * 768)
    assert precomputed.once_gpu_s * flop_per_gpu_s == pytest.approx(4 * 8.19e9 * 768)
    assert loaded.total_gpu_s == pytest.approx(precomputed.total_gpu_s)
    assert loaded.total_gpu_s * flop_per_gpu_s == pytest.approx(8 * 2 * 8.19e9 * 768)  # 8 forward passes of 2 · N · s


def test_precomputing_saves_a_quarter_of_every_epoch_after_the_first() -> None:
    for num_epochs in (1, 2, 5):
        *_, loaded, precomputed = compare_algorithms(QWEN3_8B, 60_000, 768, num_epochs)
        saved = 0.25 * (num_epochs - 1) * loaded.total_gpu_s / num_epochs
        assert loaded.total_gpu_s - precomputed.total_gpu_s == pytest.approx(saved, abs=1e-6)


def test_gpu_hours_of_sixty_thousand_pairs() -> None:
    *_, precomputed = sixty_thousand_pairs(QWEN3_8B)
    assert round(precomputed.train_gpu_s / 3600, 1) == 6.4
    assert round(precomputed.once_gpu_s / 3600, 1) == 1.1
    assert precomputed.generation_gpu_s == 0


def test_a_decode_step_is_the_roofline_at_the_batch_that_the_cache_holds() -> None:
    engine = decoding(QWEN3_8B, H100, context_tokens=768)
    room = 0.9 * 80e9 - 16.38e9 - 2e9
    assert engine.num_sequences == int(room / (768 * 147_456)) == 473
    assert engine.step_s == pytest.approx((16.38e9 + 473 * 768 * 147_456) / (3.35e12 * 0.75) + 1.5e-3)
    assert engine.tensor_parallel == 1
    assert decoding(QWEN3_32B, H100, 768).tensor_parallel == 2
    assert decoding(TINY, H100, 40).num_sequences == 1024


def test_a_short_context_is_bound_by_compute() -> None:
    model = ModelShape(num_parameters=8_190_000_000, num_layers=36, num_kv_heads=1, head_dim=32)
    assert decoding(model, H100, 64).step_s == pytest.approx(2 * 8.19e9 * 1024 / (989e12 * 0.55) + 1.5e-3)


def test_generation_is_plausible_beside_the_reference_step() -> None:
    """8B on 64 H100, 33.1 million tokens, mean 4,042: a simulated fleet needs 197 s without tail and ramp."""
    seconds = 33.1e6 / 64 * decoding(QWEN3_8B, H100, 4_042).gpu_s_per_token
    assert 0.8 * 197 < seconds < 1.05 * 197
    *_, kl_free, _, _ = compare_algorithms(QWEN3_8B, num_pairs=4_096, mean_sequence_tokens=4_042, num_epochs=1)
    assert 0.8 * 5.5 < kl_free.total_gpu_s / 3600 < 1.05 * 5.5


def test_prompts_are_not_generated() -> None:
    whole, answers_only = (compare_algorithms(QWEN3_8B, 1_000, 800, 1, mean_prompt_tokens=n)[0] for n in (0, 600))
    assert answers_only.generation_gpu_s == pytest.approx(whole.generation_gpu_s / 4)
    assert answers_only.train_gpu_s == whole.train_gpu_s


@pytest.mark.parametrize(("name", "critical_batch"), [("H100", 295), ("A100", 153), ("H20", 37), ("H200", 206), ("L40S", 419)])
def test_gpus_have_the_critical_batch_of_their_data_sheets(name: str, critical_batch: int) -> None:
    assert round(GPUS[name].peak_flop_per_s / GPUS[name].bandwidth_bytes_per_s) == critical_batch


@pytest.mark.parametrize(
    ("config", "num_parameters", "kib_per_token"),
    [
        # Qwen3-8B, Qwen3-32B, Llama-3.1-8B and Qwen2.5-7B as published
        ((36, 32, 8, 4096, 12288, 151936, 128), 8.19e9, 144),
        ((64, 64, 8, 5120, 25600, 151936, 128), 32.76e9, 256),
        ((32, 32, 8, 4096, 14336, 128256, None), 8.03e9, 128),
        ((28, 28, 4, 3584, 18944, 152064, None), 7.615e9, 56),
    ],
)
def test_a_config_alone_gives_parameters_and_cache(
    tmp_path: Path, config: tuple[int | None, ...], num_parameters: float, kib_per_token: int
) -> None:
    names = (
        "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "intermediate_size", "vocab_size",
        "head_dim",
    )  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(dict(zip(names, config, strict=True))))
    shape = model_shape(tmp_path)
    assert shape.num_parameters == pytest.approx(num_parameters, rel=1e-3)
    assert shape.kv_bytes_per_token == kib_per_token * 1024


def test_parameters_are_counted_in_the_safetensors_headers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"n_layer": 2, "n_head": 4, "n_embd": 32}))
    save_file({"a": torch.zeros(3, 5), "b": torch.zeros(7)}, tmp_path / "model-00001.safetensors", {"format": "pt"})
    save_file({"c": torch.zeros(2, 2, dtype=torch.bfloat16), "d": torch.tensor(1.0)}, tmp_path / "model-00002.safetensors")
    assert model_shape(tmp_path) == ModelShape(num_parameters=15 + 7 + 4 + 1, num_layers=2, num_kv_heads=4, head_dim=8)


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, (5).to_bytes(8, "little") + b"[1,2]", (99).to_bytes(8, "little") + b"{}"])
def test_a_damaged_safetensors_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"n_layer": 2, "n_head": 4, "n_embd": 32}))
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(PolicyError, match=r"model\.safetensors"):
        model_shape(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        None, "{", "[]", '{"num_attention_heads": 4, "hidden_size": 32}', '{"text_config": null}', '{"text_config": 5}',
        '{"n_layer": true, "n_head": 4, "n_embd": 32}', '{"n_layer": 2, "n_head": 4, "n_embd": 32, "head_dim": "8"}',
    ],
)  # fmt: skip
def test_a_config_that_lacks_a_size_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(PolicyError, match=r"config\.json"):
        model_shape(tmp_path)


def test_a_mixture_of_experts_is_counted_in_its_weights_or_not_at_all(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_local_experts": 8}))
    with pytest.raises(PolicyError, match="num_local_experts: a mixture of experts"):
        model_shape(tmp_path)
    save_file({"experts": torch.zeros(8, 32, 64)}, tmp_path / "model.safetensors")
    assert model_shape(tmp_path).num_parameters == 8 * 32 * 64


def test_the_plan_prints_all_algorithms_side_by_side() -> None:
    lines = plan_text(sixty_thousand_pairs(QWEN3_8B)).splitlines()
    assert [line.split("  ")[0] for line in lines[1:6]] == [cost.name for cost in sixty_thousand_pairs(QWEN3_8B)]
    assert " ".join(lines[1].split()[1:]) == "38 311 GB 20 N 21.2 GPU-h 3.2 GPU-h 24.4 GPU-h"
    assert " ".join(lines[5].split()[3:]) == "16 131 GB 6 N + 2 N once 6.4 GPU-h + 1.1 GPU-h - 7.4 GPU-h"
    assert len({len(line) for line in lines[:6]}) == 1
    text = "\n".join(lines)
    assert "models    actor, critic, reference, reward model, rollout copy" in text
    assert "services  trainer, dataset" in text
    assert "473 sequences at a time on one GPU" in text
    assert "idle time" in text


def test_a_tiny_model_has_small_units() -> None:
    text = plan_text(compare_algorithms(TINY, 355, 35, 20))
    assert "1.7 MB" in text
    assert "0.00082 GPU-s" in text
    assert "e-" not in text
    assert "overheads" in text


def test_a_plan_without_pairs_can_be_printed() -> None:
    assert "0.0 GPU-s" in plan_text(compare_algorithms(TINY, 0, 0, 1))


def test_the_html_has_a_column_for_each_algorithm() -> None:
    html = plan_html(sixty_thousand_pairs(QWEN3_8B))
    assert html.count("<tr>") == 10
    assert html.count("<td>") == 9 * 5
    assert "<tr><th>memory</th><td>311 GB</td><td>164 GB</td><td>147 GB</td><td>147 GB</td><td>131 GB</td></tr>" in html
    assert "GRPO, kl_coef &gt; 0" in html


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (bytes_text(1_246_000_000_000), "1,246 GB"), (bytes_text(16.4e9), "16.4 GB"), (bytes_text(3_800_000), "3.8 MB"),
        (bytes_text(12), "12.0 bytes"), (count_text(8_190_000_000), "8.19 billion"), (count_text(60_000), "60,000"),
        (gpu_time_text(360), "0.1 GPU-h"), (gpu_time_text(359), "359 GPU-s"), (gpu_time_text(0.0851), "0.085 GPU-s"),
        (gpu_time_text(1e-9), "<0.0001 GPU-s"),
    ],
)  # fmt: skip
def test_quantities_read_well(text: str, expected: str) -> None:
    assert text == expected
