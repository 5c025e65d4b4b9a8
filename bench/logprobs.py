"""Reference logprobs of preference pairs by the packed kernel, beside TRL's own precompute; memory of forward and backward."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import uuid
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.logprob_shapes import VOCABULARY, Rows, build_model, build_tokenizer, layer_parameters, matrix_flops_per_s
from bench.measure import REPEATS, Row, elapsed_s, side_by_side

NUM_PAIRS, MEDIAN_PROMPT, MEDIAN_COMPLETION, LONGEST = 16, 120, 120, 512
DEFAULT_PAIRS = 8  # TRL's default batch
BATCHES_TRIED = (1, 2)
RELATIVE_TOLERANCE = 1e-6  # of a pair's summed logprobs

Pair = dict[str, list[int]]


def compare() -> list[Row]:
    """Time of the precompute against TRL's default and best; memory and time of forward and backward."""
    with tempfile.TemporaryDirectory(prefix="posttrain-bench-") as scratch:
        return [*Precompute(scratch).rows(), *memory_rows()]


class Precompute:
    """One model and pairs whose prompts and completions have lognormal lengths; every pair shares its prompt."""

    def __init__(self, scratch: str) -> None:
        draw = Rows(seed=0)
        self._pairs: list[Pair] = [
            {
                "prompt_ids": draw.ids(MEDIAN_PROMPT, LONGEST),
                "chosen_ids": draw.ids(MEDIAN_COMPLETION, LONGEST),
                "rejected_ids": draw.ids(MEDIAN_COMPLETION, LONGEST),
            }
            for _ in range(NUM_PAIRS)
        ]
        self._sorted = sorted(self._pairs, key=longest_row)
        self._model = build_model()
        self._trainer = build_trainer(self._model, self._pairs[:1], scratch)

    def rows(self) -> list[Row]:
        """Against TRL's default batch, then against the best of BATCHES_TRIED on sorted pairs."""
        require_close(self.ours(), self.peer(self._pairs, DEFAULT_PAIRS))
        best = min(BATCHES_TRIED, key=lambda batch: elapsed_s(lambda: self.peer(self._sorted, batch)))
        title = f"{NUM_PAIRS} lognormal pairs, {layer_parameters(self._model) / 1e6:.1f} M + head of {VOCABULARY:,}"
        return [
            side_by_side(
                f"reference logprobs: packed vs TRL 1.16, {how}; {title}",
                self.ours,
                lambda pairs=pairs, batch=batch: self.peer(pairs, batch),
                limit=self._limit(pairs, batch),
                num_items=sum(map(num_completion_tokens, self._pairs)),
                item="completion tokens",
            )
            for how, pairs, batch in (
                (f"default batch of {DEFAULT_PAIRS}", self._pairs, DEFAULT_PAIRS),
                (f"sorted by length, best batch ({best})", self._sorted, best),
            )
        ]

    def ours(self) -> np.ndarray:
        """(pairs, 2): summed logprobs of chosen and rejected."""
        from posttrain.logprobs import token_logprobs

        sides = [(pair["prompt_ids"], pair[side]) for pair in self._pairs for side in ("chosen_ids", "rejected_ids")]
        prompts, completions = zip(*sides, strict=True)
        sums = [values.astype(np.float64).sum() for values in token_logprobs(self._model, prompts, completions, 1.0)]
        return np.array(sums).reshape(-1, 2)

    def peer(self, pairs: Sequence[Pair], batch: int) -> np.ndarray:
        """The same by TRL, whose cache on disk is kept from answering by a new fingerprint each time."""
        from datasets import Dataset

        dataset = Dataset.from_list(list(pairs))
        dataset._fingerprint = uuid.uuid4().hex[:16]
        done = self._trainer._precompute_ref_logps(dataset, "bench", batch)
        return np.stack([done["ref_chosen_logps"], done["ref_rejected_logps"]], axis=1)

    def _limit(self, pairs: Sequence[Pair], batch: int) -> str:
        per_token, per_scored = 2 * layer_parameters(self._model), 2 * self._model.lm_head.weight.numel()
        scored = sum(map(num_completion_tokens, pairs))
        useful = per_token * (scored + sum(len(pair["prompt_ids"]) for pair in pairs)) + per_scored * scored
        batches = [pairs[start : start + batch] for start in range(0, len(pairs), batch)]
        padded = sum(2 * len(members) * max(map(longest_row, members)) for members in batches)
        rate = matrix_flops_per_s()
        done = min(elapsed_s(self.ours) for _ in range(2))
        return (
            f"{useful / 1e12:.2f} TFLOP are needed, TRL's {padded * (per_token + per_scored) / useful:.1f} times; "
            f"ours runs at {useful / done / rate:.0%} of the {rate / 1e9:.0f} GFLOP/s of a large matrix product"
        )


def build_trainer(model: Any, pairs: Sequence[Pair], scratch: str) -> Any:
    """TRL's DPO trainer with its own precompute; only tokenising is skipped, because the pairs are ids."""
    os.environ["TQDM_DISABLE"] = "1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from datasets import Dataset, disable_progress_bars
        from trl import DPOConfig, DPOTrainer

        class IdsTrainer(DPOTrainer):
            def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
                return dataset

        disable_progress_bars()
        arguments = DPOConfig(
            output_dir=scratch,
            precompute_ref_log_probs=True,
            max_length=None,
            per_device_train_batch_size=DEFAULT_PAIRS,
            use_cpu=True,
            bf16=False,
            report_to=[],
        )
        return IdsTrainer(
            model=model, args=arguments, train_dataset=Dataset.from_list(list(pairs)), processing_class=build_tokenizer()
        )


def longest_row(pair: Pair) -> int:
    """Tokens of the longer side with its prompt."""
    return len(pair["prompt_ids"]) + max(len(pair["chosen_ids"]), len(pair["rejected_ids"]))


def num_completion_tokens(pair: Pair) -> int:
    """Tokens that are scored."""
    return len(pair["chosen_ids"]) + len(pair["rejected_ids"])


def require_close(ours: np.ndarray, peer: np.ndarray) -> None:
    """Raises ValueError unless all sums agree to a millionth."""
    difference = float(np.max(np.abs(ours - peer) / np.abs(peer)))
    if not difference <= RELATIVE_TOLERANCE:
        raise ValueError(f"summed logprobs differ by {difference:.2g} of their value, so speeds cannot be compared.")


def memory_rows() -> list[Row]:
    """Each side in fresh processes, in alternating order."""
    found: dict[str, list[dict[str, float]]] = {"ours": [], "trl": []}
    for repeat in range(REPEATS):
        for side in ("ours", "trl") if repeat % 2 == 0 else ("trl", "ours"):
            found[side].append(measure_memory(side))
    for name in ("loss", "grad_norm"):
        values = [run[name] for runs in found.values() for run in runs]
        if max(values) - min(values) > 1e-4 * abs(values[0]):
            raise ValueError(f"{name} differs between the sides: {values}")
    about = found["ours"][0]
    shape = f"{about['num_tokens']:,.0f} tokens, V = {about['vocabulary']:,.0f}, width {about['hidden']:.0f}, checkpointed layers"
    logits_mib = about["num_tokens"] * about["vocabulary"] * 4 / 2**20
    limits = {"peak_mib": f"whole logits alone: {logits_mib:,.0f} MiB", "seconds": "the same products on both sides"}
    titles = {"peak_mib": "memory over model and gradients", "seconds": "time"}
    units = {"peak_mib": "MiB", "seconds": "s"}
    return [
        memory_row(f"{titles[name]} of logprobs forward + backward: packed vs TRL 1.16; {shape}", name, found, units[name], limit)
        for name, limit in limits.items()
    ]


def memory_row(title: str, name: str, found: dict[str, list[dict[str, float]]], unit: str, limit: str) -> Row:
    """`ratio`: how many times as much TRL takes."""
    ours, peer = ([run[name] for run in found[side]] for side in ("ours", "trl"))
    ratios = [theirs / mine for mine, theirs in zip(ours, peer, strict=True)]
    spread = min(ratios), max(ratios)
    return Row(title, statistics.median(ours), statistics.median(peer), statistics.median(ratios), spread, unit, limit)


def measure_memory(side: str) -> dict[str, float]:
    """What bench.logprob_memory says of one side."""
    done = subprocess.run([sys.executable, "-m", "bench.logprob_memory", side], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])
