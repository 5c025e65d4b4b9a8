"""The losses through the real trainer: arithmetic worked by hand, and every loss against a plain computation."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
import torch

from posttrain.config_dpo import DpoLearnerSettings, DpoLoss
from posttrain.dpo_learner import DpoLearner
from posttrain.dpo_rows import sorted_pairs
from posttrain.errors import ConfigError
from tests.dpo import plain_dpo
from tests.dpo.pair_tables import HASH, random_pairs, referenced_row, referenced_table
from tests.tiny_models import EOS_ID, build_tiny_model, build_tiny_tokenizer

SMOOTHED = (DpoLoss.sigmoid, DpoLoss.exo_pair, DpoLoss.robust, DpoLoss.aot, DpoLoss.aot_unpaired)


def first_step(pairs: pa.Table, settings: DpoLearnerSettings, model: Any = None, tokenizer: Any = None) -> dict[str, float]:
    """Metrics of a training of one step, by name."""
    learner = DpoLearner(model or build_tiny_model(), tokenizer or build_tiny_tokenizer(), settings)
    return {row["name"]: row["value"] for row in learner.update(sorted_pairs([pairs], HASH), 0, 1, 1).to_pylist()}


def one_pair(chosen_drift: float, rejected_drift: float) -> pa.Table:
    """One pair of one-token answers for which a fresh policy has drifted so far from the stored reference."""
    row = referenced_row("pair", [5], [7])
    policy = plain_dpo.sums(build_tiny_model(), referenced_table([row]))
    row["reference_chosen_logprob"] = policy.policy_chosen.item() - chosen_drift
    row["reference_rejected_logprob"] = policy.policy_rejected.item() - rejected_drift
    return referenced_table([row])


def some_pairs(num_pairs: int = 5) -> pa.Table:
    """Pairs whose stored logprobs are off the policy's by up to a few nats in both directions."""
    rows = random_pairs(num_pairs).to_pylist()
    for number, row in enumerate(rows):
        stored = {
            "reference_chosen_logprob": -4.0 * len(row["chosen_ids"]) - number % 3,
            "reference_rejected_logprob": -4.2 * len(row["rejected_ids"]) + number % 2,
            "reference_hash": HASH,
        }
        row |= stored
    return referenced_table(rows)


# The policy is its reference: sigmoid ln 2, hinge 1, IPO 1 / (2β)² = 25. Then h = 3 at β = 0.1: −log σ(0.3), 1 − 0.3, (3 − 5)²;
# cDPO and robust with ε = 0.1: 0.9·0.554355 ± 0.1·0.854355, the latter over 0.8. One token a side: IPO's mean is the sum.
@pytest.mark.parametrize(
    ("loss", "smoothing", "at_start", "at_three"),
    [
        ("sigmoid", 0.0, 0.693147, 0.554355),
        ("hinge", 0.0, 1.0, 0.7),
        ("ipo", 0.0, 25.0, 4.0),
        ("sigmoid", 0.1, 0.693147, 0.584355),
        ("robust", 0.1, 0.693147, 0.516855),
        ("sigmoid_norm", 0.0, 0.693147, 0.554355),
    ],
)
def test_worked_values(loss: str, smoothing: float, at_start: float, at_three: float) -> None:
    settings = DpoLearnerSettings(loss_type=DpoLoss(loss), label_smoothing=smoothing)
    # a logprob in float32 is known to 5e-7 or so, depending on the CPU; IPO's square multiplies that by 2 · 5
    assert first_step(one_pair(0, 0), settings)["train/loss"] == pytest.approx(at_start, abs=5e-6, rel=1e-6)
    assert first_step(one_pair(1, -2), settings)["train/loss"] == pytest.approx(at_three, abs=5e-6, rel=1e-6)


def test_rewards_margin_and_drift_of_a_worked_pair() -> None:
    found = first_step(one_pair(1, -2), DpoLearnerSettings())
    assert found["train/chosen_reward"] == pytest.approx(0.1, abs=1e-6)
    assert found["train/rejected_reward"] == pytest.approx(-0.2, abs=1e-6)
    assert found["train/reward_margin"] == pytest.approx(0.3, abs=1e-6)
    assert found["train/chosen_logprob_drift"] == pytest.approx(1, abs=1e-5)
    assert found["train/rejected_logprob_drift"] == pytest.approx(-2, abs=1e-5)
    assert (found["train/pair_accuracy"], found["train/num_pairs"], found["train/num_tokens"]) == (1, 1, 2)
    policy = plain_dpo.sums(build_tiny_model(), one_pair(0, 0))
    assert found["train/chosen_logprob"] == pytest.approx(policy.policy_chosen.item(), abs=1e-5)
    assert found["train/rejected_logprob"] == pytest.approx(policy.policy_rejected.item(), abs=1e-5)


def test_the_plain_computation_has_every_loss() -> None:
    assert set(plain_dpo.LOSSES) == {loss.value for loss in DpoLoss}


@pytest.mark.parametrize("nll_coef", [0.0, 0.7])
@pytest.mark.parametrize("loss", list(DpoLoss))
def test_loss_and_gradient_equal_the_plain_computation(loss: DpoLoss, nll_coef: float) -> None:
    pairs, smoothing = some_pairs(), 0.1 if loss in SMOOTHED else 0.0
    model = build_tiny_model()
    sums = plain_dpo.sums(model, pairs)
    wanted = plain_dpo.loss(loss.value, sums, smoothing) + nll_coef * plain_dpo.loss("sft", sums)
    wanted.backward()
    norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm().item()

    found = first_step(pairs, DpoLearnerSettings(loss_type=loss, label_smoothing=smoothing, nll_coef=nll_coef))

    assert math.isfinite(norm) and norm > 0
    assert found["train/loss"] == pytest.approx(wanted.item(), rel=2e-5)
    assert found["train/grad_norm"] == pytest.approx(norm, rel=2e-4)


# a mean over pairs, one over tokens, and both; seven pairs in microbatches of two are 1 + 2 + 2 + 2
@pytest.mark.parametrize(("loss", "nll_coef"), [("sigmoid", 0.0), ("sft", 0.0), ("ipo", 1.0)])
def test_the_gradient_does_not_depend_on_how_a_step_is_cut(loss: str, nll_coef: float) -> None:
    whole, cut = (build_tiny_model() for _ in range(2))
    settings = DpoLearnerSettings(loss_type=DpoLoss(loss), nll_coef=nll_coef, pairs_per_step=8, pairs_per_microbatch=8)
    first = first_step(some_pairs(7), settings, whole)
    second = first_step(some_pairs(7), settings.model_copy(update={"pairs_per_microbatch": 2}), cut)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert second[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(cut.get_parameter(name).grad, parameter.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_aot_sorts_within_a_microbatch_so_that_it_alone_depends_on_the_cut() -> None:
    """Policy log-ratios x, −x against the reference's −2, 2 (x > 0): sorted they differ by ±(x − 2), alone by ±(x + 2)."""
    rows = [referenced_row("a", [5], [7]), referenced_row("b", [7], [5])]
    ratio = plain_dpo.sums(build_tiny_model(), referenced_table(rows[:1]))
    x = (ratio.policy_chosen - ratio.policy_rejected).item()
    if x < 0:
        rows, x = [rows[1] | {"pair_id": "a"}, rows[0] | {"pair_id": "b"}], -x
    rows[0] |= {"reference_chosen_logprob": -5.0, "reference_rejected_logprob": -3.0}
    rows[1] |= {"reference_chosen_logprob": -3.0, "reference_rejected_logprob": -5.0}
    settings = DpoLearnerSettings(loss_type=DpoLoss.aot, pairs_per_step=2, pairs_per_microbatch=2)

    def mean_loss(difference: float) -> float:
        return sum(math.log1p(math.exp(-0.1 * sign * difference)) for sign in (1, -1)) / 2

    assert first_step(referenced_table(rows), settings)["train/loss"] == pytest.approx(mean_loss(x - 2), rel=1e-5)
    cut = settings.model_copy(update={"pairs_per_microbatch": 1})
    assert first_step(referenced_table(rows), cut)["train/loss"] == pytest.approx(mean_loss(x + 2), rel=1e-5)


def test_exo_pair_without_label_smoothing_is_refused_when_set() -> None:
    with pytest.raises(ConfigError, match="exo_pair is not defined without label smoothing"):
        DpoLearnerSettings(loss_type=DpoLoss.exo_pair)


def test_eos_is_learned_where_it_is_also_the_pad_token() -> None:
    """huggingface/trl#976: rows [5, 6, 2] and [5, 2] with pad = EOS = 2 have one EOS term each, so five tokens in all."""
    pairs = referenced_table([referenced_row("a", [5, 6, 2], [7]), referenced_row("b", [5, 2], [7])])
    tokenizer = build_tiny_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    assert tokenizer.pad_token_id == EOS_ID == 2
    model = build_tiny_model()
    wanted = -sum(plain_dpo.answer_logprob(model, [1, 8, 9], answer) for answer in ([5, 6, 2], [5, 2])) / 5
    found = first_step(pairs, DpoLearnerSettings(loss_type=DpoLoss.sft), tokenizer=tokenizer)
    assert found["train/loss"] == pytest.approx(wanted.item(), rel=1e-5)


def test_answers_that_were_cut_to_their_own_budget_have_a_finite_loss() -> None:
    """huggingface/trl#6548: at most 10 tokens, prompt 4, answers of 13 and 3: the preparation leaves 6 and 3."""
    row = referenced_row("cut", [5, 6, 7, 8, 9, 10], [11, 12, 13], prompt_ids=[1, 20, 21, 22])
    found = first_step(referenced_table([row]), DpoLearnerSettings(nll_coef=1.0))
    assert math.isfinite(found["train/loss"]) and found["train/num_tokens"] == 9


def test_the_pad_id_within_prompt_and_answer_counts_as_a_token() -> None:
    row = referenced_row("a", [0, 5, 0, 0], [0], prompt_ids=[1, 0, 0])
    longer = referenced_row("b", [5] * 9, [6] * 9, prompt_ids=[1, 8, 9, 10])
    pairs = referenced_table([row, longer])
    wanted = plain_dpo.loss("sigmoid", plain_dpo.sums(build_tiny_model(), pairs))
    assert first_step(pairs, DpoLearnerSettings())["train/loss"] == pytest.approx(wanted.item(), rel=1e-5)


def test_bfloat16_computes_near_the_float32_loss() -> None:
    wanted = plain_dpo.loss("sigmoid", plain_dpo.sums(build_tiny_model(), some_pairs())).item()
    found = first_step(some_pairs(), DpoLearnerSettings(dtype="bfloat16"))["train/loss"]
    assert found != pytest.approx(wanted, rel=1e-7) and found == pytest.approx(wanted, rel=0.05)


def test_gradient_checkpointing_changes_nothing_but_memory() -> None:
    plain, saving = (first_step(some_pairs(), DpoLearnerSettings(gradient_checkpointing=on)) for on in (False, True))
    assert plain == pytest.approx(saving, rel=1e-5)
