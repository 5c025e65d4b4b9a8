"""Gives up user, capabilities and resources: done once by the fork server, inherited by every program."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Mapping, Sequence

from posttrain.verify.sandbox.filesystem import standard_library
from posttrain.verify.sandbox.system_calls import call

_PR_CAPBSET_DROP, _PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 24, 1, 4
_CAPABILITY_VERSION_3 = 0x20080522
_MIB = 1 << 20
_libc = ctypes.CDLL(None)


class Unreadable(Exception):
    """Files that programs need are closed to them: neither the kernel's refusal nor a program's fault."""


def die_with_parent() -> None:
    """Ends this process when its parent ends; to be said again after a change of user."""
    call("prctl", _PR_SET_PDEATHSIG, 9, 0, 0, 0, what="a signal at the parent's death")


def become(user: int) -> None:
    """Gives up root for good."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def drop_capabilities() -> None:
    """Gives up every capability, also those that a later exec could give back, and refuses to be traced or dumped."""
    for capability in range(64):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    call("capset", ctypes.byref(header), ctypes.byref(nothing), what="giving up capabilities")
    call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0, what="being traced by nobody")


def check_readable(packages: Sequence[str]) -> None:
    """A program that cannot import the standard library would fail through no fault of its own.

    Raises:
        Unreadable: the user that this process has become may not read it, or one of `packages`.
    """
    for path in (*standard_library(), os.__file__, *packages):
        if not os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0)):
            raise Unreadable(f"the sandbox's user {os.getuid()} may not read {path}; make it readable for all")


def address_space_bytes() -> int:
    """Virtual memory that this process has mapped."""
    with open("/proc/self/statm") as sizes:
        return int(sizes.read().split()[0]) * resource.getpagesize()


def limit_resources(limits: Mapping[str, int], idle_bytes: int, own_processes: bool) -> None:
    """Limits that hold for the server and each program alike.

    Args:
        limits: see `SandboxLimits`.
        idle_bytes: what the idle server maps; `memory_mib` is what a program may add.
        own_processes: whether the user's other processes live elsewhere, so that threads can be counted by user.
    """
    _limit(resource.RLIMIT_AS, idle_bytes + limits["memory_mib"] * _MIB)
    _limit(resource.RLIMIT_FSIZE, limits["scratch_mib"] * _MIB)
    _limit(resource.RLIMIT_NOFILE, limits["num_files"])
    for nothing in (resource.RLIMIT_CORE, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_MEMLOCK):
        _limit(nothing, 0)
    if own_processes:
        _limit(resource.RLIMIT_NPROC, limits["num_threads"] + 1)  # the server itself is one


def limit_processor(cpu_s: int) -> None:
    """Processor time of one program, counted from its fork."""
    _limit(resource.RLIMIT_CPU, cpu_s)


def _limit(name: int, value: int) -> None:
    resource.setrlimit(name, (value, value))
