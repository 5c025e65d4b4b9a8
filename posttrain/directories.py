"""Directories that are either complete or not there: written aside, hashed, renamed."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from posttrain.errors import PolicyError

REMEDY = "Delete the directory and run again: it is made anew."


@contextmanager
def write_aside(directory: Path) -> Iterator[Path]:
    """Yields an empty directory beside `directory`; on success it is flushed to disk and renamed to `directory`.

    When the body raises (a full disk, a NaN), nothing is left and a previous `directory` stays as it was.
    """
    directory = Path(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    aside = directory.with_name(f".{directory.name}.{os.getpid()}.part")
    old = directory.with_name(f".{directory.name}.{os.getpid()}.old")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        yield aside
        _flush(aside)
        if directory.exists():
            directory.rename(old)
        aside.rename(directory)
    finally:
        if old.exists() and not directory.exists():
            old.rename(directory)
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def hash_files(directory: Path, leave_out: str) -> dict[str, str]:
    """sha256 of every file below `directory` by relative path, sorted, without the manifest `leave_out`.

    Raises:
        PolicyError: an entry is neither a file nor a plain directory (a linked directory, a pipe, a dangling link).
    """
    entries = list(Path(directory).rglob("*"))
    for path in entries:
        if not path.is_file() and (path.is_symlink() or not path.is_dir()):
            raise PolicyError(f"{directory}: {path.name!r} is neither a file nor a plain directory. {REMEDY}")
    files = sorted(path for path in entries if path.is_file())
    names = {path.relative_to(directory).as_posix(): path for path in files}
    return {name: hash_file(path) for name, path in names.items() if name != leave_out}


def hash_file(path: Path) -> str:
    """sha256 of a file's bytes, hex."""
    with Path(path).open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def verify_files(directory: Path, expected: Mapping[str, str], manifest: str) -> None:
    """Checks that `directory` holds exactly the files of its manifest, unaltered.

    Raises:
        PolicyError: naming the first file that is missing, altered or not in the manifest.
    """
    found = hash_files(directory, manifest)
    for name in expected.keys() - found.keys():
        raise PolicyError(f"{directory}: file {name!r} of the manifest is missing. The directory is incomplete. {REMEDY}")
    for name in found.keys() - expected.keys():
        raise PolicyError(f"{directory}: file {name!r} is not in the manifest. It was put there later. {REMEDY}")
    for name, digest in expected.items():
        if found[name] != digest:
            raise PolicyError(f"{directory}: file {name!r} was altered (sha256 {found[name]}, manifest {digest}). {REMEDY}")


def _flush(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as source:
                os.fsync(source.fileno())
