"""The recorded-rollout trainer against plain PyTorch and against values worked by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from posttrain.config import LearnerSettings
from posttrain.grpo_learner import Learner
from posttrain.grpo_rows import Microbatch, TrainingRow, plan_epochs, trained_groups
from posttrain.grpo_trainer import recorded_trainer
from posttrain.logprobs import token_logprobs
from tests.learner.plain_grpo import row_logprobs, train_plainly
from tests.learner.scored_tables import random_scored, scored_row, scored_table
from tests.tiny_models import EOS_ID, PAD_ID, build_tiny_model, build_tiny_tokenizer

LOSS_TYPES = ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo")


def settings_of(**values: Any) -> LearnerSettings:
    return LearnerSettings.model_validate({"importance_correction": "none", "max_completion_tokens": 100, **values})


def training_row(length: int, advantage: float, sample_index: int = 0, **values: Any) -> TrainingRow:
    ids = np.arange(10, 10 + length) % 40 + 5
    row = {"behavior_logprobs": np.full(length, -1.0, np.float32), "reference_logprobs": None} | values
    return TrainingRow("p", sample_index, np.array([1, 7, 8]), ids, advantage=advantage, **row)


def sgd(model: Any) -> tuple[Any, Any]:
    """With rate 1 and no momentum, the change of a weight is minus its gradient."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)


def one_step(
    rows: Sequence[TrainingRow], settings: LearnerSettings, log_ratios: Sequence[float] | None = None
) -> Mapping[str, float]:
    """Metrics of one optimiser step over one microbatch; `log_ratios`: log(policy / old) of every token of each row."""
    model = build_tiny_model()
    microbatch = Microbatch(tuple(rows), 0, len(rows), sum(len(row.completion_ids) for row in rows), 1)
    with recorded_trainer(model, build_tiny_tokenizer(), settings, sgd(model), [[microbatch]]) as trainer:
        if log_ratios is not None:
            trainer.record_old_logprobs()
            for row, log_ratio in zip(rows, log_ratios, strict=True):
                trainer.old_logprobs[row.key] -= log_ratio
        trainer.train()
    return trainer.step_metrics[0]


# --- independent computation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        *({"loss_type": name} for name in LOSS_TYPES),
        *({"loss_type": name, "importance_level": "sequence"} for name in ("grpo", "luspo")),
        *({"importance_correction": name} for name in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")),
        {"loss_type": "vespo", "importance_correction": "token_truncate"},
        {"loss_type": "grpo", "importance_correction": "token_mask", "kl_coef": 0.3, "temperature": 0.7},
    ],
    ids=lambda values: "-".join(map(str, values.values())),
)
def test_every_step_equals_a_plain_computation(values: dict[str, Any]) -> None:
    settings = settings_of(
        learning_rate=3e-3, groups_per_step=2, groups_per_microbatch=2, num_epochs=2, importance_cap=1.3, **values
    )
    sampler, plain, ours = build_tiny_model(seed=0), build_tiny_model(seed=0), build_tiny_model(seed=0)
    scored = random_scored(num_groups=3, model=sampler, behavior_noise=0.3)
    if settings.kl_coef:
        scored = with_reference(scored, build_tiny_model(seed=1), settings.temperature)
    groups = trained_groups(scored, settings)
    expected = train_plainly(plain, plan_epochs(groups, settings, iteration=5), settings)
    metrics = by_step(Learner(ours, build_tiny_tokenizer(), settings).update(scored, iteration=5))
    assert len(metrics) == len(expected) == 4  # three groups, two a step, two epochs: the last step of an epoch is smaller
    for found, wanted in zip(metrics, expected, strict=True):
        for name, value in wanted.items():
            assert found[name] == pytest.approx(value, rel=2e-4, abs=2e-5), name


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo"])
@pytest.mark.parametrize(
    ("num_groups", "per_step", "per_microbatch", "sizes"),
    [
        (11, 8, 2, [[6, 7, 7], [8, 8, 8]]),
        (5, 4, 1, [[2, 3, 3], [4, 4, 4]]),
        (9, 8, 4, [[8, 8], [10, 10]]),
        (1, 8, 2, [[4]]),
        (3, 2, 1, [[2, 2], [4, 4]]),
    ],
)
def test_steps_that_the_groups_do_not_fill_equal_a_plain_computation(
    num_groups: int, per_step: int, per_microbatch: int, sizes: list[list[int]], loss_type: str
) -> None:
    settings = settings_of(
        learning_rate=1e-3,
        groups_per_step=per_step,
        groups_per_microbatch=per_microbatch,
        num_epochs=2,
        loss_type=loss_type,
        max_grad_norm=1e9,
    )
    plain, ours = build_tiny_model(seed=0), build_tiny_model(seed=0)
    scored = random_scored(num_groups)
    epochs = plan_epochs(trained_groups(scored, settings), settings, iteration=5)
    expected = train_plainly(plain, epochs, settings)
    metrics = by_step(Learner(ours, build_tiny_tokenizer(), settings).update(scored, iteration=5))
    for epoch in epochs:
        first = epoch[0].step
        found_sizes = [[len(part.rows) for part in epoch if part.step == first + step] for step in range(len(sizes))]
        assert [sorted(step) for step in found_sizes] == sizes
    assert len(metrics) == len(expected) == 2 * len(sizes)
    for found, wanted in zip(metrics, expected, strict=True):
        for name, value in wanted.items():
            assert found[name] == pytest.approx(value, rel=2e-4, abs=2e-5), name
    for found, wanted in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(found, wanted, atol=2e-4)


def with_reference(scored: pa.Table, reference: Any, temperature: float) -> pa.Table:
    rows = scored.to_pylist()
    found = token_logprobs(reference, [row["prompt_ids"] for row in rows], [row["completion_ids"] for row in rows], temperature)
    return scored_table([row | {"reference_logprobs": logprobs.tolist()} for row, logprobs in zip(rows, found, strict=True)])


def by_step(metrics: pa.Table) -> list[dict[str, float]]:
    steps: dict[int, dict[str, float]] = {}
    for row in metrics.to_pylist():
        if row["step"] is not None:
            steps.setdefault(row["step"], {})[row["name"]] = row["value"]
    return [steps[step] for step in sorted(steps)]


def of_iteration(metrics: pa.Table) -> dict[str, float]:
    return {row["name"]: row["value"] for row in metrics.to_pylist() if row["step"] is None}


# --- values by hand ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss_type", "expected"), [("grpo", 0.0), ("dapo", 0.818182), ("dr_grpo", 0.45)])
def test_aggregation_of_a_short_right_and_a_long_wrong_completion(loss_type: str, expected: float) -> None:
    rows = [training_row(10, 1.0), training_row(100, -1.0, 1)]
    assert one_step(rows, settings_of(loss_type=loss_type))["train/loss"] == pytest.approx(expected, abs=1e-5)


def test_clipping_stops_the_gradient_on_one_side_only() -> None:
    up = one_step([training_row(1, 1.0)], settings_of(), [math.log(1.3)])
    assert up["train/loss"] == pytest.approx(-1.28, abs=1e-5) and up["train/grad_norm"] == 0.0
    down = one_step([training_row(1, -1.0)], settings_of(), [math.log(1.3)])
    assert down["train/loss"] == pytest.approx(1.3, abs=1e-5) and down["train/grad_norm"] > 0.1


@pytest.mark.parametrize(("sign", "low", "high"), [(1.0, 0.0, 0.75), (-1.0, 0.25, 0.0)])
def test_clip_fractions_count_the_tokens_whose_gradient_is_cut(sign: float, low: float, high: float) -> None:  # B05
    rows = [training_row(1, sign, index) for index in range(4)]
    metrics = one_step(rows, settings_of(clip_low=0.2, clip_high=0.2), [math.log(value) for value in (1.3, 1.3, 1.3, 0.7)])
    assert metrics["train/clip_fraction_low"] == low
    assert metrics["train/clip_fraction_high"] == high
    assert metrics["train/clip_fraction_total"] == low + high


def test_clip_fractions_leave_padding_out() -> None:  # B05, masked tokens
    rows = [training_row(1, 1.0), training_row(9, 1.0, 1)]
    metrics = one_step(rows, settings_of(), [math.log(2.0), 0.0])
    assert metrics["train/clip_fraction_high"] == pytest.approx(0.1)


def test_cispo_clips_its_weight_at_one_plus_clip_high() -> None:
    model, row = build_tiny_model(), training_row(1, 1.0)
    logprob = row_logprobs(model, row, 1.0).item()
    metrics = one_step([row], settings_of(loss_type="cispo"), [math.log(1.5)])
    assert metrics["train/loss"] == pytest.approx(-1.28 * logprob, rel=1e-5)
    assert metrics["train/clip_fraction_high"] == 1.0


@pytest.mark.parametrize(("distance", "k3"), [(0.5, 0.106531), (-0.5, 0.148721)])
def test_kl_is_k3_of_the_stored_reference_logprobs(distance: float, k3: float) -> None:
    model = build_tiny_model()
    rows = [training_row(6, 1.0), training_row(6, -1.0, 1)]  # their policy losses cancel
    reference = row_logprobs(model, rows[0], 1.0).detach().numpy() - distance
    rows = [training_row(6, 1.0, reference_logprobs=reference), training_row(6, -1.0, 1, reference_logprobs=reference)]
    metrics = one_step(rows, settings_of(kl_coef=1.0))
    assert metrics["train/kl"] == pytest.approx(k3, abs=2e-6)
    assert metrics["train/loss"] == pytest.approx(k3, abs=2e-6)


def test_the_gradient_of_the_kl_is_that_of_k3() -> None:
    reference = row_logprobs(build_tiny_model(), training_row(1, 0.0), 1.0).detach().numpy() - 0.5
    of_logprob = one_step([training_row(1, 1.0)], settings_of())["train/grad_norm"]
    of_kl = one_step([training_row(1, 0.0, reference_logprobs=reference)], settings_of(kl_coef=1.0))["train/grad_norm"]
    assert of_kl / of_logprob == pytest.approx(0.393469, rel=1e-4)  # 1 - exp(-0.5)


@pytest.mark.parametrize(("correction", "expected"), [("token_truncate", [1, 1.6487, 2, 2]), ("token_mask", [1, 1.6487, 0, 0])])
def test_importance_weights_multiply_the_loss_up_to_the_cap(correction: str, expected: list[float]) -> None:
    model = build_tiny_model()
    for log_ratio, weight in zip([0, 0.5, 1, 2], expected, strict=True):
        behavior = row_logprobs(model, training_row(1, -1.0), 1.0).detach().numpy() - np.float32(log_ratio)
        row = training_row(1, -1.0, behavior_logprobs=behavior)
        found = one_step([row], settings_of(importance_correction=correction), [0.0])
        assert found["train/loss"] == pytest.approx(weight, abs=5e-5)


def test_first_ratio_is_one_and_kl_zero_exactly_when_policy_sampler_and_reference_agree() -> None:
    model, settings = build_tiny_model(), settings_of(importance_correction="token_truncate", kl_coef=1.0)
    scored = random_scored(num_groups=3, model=model)
    groups = trained_groups(with_reference(scored, model, 1.0), settings)
    with recorded_trainer(model, build_tiny_tokenizer(), settings, sgd(model), plan_epochs(groups, settings, 0)) as trainer:
        trainer.record_old_logprobs()
        old = {key: logprobs.tolist() for key, logprobs in trainer.old_logprobs.items()}
    rows = [
        row
        | {"behavior_logprobs": old[row["prompt_id"], row["sample_index"]]}
        | {"reference_logprobs": old[row["prompt_id"], row["sample_index"]]}
        for row in scored.to_pylist()
    ]
    metrics = Learner(build_tiny_model(), build_tiny_tokenizer(), settings).update(scored_table(rows), 0)
    found = of_iteration(metrics)
    assert found["train/behavior_gap_mean"] == 0.0
    assert found["train/importance_ratio_max"] == found["train/importance_ratio_mean"] == 1.0
    assert by_step(metrics)[0]["train/kl"] == 0.0
    # from the reference kernel, with other padding, only rounding remains
    metrics = Learner(build_tiny_model(), build_tiny_tokenizer(), settings).update(with_reference(scored, model, 1.0), 0)
    assert abs(by_step(metrics)[0]["train/kl"]) < 1e-7


# --- truncation --------------------------------------------------------------------------------------------------------


def finished_and_truncated(last_id: int) -> pa.Table:
    return scored_table(
        [
            scored_row("p", 0, list(range(5, 30)), advantage=-1.0),
            scored_row("p", 1, [5, 6, 7, 8, last_id], advantage=-1.0, finish_reason="length"),
        ]
    )


@pytest.mark.parametrize("last_id", [9, EOS_ID, PAD_ID])  # what decides is the recorded finish reason, not the last token
def test_truncated_tokens_leave_numerator_and_denominator(last_id: int) -> None:  # B01
    scored = finished_and_truncated(last_id)
    metrics = Learner(build_tiny_model(), build_tiny_tokenizer(), settings_of(mask_truncated=True)).update(scored, 0)
    assert by_step(metrics)[0]["train/loss"] == pytest.approx(1.0)
    assert by_step(metrics)[0]["train/num_tokens"] == 25
    assert of_iteration(metrics)["train/num_rows_truncated"] == 1
    assert of_iteration(metrics)["train/completion_tokens_mean"] == 15  # lengths stay unmasked


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_a_truncated_row_leaves_no_trace_in_any_loss(loss_type: str) -> None:
    settings = settings_of(loss_type=loss_type, mask_truncated=True)
    scored = finished_and_truncated(9)
    with_it = by_step(Learner(build_tiny_model(), build_tiny_tokenizer(), settings).update(scored, 0))[0]
    without = by_step(Learner(build_tiny_model(), build_tiny_tokenizer(), settings).update(scored.slice(0, 1), 0))[0]
    assert with_it == without


def test_everything_truncated_gives_loss_zero_and_changes_no_weight() -> None:  # B01
    scored = finished_and_truncated(9).slice(1)
    learner = Learner(build_tiny_model(), build_tiny_tokenizer(), settings_of(mask_truncated=True))
    metrics = learner.update(scored, 0)
    assert by_step(metrics) == [{"train/loss": 0.0, "train/grad_norm": 0.0}]
    assert of_iteration(metrics)["train/num_steps"] == 0
    for found, before in zip(learner.model.parameters(), build_tiny_model().parameters(), strict=True):
        assert torch.equal(found, before)


# --- microbatches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss_type", [name for name in LOSS_TYPES if name != "bnpo"])  # bnpo is defined by its microbatch
def test_one_or_four_microbatches_give_the_same_gradient(loss_type: str) -> None:
    scored = random_scored(num_groups=4, model=build_tiny_model(), behavior_noise=0.2)
    scored = scored.filter(pa.array([row not in (1, 6, 7) for row in range(scored.num_rows)]))  # groups of unequal size
    gradients: list[torch.Tensor] = []
    for groups_per_microbatch in (4, 1):
        settings = settings_of(
            loss_type=loss_type,
            groups_per_step=4,
            groups_per_microbatch=groups_per_microbatch,
            max_grad_norm=1e9,
            importance_correction="token_truncate",
        )
        model = build_tiny_model()
        before = torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])
        epochs = plan_epochs(trained_groups(scored, settings), settings, 0)
        assert len(epochs[0]) == 4 // groups_per_microbatch
        with recorded_trainer(model, build_tiny_tokenizer(), settings, sgd(model), epochs) as trainer:
            trainer.record_old_logprobs()
            trainer.train()
        gradients.append(before - torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert gradients[0].abs().max() > 0.01
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-3, atol=2e-6 * float(gradients[0].abs().max()) + 1e-6)


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_microbatches_change_no_step_that_the_groups_do_not_fill(loss_type: str) -> None:
    scored = random_scored(num_groups=11)
    scored = scored.filter(pa.array([row not in (1, 6, 7, 20) for row in range(scored.num_rows)]))
    trained: list[list[dict[str, float]]] = []
    for groups_per_microbatch in (8, 4, 2, 1):
        settings = settings_of(groups_per_step=8, groups_per_microbatch=groups_per_microbatch, loss_type=loss_type)
        trained.append(by_step(Learner(build_tiny_model(), build_tiny_tokenizer(), settings).update(scored, 0)))
    whole = trained[0]
    assert len(whole) == 2
    for cut in trained[1:]:
        for found, wanted in zip(cut, whole, strict=True):
            for name in ("train/loss", "train/grad_norm", "train/entropy", "train/num_tokens"):
                assert found[name] == pytest.approx(wanted[name], rel=1e-4, abs=1e-6), name


# --- mismatch with the sampler -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("correction", "expected"), [("token_truncate", 2 / 6), ("sequence_truncate", 1 / 2), ("none", 2 / 6)])
def test_the_capped_fraction_counts_what_the_correction_caps(correction: str, expected: float) -> None:
    model = build_tiny_model()
    rows = [training_row(2, 1.0), training_row(4, -1.0, 1)]
    # weights of the tokens: e^0.5 twice, whole e; e^1 twice and e^-1 twice, whole 1
    gaps = [np.array([0.5, 0.5]), np.array([1.0, 1.0, -1.0, -1.0])]
    noisy = [
        training_row(len(gap), row.advantage, row.sample_index, behavior_logprobs=behavior.astype(np.float32))
        for row, gap in zip(rows, gaps, strict=True)
        for behavior in [row_logprobs(model, row, 1.0).detach().numpy() - gap]
    ]
    microbatch = Microbatch(tuple(noisy), 0, 2, 6, 1)
    settings = settings_of(importance_correction=correction, importance_cap=2.0)
    with recorded_trainer(model, build_tiny_tokenizer(), settings, sgd(model), [[microbatch]]) as trainer:
        trainer.record_old_logprobs()
    assert trainer.sampler_metrics["train/importance_capped_fraction"] == pytest.approx(expected)
    assert trainer.sampler_metrics["train/behavior_gap_mean"] == pytest.approx(5 / 6, abs=1e-5)
