"""Limits of whole trees of processes, on the real cgroups of this machine where they may be written, and on the layout of version 2."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from posttrain.verify.sandbox.cgroups import Cgroup, Place, writable_places
from posttrain.verify.sandbox.pool import Sandbox, SandboxLimits
from tests.verify import hostile
from tests.verify.test_sandbox import ENTRY, job, values

LIMITS = {"memory_mib": 100, "scratch_mib": 16, "num_threads": 32}
BYTES = (100 + 16 + 64) << 20


def find_cgroups() -> list[Path]:
    return [path for place in writable_places() for path in place.directory.glob(f"posttrain-sandbox-{os.getpid()}-*")]


@pytest.mark.skipif(not writable_places(), reason="this user may write no cgroup here")
def test_a_server_and_its_programs_live_in_cgroups_that_go_with_it() -> None:
    with Sandbox(ENTRY, SandboxLimits(memory_mib=hostile.SETTINGS.memory_mib), num_workers=1) as sandbox:
        assert values(sandbox.execute(job("return x"), "", 5.0).reports) == [1]
        members = {process for path in find_cgroups() for process in (path / "cgroup.procs").read_text().split()}
        assert set(map(str, hostile.sandbox_processes())) <= members
    assert find_cgroups() == []


def unified(root: Path, delegated: str) -> Path:
    """The files of a delegated cgroup of version 2, as the kernel lays them out."""
    own = root / "user.slice"
    own.mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpu memory pids\n")
    (own / "cgroup.subtree_control").write_text(delegated)
    membership = root / "membership"
    membership.write_text("0::/user.slice\n")
    return membership


def test_version_two_is_used_where_its_controllers_are_delegated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    membership = unified(tmp_path, "memory pids\n")
    monkeypatch.setattr(os, "access", lambda *a: True)  # an ordinary directory does not grow the kernel's files by itself
    places = writable_places(tmp_path, membership)
    assert places == [Place(tmp_path / "user.slice", 2, ("memory", "pids"))]
    made = Cgroup(places, LIMITS)
    (directory,) = (tmp_path / "user.slice").glob("posttrain-sandbox-*")
    assert (directory / "memory.max").read_text() == str(BYTES)
    assert (directory / "pids.max").read_text() == "40"
    made.hold(4321)
    assert (directory / "cgroup.procs").read_text() == "4321"


@pytest.mark.parametrize("delegated", ["", "cpu\n"])
def test_version_two_without_delegated_controllers_limits_nothing(tmp_path: Path, delegated: str) -> None:
    assert writable_places(tmp_path, unified(tmp_path, delegated)) == []


def test_version_one_takes_its_controllers_from_the_membership(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory" / "pod").mkdir(parents=True)
    (tmp_path / "pids").mkdir()
    membership = tmp_path / "membership"
    membership.write_text("9:name=systemd:/\n8:pids:/elsewhere\n4:memory:/pod\n1:cpu:/\n")
    monkeypatch.setattr(os, "access", lambda *a: True)
    assert writable_places(tmp_path, membership) == [
        Place(tmp_path / "pids", 1, ("pids",)),
        Place(tmp_path / "memory" / "pod", 1, ("memory",)),
    ]


def test_a_machine_without_cgroups_limits_each_process_alone(tmp_path: Path) -> None:
    assert writable_places(tmp_path, tmp_path / "missing") == []
    nothing = Cgroup([], LIMITS)
    nothing.hold(1)
    nothing.remove()


@pytest.mark.skipif(not writable_places(), reason="this user may write no cgroup here")
def test_cgroups_of_processes_that_were_killed_are_removed() -> None:
    forgotten = writable_places()[0].directory / "posttrain-sandbox-4194305-0"  # no process has a number so high
    forgotten.mkdir()
    writable_places()
    assert not forgotten.exists()
