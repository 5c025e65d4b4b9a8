"""The transformers engine against values worked out token by token, without its cache or its batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from posttrain.config import RolloutSettings
from posttrain.engines.base import GenerationRequest, SamplingParameters
from posttrain.engines.registry import close_shared_engine, shared_engine
from posttrain.engines.transformers_engine import TransformersEngine, sampling_logprobs
from posttrain.errors import EngineError, FingerprintError, InfrastructureError, PolicyError
from posttrain.policy import load_model
from tests.tiny_models import EOS_ID, build_tiny_policy

SAMPLED = SamplingParameters(temperature=1.0, top_p=1.0, max_completion_tokens=16)


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("policies")
    return [build_tiny_policy(root / f"policy-{seed}", seed=seed, version=seed) for seed in range(2)]


@pytest.fixture
def engine(policies: list[Path]) -> TransformersEngine:
    return TransformersEngine(policies[0], dtype="float32", max_model_tokens=64)


def requests(num: int) -> list[GenerationRequest]:
    return [GenerationRequest(f"p{i}", 0, tuple(range(4 + i, 10 + i + i % 3)), seed=100 + i) for i in range(num)]


def test_greedy_is_the_argmax_of_a_full_forward_at_every_token(engine: TransformersEngine, policies: list[Path]) -> None:
    model = load_model(policies[0], "float32")
    for request, completion in zip(asked := requests(6), engine.generate(asked, SamplingParameters(0.0, 1.0, 12)), strict=True):
        ids = list(request.prompt_ids)
        for token, logprob in zip(completion.completion_ids, completion.behavior_logprobs or (), strict=True):
            with torch.no_grad():
                logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1], 0)
            assert token == int(logprobs.argmax())
            assert logprob == pytest.approx(logprobs.max().item(), abs=1e-5)
            ids.append(token)


def test_sampling_distribution_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    half = [0.5**2, 0.3**2, 0.15**2, 0.05**2]
    at_half = sampling_logprobs(logits, SamplingParameters(0.5, 1.0, 1)).exp()[0]
    assert at_half.tolist() == pytest.approx([value / sum(half) for value in half])
    nucleus = sampling_logprobs(logits, SamplingParameters(1.0, 0.7, 1)).exp()[0]
    assert nucleus.tolist() == pytest.approx([0.5 / 0.8, 0.3 / 0.8, 0.0, 0.0])
    assert sampling_logprobs(logits, SamplingParameters(1.0, 0.01, 1)).exp()[0].tolist() == pytest.approx([1.0, 0.0, 0.0, 0.0])
    assert sampling_logprobs(logits, SamplingParameters(0.0, 0.1, 1)).exp()[0].tolist() == pytest.approx([0.5, 0.3, 0.15, 0.05])


def test_samples_follow_the_distribution(engine: TransformersEngine, policies: list[Path]) -> None:
    prompt = (5, 6, 7)
    asked = [GenerationRequest("p", i, prompt, seed=i) for i in range(2000)]
    first = torch.tensor([one.completion_ids[0] for one in engine.generate(asked, SamplingParameters(1.0, 1.0, 1))])
    with torch.no_grad():
        expected = load_model(policies[0], "float32")(torch.tensor([prompt])).logits[0, -1].softmax(0)
    seen = torch.bincount(first, minlength=len(expected)) / len(asked)
    assert (seen - expected).abs().max() < 4 * (0.25 / len(asked)) ** 0.5  # four standard errors of the widest cell


def test_one_group_of_8_and_8_single_requests_give_the_same_8_different_completions(engine: TransformersEngine) -> None:
    asked = [GenerationRequest("p", i, (5, 6, 7, 8), seed=2**62 + i) for i in range(8)]
    together = [one.completion_ids for one in engine.generate(asked, SAMPLED)]
    single = [engine.generate([request], SAMPLED)[0].completion_ids for request in asked]
    assert together == single and len(set(together)) == 8


def test_end_token_finish_reason_and_context(engine: TransformersEngine) -> None:
    completions = engine.generate([GenerationRequest("p", i, (5, 6, 7), seed=i) for i in range(300)], SAMPLED)
    for completion in completions:
        ids = completion.completion_ids
        assert EOS_ID not in ids[:-1]
        assert completion.finish_reason == ("stop" if ids[-1] == EOS_ID else "length")
        assert completion.finish_reason == "stop" or len(ids) == 16
    assert any(completion.completion_ids == (EOS_ID,) for completion in completions)
    (short,) = engine.generate([GenerationRequest("full", 0, (5,) * 62, 0)], SAMPLED)
    assert len(short.completion_ids) <= 2
    with pytest.raises(EngineError, match="'long' has 64 tokens"):
        engine.generate([GenerationRequest("long", 0, (5,) * 64, 0)], SAMPLED)


def test_a_swap_serves_the_new_policy_and_stale_weights_are_refused(
    engine: TransformersEngine, policies: list[Path], tmp_path: Path
) -> None:
    engine.load_policy(policies[1])
    assert engine.policy_version == 1 and engine.check_fingerprint() < 1e-5
    engine._model.model.layers[0].mlp.down_proj.weight.data.mul_(1.1)
    with pytest.raises(FingerprintError, match="does not serve the policy"):
        engine.generate(requests(1), SAMPLED)
    with pytest.raises(PolicyError, match="another architecture"):
        engine.load_policy(build_tiny_policy(tmp_path / "wide", hidden_size=128))


def test_shared_engine_is_one_per_process(policies: list[Path], tmp_path: Path) -> None:
    close_shared_engine()
    settings = RolloutSettings(engine="transformers", max_model_tokens=64)
    first = shared_engine(settings, policies[0])
    assert shared_engine(settings, policies[1]) is first and first.policy_version == 1
    other = shared_engine(settings, build_tiny_policy(tmp_path / "wide", hidden_size=128))
    assert other is not first and first.closed
    with pytest.raises(InfrastructureError, match="was closed"):
        first.generate(requests(1), SAMPLED)
    other._model.model.norm.weight.data.mul_(2)
    with pytest.raises(FingerprintError):
        shared_engine(settings, tmp_path / "wide")
    assert other.closed
    close_shared_engine()
