"""vLLM's packed weights depend on the number of threads that packed them; kernels made earlier then read garbage."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from posttrain.engines.registry import close_shared_engine
from posttrain.engines.vllm_engine import VllmEngine
from tests.tiny_models import build_tiny_policy


@pytest.mark.slow
def test_a_swap_beside_a_torch_with_two_threads_serves_the_new_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on a CPU with AVX2 alone, for the gate and up projection of these shapes: every swap was refused."""
    close_shared_engine()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    policies = [build_tiny_policy(tmp_path / f"{seed}", seed=seed, version=seed, intermediate_size=96) for seed in range(2)]
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        engine = VllmEngine(policies[0], dtype="float32", max_model_tokens=112)
        try:
            for directory in (policies[1], policies[0], policies[1]):
                engine.load_policy(directory)
                assert engine.check_fingerprint() < 1e-4
        finally:
            engine.close()
    finally:
        torch.set_num_threads(num_threads)
