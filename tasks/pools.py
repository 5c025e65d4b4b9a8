"""The pools of machines by name: image and resources of each kind. Where a task runs changes no result and no cache key."""

from __future__ import annotations

from typing import Any

from flytekit import Resources

# Images are looked up by name in the [images] section of flyte.config at registration.
ROLLOUT: dict[str, Any] = {
    "container_image": "{{.image.rollout}}",
    "requests": Resources(cpu="8", mem="32Gi", gpu="1"),
    "retries": 2,
}
TRAIN: dict[str, Any] = {"container_image": "{{.image.train}}", "requests": Resources(cpu="8", mem="64Gi", gpu="1"), "retries": 2}
REFERENCE: dict[str, Any] = {
    "container_image": "{{.image.train}}",
    "requests": Resources(cpu="4", mem="32Gi", gpu="1"),
    "retries": 2,
}
CPU: dict[str, Any] = {"container_image": "{{.image.cpu}}", "requests": Resources(cpu="2", mem="8Gi"), "retries": 2}
# A dynamic compiles nodes: a retry would compile other ones, so recovery keeps the first.
COMPILER: dict[str, Any] = {**CPU, "retries": 0}
