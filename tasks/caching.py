"""Explicit cache versions of the cached tasks.

A version changes when code that the task reaches changes; `tests/test_cache_versions.py` fails until
`python -m tasks.cache_lock` has bumped it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from flytekit import Cache

LOCK = Path(__file__).with_name("cache_versions.json")


@cache
def _versions() -> dict[str, dict[str, str]]:
    return json.loads(LOCK.read_text(encoding="utf-8"))


def cached(task: str) -> Cache:
    """flytekit's cache setting of `task` at its locked version."""
    return Cache(version=_versions()[task]["version"])
