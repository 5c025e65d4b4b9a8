"""Every level of isolation keeps what it promises, and a machine that offers less is named, never used in silence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.verify.attacks import ATTACKS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the planted filter has x86-64 numbers")
# what an open file system gives away; everything else holds at every level
READS_FILES = {"read a secret file", "read the password file", "read another process's environment", "read its own memory map"}
AS_BODY = """
import json, sys
from posttrain.config_verify import VerifySettings
from posttrain.errors import VerificationError
from tests.verify.judging import judge
pair = (sys.argv[2], {"mode": "function", "name": "solve", "inputs": [[1]], "outputs": [1]})
try:
    print(judge("code", [pair], settings=VerifySettings(sandbox=sys.argv[1]))[0].outcome)
except VerificationError as error:
    print(error)
"""


def run_refusing(refused: str, *command: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.verify.refusing", refused, *command],
        cwd=ROOT, capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def attacked(refused: str, policy: str) -> dict[str, Any]:
    return json.loads(run_refusing(refused, "tests.verify.hostile", policy).stdout)


def assert_contained(found: dict[str, Any], but: set[str]) -> None:
    assert found["changes"] == []
    for attack in ATTACKS:
        outcome, detail = found["found"][attack.name]
        if attack.name not in but:
            assert outcome in {"fail", "timeout"}, f"{attack.name}: {outcome}, {detail}"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can do without user namespaces")
def test_root_without_user_namespaces_has_every_other_namespace() -> None:
    found = attacked("user namespaces,bubblewrap", "namespaces")
    assert "sandbox level: namespaces" in found["said"]
    for attack in ATTACKS:
        outcome, detail = found["found"][attack.name]
        assert outcome in attack.outcome.split(" or "), f"{attack.name}: {detail}"
        assert attack.detail in detail
    assert found["changes"] == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_bubblewrap_takes_over_where_this_process_may_make_no_namespaces() -> None:
    found = attacked("namespaces", "namespaces")
    assert "sandbox level: bubblewrap" in found["said"]
    assert_contained(found, but={"read its own memory map"})  # it shows the programs' own /proc, and no other


@pytest.mark.slow
def test_landlock_closes_files_and_network_without_any_namespace() -> None:
    found = attacked("namespaces,bubblewrap", "require")
    assert "closed by Landlock" in found["said"]
    assert "namespaces: " in found["said"]
    assert_contained(found, but=set())


@pytest.mark.slow
def test_the_weak_level_bounds_everything_but_reading_and_says_so() -> None:
    found = attacked("namespaces,bubblewrap,landlock", "weak")
    assert found["said"].count("WEAK SANDBOX") == 1
    assert_contained(found, but=READS_FILES)


@pytest.mark.parametrize(
    ("policy", "refused"), [("namespaces", "namespaces,bubblewrap"), ("require", "namespaces,bubblewrap,landlock")]
)
def test_a_policy_that_no_level_satisfies_stops_and_says_what_to_do(policy: str, refused: str) -> None:
    script = f"import sys; sys.argv = ['', {policy!r}, 'def solve(x): return x']\n{AS_BODY}"
    done = subprocess.run(
        [sys.executable, "-c", f"from tests.verify.refusing import plant; plant({refused.split(',')})\n{script}"],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "user, mount, process, network and IPC namespaces" in done.stdout, done.stderr
    assert "bwrap is not installed" in done.stdout
    assert "verify.sandbox to weak" in done.stdout


def test_the_machine_can_be_asked_what_it_enforces() -> None:
    said = run_refusing("namespaces,bubblewrap", "posttrain.verify.sandbox").stdout
    assert "verify.sandbox=namespaces would run with nothing" in said
    assert "verify.sandbox=require would run with landlock" in said
