"""Landlock: closes files and, where the kernel knows how, TCP and signals, without any privilege or namespace.

Kernel interface: Documentation/userspace-api/landlock.rst. Rights that this kernel does not know are left out of the request.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from posttrain.verify.sandbox.system_calls import Refused, call

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
# rights over files that each version of the interface knows; the first has 13, later ones add one each
_NUM_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_NUM_FILE_RIGHTS_NOW = 16
_TCP_SINCE, _TCP_RIGHTS = 4, 0b11
_SCOPES_SINCE, _SCOPES = 6, 0b11  # abstract unix sockets, signals
_PR_SET_NO_NEW_PRIVS = 38


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64)]


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("directory", ctypes.c_int32)]


def interface_version() -> int:
    """The version of Landlock that this kernel offers; 0 where it offers none."""
    try:
        return call("syscall", _CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG, what="Landlock")
    except (Refused, OSError):
        return 0


def restrict(readable: Iterable[str], listable: Iterable[str], writable: Iterable[str]) -> None:
    """From here on this process and its children see these paths alone; there is no way back.

    Args:
        readable: directories and files, with all beneath them.
        listable: directories of which only names can be read.
        writable: files that may be read and written, such as /dev/null.

    Raises:
        Refused: the kernel has no Landlock.
    """
    version = interface_version()
    if not version:
        raise Refused("files closed by Landlock (needs Linux 5.13 with Landlock in its list of security modules)")
    known = (1 << _NUM_FILE_RIGHTS.get(version, _NUM_FILE_RIGHTS_NOW)) - 1
    ruleset = _Ruleset(known, _TCP_RIGHTS if version >= _TCP_SINCE else 0, _SCOPES if version >= _SCOPES_SINCE else 0)
    size = ctypes.c_size_t(24 if version >= _SCOPES_SINCE else 16 if version >= _TCP_SINCE else 8)
    descriptor = call("syscall", _CREATE_RULESET, ctypes.byref(ruleset), size, 0, what="Landlock's rules")
    try:
        for paths, rights in ((readable, _READ_FILE | _READ_DIR), (listable, _READ_DIR), (writable, _READ_FILE | _WRITE_FILE)):
            for path in paths:
                _allow(descriptor, path, rights)
        call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, what="no new privileges")
        call("syscall", _RESTRICT_SELF, descriptor, 0, what="files closed by Landlock")
    finally:
        os.close(descriptor)


def _allow(ruleset: int, path: str, rights: int) -> None:
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(path):
            rights &= ~_READ_DIR
        rule = _PathRule(rights, opened)
        call("syscall", _ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0, what=f"Landlock's view of {path}")
    finally:
        os.close(opened)
