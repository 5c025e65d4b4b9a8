"""Fails loudly when TRL's private interface, which the recorded-pair trainer builds on, changes."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import version
from pathlib import Path

import pytest
import trl
from transformers import Trainer
from trl.trainer.dpo_trainer import DataCollatorForPreference

import posttrain.dpo_trainer
from posttrain.config_dpo import DpoLoss
from posttrain.dpo_trainer import HEAD_OUTPUTS, PAIR_METRICS, RecordedPairTrainer

ADVICE = "Read TRL's changes, then adapt posttrain/dpo_trainer.py and this test."
CONSTRUCTION = inspect.getsource(trl.DPOTrainer.__init__)
LOSS = inspect.getsource(trl.DPOTrainer._compute_loss)


def test_the_version_is_the_one_that_was_read() -> None:
    assert version("trl").startswith("1.16."), ADVICE


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_prepare_dataset", ["self", "dataset", "processing_class", "args", "dataset_name"]),
        ("_precompute_ref_logps", ["self", "dataset", "name", "batch_size"]),
        ("_send_telemetry", ["self"]),
        ("_compute_loss", ["self", "model", "inputs", "return_outputs"]),
        ("compute_loss", ["self", "model", "inputs", "return_outputs", "num_items_in_batch"]),
        ("log", ["self", "logs", "start_time"]),
    ],
)
def test_signatures(name: str, expected: list[str]) -> None:
    assert list(inspect.signature(getattr(trl.DPOTrainer, name)).parameters) == expected, ADVICE


def test_no_reference_is_built_where_its_logprobs_are_said_to_be_precomputed() -> None:
    for line in (
        "if is_peft_model(self.model) or (args.precompute_ref_log_probs and not self.is_fsdp_enabled):",
        "elif is_peft_model(model) and ref_model is None:",
        "self.precompute_ref_logps = args.precompute_ref_log_probs",
        "self.train_dataset = self._precompute_ref_logps(",
        "train_dataset = self._prepare_dataset(train_dataset, processing_class, args",
    ):
        assert line in CONSTRUCTION, ADVICE
    assert "if self.precompute_ref_logps:\n            ref_chosen_logps, ref_rejected_logps = inputs" in LOSS, ADVICE


def test_the_loss_reads_the_batch_that_we_build_and_the_weights_that_we_set() -> None:
    assert set(re.findall(r'inputs\["(\w+)"\]', LOSS)) == {
        "input_ids",
        "attention_mask",
        "completion_mask",
        "ref_chosen_logps",
        "ref_rejected_logps",
    }, ADVICE
    assert "for loss_type, loss_weight in zip(self.loss_types, self.loss_weights, strict=True):" in LOSS, ADVICE
    assert "loss += per_sequence_loss.mean() * loss_weight" in LOSS, ADVICE
    assert "batch_loss = -chosen_per_token_logps[chosen_mask.bool()].mean()" in LOSS, ADVICE
    assert trl.DPOTrainer.loss_is_scaled_for_ga is False, ADVICE  # the Trainer divides by the number of microbatches
    for name in (*PAIR_METRICS, "entropy"):
        assert f'["{name}"].append' in LOSS, ADVICE
    assert set(re.findall(r"outputs\.(\w+)", LOSS)) - {"aux_loss", "log_sum_sq_probs"} == set(HEAD_OUTPUTS), ADVICE


def test_sigmoid_still_ignores_label_smoothing() -> None:
    """It is put together from `sigmoid` and `robust`; should TRL smooth by itself, it would be done twice."""
    branch = LOSS[LOSS.index('if loss_type == "sigmoid"') : LOSS.index('elif loss_type == "hinge"')]
    assert "label_smoothing" not in branch, ADVICE


def test_the_collator_masks_by_length_never_by_value() -> None:
    rows = [
        {
            "prompt_ids": [1, 2],
            "chosen_ids": [5, 6, 2],
            "rejected_ids": [2],
            "ref_chosen_logps": -3.0,
            "ref_rejected_logps": -1.0,
        },
        {"prompt_ids": [1], "chosen_ids": [5, 2], "rejected_ids": [7, 2], "ref_chosen_logps": -2.0, "ref_rejected_logps": -4.0},
    ]
    batch = DataCollatorForPreference(pad_token_id=2)(rows)
    assert batch["input_ids"].tolist() == [[1, 2, 5, 6, 2], [1, 5, 2, 2, 2], [1, 2, 2, 2, 2], [1, 7, 2, 2, 2]], ADVICE
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 0, 0]], ADVICE
    assert batch["completion_mask"].tolist() == [[0, 0, 1, 1, 1], [0, 1, 1, 0, 0], [0, 0, 1, 0, 0], [0, 1, 1, 0, 0]], ADVICE
    assert batch["ref_chosen_logps"].tolist() == [-3, -2] and batch["ref_rejected_logps"].tolist() == [-1, -4], ADVICE


def test_every_loss_of_the_settings_is_a_loss_of_trl_and_the_other_way_round() -> None:
    named = set(re.findall(r'loss_type == "(\w+)"', LOSS))
    assert named == {loss.value for loss in DpoLoss}, ADVICE


def test_only_these_private_names_of_trl_are_touched_and_only_in_one_file() -> None:
    library = Path(posttrain.dpo_trainer.__file__).parent
    own = {"_collate", "_settings", "_pairs", "_steps", "_microbatches", "_number", "_means", "_loss_sum"}
    own |= {"_step", "_read_microbatch", "_explain_not_finite"}
    used = set(re.findall(r"(?:self|trainer)\.(_\w+)", (library / "dpo_trainer.py").read_text())) - own
    assert used == {"_metrics"}
    overridden = {name for name in vars(RecordedPairTrainer) if name.startswith("_") and hasattr(trl.DPOTrainer, name)}
    mine = {name for name in overridden if not name.startswith("__")}
    assert mine == {"_prepare_dataset", "_precompute_ref_logps", "_send_telemetry"}
    assert not {name for name in own if hasattr(trl.DPOTrainer, name) or hasattr(Trainer, name)}, ADVICE
    in_instance = set(re.findall(r"self\.(_\w+) = ", CONSTRUCTION + inspect.getsource(Trainer)))
    assert not own & in_instance, ADVICE
    for path in library.glob("*.py"):
        if path.name != "dpo_trainer.py":
            assert "DPOTrainer" not in path.read_text(), path
