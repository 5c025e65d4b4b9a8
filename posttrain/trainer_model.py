"""A model lent to a trainer of TRL, and taken back."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def lent(model: Any) -> Iterator[None]:
    """Afterwards the model is as it was but for its weights: TRL changes its forward, its configs and its mode.

    The configs stay the same objects: layers hold them too, and ask them for the kind of attention.
    """
    configs = [config for config in (model.config, model.generation_config) if config is not None]
    before = [copy.deepcopy(vars(config)) for config in configs]
    gc.freeze()  # accelerate collects garbage at the start: half a second over the objects of all imported libraries
    try:
        yield
    finally:
        gc.unfreeze()
        for patched in ("forward", "_original_forward"):
            model.__dict__.pop(patched, None)
        for config, values in zip(configs, before, strict=True):
            vars(config).clear()
            vars(config).update(values)
        if model.is_gradient_checkpointing:
            model.gradient_checkpointing_disable()
        model.eval()
