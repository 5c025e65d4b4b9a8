"""The chunked head against whole logits."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from posttrain import logprob_head
from posttrain.logprob_head import score_tokens

EXTRAS = ("entropy", "mean_logits", "is_top1", "log_sum_sq_probs")
NUM_TOKENS, WIDTH, VOCABULARY = 37, 24, 301


@pytest.fixture(params=["one tile", "many tiles"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "many tiles":
        monkeypatch.setitem(logprob_head.TILE_TOKENS, "cpu", 8)
        monkeypatch.setitem(logprob_head.TILE_BYTES, "cpu", 8 * 4 * 50)


def inputs(bias: bool, dtype: torch.dtype = torch.float32) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(NUM_TOKENS, WIDTH, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator).to(dtype).requires_grad_()
    added = torch.randn(VOCABULARY, generator=generator).to(dtype).requires_grad_() if bias else None
    return [hidden, weight, added]


def targets_of(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Half of the targets are the likeliest tokens."""
    random = torch.randint(VOCABULARY, (NUM_TOKENS,), generator=torch.Generator().manual_seed(1))
    return torch.where(torch.arange(NUM_TOKENS) % 2 == 0, (hidden @ weight.t()).argmax(-1), random)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("bias", [False, True])
def test_scores_and_gradients_equal_those_of_whole_logits(temperature: float, bias: bool) -> None:
    mine, plain = inputs(bias), inputs(bias)
    targets = targets_of(plain[0], plain[1])
    upstream = torch.linspace(-1, 2, NUM_TOKENS)
    found = score_tokens(*mine, targets, temperature, EXTRAS)
    (found.logprobs * upstream).sum().backward()
    logits = torch.nn.functional.linear(*plain).double() / temperature
    every = logits.log_softmax(-1)
    expected = every[torch.arange(NUM_TOKENS), targets]
    (expected * upstream).sum().backward()
    assert found.logprobs.dtype == torch.float32
    assert (found.logprobs - expected).abs().max() < 1e-5
    assert (found.entropy - -(every.exp() * every).sum(-1)).abs().max() < 1e-5
    assert (found.mean_logits - logits.mean(-1)).abs().max() < 1e-5
    assert (found.log_sum_sq_probs - torch.logsumexp(2 * every, -1)).abs().max() < 1e-5
    assert torch.equal(found.is_top1, logits.argmax(-1) == targets) and 0 < found.is_top1.sum() < NUM_TOKENS
    for one, other in zip(mine, plain, strict=True):
        assert one is None or (one.grad - other.grad).abs().max() <= 1e-5 * other.grad.abs().max()


@pytest.mark.usefixtures("tiles")
def test_of_two_equal_logits_the_first_is_the_likeliest() -> None:
    weight = torch.zeros(VOCABULARY, WIDTH)
    weight[[3, 299]] = 1.0
    found = score_tokens(torch.ones(2, WIDTH), weight, None, torch.tensor([3, 299]), 1.0, ("is_top1",))
    assert found.is_top1.tolist() == [True, False]


def test_what_is_frozen_or_not_asked_for_is_not_computed() -> None:
    hidden, weight, _ = inputs(bias=False)
    targets = targets_of(hidden, weight)
    found = score_tokens(hidden, weight.detach(), None, targets, 1.0)
    assert (found.entropy, found.mean_logits, found.is_top1, found.log_sum_sq_probs) == (None,) * 4
    found.logprobs.sum().backward()
    assert hidden.grad is not None and weight.grad is None
    assert not score_tokens(hidden, weight, None, targets, 1.0, EXTRAS).entropy.requires_grad


def test_bfloat16_weights_give_a_float32_log_softmax() -> None:
    hidden, weight, _ = inputs(bias=False, dtype=torch.bfloat16)
    targets = targets_of(hidden, weight)
    found = score_tokens(hidden, weight, None, targets, 1.0)
    found.logprobs.sum().backward()
    plain_hidden, plain_weight, _ = inputs(bias=False, dtype=torch.bfloat16)
    expected = (plain_hidden @ plain_weight.t()).float().log_softmax(-1)[torch.arange(NUM_TOKENS), targets]
    expected.sum().backward()
    assert (found.logprobs - expected).abs().max() < 1e-5
    for one, other in ((hidden, plain_hidden), (weight, plain_weight)):
        assert one.grad.dtype == torch.bfloat16
        assert (one.grad - other.grad).abs().max() <= 0.02 * other.grad.abs().max()


def test_autocast_decides_the_dtype_of_the_product_alone() -> None:
    hidden, weight, _ = inputs(bias=False)
    targets = targets_of(hidden, weight)
    with torch.autocast("cpu", torch.bfloat16):
        found = score_tokens(hidden, weight, None, targets, 1.0).logprobs
        logits = torch.nn.functional.linear(hidden, weight)
    assert logits.dtype == torch.bfloat16
    assert (found - logits.float().log_softmax(-1)[torch.arange(NUM_TOKENS), targets]).abs().max() < 1e-5
    found.sum().backward()
    assert weight.grad.dtype == torch.float32


class LargestTensor(TorchDispatchMode):
    """Remembers the most values that a result of any operation had."""

    def __init__(self) -> None:
        super().__init__()
        self.num_values = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, torch.Tensor):
                self.num_values = max(self.num_values, value.numel())
        return result


def test_whole_logits_never_exist_forward_or_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(logprob_head.TILE_TOKENS, "cpu", 64)
    monkeypatch.setitem(logprob_head.TILE_BYTES, "cpu", 1 << 16)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(400, 4, generator=generator).requires_grad_()
    weight = torch.randn(5000, 4, generator=generator).requires_grad_()
    targets = torch.randint(5000, (400,), generator=generator)
    with LargestTensor() as ours:
        score_tokens(hidden, weight, None, targets, 1.0, EXTRAS).logprobs.sum().backward()
    assert ours.num_values == weight.numel()  # its gradient; a tile has 2**14 values
    with LargestTensor() as whole:
        (hidden @ weight.t()).log_softmax(-1).sum().backward()
    assert whole.num_values == 400 * 5000  # so the measure does see logits


@pytest.mark.parametrize("masked", [-1e4, -torch.inf])
def test_a_first_id_that_is_masked_costs_no_digits(masked: float) -> None:
    hidden, weight, _ = inputs(bias=False)
    bias = torch.zeros(VOCABULARY)
    bias[0] = masked
    targets = targets_of(hidden, weight).clamp(min=1)
    found = score_tokens(hidden, weight, bias, targets, 1.0).logprobs
    expected = torch.log_softmax(hidden @ weight.t() + bias, -1)[torch.arange(NUM_TOKENS), targets]
    assert (found - expected).abs().max() < 1e-5


def test_mean_logits_are_float32_under_autocast() -> None:
    hidden, weight, _ = inputs(bias=False)
    with torch.autocast("cpu", torch.bfloat16):
        found = score_tokens(hidden, weight, None, targets_of(hidden, weight), 1.0, ("mean_logits",)).mean_logits
    assert found is not None and found.dtype == torch.float32
    assert (found - (hidden @ weight.t()).mean(-1)).abs().max() < 1e-5
