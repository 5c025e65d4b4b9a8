"""Limits of a whole tree of processes by cgroups, version 1 or 2, where this process may make them.

They stand behind the limits of each process: memory that counts for no process (a scratch in memory, say) is counted here.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_MIB = 1 << 20
_SLACK_MIB = 64  # the server itself, page tables, buffers of pipes
_PATIENCE_S, _PAUSE_S = 1.0, 0.005
_PREFIX = "posttrain-sandbox"
_FILES = {1: {"memory": "memory.limit_in_bytes", "pids": "pids.max"}, 2: {"memory": "memory.max", "pids": "pids.max"}}
_numbers = itertools.count()


@dataclass(frozen=True)
class Place:
    """A directory in which this process may make a cgroup that limits `controllers`."""

    directory: Path
    version: int
    controllers: tuple[str, ...]


class Cgroup:
    """The cgroups of one fork server; without any `place` it limits nothing."""

    def __init__(self, places: list[Place], limits: Mapping[str, int]) -> None:
        values = {"memory": (limits["memory_mib"] + limits["scratch_mib"] + _SLACK_MIB) * _MIB, "pids": limits["num_threads"] + 8}
        self._directories: list[Path] = []
        name = f"{_PREFIX}-{os.getpid()}-{next(_numbers)}"
        for place in places:
            made = place.directory / name
            made.mkdir()
            self._directories.append(made)
            for controller in place.controllers:
                (made / _FILES[place.version][controller]).write_text(str(values[controller]))

    def hold(self, process: int) -> None:
        """Moves a process, and all that it starts from now on, into the limits."""
        for directory in self._directories:
            (directory / "cgroup.procs").write_text(str(process))

    def remove(self) -> None:
        """Once every process in it has ended; waits a moment for those that were killed."""
        deadline = time.monotonic() + _PATIENCE_S
        while self._directories:
            with contextlib.suppress(FileNotFoundError):
                try:
                    self._directories[-1].rmdir()
                except OSError:
                    if time.monotonic() < deadline:
                        time.sleep(_PAUSE_S)
                        continue
            self._directories.pop()


def writable_places(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[Place]:
    """Where this process can limit memory and processes; empty where the container or the user's rights forbid it."""
    places = [place for place in _candidates(root, own.read_text()) if _is_usable(place)] if own.exists() else []
    for place in places:
        _remove_forgotten(place.directory)
    return places


def _candidates(root: Path, own: str) -> Iterator[Place]:
    for line in own.splitlines():
        _, names, path = line.split(":", 2)
        controllers = tuple(name for name in names.split(",") if name in ("memory", "pids"))
        if controllers:
            yield Place(_inside(root / names, path), 1, controllers)
        if not names:
            unified = root if (root / "cgroup.controllers").exists() else root / "unified"
            yield Place(_inside(unified, path), 2, _delegated(_inside(unified, path)))


def _inside(mount: Path, path: str) -> Path:
    """The directory of the cgroup `path`; a container often sees its own cgroup as the root of the mount."""
    directory = mount / path.lstrip("/")
    return directory if directory.is_dir() else mount


def _delegated(directory: Path) -> tuple[str, ...]:
    """Controllers that children of this cgroup get; where none is, none can be switched on while processes live in it."""
    with contextlib.suppress(OSError):
        return tuple(name for name in (directory / "cgroup.subtree_control").read_text().split() if name in ("memory", "pids"))
    return ()


def _is_usable(place: Place) -> bool:
    if not place.controllers:
        return False
    probe = place.directory / f"{_PREFIX}-{os.getpid()}-probe{next(_numbers)}"
    try:
        probe.mkdir()
    except OSError:
        return False
    try:
        return all(os.access(probe / _FILES[place.version][controller], os.W_OK) for controller in place.controllers)
    finally:
        with contextlib.suppress(OSError):
            probe.rmdir()


def _remove_forgotten(directory: Path) -> None:
    """Cgroups of processes that were killed before they could remove them."""
    for path in directory.glob(f"{_PREFIX}-*-*"):
        process = path.name.split("-")[2]
        if process.isdigit() and not Path(f"/proc/{process}").exists():
            with contextlib.suppress(OSError):
                path.rmdir()
