"""Calls of the C library that Python does not offer, and what their failures mean."""

from __future__ import annotations

import ctypes
import errno
import os

_REFUSALS = (errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOSYS, errno.EOPNOTSUPP)
_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EINTR, errno.ECHILD)  # say nothing about permission
_libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """The kernel refuses something that isolation needs; the message names it."""


def call(name: str, *arguments: object, what: str) -> int:
    """Calls a function of the C library that returns a negative number when it fails.

    Raises:
        Refused: the kernel forbids it, or knows no such thing.
        OSError: something is short at the moment.
    """
    result = getattr(_libc, name)(*arguments)
    if result < 0:
        code = ctypes.get_errno()
        if code in _SHORTAGES:
            raise OSError(code, f"{what} ({name}: {os.strerror(code)})")
        raise Refused(f"{what} ({name}: {os.strerror(code)})")
    return result


def is_refusal(error: BaseException) -> bool:
    """Whether the kernel forbids isolation; a shortage (processes, descriptors, memory) only prevents it now."""
    return isinstance(error, Refused) or (isinstance(error, OSError) and error.errno in _REFUSALS)
