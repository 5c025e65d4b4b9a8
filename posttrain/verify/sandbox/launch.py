"""Starts a fork server at the strongest level that this machine allows and the policy accepts, and says which it is."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from posttrain.errors import VerificationError
from posttrain.verify.sandbox import filesystem

LIBRARY = Path(__file__).parents[3]
LEVELS = ("namespaces", "bubblewrap", "landlock", "weak")  # the strongest first
ACCEPTED = {"namespaces": LEVELS[:2], "require": LEVELS[:3], "weak": LEVELS}
_WARNINGS = {
    "landlock": "files and network are closed by Landlock; programs have no scratch, and see that other processes exist",
    "weak": "WEAK SANDBOX: programs can read files and may read the expected results from this process's memory; network, "
    "processes, signals, writing and resources stay bounded",
}
_refused: dict[str, str] = {}
_said: set[str] = set()
logger = logging.getLogger("posttrain")


class SandboxRefused(VerificationError):
    """The kernel refuses the isolation that the settings require."""


def start_strongest(levels: Sequence[str], start: Callable[[str], str | None]) -> None:
    """Tries the accepted levels in order; what this machine refuses once is not tried again.

    Args:
        levels: those of `ACCEPTED` for a policy.
        start: starts a server at a level; returns why the machine refuses it, or None where it runs.

    Raises:
        SandboxRefused: the machine allows no level that the policy accepts.
    """
    for level in levels:
        if level in _refused:
            continue
        why = start(level)
        if why is None:
            _say(level)
            return
        _refused[level] = why
    reasons = "; ".join(f"{level}: {_refused[level]}" for level in levels)
    raise SandboxRefused(
        f"the sandbox cannot isolate programs here as verify.sandbox demands: {reasons}. Allow user namespaces (kernel "
        "setting user.max_user_namespaces, container security profile), install bubblewrap or use a kernel with Landlock; "
        "or set verify.sandbox to weak: programs could then read files and the memory of this process."
    )


def level_in_use(policy: str) -> str:
    """The level that servers of this process run at under `policy`; nothing before the first has started."""
    return next((level for level in ACCEPTED[policy] if level in _said), "")


def _say(level: str) -> None:
    if level in _said:
        return
    _said.add(level)
    if level in _WARNINGS:
        reasons = "; ".join(f"{name}: {why}" for name, why in _refused.items())
        logger.warning("%s. A stronger level is refused here: %s", _WARNINGS[level], reasons)
    else:
        logger.info("sandbox level: %s", level)


def spawn(python: str, config: Mapping[str, Any], control: socket.socket, errors: BinaryIO) -> subprocess.Popen[bytes]:
    """Starts a server by exec, with nothing of this process but its end of the control socket.

    Raises:
        OSError: the interpreter, or bubblewrap, is missing.
    """
    arguments = json.dumps({**config, "control": control.fileno()})
    bytecode = ["-B"] if sys.dont_write_bytecode else []
    command = [python, "-s", "-S", "-P", *bytecode, "-X", "utf8", "-m", "posttrain.verify.sandbox.server", arguments]
    environment = {
        "PYTHONPATH": str(LIBRARY),
        "PYTHONHASHSEED": "0",  # the order of a set must not change a verdict from run to run
        "LD_BIND_NOW": "1",  # what is linked before the fork is not linked again in every child
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    if config["level"] == "bubblewrap":
        command = [*_bubblewrap(python, config), *command]
    return subprocess.Popen(
        command,
        env=environment,
        cwd="/",
        pass_fds=[control.fileno()],
        close_fds=True,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
    )


def has_bubblewrap() -> bool:
    """Whether `bwrap` is on the path; installed with the set-user-id bit it works where users may make no namespaces."""
    return shutil.which("bwrap") is not None


def _bubblewrap(python: str, config: Mapping[str, Any]) -> list[str]:
    """bubblewrap's command line: the interpreter, its libraries and this package, read-only, and a scratch."""
    shown = [*_interpreter_paths(python), str(LIBRARY / "posttrain"), *config["packages"]]
    command = ["bwrap", "--unshare-all", "--as-pid-1", "--new-session", "--cap-drop", "ALL"]
    for path in filesystem.outermost(os.path.abspath(path) for path in shown if not _is_top_level_link(path)):
        command += ["--ro-bind", path, path]
    for top in sorted(path for path in Path("/").iterdir() if path.is_symlink()):
        command += ["--symlink", os.readlink(top), str(top)]
    for device in filesystem.DEVICES:
        command += ["--dev-bind", device, device]
    if _can_limit_sizes():
        command += ["--size", str(config["limits"]["scratch_mib"] << 20), "--tmpfs", filesystem.SCRATCH]
    return [*command, "--proc", "/proc", "--remount-ro", "/"]


def _can_limit_sizes() -> bool:
    """With the set-user-id bit bubblewrap limits no size: programs then get no scratch rather than one without end."""
    found = shutil.which("bwrap")
    return found is not None and (os.geteuid() == 0 or not os.stat(found).st_mode & stat.S_ISUID)


def _interpreter_paths(python: str) -> list[str]:
    places = {os.path.realpath(python), python, sys.base_prefix, sys.prefix + "/pyvenv.cfg", *filesystem.standard_library()}
    return [place for place in (*places, "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache") if os.path.exists(place)]


def _is_top_level_link(path: str) -> bool:
    return os.path.dirname(path) == "/" and os.path.islink(path)
