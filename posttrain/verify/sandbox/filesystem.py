"""A file system that holds the interpreter's libraries, the shown packages, four devices and a scratch, and nothing else."""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Iterable, Sequence

from posttrain.verify.sandbox.system_calls import call

_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_ATTR_READ_ONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_NOEXEC = 1, 2, 4, 8
_MNT_DETACH, _AT_FDCWD, _AT_RECURSIVE = 2, -100, 0x8000
_SYS_MOUNT_SETATTR = 442

SCRATCH = "/scratch"
MAX_SCRATCH_FILES = 4096
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_STAGE = "/sys"  # any directory that exists everywhere and holds no library; only this namespace sees it covered
_EXTRAS = ("/etc/ld.so.cache", "/usr/share/zoneinfo")


def visible_paths(packages: Sequence[str]) -> list[str]:
    """Real paths that the interpreter and `packages` read after the start, none inside another."""
    with open("/proc/self/maps") as maps:
        libraries = {line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line}
    wanted = {os.path.dirname(path) for path in libraries}
    wanted |= {*standard_library(), *packages, *_EXTRAS}
    return outermost(os.path.realpath(path) for path in wanted if os.path.exists(path))


def outermost(paths: Iterable[str]) -> list[str]:
    """Each path once, sorted, none inside another."""
    ordered = sorted(set(paths))
    return [path for path in ordered if not any(path.startswith(f"{other}/") for other in ordered)]


def standard_library() -> list[str]:
    """Directories of the standard library and its compiled modules."""
    places = {os.path.dirname(os.__file__), *(path for path in sys.path if path.endswith("/lib-dynload"))}
    return sorted(path for path in places if os.path.isdir(path))


def enter_new_root(packages: Sequence[str], scratch_mib: int, owner: int) -> None:
    """Replaces the file system; the standard library's own site-packages show only `packages`. The scratch belongs to `owner`.

    Raises:
        Refused: a mount is not allowed.
    """
    call("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None, what="private mounts")
    visible, hidden = visible_paths(packages), _site_packages()
    _mount_tmpfs(_STAGE, "size=1m,mode=755")
    for path in _links(visible):
        os.makedirs(os.path.dirname(_STAGE + path), exist_ok=True)
        os.symlink(os.readlink(path), _STAGE + path)
    for path in visible:
        _bind(path, _ATTR_READ_ONLY | _ATTR_NOSUID | _ATTR_NODEV)
    for path in DEVICES:
        _bind(path, _ATTR_NOSUID | _ATTR_NOEXEC)
    for path in hidden:
        _show_only(path, packages)
    _make_scratch(scratch_mib, owner)
    _set_attributes(_STAGE, _ATTR_READ_ONLY | _ATTR_NOSUID | _ATTR_NODEV, recursive=False)
    os.chdir(_STAGE)
    call("pivot_root", b".", b".", what="a new root directory")
    call("umount2", b".", _MNT_DETACH, what="leaving the old root directory")
    os.chdir(SCRATCH)


def empty_scratch() -> bool:
    """Removes all that a program left; False where that is not possible and the server must end."""
    try:
        os.chmod(SCRATCH, 0o700)  # a program owns it
        for _ in range(MAX_SCRATCH_FILES):
            if not _lift(SCRATCH):
                return True
    except OSError:
        pass
    return False


def _lift(directory: str) -> bool:
    """Removes the files and empty directories in `directory` and moves what is deeper to its top; whether anything is left.

    However deep a tree is, that needs neither many open directories nor long paths.
    """
    with os.scandir(directory) as listing:
        entries = list(listing)
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.path)
            continue
        os.chmod(entry.path, 0o700)
        with os.scandir(entry.path) as listing:
            inside = list(listing)
        for number, inner in enumerate(inside):
            if inner.is_dir(follow_symlinks=False):
                os.chmod(inner.path, 0o700)
                os.rename(inner.path, f"{directory}/{entry.inode()}-{number}")
            else:
                os.unlink(inner.path)
        os.rmdir(entry.path)
    return bool(entries)


def _make_scratch(size_mib: int, owner: int) -> None:
    os.mkdir(_STAGE + SCRATCH)
    options = f"size={size_mib}m,nr_inodes={MAX_SCRATCH_FILES},mode=700,uid={owner},gid={owner}"
    _mount_tmpfs(_STAGE + SCRATCH, options)
    if not os.path.lexists(_STAGE + "/tmp"):  # an interpreter or packages may lie there
        os.symlink(SCRATCH, _STAGE + "/tmp")


def _links(visible: Iterable[str]) -> list[str]:
    """Top-level links such as /lib → usr/lib, through which libraries name each other."""
    tops = [os.path.join("/", name) for name in sorted(os.listdir("/"))]
    return [top for top in tops if os.path.islink(top) and any(_overlap(os.path.realpath(top), path) for path in visible)]


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


def _site_packages() -> list[str]:
    library = os.path.realpath(os.path.dirname(os.__file__))
    places = [os.path.join(library, name) for name in ("site-packages", "dist-packages")]
    return [place for place in places if os.path.isdir(place)]


def _show_only(place: str, packages: Sequence[str]) -> None:
    """Covers site-packages inside the standard library, except what was asked for."""
    if place in map(os.path.realpath, packages):
        return
    inside = [path for path in map(os.path.realpath, packages) if path.startswith(f"{place}/")]
    _mount_tmpfs(_STAGE + place, "size=64k,mode=755")
    for path in inside:
        _bind(path, _ATTR_READ_ONLY | _ATTR_NOSUID | _ATTR_NODEV)
    _set_attributes(_STAGE + place, _ATTR_READ_ONLY | _ATTR_NOSUID | _ATTR_NODEV, recursive=False)


def _bind(path: str, attributes: int) -> None:
    target = _STAGE + path
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if stat.S_ISDIR(os.stat(path).st_mode):
        os.makedirs(target, exist_ok=True)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    call("mount", path.encode(), target.encode(), None, _MS_BIND | _MS_REC, None, what=f"a view of {path}")
    _set_attributes(target, attributes, recursive=True)


def _set_attributes(path: str, attributes: int, recursive: bool) -> None:
    change = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    size = ctypes.c_size_t(ctypes.sizeof(change))
    what = f"a read-only view of {path} (needs Linux 5.12)"
    call("syscall", _SYS_MOUNT_SETATTR, _AT_FDCWD, path.encode(), flags, ctypes.byref(change), size, what=what)


def _mount_tmpfs(path: str, options: str) -> None:
    flags = _MS_NOSUID | _MS_NODEV
    call("mount", b"tmpfs", path.encode(), b"tmpfs", flags, options.encode(), what="a private tmpfs")
