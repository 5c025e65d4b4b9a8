"""Takes rights away from the fork server (once) and from each of its children.

Once: namespaces for user, mounts, processes, network, IPC and host name, and a new root that holds the interpreter's
libraries, read-only, and four devices. For each child: its own process and mount namespace, a private scratch, an
unprivileged user, resource limits, no capabilities, seccomp. Nothing here is undone: it ends with the process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import stat
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWUSER, CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
_ATTR_READ_ONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_NOEXEC = 1, 2, 4, 8
_MNT_DETACH, _AT_FDCWD, _AT_RECURSIVE = 2, -100, 0x8000
_SYS_MOUNT_SETATTR = 442
_PR_CAPBSET_DROP, _PR_SET_PDEATHSIG = 24, 1

NOBODY = 65534
SCRATCH = "/scratch"
_STAGE = "/sys"  # any directory that exists everywhere and holds no library; only this namespace sees it covered
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_EXTRAS = ("/etc/ld.so.cache", "/usr/share/zoneinfo")

_REFUSALS = (errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOSYS)
_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EINTR, errno.ECHILD)  # say nothing about permission
_libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """The kernel refuses something that isolation needs; the message names it."""


def _call(name: str, *arguments: object, what: str) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        if code in _SHORTAGES:
            raise OSError(code, f"{what} ({name}: {os.strerror(code)})")
        raise Refused(f"{what} ({name}: {os.strerror(code)})")


def is_refusal(error: BaseException) -> bool:
    """Whether the kernel forbids isolation; a shortage (processes, descriptors, memory) only prevents it now."""
    return isinstance(error, Refused) or (isinstance(error, OSError) and error.errno in _REFUSALS)


def enter_namespaces() -> bool:
    """Moves this process into new namespaces; its children also into a new process namespace.

    Returns whether the user `nobody` exists inside (when started by root), so that children can become it.

    Raises:
        Refused: the kernel or the container allows no such namespace.
    """
    flags = _CLONE_NEWUSER | _CLONE_NEWNS | CLONE_NEWPID | _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWUTS
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        return _enter_as_root(flags)
    _call("unshare", flags, what="user, mount, process, network and IPC namespaces")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    return False


def _enter_as_root(flags: int) -> bool:
    """Maps root and nobody; only a process outside the new namespace may map more than itself."""
    server = os.getpid()
    ready_read, ready_write = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(ready_write)
        os._exit(_write_maps(server) if os.read(ready_read, 1) else 0)
    os.close(ready_read)
    try:
        _call("unshare", flags, what="user, mount, process, network and IPC namespaces")
        os.write(ready_write, b"1")
    finally:
        os.close(ready_write)
        failed = os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1])
    if failed:
        raise Refused("a map of users into the new user namespace")
    return True


def _write_maps(process: int) -> int:
    try:
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{process}/{name}").write_text(f"0 0 1\n{NOBODY} {NOBODY} 1\n")
    except OSError:
        return 1
    return 0


def die_with_parent() -> None:
    """Ends this process when its parent ends."""
    _call("prctl", _PR_SET_PDEATHSIG, 9, 0, 0, 0, what="a signal at the parent's death")


def enter_new_root(packages: Sequence[str]) -> None:
    """Replaces the file system by one that holds the interpreter's libraries and `packages`, read-only.

    Raises:
        Refused: a mount is not allowed.
    """
    hidden = [] if packages else _site_packages()
    _call("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None, what="private mounts")
    visible = _visible(packages)
    _mount_tmpfs(_STAGE, "size=1m,mode=755")
    for path in _links(visible):
        target = Path(_STAGE + path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(os.readlink(path))
    for path in visible:
        _bind(path, _ATTR_READ_ONLY | _ATTR_NOSUID | _ATTR_NODEV)
    for path in _DEVICES:
        _bind(path, _ATTR_NOSUID | _ATTR_NOEXEC)
    for path in hidden:
        if Path(_STAGE + path).is_dir():
            _mount_tmpfs(_STAGE + path, "size=0,mode=755")
    Path(_STAGE + SCRATCH).mkdir()
    if not os.path.lexists(_STAGE + "/tmp"):  # an interpreter or packages may lie there
        Path(_STAGE + "/tmp").symlink_to(SCRATCH)
    _set_attributes(_STAGE, _ATTR_READ_ONLY | _ATTR_NOSUID | _ATTR_NODEV, recursive=False)
    os.chdir(_STAGE)
    _call("pivot_root", b".", b".", what="a new root directory")
    _call("umount2", b".", _MNT_DETACH, what="leaving the old root directory")
    os.chdir("/")


def _visible(packages: Sequence[str]) -> list[str]:
    """Real paths that the interpreter reads after its start, none inside another."""
    wanted = {os.path.realpath(sysconfig.get_path("stdlib")), *(os.path.realpath(path) for path in packages)}
    wanted.add(os.path.realpath(Path(sysconfig.get_config_var("DESTSHARED") or sysconfig.get_path("stdlib"))))
    with open("/proc/self/maps") as maps:
        libraries = {line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line}
    wanted |= {os.path.dirname(os.path.realpath(path)) for path in libraries}
    wanted |= {os.path.realpath(path) for path in _EXTRAS}
    existing = sorted(path for path in wanted if os.path.exists(path))
    return [path for path in existing if not any(path.startswith(f"{other}/") for other in existing)]


def _links(visible: Iterable[str]) -> list[str]:
    """Top-level links such as /lib → usr/lib, through which libraries name each other."""
    tops = [os.path.join("/", name) for name in sorted(os.listdir("/"))]
    return [top for top in tops if os.path.islink(top) and any(_overlap(os.path.realpath(top), path) for path in visible)]


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


def _site_packages() -> list[str]:
    library = os.path.realpath(sysconfig.get_path("stdlib"))
    return [os.path.join(library, name) for name in ("site-packages", "dist-packages")]


def _bind(path: str, attributes: int) -> None:
    target = Path(_STAGE + path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISDIR(os.stat(path).st_mode):
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    _call("mount", path.encode(), str(target).encode(), None, _MS_BIND | _MS_REC, None, what=f"a view of {path}")
    _set_attributes(str(target), attributes, recursive=True)


def _set_attributes(path: str, attributes: int, recursive: bool) -> None:
    change = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    size = ctypes.c_size_t(ctypes.sizeof(change))
    result = _libc.syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, path.encode(), flags, ctypes.byref(change), size)
    if result != 0:
        raise Refused(f"a read-only view of {path} (mount_setattr: {os.strerror(ctypes.get_errno())}; needs Linux 5.12)")


def _mount_tmpfs(path: str, options: str) -> None:
    flags = _MS_NOSUID | _MS_NODEV
    _call("mount", b"tmpfs", path.encode(), b"tmpfs", flags, options.encode(), what="a private tmpfs")


def new_process_namespace(own_namespace: int) -> None:
    """The next child becomes the first process of a new namespace, which dies with it. `own_namespace` undoes it."""
    _call("setns", own_namespace, CLONE_NEWPID, what="its own process namespace")
    _call("unshare", CLONE_NEWPID, what="a new process namespace")


def mount_scratch(size_mib: int) -> None:
    """An empty private directory that vanishes with the child."""
    _call("unshare", _CLONE_NEWNS, what="a mount namespace")
    _mount_tmpfs(SCRATCH, f"size={size_mib}m,nr_inodes=4096,mode=777")
    os.chdir(SCRATCH)


def become_nobody() -> None:
    """Gives up root for good; needs the map that `enter_namespaces` makes for root."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def check_readable(packages: Sequence[str]) -> None:
    """A program that cannot import the standard library would fail through no fault of its own.

    Raises:
        PermissionError: the user that this process has become may not read it, or one of `packages`.
    """
    for path in (sysconfig.get_path("stdlib"), os.__file__, *packages):
        if not os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0)):
            raise PermissionError(errno.EACCES, f"the sandbox's user {os.getuid()} may not read {path}; make it readable for all")


def drop_capabilities() -> None:
    """Gives up every capability, also those that a later exec could give back."""
    for capability in range(64):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    _call("capset", ctypes.byref(header), ctypes.byref(nothing), what="giving up capabilities")


def address_space_bytes() -> int:
    """Virtual memory that this process has mapped."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def set_limits(limits: Mapping[str, int], idle_bytes: int) -> None:
    """`memory_mib` is what a program may add to an idle interpreter of `idle_bytes`."""
    mib = 1 << 20
    _limit(
        (
            (resource.RLIMIT_AS, idle_bytes + limits["memory_mib"] * mib),
            (resource.RLIMIT_CPU, limits["cpu_s"]),
            (resource.RLIMIT_FSIZE, limits["scratch_mib"] * mib),
            (resource.RLIMIT_NOFILE, limits["num_files"]),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_MEMLOCK, 0),
        )
    )


def limit_threads(num_threads: int) -> None:
    """Only inside a user namespace: outside it the limit counts every process that the user has."""
    _limit(((resource.RLIMIT_NPROC, num_threads),))


def _limit(limits: Iterable[tuple[int, int]]) -> None:
    for name, value in limits:
        resource.setrlimit(name, (value, value))


def forget_environment() -> None:
    """Leaves children nothing of how the server was started."""
    os.environ.clear()
    sys.argv = ["program"]
    sys.path = [path for path in sys.path if path and os.path.exists(path)]
