"""The reference precompute and the evaluation on held-out pairs: sums of logprobs, worked by hand and against a plain pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from posttrain import policy, tables
from posttrain.config import Dtype
from posttrain.dpo_reference import reference_logprobs
from posttrain.errors import ContractError, PolicyError
from posttrain.pair_evaluation import evaluate_pairs
from posttrain.report.curve import rates
from tests.dpo import plain_dpo
from tests.dpo.pair_tables import pair_row, random_pairs, with_reference
from tests.tiny_models import CHAT_TEMPLATE, UNKNOWN_ID, build_tiny_model, build_tiny_policy, build_tiny_tokenizer

NOWHERE = Path("/nowhere")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_policy(tmp_path_factory.mktemp("reference") / "policy")


def evaluate(directory: Path, held_out: pa.Table, beta: float = 0.1) -> dict[str, float]:
    metrics = evaluate_pairs(
        directory, held_out, beta=beta, dtype=Dtype.float32, trust_remote_code=False, confidence=0.95, iteration=2
    )
    return {row["name"]: row["value"] for row in metrics.to_pylist()}


def test_sums_equal_the_plain_computation_and_the_reference_is_named(reference: Path) -> None:
    pairs = random_pairs(12)
    found = with_reference(pairs, reference)
    plain = plain_dpo.sums(build_tiny_model(), found)
    for side, expected in (("chosen", plain.policy_chosen), ("rejected", plain.policy_rejected)):
        np.testing.assert_allclose(found[f"reference_{side}_logprob"].to_numpy(), expected.detach().numpy(), rtol=1e-5)
    assert set(found["reference_hash"].to_pylist()) == {policy.policy_hash(reference)}
    assert found.select(pairs.column_names).equals(pairs)


def test_each_pair_has_its_own_value_whatever_its_shard_and_place(reference: Path) -> None:
    """Shuffled, in two shards, and alone: the same logprobs by pair_id."""
    pairs = random_pairs(8)
    shuffled = pairs.take([5, 2, 7, 0, 1, 6, 3, 4])
    expected = by_pair(with_reference(pairs, reference))
    for part in (shuffled.slice(0, 3), shuffled.slice(3), shuffled.slice(2, 1)):
        for pair_id, values in by_pair(with_reference(part, reference)).items():
            assert values == pytest.approx(expected[pair_id], rel=1e-6)


def by_pair(referenced: pa.Table) -> dict[str, tuple[float, float]]:
    columns = (referenced[name].to_pylist() for name in ("pair_id", "reference_chosen_logprob", "reference_rejected_logprob"))
    return {pair_id: (chosen, rejected) for pair_id, chosen, rejected in zip(*columns, strict=True)}


def test_without_pairs_no_model_is_loaded() -> None:
    found = reference_logprobs(tables.empty("PREFERENCES"), NOWHERE, dtype=Dtype.float32, trust_remote_code=False)
    assert found.equals(tables.empty("REFERENCED"))
    assert evaluate(NOWHERE, tables.empty("REFERENCED")) == {}


def test_bfloat16_is_computed_near_the_float32_values(reference: Path) -> None:
    pairs = random_pairs(6)
    exact = by_pair(with_reference(pairs, reference))
    rounded = by_pair(reference_logprobs(pairs, reference, dtype=Dtype.bfloat16, trust_remote_code=False))
    assert rounded != exact
    for pair_id, values in rounded.items():
        assert values == pytest.approx(exact[pair_id], rel=0.05)


def test_a_changed_reference_changes_the_name_and_the_values(reference: Path, tmp_path: Path) -> None:
    other = build_tiny_policy(tmp_path / "other", seed=1)
    first, second = (with_reference(random_pairs(2), directory) for directory in (reference, other))
    assert first["reference_hash"] != second["reference_hash"]
    assert by_pair(first) != by_pair(second)


def test_a_broken_reference_names_the_pairs(tmp_path: Path) -> None:
    """The embedding of one id is NaN; special ids are not in the probe of the fingerprint."""
    model, broken = build_tiny_model(tied=False), UNKNOWN_ID
    with torch.no_grad():
        model.get_input_embeddings().weight[broken] = float("nan")
    tokenizer = build_tiny_tokenizer(CHAT_TEMPLATE)
    policy.write_policy(model, tokenizer, tmp_path / "nan", version=0, parent=None, algorithm="random", iteration=0)
    pairs = tables.from_rows("PREFERENCES", [pair_row("fine"), pair_row("hurt", [broken, 5, 2], [5, 2])])
    with pytest.raises(PolicyError, match="'hurt' are not finite") as caught:
        with_reference(pairs, tmp_path / "nan")
    assert "fine" not in str(caught.value)


def test_a_reference_of_another_vocabulary_names_the_pair(reference: Path) -> None:
    pairs = tables.from_rows("PREFERENCES", [pair_row("fine"), pair_row("foreign", prompt_ids=[1, 65])])
    with pytest.raises(PolicyError, match="'foreign'.*id 65 in prompt_ids, the model 65 ids"):
        with_reference(pairs, reference)


def test_an_altered_reference_is_refused(tmp_path: Path) -> None:
    directory = build_tiny_policy(tmp_path / "policy")
    weights = next(directory.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(PolicyError, match="was altered"):
        with_reference(random_pairs(1), directory)


def test_a_policy_that_is_its_reference_stands_at_chance(reference: Path) -> None:
    found = evaluate(reference, with_reference(random_pairs(10), reference))
    assert found["eval/pair_accuracy"] == 0.5
    assert 0 < found["eval/pair_accuracy_low"] < 0.5 < found["eval/pair_accuracy_high"] < 1
    for name in ("reward_margin", "reward_margin_low", "reward_margin_high", "chosen_logprob_drift", "rejected_logprob_drift"):
        assert found[f"eval/{name}"] == 0.0
    assert found["eval/num_pairs"] == 10


def moved(referenced: pa.Table, chosen: list[float], rejected: list[float]) -> pa.Table:
    """The table with other stored logprobs: the policy then has drifted by `chosen` and `rejected` nats, pair by pair."""
    rows = referenced.to_pylist()
    for row, up, down in zip(rows, chosen, rejected, strict=True):
        row["reference_chosen_logprob"] -= up
        row["reference_rejected_logprob"] -= down
    return tables.from_rows("REFERENCED", rows)


def test_accuracy_margin_and_drift_worked_by_hand(reference: Path) -> None:
    """Margins at β = 0.1: 0.3, 0.1, −0.2, 0: 2.5 of 4 right, mean 0.05; drifts (1 + 2 − 1 + 1) / 4, (−2 + 1 + 1 + 1) / 4."""
    held_out = moved(with_reference(random_pairs(4), reference), [1, 2, -1, 1], [-2, 1, 1, 1])
    found = evaluate(reference, held_out)
    assert found["eval/pair_accuracy"] == pytest.approx(2.5 / 4, abs=0.126)  # rounding may break the tie
    assert found["eval/reward_margin"] == pytest.approx(0.05, abs=1e-6)
    assert found["eval/chosen_logprob_drift"] == pytest.approx(0.75, abs=1e-5)
    assert found["eval/rejected_logprob_drift"] == pytest.approx(0.25, abs=1e-5)
    assert -0.2 <= found["eval/reward_margin_low"] < 0.05 < found["eval/reward_margin_high"] <= 0.3
    assert evaluate(reference, held_out, beta=0.2)["eval/reward_margin"] == pytest.approx(0.1, abs=1e-6)


def test_the_interval_is_wilsons_and_the_report_reads_it(reference: Path) -> None:
    """10 of 10 right: Wilson's 95 % interval is [1 / (1 + 1.96² / 10), 1] = [0.7225, 1]."""
    held_out = moved(with_reference(random_pairs(10), reference), [1.0] * 10, [0.0] * 10)
    metrics = evaluate_pairs(
        reference, held_out, beta=0.1, dtype=Dtype.float32, trust_remote_code=False, confidence=0.95, iteration=2
    )
    (rate,) = rates(metrics, "eval/pair_accuracy")
    assert (rate.iteration, rate.value, rate.high) == (2, 1.0, 1.0) and rate.low == pytest.approx(0.7225, abs=1e-4)


def test_one_held_out_pair_has_its_margin_as_interval(reference: Path) -> None:
    found = evaluate(reference, moved(with_reference(random_pairs(1), reference), [0.0], [3.0]))
    assert found["eval/reward_margin"] == found["eval/reward_margin_low"] == found["eval/reward_margin_high"]
    assert found["eval/reward_margin"] == pytest.approx(-0.3, abs=1e-6) and found["eval/pair_accuracy"] == 0


def test_a_held_out_row_without_a_reference_logprob_is_refused(reference: Path) -> None:
    held_out = with_reference(random_pairs(2), reference)
    column = held_out.schema.get_field_index("reference_chosen_logprob")
    broken = held_out.set_column(column, tables.REFERENCED.field(column), pa.array([None, -1.0]))
    with pytest.raises(ContractError, match="pair-000"):
        evaluate(reference, broken)
