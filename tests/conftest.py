"""Tests run alone on the machine: a home and a workspace of their own, no network, no cache of earlier runs."""

from __future__ import annotations

import os
import tempfile

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
