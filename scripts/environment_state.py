"""Whether the environment of this checkout is whole: what scripts/environment.py wrote into it, and what is there now."""

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

PYTHON = (3, 11)  # the locks were resolved for it
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "environment.json"
INTERPRETER = VENV / "bin" / "python"
PACKAGES = VENV / "lib" / "python{}.{}".format(*PYTHON) / "site-packages"


class EnvironmentFault(Exception):
    """What is wrong and what to do; shown without a traceback."""


def is_ready(locks):
    stamp = read_stamp()
    return stamp is not None and matches(stamp, locks)


def matches(stamp, locks):
    """Whether the stamped environment is that of this checkout, holds `locks` with their files, and still runs."""
    if stamp["location"] != str(VENV) or any(stamp["locks"].get(name) != _digest(text) for name, text in locks.items()):
        return False
    installed = installed_versions()
    for pin in (pin for text in locks.values() for pin in pins(text)):
        name, version = pin.split("==")
        if installed.get(_canonical(name), "").partition("+")[0] != version:
            return False
    return all((PACKAGES / str(name)).exists() for name in stamp["files"]) and _version() == stamp["python"]


def read_stamp():
    """What was written when the environment was whole; None when it was not, or when it is no such stamp."""
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
        kinds = {name: type(value) for name, value in stamp.items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return stamp if kinds == {"location": str, "python": str, "locks": dict, "files": list} else None


def write_stamp(locks):
    digests = {name: _digest(text) for name, text in locks.items()}
    stamp = {"location": str(VENV), "python": _version(), "locks": digests, "files": _telling_files()}
    aside = STAMP.with_suffix(".part")
    aside.write_text(json.dumps(stamp), encoding="utf-8")
    aside.rename(STAMP)


def _telling_files():
    """One file of each directory that a package brought, from the records that installers leave: is it still there?"""
    found = {}
    for record in PACKAGES.glob("*.dist-info/RECORD"):
        for line in record.read_text(encoding="utf-8", errors="replace").splitlines():
            name = line.lstrip('"').split(",")[0].rstrip('"')
            top, _, rest = name.partition("/")
            if top not in ("..", "", "__pycache__") and not name.endswith(".pyc"):
                key = (record.parent.name, top)
                if key not in found or rest == "__init__.py":
                    found[key] = name
    return sorted({name for name in found.values() if (PACKAGES / name).exists()})


def _version():
    """What the environment's interpreter says of itself; empty when it does not run."""
    try:
        asked = subprocess.run([str(INTERPRETER), "-I", "-S", "-c", "import sys; print(sys.version)"], stdout=subprocess.PIPE)
    except OSError:
        return ""
    return asked.stdout.decode().strip()


def installed_versions():
    """Name → version of every package that is there, from the names of the metadata directories."""
    found = {}
    if PACKAGES.is_dir():
        for entry in os.listdir(str(PACKAGES)):
            if entry.endswith(".dist-info"):
                name, _, version = entry[: -len(".dist-info")].rpartition("-")
                found[_canonical(name)] = version
    return found


def read_lock(name):
    lock = ROOT / "requirements" / (name + ".txt")
    if not lock.is_file():
        names = ", ".join(sorted(path.stem for path in lock.parent.glob("*.txt")))
        raise EnvironmentFault("there is no lock {!r} in {}. Known: {}.".format(name, lock.parent, names))
    return lock.read_text(encoding="utf-8")


def pins(text):
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def _digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def clean_environment():
    """Without what would make a Python of the environment look elsewhere or write no bytecode."""
    dropped = (
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONDONTWRITEBYTECODE",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_USER",
        "__PYVENV_LAUNCHER__",
    )
    return {name: value for name, value in os.environ.items() if name not in dropped}
