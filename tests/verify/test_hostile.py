"""Every hostile completion ends in the stated outcome, changes nothing outside and leaves no process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.verify import hostile
from tests.verify.attacks import ATTACKS, Attack

ROOT = Path(__file__).parents[2]
AS_NOBODY = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result:
        raise OSError(ctypes.get_errno(), "cannot prepare a place for another user")
check(libc.unshare(0x00020000))
check(libc.mount(None, b"/", None, 16384 | 1 << 18, None))
check(libc.mount(b"tmpfs", b"/mnt", b"tmpfs", 0, b"mode=755"))
for name, path in zip(("python", "packages", "repository"), sys.argv[1:]):
    os.mkdir(f"/mnt/{name}")
    check(libc.mount(path.encode(), f"/mnt/{name}".encode(), None, 4096, None))
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
os.chdir("/")
python = f"/mnt/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
os.execve(python, [python, "-m", "tests.verify.hostile", "require"], {"PYTHONPATH": "/mnt/repository:/mnt/packages", "PYTHONDONTWRITEBYTECODE": "1"})
"""


@pytest.fixture(scope="module")
def target() -> Iterator[hostile.Host]:
    with hostile.host() as made:
        yield made


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack_is_contained(attack: Attack, target: hostile.Host) -> None:
    verdict = hostile.judge(attack, target)
    assert verdict.outcome in attack.outcome.split(" or "), verdict.detail
    assert verdict.reward == 0.0
    assert attack.detail in verdict.detail
    assert verdict.seconds < 15
    assert hostile.changes(target) == []


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="already an ordinary user: the tests above cover it")
def test_attacks_are_contained_for_an_ordinary_user() -> None:
    found = _run_as_nobody()
    assert found["user"] == 65534
    assert "sandbox level: namespaces" in found["said"]
    assert found["changes"] == []
    for attack in ATTACKS:
        outcome, detail = found["found"][attack.name]
        assert outcome in attack.outcome.split(" or "), f"{attack.name}: {detail}"
        assert attack.detail in detail


def _run_as_nobody() -> dict[str, Any]:
    places = [sys.base_prefix, sysconfig.get_path("purelib"), str(ROOT)]
    done = subprocess.run([sys.executable, "-c", AS_NOBODY, *places], capture_output=True, text=True, timeout=300)
    if "cannot prepare a place" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
