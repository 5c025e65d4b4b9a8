"""Peak memory of one forward and backward pass over logprobs, in a process of its own: python -m bench.logprob_memory SIDE."""

from __future__ import annotations

import ctypes
import json
import math
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from bench.logprob_shapes import build_model
from bench.measure import elapsed_s

VOCABULARY, HIDDEN, LAYERS = 151_936, 256, 4  # Qwen's vocabulary
NUM_ROWS, PROMPT_TOKENS, COMPLETION_TOKENS = 4, 16, 512  # nothing shared and nothing padded: both sides compute the same
OUTPUTS = ("log_probs", "entropy")  # what TRL's GRPO trainer asks for


def main() -> None:
    """SIDE is `ours`, `trl` or `plain` (whole logits). Prints one JSON object."""
    side = sys.argv[1]
    model = build_model(VOCABULARY, HIDDEN, LAYERS).train()
    model.gradient_checkpointing_enable()
    batch = build_batch()
    with prepared(model, side):
        forward_backward(model, {name: ids[:1, : PROMPT_TOKENS + 2] for name, ids in batch.items()}, side)  # loads libraries
        model.zero_grad()
        before_mib = reset_peak()
        values: dict[str, float] = {}
        values["seconds"] = elapsed_s(lambda: values.update(forward_backward(model, batch, side)))
        gradients_mib = sum(p.grad.numel() * 4 for p in model.parameters() if p.grad is not None) / 2**20
        values["peak_mib"] = status_mib("VmHWM") - before_mib - gradients_mib
    shape = {"num_tokens": NUM_ROWS * COMPLETION_TOKENS, "vocabulary": VOCABULARY, "hidden": HIDDEN}
    print(json.dumps(values | shape))


def build_batch() -> dict[str, torch.Tensor]:
    """Random rows of equal length."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, (NUM_ROWS, PROMPT_TOKENS + COMPLETION_TOKENS), generator=generator)
    labels = ids.clone()
    labels[:, :PROMPT_TOKENS] = -100
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def prepared(model: Any, side: str) -> AbstractContextManager[None]:
    """TRL's head in place, as its trainers put it, and ours in its stead."""
    if side == "plain":
        return nullcontext()
    from trl.trainer.utils import add_fused_lm_head

    from posttrain.fused_head import packed_head

    add_fused_lm_head(model, temperature=1.0, outputs=OUTPUTS)
    return packed_head(model, temperature=1.0, outputs=OUTPUTS) if side == "ours" else nullcontext()


def forward_backward(model: Any, batch: dict[str, torch.Tensor], side: str) -> dict[str, float]:
    """Mean logprob of the labels and its gradient."""
    mask = batch["labels"][:, 1:] != -100
    if side == "plain":
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False).logits[:, :-1]
        logprobs = logits.float().log_softmax(-1).gather(-1, batch["input_ids"][:, 1:, None])[..., 0]
    else:
        logprobs = model(**batch, use_cache=False, fused_lm_head=True).log_probs
    loss = -logprobs[mask].mean()
    loss.backward()
    norms = [p.grad.norm().item() for p in model.parameters()]  # without a copy, which would count as memory
    return {"loss": loss.item(), "grad_norm": math.hypot(*norms)}


def reset_peak() -> float:
    """Gives freed memory back to the system, forgets the highest so far, and returns what is in use (MiB)."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return status_mib("VmRSS")


def status_mib(name: str) -> float:
    """VmRSS: what is in use; VmHWM: the most since the last reset."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) / 1024


if __name__ == "__main__":
    main()
