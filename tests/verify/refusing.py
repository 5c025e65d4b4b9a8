"""Runs a module where the kernel seems to refuse some things, as the security profile of a container does.

`python -m tests.verify.refusing namespaces,landlock MODULE ARGUMENT…`. The filter planted here holds for the module and all that
it starts. x86-64 only.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import struct
import sys

_UNSHARE, _LANDLOCK, _CLONE, _NEW_USERS = 272, 444, 56, 0x10000000
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050001  # with EPERM


def _refuse(call: int) -> list[tuple[int, int, int, int]]:
    return [(_LOAD, 0, 0, 0), (_EQUAL, 0, 1, call), (_RETURN, 0, 0, _REFUSE)]


def _refuse_new_users(call: int) -> list[tuple[int, int, int, int]]:
    flags = [(_LOAD, 0, 0, 16), (_ANY_BIT, 0, 1, _NEW_USERS), (_RETURN, 0, 0, _REFUSE)]
    return [(_LOAD, 0, 0, 0), (_EQUAL, 0, len(flags), call), *flags]


REFUSALS = {
    "namespaces": _refuse(_UNSHARE),
    "user namespaces": _refuse_new_users(_UNSHARE) + _refuse_new_users(_CLONE),
    "landlock": _refuse(_LANDLOCK),
}


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def plant(names: list[str]) -> None:
    """Installs the filter; `bubblewrap` among the names hides the program of that name."""
    if "bubblewrap" in names:
        os.environ["PATH"] = "/nowhere"
    steps = [step for name in names if name in REFUSALS for step in REFUSALS[name]] + [(_RETURN, 0, 0, _ALLOW)]
    code = b"".join(struct.pack("<HBBI", *step) for step in steps)
    libc = ctypes.CDLL(None)
    program = _Program(len(steps), code)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0


if __name__ == "__main__":
    plant(sys.argv[1].split(","))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
