"""`python -m posttrain.verify.sandbox`: what this machine can enforce, level by level."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from posttrain.verify.sandbox.cgroups import writable_places
from posttrain.verify.sandbox.connection import Connection, SandboxFault
from posttrain.verify.sandbox.landlock import interface_version
from posttrain.verify.sandbox.launch import ACCEPTED, LEVELS, SandboxRefused
from posttrain.verify.sandbox.pool import SandboxLimits


def main() -> None:
    """Prints one line for each level, what bounds whole trees of processes, and what each policy would run with."""
    logging.disable(logging.WARNING)  # how weak a level is says the table
    config = {
        "entry": "posttrain.verify.programs",
        "packages": [],
        "import_paths": [],
        "preload": [],
        "limits": asdict(SandboxLimits()),
    }
    found = {level: _try(level, config) for level in LEVELS}
    lines = [f"{level:11} {why or 'available'}" for level, why in found.items()]
    places = [f"{', '.join(place.controllers)} (cgroup v{place.version})" for place in writable_places()]
    lines.append(f"cgroups     {'; '.join(places) or 'none that this user may write: limits hold for each process'}")
    lines.append(f"Landlock    version {interface_version()} of its interface")
    for policy, levels in ACCEPTED.items():
        level = next((level for level in levels if not found[level]), "nothing: verification would stop")
        lines.append(f"verify.sandbox={policy} would run with {level}")
    sys.stdout.write("\n".join(lines) + "\n")


def _try(level: str, config: Mapping[str, Any]) -> str:
    """Why a level is not available, or nothing."""
    try:
        Connection(sys.executable, [level], config, []).close()
    except (SandboxRefused, SandboxFault) as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
