"""The installed packages that programs may import: where they lie, and which programs ask for one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import PurePosixPath

from posttrain.errors import ConfigError

_MODULE_SUFFIXES = (".py", ".so")


@dataclass(frozen=True)
class Packages:
    """`paths` are what belongs to them in their directories; `modules` the names by which programs import them."""

    paths: tuple[str, ...]
    modules: tuple[str, ...]

    def mentioned_in(self, *sources: str) -> bool:
        """Whether a source names one of them, in whatever way: a comment costs a little time, no verdict."""
        words = "|".join(map(re.escape, self.modules))
        return bool(words) and any(re.search(rf"\b(?:{words})\b", source) for source in sources)


@lru_cache(maxsize=16)  # reading what a package consists of takes longer than a verdict
def find_packages(names: str) -> Packages:
    """The packages that the setting `verify.packages` lists by their installed names, separated by commas.

    Raises:
        ConfigError: one is not installed, or holds nothing to import.
    """
    paths: list[str] = []
    modules: list[str] = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        try:
            found = distribution(name)
        except (PackageNotFoundError, ValueError) as error:
            why, remedy = "no such package is installed", "Install it under the name that it is published by, or leave it out."
            raise ConfigError("verify.packages", name, why, remedy) from error
        entries = _top_level(found)
        importable = [module for entry in entries if (module := _module(entry))]
        if not importable:
            raise ConfigError("verify.packages", name, "it installs nothing to import", "Leave it out.")
        paths += [str(found.locate_file(entry)) for entry in entries]
        modules += importable
    return Packages(tuple(dict.fromkeys(paths)), tuple(dict.fromkeys(modules)))


def _top_level(found: Distribution) -> Sequence[str]:
    """Files and directories that a distribution puts beside its metadata, scripts elsewhere left out."""
    tops = dict.fromkeys(PurePosixPath(path).parts[0] for path in found.files or ())
    return [top for top in tops if top not in ("..", "__pycache__")]


def _module(entry: str) -> str | None:
    stem, dot, _ = entry.partition(".")
    if dot and not entry.endswith(_MODULE_SUFFIXES):  # numpy.libs, numpy-2.3.5.dist-info
        return None
    return stem if stem.isidentifier() else None
