"""The system calls that an untrusted program may make, as raw BPF programs for seccomp.

A list of what is allowed, so that a call unknown to us is refused. Not on it, among others: execve, fork, socket, mount,
unshare, setns, ptrace, kill, bpf, io_uring, keyctl, shared memory. tgkill may name only the process itself and prlimit64
only "myself"; fcntl may neither choose whom the kernel signals nor lease a file. clone may only make a thread; clone3 hides
its flags from the filter, so it says ENOSYS and the C library falls back to clone.

The list is installed once, in the fork server, and inherited: translating it takes the kernel longer than a fork. It still
holds what the server itself needs (forking, waiting, messages); a short second filter takes that from each program.
Of two filters the stricter answer counts.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence

# name:number on x86-64:number on arm64 (left out where the architecture has no such call)
_ALLOWED = """
    read:0:63 write:1:64 close:3:57 fstat:5:80 lseek:8:62 mmap:9:222 mprotect:10:226 munmap:11:215 brk:12:214
    rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigpending:127:136 rt_sigtimedwait:128:137
    rt_sigsuspend:130:133 sigaltstack:131:132 ioctl:16:29 pread64:17:67 pwrite64:18:68 readv:19:65 writev:20:66
    preadv:295:69 pwritev:296:70 pipe:22 pipe2:293:59 select:23 pselect6:270:72 poll:7 ppoll:271:73 epoll_create1:291:20
    epoll_ctl:233:21 epoll_pwait:281:22 epoll_wait:232 eventfd2:290:19 sched_yield:24:124 mremap:25:216 msync:26:227
    mincore:27:232 madvise:28:233 dup:32:23 dup2:33 dup3:292:24 pause:34 nanosleep:35:101 clock_nanosleep:230:115
    clock_gettime:228:113 clock_getres:229:114 gettimeofday:96:169 time:201 times:100:153 getitimer:36:102
    setitimer:38:103 alarm:37 getpid:39:172 getppid:110:173 gettid:186:178 getpgrp:111 getpgid:121:155 getsid:124:156
    getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177 getgroups:115:158 exit:60:93 exit_group:231:94
    uname:63:160 flock:73:32 fsync:74:82 fdatasync:75:83 getcwd:79:17 chdir:80:49 fchdir:81:50
    getdents64:217:61 getrlimit:97:163 getrusage:98:165 sysinfo:99:179 umask:95:166 statfs:137:43
    fstatfs:138:44 stat:4 lstat:6 newfstatat:262:79 statx:332:291 access:21 faccessat:269:48 faccessat2:439:439
    readlink:89 readlinkat:267:78 arch_prctl:158 set_tid_address:218:96 set_robust_list:273:99 futex:202:98
    sched_getaffinity:204:123 sched_getscheduler:145:120 sched_getparam:143:121 getcpu:309:168 restart_syscall:219:128
    fadvise64:221:223 openat:257:56 getrandom:318:278 rseq:334:293 membarrier:324:283
    copy_file_range:326:285 sendfile:40:71 splice:275:76 close_range:436:436 getpriority:140:141
"""
_CHANGES_FILES = """
    truncate:76:45 ftruncate:77:46 fallocate:285:47 rename:82 renameat:264:38 renameat2:316:276 mkdir:83 mkdirat:258:34
    rmdir:84 unlink:87 unlinkat:263:35 symlink:88 symlinkat:266:36 chmod:90 fchmod:91:52 fchmodat:268:53 utimensat:280:88
"""
# what the server needs after the list is in force, and no program gets
_SERVER_ONLY = """
    wait4:61:260 kill:62:129 recvmsg:47:212 sendto:44:206 recvfrom:45:207 prctl:157:167 pidfd_open:434:434
"""
_CLONE = "clone:56:220"
_CLONE3 = "clone3:435:435"
_OPENAT = "openat:257:56"
_TGKILL = "tgkill:234:131"
_PRLIMIT64 = "prlimit64:302:261"
_FCNTL = "fcntl:72:25"

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_FORMAT = "<HBBI"
_INSTRUCTION_BYTES, _VALUE_AT = 8, 4
_OWN_PROCESS = 0xFFFFFFFF  # stands for the number of a process that is not known yet
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE, _NO_SUCH_CALL, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x80000000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_X32_CALLS = 0x40000000
_CLONE_THREAD = 0x00010000
# F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY: the kernel would signal any process on our behalf, or hold up its opens
_OTHERS_COMMANDS = (8, 10, 15, 1024, 1026)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2

_PRCTL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, *[ctypes.c_ulong] * 4, use_errno=True)
_prctl = _PRCTL(("prctl", ctypes.CDLL(None)))


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


class Filters:
    """The filters for this machine.

    Args:
        read_only: also refuse every call that changes a file; for use where no mount namespace protects the files.

    Raises:
        OSError: the architecture has no table of calls here.
    """

    def __init__(self, read_only: bool) -> None:
        machine = platform.machine()
        if machine not in _ARCHITECTURES:
            raise OSError(errno.ENOSYS, f"no seccomp table for the architecture {machine}")
        column, architecture = _ARCHITECTURES[machine]
        self._for_server = _pack([*_check_architecture(architecture), *_check_calls(column, read_only)])
        self._for_program = _Prepared(_check_program(column))

    def install_for_server(self) -> None:
        """Binds the server and all that it starts; there is no way back.

        Raises:
            OSError: the kernel refuses seccomp filters.
        """
        _set(_PR_SET_NO_NEW_PRIVS, 1, 0)
        _install(self._for_server)

    def install_for_program(self) -> None:
        """Takes from this process what only the server needs, and lets it signal nobody but itself.

        Raises:
            OSError: the kernel refuses seccomp filters.
        """
        self._for_program.install(os.getpid())


class _Prepared:
    """A filter that lacks nothing but the number of the process: writing that is all that is left to do after a fork."""

    def __init__(self, code: list[tuple[int, int, int, int]]) -> None:
        (self._at,) = (place for place, step in enumerate(code) if step[3] == _OWN_PROCESS)
        self._code = ctypes.create_string_buffer(_pack(code))
        self._program = _Program(len(code), ctypes.cast(self._code, ctypes.c_char_p))
        self._address = ctypes.addressof(self._program)

    def install(self, process: int) -> None:
        struct.pack_into("<I", self._code, self._at * _INSTRUCTION_BYTES + _VALUE_AT, process)
        _set(_PR_SET_SECCOMP, _MODE_FILTER, self._address)


def _install(code: bytes) -> None:
    program = _Program(len(code) // _INSTRUCTION_BYTES, code)
    _set(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(program))


def _set(option: int, argument: int, address: int) -> None:
    if _prctl(option, argument, address, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel refuses a seccomp filter")


def _pack(code: list[tuple[int, int, int, int]]) -> bytes:
    return b"".join(struct.pack(_FORMAT, *instruction) for instruction in code)


def _check_architecture(architecture: int) -> list[tuple[int, int, int, int]]:
    return [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32_CALLS),
        (_RETURN, 0, 0, _KILL),
    ]


def _check_program(column: int) -> list[tuple[int, int, int, int]]:
    code = [(_LOAD, 0, 0, _NUMBER_AT)]
    code += _on_values(_numbers(_TGKILL, column)[0], 0, (_OWN_PROCESS,), listed=_ALLOW, others=_REFUSE)
    code += _on_argument(_numbers(_CLONE, column)[0], 0, _CLONE_THREAD, set_bits=_ALLOW, clear_bits=_REFUSE)
    for number in _numbers(_SERVER_ONLY, column):
        code += _on_call(number, _REFUSE)
    return [*code, (_RETURN, 0, 0, _ALLOW)]


def _check_calls(column: int, read_only: bool) -> list[tuple[int, int, int, int]]:
    code = _on_call(_numbers(_CLONE3, column)[0], _NO_SUCH_CALL)
    code += _on_values(_numbers(_PRLIMIT64, column)[0], 0, (0,), listed=_ALLOW, others=_REFUSE)
    code += _on_values(_numbers(_FCNTL, column)[0], 1, _OTHERS_COMMANDS, listed=_REFUSE, others=_ALLOW)
    if read_only:
        code += _on_argument(_numbers(_OPENAT, column)[0], 2, _WRITES, set_bits=_REFUSE, clear_bits=_ALLOW)
    allowed = f"{_ALLOWED} {_SERVER_ONLY} {_CLONE} {_TGKILL}" + ("" if read_only else _CHANGES_FILES)
    for number in _numbers(allowed, column):
        code += _on_call(number, _ALLOW)
    return [*code, (_RETURN, 0, 0, _REFUSE)]


def _on_call(number: int, action: int) -> list[tuple[int, int, int, int]]:
    return [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, action)]


def _on_argument(number: int, position: int, bits: int, set_bits: int, clear_bits: int) -> list[tuple[int, int, int, int]]:
    """Decides a call by whether any of `bits` is set in its argument `position`."""
    return [
        (_EQUAL, 0, 4, number),
        (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * position),
        (_ANY_BIT, 0, 1, bits),
        (_RETURN, 0, 0, set_bits),
        (_RETURN, 0, 0, clear_bits),
    ]


def _on_values(number: int, position: int, values: Sequence[int], listed: int, others: int) -> list[tuple[int, int, int, int]]:
    """Decides a call by whether its argument `position`, of 32 bits, is one of `values`."""
    return [
        (_EQUAL, 0, len(values) + 3, number),
        (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * position),
        *((_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)),
        (_RETURN, 0, 0, others),
        (_RETURN, 0, 0, listed),
    ]


def _numbers(table: str, column: int) -> list[int]:
    rows = [entry.split(":")[1:] for entry in table.split()]
    return [int(row[column]) for row in rows if len(row) > column]
