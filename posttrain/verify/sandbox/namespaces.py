"""Namespaces of its own for the fork server: users, mounts, processes, network, IPC and host name. They end with it."""

from __future__ import annotations

import os

from posttrain.verify.sandbox.system_calls import Refused, call

_NEW_MOUNTS, _NEW_HOST_NAME, _NEW_IPC = 0x00020000, 0x04000000, 0x08000000
_NEW_USERS, _NEW_PROCESSES, _NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
_WITHOUT_USERS = _NEW_MOUNTS | _NEW_PROCESSES | _NEW_NETWORK | _NEW_IPC | _NEW_HOST_NAME
_WITH_USERS = _WITHOUT_USERS | _NEW_USERS
_NOBODY = 65534
_FIRST_OWN_USER = 0x70000000  # far above any user of the machine


def enter_namespaces() -> int:
    """Moves this process into new namespaces; its children also into a new process namespace.

    Root, where user namespaces are refused, does without one: what follows gives up root in any case.

    Returns the user that the server is to become inside: `nobody` when started by root; without a user namespace one of its own,
    since the kernel then counts the processes of `nobody` on the whole machine; 0, which stands for the user that started it.

    Raises:
        Refused: the kernel or the container allows no such namespace.
    """
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        try:
            _enter_as_root()
        except Refused as refused:
            call("unshare", _WITHOUT_USERS, what=f"{refused}, nor without a user namespace")
            return _FIRST_OWN_USER + os.getpid()
        return _NOBODY
    call("unshare", _WITH_USERS, what="user, mount, process, network and IPC namespaces")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        _write(f"/proc/self/{name}", text)
    return 0


def _enter_as_root() -> None:
    """Maps root and nobody; only a process outside the new namespace may map more than itself."""
    server = os.getpid()
    ready_read, ready_write = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(ready_write)
        os._exit(_write_maps(server) if os.read(ready_read, 1) else 0)
    os.close(ready_read)
    try:
        call("unshare", _WITH_USERS, what="user, mount, process, network and IPC namespaces")
        os.write(ready_write, b"1")
    finally:
        os.close(ready_write)
        failed = os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1])
    if failed:
        raise Refused("a map of users into the new user namespace")


def _write_maps(process: int) -> int:
    try:
        for name in ("uid_map", "gid_map"):
            _write(f"/proc/{process}/{name}", f"0 0 1\n{_NOBODY} {_NOBODY} 1\n")
    except OSError:
        return 1
    return 0


def _write(path: str, text: str) -> None:
    with open(path, "w") as target:
        target.write(text)
