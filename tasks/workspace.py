"""Where a task leaves its files on this machine, and the local cache beside them.

A laptop keeps everything of a checkout in one directory (`POSTTRAIN_WORKSPACE`, default `./workspace`). On a cluster
the same directory is the pod's own disk, and flytekit uploads what a task returns.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from pathlib import Path
from typing import Any

import flytekit.core.local_cache
from diskcache import Cache
from flyteidl.core import literals_pb2

from posttrain import policy, trainer_state

logger = logging.getLogger("posttrain")


def workspace() -> Path:
    """The workspace directory, absolute."""
    return Path(os.environ.get("POSTTRAIN_WORKSPACE", "workspace")).absolute()


def new_path(task: str, name: str) -> Path:
    """A path that no other call uses: `<workspace>/artifacts/<task>/<random>/<name>`."""
    path = workspace() / "artifacts" / task / uuid.uuid4().hex[:12] / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def run_directory(execution: str) -> Path:
    """Where the report and the checkpoints of one execution are."""
    path = workspace() / "runs" / execution
    path.mkdir(parents=True, exist_ok=True)
    return path


def cache_directory() -> Path:
    """flytekit's local task cache of this workspace."""
    return workspace() / "cache"


def forget_gone_files(directory: Path) -> int:
    """Drops cache entries that point to files which no longer exist, so that their tasks run again; returns how many.

    flytekit would hand out the dead path and the next task would fail on it.
    """
    if not directory.is_dir():
        return 0
    dropped = 0
    with Cache(str(directory)) as cache:
        counting = bool(cache.reset("statistics"))  # diskcache reads a setting so
        cache.stats(enable=False)  # looking through the cache is no use of it
        for key in list(cache):
            literals: Any = cache.get(key, default=b"")
            if not all(_is_whole(Path(path)) for path in _local_paths(literals)):
                dropped += bool(cache.delete(key))
        cache.stats(enable=counting)
    if dropped:
        logger.warning("%d cached results whose files have gone will be computed again", dropped)
    return dropped


def _is_whole(path: Path) -> bool:
    """Whether a cached file is there, or a cached directory with every file of its manifest."""
    if not path.is_dir():
        return path.exists()
    for manifest in (path / policy.MANIFEST, path / trainer_state.MANIFEST):
        if manifest.is_file():
            return all((path / name).is_file() for name in json.loads(manifest.read_bytes())["files"])
    return False


def _local_paths(serialized: bytes) -> list[str]:
    literals = literals_pb2.LiteralMap()
    literals.ParseFromString(serialized)
    uris = [uri for literal in literals.literals.values() for uri in _uris(literal)]
    return [uri.removeprefix("file://") for uri in uris if uri.startswith(("/", "file://"))]


def _uris(literal: literals_pb2.Literal) -> list[str]:
    if literal.WhichOneof("value") == "collection":
        return [uri for item in literal.collection.literals for uri in _uris(item)]
    uri = literal.scalar.blob.uri
    return [uri] if uri else []


def use_workspace_cache() -> None:
    """Keeps flytekit's local cache in the workspace: it lives and dies with the files it points to."""
    flytekit.core.local_cache.CACHE_LOCATION = str(cache_directory())
    forget_gone_files(cache_directory())


use_workspace_cache()
