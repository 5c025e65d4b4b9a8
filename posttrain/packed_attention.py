"""Attention over a pack: each segment is causal on its own, further completions of a tree also see its prompt.

The layout of a pack travels to the attention function as a keyword argument of the model's forward, so that gradient
checkpointing hands it over again when it computes a layer a second time.

Importing it imports transformers: import it inside functions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from posttrain.packing import Pack, Range

IMPLEMENTATION = "posttrain_packed"
# what models hand to an attention function beside these and what changes nothing: rows are checked against the window before
HARMLESS = {"position_ids", "use_cache", "cache_position", "is_causal", "sliding_window", "output_attentions"}
MAX_BATCHED_TOKENS = 128  # shorter ranges are computed several at a time; a longer one is worth a call of its own
MIN_FILL = 0.75  # of the longest range in such a batch

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class PackingError(Exception):
    """This model, or this call of it, cannot be computed on packs; says why."""


@contextmanager
def packed_attention(model: Any) -> Iterator[None]:
    """Inside, `model` (transformers) uses our attention: packed where a call gives a layout, else as SDPA.

    Gradient checkpointing computes layers again in `backward`: keep it open until then.
    """
    # a trainer may have replaced the model's config by a copy, of which the layers know nothing
    found = [module.config for module in model.modules() if isinstance(getattr(module, "config", None), PreTrainedConfig)]
    configs = list({id(config): config for config in found}.values())
    before = [config._attn_implementation for config in configs]
    try:
        for config in configs:
            config._attn_implementation = IMPLEMENTATION
        yield
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation = implementation


def is_packed(model: Any) -> bool:
    """Whether `packed_attention` is open for the model."""
    return model.config._attn_implementation == IMPLEMENTATION


class Layout:
    """What attention needs to know of a pack, on the device where it runs. `num_calls` counts the layers that asked."""

    def __init__(self, pack: Pack, device: torch.device) -> None:
        self.num_calls = 0
        self.block_mask: BlockMask | None = None
        self.segments: list[Ranges] = []
        self.branches: list[BranchBatch] = []
        if device.type == "cpu":
            self.segments = [Ranges([pack.segments[n] for n in batch]) for batch in batches([r[1:] for r in pack.segments])]
            shapes = [(branch.completions[1], branch.prompt[1]) for branch in pack.branches]
            for batch in batches(shapes):
                members = [pack.branches[number] for number in batch]
                self.branches.append(BranchBatch([b.completions for b in members], [b.prompt for b in members]))
        else:
            self.block_mask = block_mask(pack, device)


class Ranges:
    """Ranges of a pack's tokens as one right-padded batch; a single range is a view."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        lengths = torch.tensor([length for _, length in ranges])
        self.shape = len(ranges), int(lengths.max())
        self.lengths = lengths
        self.view = slice(ranges[0][0], sum(ranges[0])) if len(ranges) == 1 else None
        offsets = torch.arange(self.shape[1]).expand(self.shape)
        starts = torch.tensor([start for start, _ in ranges])
        self.positions = (starts[:, None] + torch.minimum(offsets, lengths[:, None] - 1)).flatten()  # padding repeats the last
        real = (offsets < lengths[:, None]).flatten()
        self.slots, self.padding = real.nonzero()[:, 0], (~real).nonzero()[:, 0]
        self.tokens = self.positions[self.slots]

    def take(self, values: torch.Tensor, *, zero_padding: bool = False) -> torch.Tensor:
        """(N, H, …) → (B, H, L, …)."""
        if self.view is not None:
            return values[None, self.view].transpose(1, 2)
        flat = values.index_select(0, self.positions)
        if zero_padding and len(self.padding):
            flat.index_fill_(0, self.padding, 0)
        return flat.view(*self.shape, *values.shape[1:]).transpose(1, 2)

    def put(self, target: torch.Tensor, values: torch.Tensor) -> None:
        """(B, H, L, …) into their places in (N, H, …)."""
        if self.view is not None:
            target[self.view] = values.transpose(1, 2)[0]
        else:
            target.index_copy_(0, self.tokens, self._real(values))

    def add(self, target: torch.Tensor, values: torch.Tensor) -> None:
        """As `put`, but added to what stands there."""
        if self.view is not None:
            target[self.view] += values.transpose(1, 2)[0]
        else:
            target.index_copy_(0, self.tokens, target.index_select(0, self.tokens).add_(self._real(values)))

    def _real(self, values: torch.Tensor) -> torch.Tensor:
        flat = values.transpose(1, 2).flatten(0, 1)
        return flat.index_select(0, self.slots) if len(self.padding) else flat


class BranchBatch:
    """Further completions (queries) and their prompts (keys)."""

    def __init__(self, completions: Sequence[Range], prompts: Sequence[Range]) -> None:
        self.completions, self.prompts = Ranges(completions), Ranges(prompts)

    def mask(self, dtype: torch.dtype) -> torch.Tensor | None:
        """Additive (B, 1, 1, P) where prompts differ in length."""
        if not len(self.prompts.padding):
            return None
        hidden = torch.arange(self.prompts.shape[1]) >= self.prompts.lengths[:, None]
        return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)[:, None, None, :]


def batches(shapes: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Numbers of the ranges that are computed together: short ones of like size, so that little is padding."""
    groups: list[list[int]] = []
    for number in sorted(range(len(shapes)), key=lambda number: shapes[number], reverse=True):
        members = [shapes[member] for member in groups[-1]] if groups else []
        columns = list(zip(*members, shapes[number], strict=True))
        alike = all(max(column) <= MAX_BATCHED_TOKENS and min(column) >= MIN_FILL * max(column) for column in columns)
        if members and alike:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


class _PackedAttention(torch.autograd.Function):
    """Exact softmax attention of (N, H, D) tensors on a CPU, piece by piece.

    A further completion's keys come in two pieces, its own and its prompt's. The softmax over both is the average of the
    two pieces' outputs, weighted by their sums of exponentials (as in FlashAttention, arXiv 2205.14135, and ring attention,
    2310.01889). Given the output and the logsumexp over both pieces, the backward of either piece alone is exact.
    """

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout, scale: float
    ) -> torch.Tensor:
        out, lse = torch.empty_like(query), query.new_empty(query.shape[:2], dtype=torch.float32)
        for ranges in layout.segments:
            piece, piece_lse = _flash(*(ranges.take(x) for x in (query, key, value)), 0.0, True, scale=scale)
            ranges.put(out, piece)
            ranges.put(lse, piece_lse)
        for branch in layout.branches:
            own, prompt = branch.completions, branch.prompts
            mask = branch.mask(query.dtype)
            piece, piece_lse = _flash(
                own.take(query), prompt.take(key), prompt.take(value), 0.0, False, attn_mask=mask, scale=scale
            )
            own_lse = own.take(lse)
            weight = torch.sigmoid(piece_lse - own_lse)[..., None].to(out.dtype)
            own.put(out, torch.lerp(own.take(out), piece, weight))
            own.put(lse, torch.logaddexp(piece_lse, own_lse))
        # for a query that is not finite the CPU kernel gives 0, which would hide broken weights
        broken = ~query.sum(-1, dtype=torch.float32).isfinite()
        if broken.any():
            out[broken] = torch.nan
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        grad_out = grads[0].contiguous()
        grad_query, grad_key, grad_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        for ranges in ctx.layout.segments:
            taken = [ranges.take(x) for x in (query, key, value, out, lse)]
            pieces = _flash_backward(ranges.take(grad_out, zero_padding=True), *taken, 0.0, True, scale=ctx.scale)
            for target, piece in zip((grad_query, grad_key, grad_value), pieces, strict=True):
                ranges.put(target, piece)
        for branch in ctx.layout.branches:
            own, prompt = branch.completions, branch.prompts
            taken = [own.take(query), prompt.take(key), prompt.take(value), own.take(out), own.take(lse)]
            mask = branch.mask(query.dtype)
            pieces = _flash_backward(own.take(grad_out, zero_padding=True), *taken, 0.0, False, attn_mask=mask, scale=ctx.scale)
            own.add(grad_query, pieces[0])
            prompt.add(grad_key, pieces[1])
            prompt.add(grad_value, pieces[2])
        return grad_query, grad_key, grad_value, None, None


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    packed_layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The function that transformers calls: (1, heads, N, D) → (1, N, heads, D)."""
    if packed_layout is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if kwargs.pop("dropout", 0.0):
        raise PackingError("attention dropout is on")
    scaling = kwargs.pop("scaling", None)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    for name, given in kwargs.items():
        if given is not None and name not in HARMLESS:
            raise PackingError(f"its attention takes {name!r}")
    packed_layout.num_calls += 1
    if torch.is_autocast_enabled(query.device.type):  # as autocast does for SDPA
        query, key, value = (x.to(torch.get_autocast_dtype(query.device.type)) for x in (query, key, value))
    num_groups = query.shape[1] // key.shape[1]
    if packed_layout.block_mask is not None:
        attend = flex_attention if query.device.type == "cpu" else _compiled_flex_attention()
        out_HND = attend(query, key, value, block_mask=packed_layout.block_mask, scale=scale, enable_gqa=num_groups > 1)
        return out_HND.transpose(1, 2).contiguous(), None
    tensors_NHD = [x[0].transpose(0, 1) for x in (query, repeat_kv(key, num_groups), repeat_kv(value, num_groups))]
    return _PackedAttention.apply(*tensors_NHD, packed_layout, scale)[None], None


@functools.cache
def _compiled_flex_attention() -> Any:
    return torch.compile(flex_attention, dynamic=True)  # uncompiled, it builds all scores


def block_mask(pack: Pack, device: torch.device) -> BlockMask:
    """The same pattern as a mask over (N, N), in blocks of which whole empty ones are skipped: for a GPU."""
    segment, shared, parent = (torch.full((len(pack.ids),), fill) for fill in (-1, -2, -1))
    for number, (start, length) in enumerate(pack.segments):
        segment[start : start + length] = number
    for number, branch in enumerate(pack.branches):
        for target, (start, length) in ((shared, branch.prompt), (parent, branch.completions)):
            target[start : start + length] = number
    segment, shared, parent = (x.to(device) for x in (segment, shared, parent))

    def visible(batch: Any, head: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (k <= q) & ((segment[q] == segment[k]) | (parent[q] == shared[k]))

    return create_block_mask(visible, None, None, len(pack.ids), len(pack.ids), device=device)


AttentionInterface.register(IMPLEMENTATION, _attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
