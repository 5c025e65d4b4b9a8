"""vLLM in this process: against plain transformers, and with weights or caches that were made stale on purpose."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posttrain.config import RolloutSettings
from posttrain.directories import hash_file
from posttrain.engines.base import GenerationRequest, SamplingParameters
from posttrain.engines.registry import close_shared_engine, shared_engine
from posttrain.engines.transformers_engine import TransformersEngine, sampling_logprobs
from posttrain.engines.vllm_engine import VllmEngine
from posttrain.errors import EngineError, FingerprintError, InfrastructureError, PolicyError
from posttrain.policy import load_model, load_tokenizer, read_policy, write_policy
from tests.tiny_models import EOS_ID, build_tiny_policy

pytestmark = pytest.mark.slow
CONTEXT = 112
GREEDY = SamplingParameters(temperature=0.0, top_p=1.0, max_completion_tokens=40)
SAMPLED = SamplingParameters(temperature=1.0, top_p=1.0, max_completion_tokens=24)


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three policies of one architecture with tied embeddings, versions 0, 1 and 2."""
    root = tmp_path_factory.mktemp("policies")
    return [build_tiny_policy(root / f"policy-{seed}", seed=seed, version=seed) for seed in range(3)]


@pytest.fixture(scope="module")
def warm_engine(policies: list[Path]) -> Iterator[VllmEngine]:
    close_shared_engine()
    engine = shared_engine(RolloutSettings(max_model_tokens=CONTEXT), policies[0])
    assert isinstance(engine, VllmEngine)
    yield engine
    close_shared_engine()


@pytest.fixture
def engine(warm_engine: VllmEngine, policies: list[Path]) -> VllmEngine:
    """The warm engine serving policy 0, whatever an earlier test did to it."""
    warm_engine.load_policy(policies[1])
    warm_engine.load_policy(policies[0])
    return warm_engine


def requests(num_prompts: int, group_size: int = 1, length: int = 12) -> list[GenerationRequest]:
    prompts = [
        tuple(4 + (number * 7 + i * (i + number)) % 60 for i in range(length + number % 5)) for number in range(num_prompts)
    ]
    return [
        GenerationRequest(f"p{number}", sample, prompt, seed=(1 << 62) + 1000 * number + sample)
        for number, prompt in enumerate(prompts)
        for sample in range(group_size)
    ]


def test_greedy_ids_equal_those_of_transformers_and_logprobs_agree(engine: VllmEngine, policies: list[Path]) -> None:
    oracle = TransformersEngine(policies[0], dtype="float32", max_model_tokens=CONTEXT)
    asked = requests(12)
    for ours, theirs in zip(engine.generate(asked, GREEDY), oracle.generate(asked, GREEDY), strict=True):
        assert ours.completion_ids == theirs.completion_ids
        assert ours.finish_reason == theirs.finish_reason
        assert ours.behavior_logprobs == pytest.approx(theirs.behavior_logprobs, abs=1e-4)
    ids = asked[0].prompt_ids
    assert engine.sequence_logprobs(ids) == pytest.approx(oracle.sequence_logprobs(ids), abs=1e-4)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 1.0), (1.7, 0.8)])
def test_behavior_logprobs_are_those_of_the_sampling_distribution(
    engine: VllmEngine, policies: list[Path], temperature: float, top_p: float
) -> None:
    import torch

    sampling = SamplingParameters(temperature, top_p, 20)
    model = load_model(policies[0], "float32")
    for request, completion in zip(asked := requests(6), engine.generate(asked, sampling), strict=True):
        ids = torch.tensor([[*request.prompt_ids, *completion.completion_ids]])
        with torch.no_grad():
            logits = model(ids).logits[0, len(request.prompt_ids) - 1 : -1]
        expected = sampling_logprobs(logits, sampling).gather(-1, torch.tensor(completion.completion_ids)[:, None])[:, 0]
        assert completion.behavior_logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_the_end_token_is_the_last_id_and_decides_the_finish_reason(engine: VllmEngine) -> None:
    completions = engine.generate(requests(60, group_size=4), SAMPLED)
    assert {completion.finish_reason for completion in completions} == {"stop", "length"}
    for completion in completions:
        ids = completion.completion_ids
        assert EOS_ID not in ids[:-1]
        assert completion.finish_reason == ("stop" if ids[-1] == EOS_ID else "length")
        assert completion.finish_reason == "stop" or len(ids) == SAMPLED.max_completion_tokens
        assert completion.behavior_logprobs is not None and len(completion.behavior_logprobs) == len(ids)
        assert completion.started_at <= completion.finished_at
    empty = [completion for completion in completions if completion.completion_ids == (EOS_ID,)]
    assert empty, "of 240 completions some must be empty: each of 65 ids is about as likely"
    assert {completion.finish_reason for completion in empty} == {"stop"}


def test_one_group_of_8_and_8_single_requests_give_the_same_8_different_completions(engine: VllmEngine) -> None:
    asked = requests(1, group_size=8)
    together = engine.generate(asked, SAMPLED)
    single = [engine.generate([request], SAMPLED)[0] for request in asked]
    assert [one.completion_ids for one in together] == [one.completion_ids for one in single]
    assert [one.behavior_logprobs for one in together] == [one.behavior_logprobs for one in single]
    assert len({one.completion_ids for one in together}) == 8


def test_more_prompt_tokens_than_one_step_takes_stay_reproducible(engine: VllmEngine) -> None:
    asked = requests(150, length=40)
    assert sum(len(request.prompt_ids) for request in asked) > 4096
    first, second = engine.generate(asked, SAMPLED), engine.generate(asked, SAMPLED)
    assert [one.completion_ids for one in first] == [one.completion_ids for one in second]


def test_a_swap_serves_the_new_weights(engine: VllmEngine, policies: list[Path]) -> None:
    before = engine.generate(requests(8), GREEDY)
    engine.load_policy(policies[2])
    assert engine.policy_version == 2
    assert engine.check_fingerprint() < 1e-4
    after = engine.generate(requests(8), GREEDY)
    oracle = TransformersEngine(policies[2], dtype="float32", max_model_tokens=CONTEXT).generate(requests(8), GREEDY)
    assert [one.completion_ids for one in after] == [one.completion_ids for one in oracle]
    assert [one.completion_ids for one in after] != [one.completion_ids for one in before]


def test_a_tied_head_that_stays_packed_from_the_old_weights_is_caught(
    engine: VllmEngine, policies: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = engine._llm.collective_rpc

    def without_rebuild(method: str, **arguments: Any) -> Any:
        return None if method == "rebuild_packed_heads" else original(method, **arguments)

    monkeypatch.setattr(engine._llm, "collective_rpc", without_rebuild)
    with pytest.raises(FingerprintError, match="does not serve the policy"):
        engine.load_policy(policies[2])
    monkeypatch.undo()
    with pytest.raises(FingerprintError):  # it stays refused: nothing is generated from the mixture
        engine.generate(requests(1), SAMPLED)


def test_a_reload_that_does_nothing_is_caught_also_between_policies_that_are_nearly_equal(
    engine: VllmEngine, policies: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(policies[0], "float32")
    model.model.norm.weight.data.mul_(1.00005)
    near = tmp_path / "near"
    write_policy(model, load_tokenizer(policies[0]), near, version=1, parent=None, algorithm="grpo", iteration=1)
    recorded = zip(read_policy(near).fingerprint.logprobs, read_policy(policies[0]).fingerprint.logprobs, strict=True)
    assert 1e-4 < max(abs(one - other) for one, other in recorded) < 1e-3  # within the tolerance of float32
    monkeypatch.setattr(engine._llm, "collective_rpc", lambda *arguments, **named: None)
    with pytest.raises(FingerprintError, match="no new weights"):
        engine.load_policy(near)
    assert engine.policy_version == 0


def test_a_prefix_cache_of_the_old_policy_is_caught(
    engine: VllmEngine, policies: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine._llm, "reset_prefix_cache", lambda: True)
    with pytest.raises(FingerprintError, match="prefix cache"):
        engine.load_policy(policies[2])


def test_one_tensor_that_changes_under_the_engine_is_caught_before_the_next_generation(engine: VllmEngine) -> None:
    def disturb(model: Any) -> None:
        dict(model.named_parameters())["model.layers.1.post_attention_layernorm.weight"].data.mul_(1.05)

    engine._llm.apply_model(disturb)
    with pytest.raises(FingerprintError, match="Its weights or caches are stale"):
        engine.generate(requests(1), SAMPLED)


def test_weights_swapped_behind_the_manifest_are_caught(engine: VllmEngine, policies: list[Path], tmp_path: Path) -> None:
    forged = Path(shutil.copytree(policies[2], tmp_path / "forged"))
    shutil.copy(policies[1] / "model.safetensors", forged / "model.safetensors")
    with pytest.raises(PolicyError, match="'model.safetensors' was altered"):
        engine.load_policy(forged)
    assert engine.policy_version == 0 and engine.check_fingerprint() < 1e-4  # the old policy is still served
    manifest = json.loads((forged / "policy.json").read_text())
    manifest["files"]["model.safetensors"] = hash_file(forged / "model.safetensors")
    (forged / "policy.json").write_text(json.dumps(manifest))
    read_policy(forged)  # the hashes agree now; only the fingerprint knows
    with pytest.raises(FingerprintError):
        engine.load_policy(forged)


def test_prompts_that_do_not_fit_are_refused_by_id_and_the_engine_lives_on(engine: VllmEngine) -> None:
    for ids, why in [((5,) * CONTEXT, "has 112 tokens"), ((), "has 0 tokens"), ((5, 65), "holds id 65")]:
        with pytest.raises(EngineError, match=why) as raised:
            engine.generate([*requests(1), GenerationRequest("too-much", 0, ids, 0)], SAMPLED)
        assert "'too-much'" in str(raised.value)
    full = GenerationRequest("full", 0, (5,) * (CONTEXT - 1), 0)
    (completion,) = engine.generate([full], SAMPLED)
    assert len(completion.completion_ids) == 1  # what the context leaves
    assert len(engine.sequence_logprobs([5] * CONTEXT)) == CONTEXT - 1


def test_a_generation_that_is_interrupted_leaves_nothing_behind(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    original = engine._llm.llm_engine.step
    steps = iter(range(3))

    def interrupted() -> Any:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return original()

    expected = engine.generate(requests(4), GREEDY)
    monkeypatch.setattr(engine, "check_fingerprint", lambda: 0.0)
    monkeypatch.setattr(engine._llm.llm_engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(requests(4), GREEDY)
    monkeypatch.undo()
    assert [one.completion_ids for one in engine.generate(requests(4), GREEDY)] == [one.completion_ids for one in expected]


def test_another_architecture_is_refused_by_the_engine(engine: VllmEngine, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="another architecture"):
        engine.load_policy(build_tiny_policy(tmp_path / "wider", hidden_size=128))
    assert not engine.closed


def test_the_process_is_as_before_and_torch_trains_beside_the_engine(engine: VllmEngine, policies: list[Path]) -> None:
    import torch
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    assert "LOCAL_WORLD_SIZE" not in os.environ and "libgomp" not in os.environ.get("LD_PRELOAD", "")
    assert len(os.sched_getaffinity(0)) == os.cpu_count()
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    assert torch.get_num_threads() == before + 1
    torch.set_num_threads(before)
    assert PartialState(cpu=True).distributed_type is DistributedType.NO
    model = load_model(policies[0], "float32").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
    losses = []
    for _ in range(5):
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert engine.check_fingerprint() < 1e-4


# from here on engines are started and closed: the warm one above must not be used after these


def test_shared_engine_stays_warm_and_restarts_for_another_architecture_or_after_a_death(
    warm_engine: VllmEngine, policies: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = RolloutSettings(max_model_tokens=CONTEXT)
    assert shared_engine(settings, policies[1]) is warm_engine and warm_engine.policy_version == 1

    untied = shared_engine(settings, build_tiny_policy(tmp_path / "untied", seed=5, tied=False))
    assert untied is not warm_engine and warm_engine.closed
    assert shared_engine(settings, build_tiny_policy(tmp_path / "untied-6", seed=6, tied=False)) is untied

    def dies() -> Any:
        raise RuntimeError("worker lost")

    monkeypatch.setattr(untied._llm.llm_engine, "step", dies)
    with pytest.raises(InfrastructureError, match="worker lost"):
        untied.generate(requests(1), SAMPLED)
    assert untied.closed
    with pytest.raises(InfrastructureError, match="closed or died"):
        untied.generate(requests(1), SAMPLED)
    half_precision = shared_engine(RolloutSettings(max_model_tokens=CONTEXT, dtype="bfloat16"), policies[0])
    assert half_precision is not untied
    assert 0 < half_precision.check_fingerprint() < 0.1
    monkeypatch.setattr(half_precision._llm, "reset_prefix_cache", lambda: True)
    with pytest.raises(FingerprintError):
        shared_engine(RolloutSettings(max_model_tokens=CONTEXT, dtype="bfloat16"), policies[1])
    assert half_precision.closed
