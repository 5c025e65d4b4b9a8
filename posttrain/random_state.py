"""The random generators of this process (python, numpy, torch) as tensors, to be saved and put back."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

RandomState = Mapping[str, Any]  # name → tensor


def capture() -> RandomState:
    """The state of every generator, as torch tensors by name."""
    import torch

    _, words, python_gauss = random.getstate()
    _, key, position, has_gauss, numpy_gauss = np.random.get_state(legacy=True)
    state = {
        "python": torch.tensor(words, dtype=torch.int64),
        "python_gauss": torch.tensor([] if python_gauss is None else [python_gauss], dtype=torch.float64),
        "numpy": torch.from_numpy(np.asarray(key, dtype=np.int64)),
        "numpy_position": torch.tensor([position, has_gauss], dtype=torch.int64),
        "numpy_gauss": torch.tensor([numpy_gauss], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore(state: RandomState) -> None:
    """Puts a captured state back. A state taken on a machine with a GPU also serves on one without."""
    import torch

    gauss = state["python_gauss"].tolist()
    random.setstate((3, tuple(state["python"].tolist()), gauss[0] if gauss else None))
    position, has_gauss = state["numpy_position"].tolist()
    key = state["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", key, position, has_gauss, state["numpy_gauss"].item()))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


@contextmanager
def untouched() -> Iterator[None]:
    """The generators come out of the block as they went in, whatever the block seeds or draws."""
    before = capture()
    try:
        yield
    finally:
        restore(before)
