"""Fails loudly when TRL's private interface, which the recorded-rollout trainer builds on, changes."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import version
from pathlib import Path

import pytest
import trl
from transformers import Trainer

import posttrain.grpo_trainer
from posttrain.config import LossType
from posttrain.grpo_trainer import STEP_METRICS, RecordedRolloutTrainer

ADVICE = "Read TRL's changes, then adapt posttrain/grpo_trainer.py and this test."


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_the_version_is_the_one_that_was_read() -> None:
    assert version("trl").startswith("1.16."), ADVICE


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_generate_and_score_completions", ["self", "inputs"]),
        ("_send_telemetry", ["self"]),
        ("_compute_loss", ["self", "model", "inputs"]),
        ("compute_loss", ["self", "model", "inputs", "return_outputs", "num_items_in_batch"]),
        ("log", ["self", "logs", "start_time"]),
        ("_prepare_inputs", ["self", "generation_batch"]),
    ],
)
def test_signatures(name: str, expected: list[str]) -> None:
    assert parameters(getattr(trl.GRPOTrainer, name)) == expected, ADVICE


def test_the_logprob_pass_takes_what_we_give_and_returns_three_things() -> None:
    method = trl.GRPOTrainer._get_per_token_logps_and_entropies
    assert parameters(method)[:5] == ["self", "model", "input_ids", "attention_mask", "logits_to_keep"], ADVICE
    assert "return logps, entropies, aux_loss" in inspect.getsource(method), ADVICE


def test_the_loss_reads_the_batch_that_we_build() -> None:
    source = inspect.getsource(trl.GRPOTrainer._compute_loss)
    needed = set(re.findall(r'inputs\["(\w+)"\]', source))
    optional = set(re.findall(r'inputs\.get\("(\w+)"', source))
    assert needed == {
        "prompt_ids",
        "prompt_mask",
        "completion_ids",
        "completion_mask",
        "advantages",
        "num_items_in_batch",
        "ref_per_token_logps",
        "importance_sampling_ratio",
        "tool_mask",
    }, ADVICE
    assert {"old_per_token_logps", "sampling_per_token_logps", "importance_sampling_ratio"} <= optional, ADVICE
    assert "if self.use_vllm and self.vllm_importance_sampling_correction" in source, ADVICE
    for name in STEP_METRICS:
        assert f'["{name}"].append' in source, ADVICE


def test_every_loss_of_the_settings_is_a_loss_of_trl_and_the_other_way_round() -> None:
    source = inspect.getsource(trl.GRPOTrainer._compute_loss)
    named = {name for line in source.splitlines() if "self.loss_type" in line for name in re.findall(r'"(\w+)"', line)}
    assert named == {loss_type.value for loss_type in LossType}, ADVICE


def test_only_these_private_names_of_trl_are_touched_and_only_in_one_file() -> None:
    pattern = re.compile(r"(?:self|trainer)\.(_\w+)")
    library = Path(posttrain.grpo_trainer.__file__).parent
    own = {"_settings", "_epochs", "_planned", "_current", "_means", "_loss_sum"}
    own |= {"_pad_id", "_old_BT", "_importance", "_compare_with_sampler"}
    used = set(pattern.findall((library / "grpo_trainer.py").read_text())) - own
    assert used == {"_get_per_token_logps_and_entropies", "_metrics", "_tokenizer"}
    overridden = {name for name in vars(RecordedRolloutTrainer) if name.startswith("_") and hasattr(trl.GRPOTrainer, name)}
    assert {name for name in overridden if not name.startswith("__")} == {"_generate_and_score_completions", "_send_telemetry"}
    collisions = {name for name in own if hasattr(trl.GRPOTrainer, name) or hasattr(Trainer, name)}
    assert not collisions, ADVICE
    for path in library.glob("*.py"):
        if path.name != "grpo_trainer.py":
            assert "GRPOTrainer" not in path.read_text(), path
