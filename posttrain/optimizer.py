"""AdamW, its schedule and the parameters that it moves: the same for every learner."""

from __future__ import annotations

import re
from typing import Any

from posttrain.config_base import OptimizerSettings
from posttrain.errors import ConfigError


def trained_parameters(model: Any, pattern: str) -> dict[str, Any]:
    """name → parameter of those whose name `pattern` is found in; all others are frozen.

    Raises:
        ConfigError: it matches nothing. (That it is a regular expression, OptimizerSettings has checked.)
    """
    expression = re.compile(pattern)
    found: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(expression.search(name) is not None)
        if parameter.requires_grad:
            found[name] = parameter
    if not found:
        names = ", ".join(name for name, _ in list(model.named_parameters())[:4])
        why = "no parameter matches, nothing would train"
        raise ConfigError("learner.trainable_parameters", pattern, why, f"Names are {names}, …")
    return found


def build_optimizer(parameters: Any, settings: OptimizerSettings) -> Any:
    """AdamW; only matrices decay, not norms and biases."""
    import torch

    listed = list(parameters)
    groups = [
        {"params": [parameter for parameter in listed if parameter.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [parameter for parameter in listed if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (settings.adam_beta1, settings.adam_beta2)
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=settings.learning_rate, betas=betas)


def build_scheduler(optimizer: Any, settings: OptimizerSettings, num_steps_done: int, num_steps: int) -> Any:
    """The schedule at step `num_steps_done` of `total_steps`: the rate depends on settings and step alone."""
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import get_scheduler

    total = settings.total_steps
    if settings.lr_scheduler in ("linear", "cosine") and num_steps_done + num_steps > total:
        raise ConfigError(
            "learner.total_steps",
            total,
            f"the {settings.lr_scheduler} schedule ends before step {num_steps_done + num_steps}",
            "Set it to the optimiser steps of all iterations together.",
        )
    fresh: Any = get_scheduler(settings.lr_scheduler, optimizer, num_warmup_steps=settings.warmup_steps, num_training_steps=total)
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] = settings.learning_rate
    return LambdaLR(optimizer, fresh.lr_lambdas, last_epoch=num_steps_done - 1)
