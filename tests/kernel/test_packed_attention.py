"""Attention over a pack against one dense masked softmax, forward and backward."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from posttrain import packed_attention
from posttrain.packed_attention import Layout, batches, block_mask
from posttrain.packing import Pack, pack_rows
from tests.kernel.kernel_models import rows_of

CPU = torch.device("cpu")


def dense_mask(pack: Pack) -> torch.Tensor:
    """(N, N): what each token sees, from the fields of the pack."""
    size = len(pack.ids)
    seen = torch.zeros(size, size, dtype=torch.bool)
    for start, length in pack.segments:
        seen[start : start + length, start : start + length] = torch.ones(length, length).tril().bool()
    for branch in pack.branches:
        (first, length), (start, width) = branch.completions, branch.prompt
        seen[first : first + length, start : start + width] = True
    return seen


def many_short_rows() -> Pack:
    """Trees of like but unequal sizes, which are computed several at a time with padding."""
    draw = np.random.default_rng(1)
    prompts = [draw.integers(0, 9, length).tolist() for length in (8, 7, 8, 6, 40)]
    (pack,) = pack_rows(
        [prompt for prompt in prompts for _ in range(3)], [draw.integers(0, 9, 9 + n % 3).tolist() for n in range(15)]
    )
    return pack


def tensors(pack: Pack, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, heads, len(pack.ids), 16, generator=generator, requires_grad=True) for heads in (4, 2, 2)]


@pytest.mark.parametrize("pack", [pack_rows(*rows_of())[0], many_short_rows()], ids=["mixed", "short"])
def test_output_and_gradients_equal_dense_attention(pack: Pack) -> None:
    layout = Layout(pack, CPU)
    query, key, value = tensors(pack)
    found, _ = packed_attention._attention(None, query, key, value, None, packed_layout=layout, scaling=0.3)
    found.backward(torch.cos(found.detach() * 9))
    others = tensors(pack)
    repeated = (others[0], *(x.repeat_interleave(2, 1) for x in others[1:]))
    scores = repeated[0] @ repeated[1].transpose(-1, -2) * 0.3
    expected = (scores.masked_fill(~dense_mask(pack), -torch.inf).softmax(-1) @ repeated[2]).transpose(1, 2)
    expected.backward(torch.cos(expected.detach() * 9))
    assert (found - expected).abs().max() < 2e-6
    for one, other in zip((query, key, value), others, strict=True):
        assert (one.grad - other.grad).abs().max() < 1e-5


def test_short_ranges_of_like_size_are_computed_together_and_padded() -> None:
    layout = Layout(many_short_rows(), CPU)
    assert any(len(ranges.padding) for ranges in layout.segments)
    assert any(len(branch.prompts.padding) for branch in layout.branches)
    assert len(layout.segments) < len(many_short_rows().segments)


def test_batches_hold_every_range_once_and_little_padding() -> None:
    shapes = [(length, width) for length, width in itertools.product((3, 10, 11, 90, 127, 129, 500), (5, 6, 40))]
    found = batches(shapes)
    assert sorted(itertools.chain.from_iterable(found)) == list(range(len(shapes)))
    for batch in found:
        for column in zip(*(shapes[number] for number in batch), strict=True):
            assert len(batch) == 1 or (max(column) <= 128 and min(column) >= 0.75 * max(column))
    assert batches([]) == []


@pytest.mark.parametrize("pack", [pack_rows(*rows_of())[0], many_short_rows()], ids=["mixed", "short"])
def test_the_block_mask_of_a_gpu_shows_the_same_tokens(pack: Pack) -> None:
    layout = Layout(pack, CPU)
    query, key, value = (x.detach() for x in tensors(pack))
    expected, _ = packed_attention._attention(None, query, key, value, None, packed_layout=layout, scaling=0.3)
    layout.block_mask = block_mask(pack, CPU)
    found, _ = packed_attention._attention(None, query, key, value, None, packed_layout=layout, scaling=0.3)
    assert (found - expected).abs().max() < 2e-6
