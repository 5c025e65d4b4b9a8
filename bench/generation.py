"""vLLM in this process, beside plain `generate` of transformers and beside the transformers engine of this project."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.measure import Row, elapsed_s, require_equal, side_by_side
from bench.models import MAX_MODEL_TOKENS, build_large, build_small, greedy, greedy_requests
from posttrain import policy
from posttrain.config import Dtype, EngineName, RolloutSettings
from posttrain.engines.base import Engine, GenerationRequest
from posttrain.engines.registry import start_engine

NUM_TOKENS = 32
SETTINGS = RolloutSettings(dtype=Dtype.float32, max_model_tokens=MAX_MODEL_TOKENS)
Ids = list[tuple[int, ...]]
Generate = Callable[[], Ids]


def compare() -> list[Row]:
    """Greedy completions in float32: 256 of the quick start's model, 64 of one of 11 M parameters."""
    with tempfile.TemporaryDirectory(prefix="posttrain-bench-") as scratch:
        small, large = build_small(Path(scratch) / "small", seed=0), build_large(Path(scratch) / "large", seed=0)
        requests = greedy_requests(small, 256)
        fallback = start_engine(SETTINGS.model_copy(update={"engine": EngineName.transformers}), small)
        return [
            *compare_on(small, "0.1 M", requests, {"our transformers engine": partial(by_engine, fallback, requests)}),
            *compare_on(large, "11 M", requests[:64], {}),
        ]


def compare_on(directory: Path, size: str, requests: Sequence[GenerationRequest], peers: dict[str, Generate]) -> list[Row]:
    """vLLM beside `peers` and plain `generate` on one policy."""
    model = policy.load_model(directory, "float32")
    engine = start_engine(SETTINGS, directory)
    ours = partial(by_engine, engine, requests)
    limit = f"matrix products alone: {products_per_s() / model.num_parameters():,.0f} tokens/s"
    rows: list[Row] = []
    try:
        ids = ours()
        for name, peer in (peers | {"transformers `generate`": partial(by_generate, model, requests)}).items():
            require_equal(f"greedy ids of vLLM and {name}", ids, peer())
            title = f"generation: vLLM vs {name}; {size} parameters, {len(requests)} prompts"
            best, num_tokens = at_best_threads(peer), sum(map(len, ids))
            rows.append(side_by_side(title, ours, best, limit=limit, num_items=num_tokens, item="tokens"))
    finally:
        engine.close()
    return rows


def by_engine(engine: Engine, requests: Sequence[GenerationRequest]) -> Ids:
    """Completion ids by one of our engines, logprobs and the fingerprint check included."""
    return [completion.completion_ids for completion in engine.generate(requests, greedy(NUM_TOKENS))]


def by_generate(model: Any, requests: Sequence[GenerationRequest]) -> Ids:
    """Completion ids by `generate` on one batch, padded on the left; no logprobs."""
    import torch

    width = max(len(request.prompt_ids) for request in requests)
    pad, end = model.config.pad_token_id, model.config.eos_token_id
    rows = [[pad] * (width - len(request.prompt_ids)) + list(request.prompt_ids) for request in requests]
    ids_BT = torch.tensor(rows)
    mask_BT = torch.tensor([[0] * (width - len(request.prompt_ids)) + [1] * len(request.prompt_ids) for request in requests])
    with torch.inference_mode():
        full_BT = model.generate(ids_BT, attention_mask=mask_BT, do_sample=False, max_new_tokens=NUM_TOKENS)
    return [up_to_end(row[width:], end) for row in full_BT.tolist()]


def up_to_end(ids: list[int], end: int) -> tuple[int, ...]:
    """The completion without the padding behind its end."""
    return tuple(ids[: ids.index(end) + 1] if end in ids else ids)


def at_best_threads(generate: Generate) -> Generate:
    """`generate` with one torch thread or all of them, whichever is faster here."""
    import torch

    def run(num_threads: int) -> Ids:
        before = torch.get_num_threads()
        torch.set_num_threads(num_threads)
        try:
            return generate()
        finally:
            torch.set_num_threads(before)

    counts = {1, torch.get_num_threads()}
    return partial(run, min(counts, key=lambda count: elapsed_s(partial(run, count))))


def products_per_s() -> float:
    """Multiply-adds a second of a large float32 matrix product on all threads: a token needs one for each parameter."""
    import torch

    size = 2048
    matrix = torch.ones(size, size)
    return size**3 / min(elapsed_s(lambda: matrix @ matrix) for _ in range(3))
