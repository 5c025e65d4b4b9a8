"""Seeds derived from what a sample is, so that no two samples share one and every run can be repeated."""

from __future__ import annotations

import hashlib
import json


def sample_seed(run_seed: int, iteration: int, prompt_id: str, sample_index: int) -> int:
    """The seed of one completion: 63 bits of the sha256 of (run seed, iteration, prompt, sample).

    It does not depend on the order or the batching of requests, nor on the shard or the process: 1 request for 8 samples and 8
    requests for 1 sample give the same completions, and so does a resumed run (vllm-project/vllm#10852).
    """
    key = json.dumps([run_seed, iteration, prompt_id, sample_index], ensure_ascii=True)
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1
