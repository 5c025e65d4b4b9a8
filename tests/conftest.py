"""Tests run alone on the machine: a home and a workspace of their own, no network, no cache of earlier runs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

_SANDBOX = tempfile.mkdtemp(prefix="posttrain-tests-")
os.environ.update(
    HOME=_SANDBOX,
    POSTTRAIN_WORKSPACE=f"{_SANDBOX}/workspace",
    FLYTE_LOCAL_CACHE_ENABLED="false",
    HF_HUB_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    DO_NOT_TRACK="1",
    MLFLOW_DISABLE_TELEMETRY="true",
    VLLM_NO_USAGE_STATS="1",
    OMP_NUM_THREADS="1",
)
os.environ.pop("MLFLOW_TRACKING_URI", None)


@pytest.fixture(scope="session")
def warm_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quick-start model after its demonstrations: greedy near 0, sampled about a quarter."""
    from posttrain import brackets, sft
    from posttrain.config import DataSettings, WarmStartSettings

    base, warm = tmp_path_factory.mktemp("base") / "policy", tmp_path_factory.mktemp("warm") / "policy"
    brackets.build_model(base, seed=0)
    settings = WarmStartSettings(demonstrations="brackets_demonstrations?size=2048&seed=7")
    sft.warm_start(base, DataSettings(), settings, warm)
    return warm
