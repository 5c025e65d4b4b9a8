"""A GRPO update by the packed kernel, beside the same update by TRL's own padded head."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from bench.logprob_shapes import VOCABULARY, Rows, build_model, build_tokenizer, layer_parameters, matrix_flops_per_s
from bench.measure import Row, elapsed_s, side_by_side
from posttrain.config import LearnerSettings
from posttrain.grpo_rows import Microbatch, TrainingRow

NUM_GROUPS, GROUP_SIZE = 2, 8
MEDIAN_PROMPT, MEDIAN_COMPLETION, LONGEST = 120, 64, 256
BATCHES_TRIED = (2, 4)  # rows of a microbatch of the peer's best setting
SETTINGS = LearnerSettings(max_grad_norm=1e9, max_completion_tokens=LONGEST)
TOLERANCE = 1e-5  # of the largest gradient of a tensor


def compare() -> list[Row]:
    """One optimiser step on one recorded batch: recomputed old logprobs, forward, backward. Gradients are equal."""
    bench = Update()
    bench.require_same_gradients()
    best = min(BATCHES_TRIED, key=lambda size: elapsed_s(lambda: bench.peer(bench.sorted_microbatches(size))))
    whole = [bench.rows]
    tokens = sum(len(row.completion_ids) for row in bench.rows)
    title = (
        f"{NUM_GROUPS} groups of {GROUP_SIZE}, lognormal, {layer_parameters(bench.model) / 1e6:.1f} M + head of {VOCABULARY:,}"
    )
    return [
        side_by_side(
            f"GRPO update: packed vs TRL 1.16, {how}; {title}",
            bench.ours,
            lambda microbatches=microbatches: bench.peer(microbatches),
            limit=bench.limit(microbatches),
            num_items=tokens,
            item="completion tokens",
        )
        for how, microbatches in (
            ("one microbatch (default)", whole),
            (f"sorted by length, best microbatch ({best} rows)", bench.sorted_microbatches(best)),
        )
    ]


class Update:
    """A model, a recorded batch, and one step on it by either side, each time from the same weights."""

    def __init__(self) -> None:
        draw = Rows(seed=1)
        prompts = [draw.ids(MEDIAN_PROMPT, LONGEST) for _ in range(NUM_GROUPS)]
        self.rows = [
            training_row(group, sample, prompt, draw.ids(MEDIAN_COMPLETION, LONGEST))
            for group, prompt in enumerate(prompts)
            for sample in range(GROUP_SIZE)
        ]
        self.model, self._tokenizer = build_model(), build_tokenizer()

    def ours(self) -> Any:
        """As posttrain's learner does it."""
        return self._step([self.rows], packed)

    def peer(self, microbatches: Sequence[Sequence[TrainingRow]]) -> Any:
        """TRL's head stays in place."""
        return self._step(microbatches, lambda _: nullcontext())

    def sorted_microbatches(self, size: int) -> list[Sequence[TrainingRow]]:
        """Rows of like length together, so that little is padding."""
        rows = sorted(self.rows, key=lambda row: len(row.prompt_ids) + len(row.completion_ids))
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    def require_same_gradients(self) -> None:
        """Raises ValueError unless every gradient is equal within TOLERANCE of its tensor's largest."""
        ours, peer = self.ours(), self.peer([self.rows])
        for name, expected in peer.items():
            largest = expected.abs().max().item()
            difference = (ours[name] - expected).abs().max().item()
            if not difference <= TOLERANCE * largest:
                raise ValueError(f"gradients of {name} differ by {difference:.2g} of {largest:.2g}: speeds cannot be compared.")

    def limit(self, microbatches: Sequence[Sequence[TrainingRow]]) -> str:
        """Operations that are needed, what TRL's padding makes of them, and how fast ours are done."""
        per_token, per_scored = 2 * layer_parameters(self.model), 2 * self.model.lm_head.weight.numel()
        scored = sum(len(row.completion_ids) for row in self.rows)
        inputs = scored + sum(len(row.prompt_ids) for row in self.rows[::GROUP_SIZE])
        passes = 4  # old logprobs, forward, and twice that in backward; the head is computed again in backward
        useful = passes * per_token * inputs + (passes + 1) * per_scored * scored
        padded = sum(padded_tokens(rows) for rows in microbatches)
        theirs = padded * (passes * per_token + (passes + 1) * per_scored)
        rate, done = matrix_flops_per_s(), min(elapsed_s(self.ours) for _ in range(2))
        return (
            f"{useful / 1e12:.2f} TFLOP are needed, TRL's {theirs / useful:.1f} times; "
            f"ours runs at {useful / done / rate:.0%} of the {rate / 1e9:.0f} GFLOP/s of a large matrix product"
        )

    def _step(
        self, microbatches: Sequence[Sequence[TrainingRow]], head: Callable[[Any], AbstractContextManager[None]]
    ) -> dict[str, Any]:
        """The gradients of one step."""
        import torch

        from posttrain.grpo_trainer import RecordedRolloutTrainer

        model = copy.deepcopy(self.model)
        gradients: dict[str, Any] = {}
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda p, name=name: gradients.__setitem__(name, p.grad))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizers = optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        num_tokens = sum(len(row.completion_ids) for row in self.rows)
        plan = [Microbatch(rows, 0, len(self.rows), num_tokens, len(microbatches)) for rows in microbatches]
        with tempfile.TemporaryDirectory(prefix="posttrain-bench-") as scratch:
            trainer = RecordedRolloutTrainer(model, self._tokenizer, SETTINGS, optimizers, [plan], scratch)
            with head(model):
                trainer.record_old_logprobs()
                trainer.train()
        return gradients


def packed(model: Any) -> AbstractContextManager[None]:
    """The head that posttrain puts in TRL's place."""
    from posttrain.fused_head import packed_head

    return packed_head(model, temperature=SETTINGS.temperature, outputs=("log_probs", "entropy"))


def training_row(group: int, sample: int, prompt: list[int], completion: list[int]) -> TrainingRow:
    """Every second row was right; the sampler's logprobs are those of a uniform guess, as the model's almost are."""
    return TrainingRow(
        prompt_id=f"bench:{group}",
        sample_index=sample,
        prompt_ids=np.array(prompt),
        completion_ids=np.array(completion),
        behavior_logprobs=np.full(len(completion), -np.log(VOCABULARY), np.float32),
        reference_logprobs=None,
        advantage=1.0 if sample % 2 else -1.0,
    )


def padded_tokens(rows: Sequence[TrainingRow]) -> int:
    """TRL pads prompts and completions of a microbatch each to their longest."""
    return len(rows) * (max(len(row.prompt_ids) for row in rows) + max(len(row.completion_ids) for row in rows))
