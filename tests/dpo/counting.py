"""Counts what a training must not do: load or build a model, or run one without gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Counts models that are loaded or built inside, and forwards of the backbone with and without gradients."""
    import transformers
    from transformers.models.qwen3 import modeling_qwen3
    from trl.trainer import dpo_trainer

    counts = {"loaded": 0, "built": 0, "no_grad": 0, "grad": 0}

    def count(owner: Any, name: str, kind: str) -> None:
        before = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            counts["no_grad" if kind == "forward" and not torch.is_grad_enabled() else "grad" if kind == "forward" else kind] += 1
            return before(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapped)

    count(transformers.PreTrainedModel, "from_pretrained", "loaded")
    count(transformers.AutoModelForCausalLM, "from_pretrained", "loaded")
    count(dpo_trainer, "create_model_from_path", "loaded")
    count(modeling_qwen3.Qwen3ForCausalLM, "__init__", "built")
    count(modeling_qwen3.Qwen3Model, "forward", "forward")
    yield counts
