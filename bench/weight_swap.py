"""New weights for the warm vLLM engine, beside a restart of the engine on the new policy in the same process."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.measure import Row, elapsed_s, require_equal, side_by_side
from bench.models import MAX_MODEL_TOKENS, build_large, build_small, greedy, greedy_requests
from posttrain.config import Dtype, RolloutSettings
from posttrain.engines.base import Engine
from posttrain.engines.registry import start_engine

SETTINGS = RolloutSettings(dtype=Dtype.float32, max_model_tokens=MAX_MODEL_TOKENS)


class Alternating:
    """One engine that goes from one of two policies to the other, by swap or by restart."""

    def __init__(self, policies: tuple[Path, Path]) -> None:
        self._policies = policies
        self._requests = greedy_requests(policies[0], 16)
        self._engine: Engine = start_engine(SETTINGS, policies[0])
        self._serving = 0

    def swap(self) -> None:
        """Loads the other policy into the running engine, which checks its fingerprint."""
        self._serving = 1 - self._serving
        self._engine.load_policy(self._policies[self._serving])

    def restart(self) -> None:
        """Closes the engine and starts one on the other policy; the fingerprint is checked too."""
        self._serving = 1 - self._serving
        self._engine.close()
        self._engine = start_engine(SETTINGS, self._policies[self._serving])

    def ids(self) -> list[tuple[int, ...]]:
        """Greedy completion ids of the policy that is being served."""
        return [completion.completion_ids for completion in self._engine.generate(self._requests, greedy(32))]

    def close(self) -> None:
        """Frees the engine's memory."""
        self._engine.close()


def compare() -> list[Row]:
    """On the quick start's model, where either is all overhead, and on one of 11 M parameters."""
    with tempfile.TemporaryDirectory(prefix="posttrain-bench-") as scratch:
        return [
            compare_on((build(Path(scratch) / f"{size} 0", seed=0), build(Path(scratch) / f"{size} 1", seed=1)), size)
            for size, build in (("0.1 M", build_small), ("11 M", build_large))
        ]


def compare_on(policies: tuple[Path, Path], size: str) -> Row:
    """Swap against restart between two policies of one architecture."""
    alternating = Alternating(policies)
    try:
        first = alternating.ids()
        alternating.swap()
        second = alternating.ids()
        if first == second:
            raise ValueError("the two policies complete alike, so equal ids would not prove a swap.")
        alternating.swap()
        require_equal("greedy ids before and after two swaps", alternating.ids(), first)
        alternating.restart()
        require_equal("greedy ids after swap and restart", second, alternating.ids())
        weights = policies[0] / "model.safetensors"
        limit = f"reading the {weights.stat().st_size / 1e6:.1f} MB of weights: {elapsed_s(weights.read_bytes):.2g} s"
        title = f"weight swap vs restart of the vLLM engine; {size} parameters"
        return side_by_side(title, alternating.swap, alternating.restart, limit=limit)
    finally:
        alternating.close()
