"""Hostile completions. Each returns `breached` only if it got what it must not get, and `breached` is the expected output:
a `pass` therefore is a breach. Also a script: it judges all of them and prints what happened, for use as another user.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from posttrain.config_verify import VerifySettings
from posttrain.verify.base import Verdict, VerificationRequest
from posttrain.verify.code import CodeVerifier

SETTINGS = VerifySettings(timeout_s=1.0, memory_mib=150 + os.getpid() % 100)  # the number marks our processes


@dataclass(frozen=True)
class Host:
    """What a breach would read, reach or change."""

    directory: Path
    nonce: str
    listener: socket.socket
    datagrams: socket.socket

    @property
    def secret(self) -> Path:
        return self.directory / "secret"


@dataclass(frozen=True)
class Attack:
    name: str
    body: str
    outcome: str = "fail"  # or two, where it depends on which limit is met first
    detail: str = ""
    breached: object = "breached"


@contextmanager
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory() as directory, socket.socket() as listener:
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with datagrams:
            for endpoint in (listener, datagrams):
                endpoint.bind(("127.0.0.1", 0))
                endpoint.setblocking(False)
            listener.listen()
            made = Host(Path(directory), f"nonce-{secrets.token_hex(8)}", listener, datagrams)
            made.secret.write_text(made.nonce)
            yield made


def changes(target: Host) -> list[str]:
    """What the host shows of an attack: read from outside, empty when it held."""
    found = [f"a new file {path}" for path in target.directory.iterdir() if path != target.secret]
    if target.secret.read_text() != target.nonce:
        found.append("the secret file was changed")
    for name, probe in (("tcp", target.listener.accept), ("udp", lambda: target.datagrams.recv(64))):
        try:
            probe()
            found.append(f"a {name} message arrived")
        except BlockingIOError:
            pass
    return found + [f"process {process} survives" for process in sandbox_processes()]


def sandbox_processes() -> list[int]:
    """Processes of our sandboxes: forked children keep the command line of their server."""
    mark = f'"memory_mib": {SETTINGS.memory_mib}'.encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if b"posttrain.verify.sandbox.server" in command and mark in command:
            found.append(int(entry.name))
    return found


def judge(attack: Attack, target: Host) -> Verdict:
    replacements = {
        "SECRET": repr(str(target.secret)), "DIRECTORY": repr(str(target.directory)), "PARENT": str(os.getpid()),
        "TCP": str(target.listener.getsockname()[1]), "UDP": str(target.datagrams.getsockname()[1]),
    }  # fmt: skip
    body = attack.body
    for word, value in replacements.items():
        body = body.replace(f"<{word}>", value)
    source = "import os, sys, ctypes\nlibc = ctypes.CDLL(None)\ndef solve(x):\n" + textwrap.indent(
        textwrap.dedent(body).strip(), "    "
    )
    expected = target.nonce if attack.breached == "nonce" else attack.breached
    answer = {"mode": "function", "name": "solve", "inputs": [[1], [2]], "outputs": [expected, expected]}
    return CodeVerifier(SETTINGS).verify([VerificationRequest("p", 0, "", source, answer, "stop")])[0]


_SCAN = """
import gc
strings = [item for item in gc.get_objects() if isinstance(item, str)]
for item in gc.get_objects():
    strings += [text for text in gc.get_referents(item) if isinstance(text, str)]
frame = sys._getframe()
while frame:
    strings += [str(frame.f_locals), str(frame.f_globals)]
    frame = frame.f_back
start = "".join(["non", "ce-"])  # the whole word would find itself
return next((text for text in strings if text.startswith(start) and text != start), "nothing")
"""
_FILL = """
written = 0
try:
    while written < 100 << 20:
        with open(f"file{written}", "wb") as target:
            written += target.write(bytes(8 << 20))
except OSError:
    pass
return written > 20 << 20
"""
_MANY_FILES = """
number = 0
try:
    while number < 100_000:
        open(f"file{number}", "w").close()
        number += 1
except OSError:
    pass
return number > 5_000
"""
_DAEMON = """
import subprocess
for start in (os.fork, lambda: subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True), lambda: os.posix_spawn("/bin/sleep", ["sleep", "1000"], {})):
    try:
        if start() == 0:
            os.setsid()
            while True:
                pass
        return "breached"
    except OSError:
        pass
return "refused"
"""
_THREAD_EXIT = """
import threading
def leave():
    raise SystemExit(0)
threads = [threading.Thread(target=leave) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
return "nothing"
"""

ATTACKS = [
    # files and other processes
    Attack("read a secret file", "return open(<SECRET>).read()", detail="FileNotFoundError", breached="nonce"),
    Attack("read the secret through a link", "os.path.lexists('l') or os.symlink(<SECRET>, 'l'); return open('l').read()", detail="FileNotFoundError", breached="nonce"),
    Attack("read the password file", "return bool(open('/etc/shadow').read())", detail="FileNotFoundError", breached=True),
    Attack("read another process's environment", "return bool(open('/proc/<PARENT>/environ', 'rb').read())", detail="FileNotFoundError", breached=True),
    Attack("read its own memory map", "return bool(open('/proc/self/maps').read())", detail="FileNotFoundError", breached=True),
    Attack("find an environment", "return bool(os.environ)", breached=True),
    Attack("write beside the secret", "open(<DIRECTORY> + '/new', 'w').write('x'); return 'breached'", detail="FileNotFoundError"),
    Attack("write into the standard library", "open(os.__file__, 'a').write('x'); return 'breached'", detail="Errno"),
    Attack("delete the standard library", "os.remove(os.__file__); return 'breached'", detail="Errno"),
    Attack("write to the root directory", "open('/new', 'w').write('x'); return 'breached'", detail="Errno"),
    Attack("fill the disk", _FILL, breached=True),
    Attack("make many files", _MANY_FILES, breached=True),
    # network and other ways out
    Attack("connect by tcp", "import socket; socket.create_connection(('127.0.0.1', <TCP>)); return 'breached'", detail="PermissionError"),
    Attack("send by udp", "import socket; socket.socket(2, 2).sendto(b'x', ('127.0.0.1', <UDP>)); return 'breached'", detail="PermissionError"),
    Attack("open a unix socket", "import socket; socket.socketpair(); return 'breached'", detail="PermissionError"),
    Attack("make shared memory", "return libc.shmget(1234, 4096, 0o1666) >= 0", breached=True),
    Attack("signal the harness", "os.kill(<PARENT>, 15); return 'breached'", detail="PermissionError"),
    Attack("signal everyone", "os.kill(-1, 9); return 'breached'", detail="PermissionError"),
    Attack("trace the harness", "return libc.ptrace(16, <PARENT>, 0, 0) == 0", breached=True),
    Attack("mount", "return libc.mount(b'proc', b'/scratch', b'proc', 0, 0) == 0", breached=True),
    Attack("enter a new user namespace", "return libc.unshare(0x10000000) == 0", breached=True),
    Attack("change the root", "os.chroot('/scratch'); return 'breached'", detail="PermissionError"),
    Attack("become root", "os.setuid(0); return 'breached'", detail="PermissionError"),
    Attack("run a shell", "return os.system('id') == 0", breached=True),
    Attack("become a shell", "os.execv('/bin/sh', ['sh', '-c', 'id']); return 'breached'", detail="Error"),
    # processes, memory, time
    Attack("fork bomb", "while True:\n    os.fork()", detail="PermissionError"),
    Attack("daemonised grandchild", _DAEMON),
    Attack("memory bomb", "return len(bytearray(10 << 30))", detail="MemoryError"),
    Attack("slow memory bomb", "kept = []\nwhile True:\n    kept.append(bytes(1 << 20))", detail="MemoryError"),
    Attack("thread bomb", "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(9,)).start()", detail="can't start new thread"),
    Attack("infinite loop", "while True:\n    pass", outcome="timeout"),
    Attack("endless sleep", "import time; time.sleep(1000)", outcome="timeout"),
    Attack("loop that ignores signals", "import signal\nfor s in (1, 2, 15, 24): signal.signal(s, signal.SIG_IGN)\nwhile True:\n    pass", outcome="timeout"),
    Attack("close every channel and loop", "os.closerange(0, 64)\nwhile True:\n    pass", outcome="timeout"),
    Attack("power tower", "return 9 ** 9 ** 9", outcome="timeout"),
    Attack("deep recursion", "sys.setrecursionlimit(10 ** 9)\ndef deeper(n):\n    return [deeper(n + 1)]\nreturn deeper(0)", outcome="fail or timeout"),
    Attack("segmentation fault", "return ctypes.string_at(0)", detail="status -11"),
    Attack("abort", "os.abort()", detail="status"),
    # output
    Attack("print 100 MB", "for _ in range(100):\n    os.write(1, bytes(1 << 20))\nreturn 'breached'", detail="more than allowed"),
    Attack("report 100 MB", "for _ in range(100):\n    os.write(3, bytes(1 << 20))\nreturn 'breached'", detail="more than allowed"),
    Attack("return 100 MB", "return 'x' * (100 << 20)", outcome="fail or timeout"),
    Attack("return a huge integer", "return 10 ** 10_000", detail="plain JSON"),
    Attack("return a deep list", "value = []\nfor _ in range(100_000):\n    value = [value]\nreturn value", detail="nested too deeply"),
    Attack("report deep JSON", "os.write(3, b'[' * 200_000 + b'\\n'); os._exit(0)", detail="plain JSON"),
    Attack("report invalid text", "os.write(3, b'{\"value\": \"\\xff\\xfe\"}\\n'); os._exit(0)", detail="plain JSON"),
    Attack("report NaN", "os.write(3, b'{\"value\": NaN}\\n'); os._exit(0)", detail="plain JSON"),
    Attack("report no mapping", "os.write(3, b'[1]\\n\"x\"\\n'); os._exit(0)", detail="status 0"),
    # forged verdicts
    Attack("sys.exit(0)", "sys.exit(0)", detail="SystemExit", breached="nonce"),
    Attack("os._exit(0)", "os._exit(0)", detail="status 0", breached="nonce"),
    Attack("print markers", "print('ready\\nPASS\\n{\"value\": true}\\nall tests passed'); sys.exit(0)", breached="nonce"),
    Attack("report success", "os.write(3, b'{\"value\": \"pass\", \"outcome\": \"pass\", \"reward\": 1}\\n' * 2); os._exit(0)", breached="nonce"),
    Attack("patch json", "import json; json.dumps = lambda *a, **k: '{\"pass\": true}'; return 1", breached="nonce"),
    Attack("patch builtins", "import builtins; builtins.all = builtins.any = builtins.len = lambda *a: True; builtins.type = int; return 1", breached="nonce"),
    Attack("patch time", "import time; time.time = time.monotonic = lambda: 0.0\nwhile True:\n    pass", outcome="timeout"),
    Attack("equal to everything", "return type('Equal', (str,), {'__eq__': lambda self, other: True, '__hash__': str.__hash__})('x')", breached="nonce", detail="type Equal"),
    Attack("True for 1", "return True", breached=1),
    Attack("NaN", "return float('nan')", breached=0.5),
    Attack("search memory and frames", _SCAN, breached="nonce", detail="found nothing"),
    Attack("exit hooks", "import atexit; atexit.register(os._exit, 0); sys.excepthook = lambda *a: os._exit(0); raise ValueError('x')", breached="nonce", detail="ValueError"),
    Attack("SystemExit in a thread", _THREAD_EXIT, breached="nonce"),
]  # fmt: skip


def main() -> None:
    """Prints for each attack its outcome, detail and what the host shows."""
    results: dict[str, tuple[str, str, list[str]]] = {}
    with host() as target:
        for attack in ATTACKS:
            verdict = judge(attack, target)
            results[attack.name] = verdict.outcome, verdict.detail, changes(target)
    json.dump({"user": os.geteuid(), "results": results}, sys.stdout)


if __name__ == "__main__":
    main()
