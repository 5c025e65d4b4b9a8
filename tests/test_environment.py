"""scripts/environment.py on a checkout with a lock of one small package, offline."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the locks and so the script are for Python 3.11"),
]


@pytest.fixture
def checkout(tmp_path):
    """A directory with the script, a lock and the wheel that the lock names."""
    root = tmp_path / "a checkout"
    (root / "scripts").mkdir(parents=True)
    (root / "requirements").mkdir()
    for name in ("environment.py", "environment_state.py"):
        shutil.copy(SCRIPTS / name, root / "scripts")
    (root / "requirements" / "laptop.txt").write_text("# lock\nposttrain-probe==1.0\n")
    with zipfile.ZipFile(root / "posttrain_probe-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("posttrain_probe/values.py", "VALUE = 7\n")
        wheel.writestr("posttrain_probe/__init__.py", "from posttrain_probe.values import VALUE\n")
        information = "posttrain_probe-1.0.dist-info"
        wheel.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: posttrain-probe\nVersion: 1.0\n")
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        files = ("posttrain_probe/values.py", "posttrain_probe/__init__.py")
        names = (*files, f"{information}/METADATA", f"{information}/WHEEL", f"{information}/RECORD")
        wheel.writestr(f"{information}/RECORD", "".join(f"{name},,\n" for name in names))
    return root


def start(root, *names, **variables):
    environment = {
        **os.environ,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": (root / "posttrain_probe-1.0-py3-none-any.whl").as_uri(),
        **variables,
    }
    command = [sys.executable, str(root / "scripts" / "environment.py"), *names]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def make(root, *names, **variables):
    process = start(root, *names, **variables)
    _, said = process.communicate(timeout=120)
    return process.returncode, said


def is_ready(root):
    """What the script of this checkout thinks of its environment."""
    specification = importlib.util.spec_from_file_location("environment_state", root / "scripts" / "environment_state.py")
    state = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(state)
    return state.is_ready({"laptop": state.read_lock("laptop")})


def probe(root):
    command = [str(root / ".venv" / "bin" / "python"), "-c", "import posttrain_probe; print(posttrain_probe.VALUE)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_whatever_does_not_match_the_stamp_is_not_trusted(checkout):
    assert make(checkout)[0] == 0
    assert probe(checkout) == "7"
    assert is_ready(checkout)
    assert make(checkout) == (0, ""), "the second call has nothing to say and nothing to do"

    stamp = checkout / ".venv" / "environment.json"
    written = stamp.read_text()
    stamp.write_text(written[:20])
    assert not is_ready(checkout)
    stamp.unlink()
    assert not is_ready(checkout)
    odd = [{**json.loads(written), "python": "3.11.0"}, {**json.loads(written), "locks": 3}, None, [], 3, {}]
    for content in odd:
        stamp.write_text(json.dumps(content))
        assert not is_ready(checkout)
    stamp.write_text(written)
    assert is_ready(checkout)

    lock = checkout / "requirements" / "laptop.txt"
    lock.write_text("posttrain-probe==1.1\n")
    assert not is_ready(checkout)
    lock.write_text("# lock\nposttrain-probe==1.0\n")
    assert is_ready(checkout)

    moved = checkout.rename(checkout.with_name("moved"))
    assert not is_ready(moved)
    checkout = moved.rename(checkout)
    interpreter = checkout / ".venv" / "bin" / "python"
    interpreter.rename(interpreter.with_name("gone"))
    assert not is_ready(checkout)
    interpreter.with_name("gone").rename(interpreter)
    assert is_ready(checkout)

    package = next((checkout / ".venv").glob("lib/*/site-packages/posttrain_probe"))
    package.rename(package.with_name("gone"))  # its metadata are still there
    assert not is_ready(checkout)
    package.with_name("gone").rename(package)
    assert is_ready(checkout)

    information = next((checkout / ".venv").glob("lib/*/site-packages/posttrain_probe-*.dist-info"))
    shutil.rmtree(information)
    assert not is_ready(checkout)
    status, said = make(checkout)
    assert status == 0
    assert "making it again" in said
    assert probe(checkout) == "7"


def test_a_killed_installation_is_made_again_by_the_next_call_alone(checkout):
    killed = start(checkout)
    while "installing" not in killed.stderr.readline():
        assert killed.poll() is None
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not is_ready(checkout)

    first, second = start(checkout), start(checkout)
    said = [process.communicate(timeout=120)[1] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0]
    assert sum("making it again" in text for text in said) == 1
    assert any("waiting for it" in text for text in said)
    assert probe(checkout) == "7"


def test_a_failed_installation_shows_the_reason_and_leaves_nothing_to_trust(checkout):
    (checkout / "requirements" / "laptop.txt").write_text("posttrain-probe==2.0\n")
    status, said = make(checkout)
    assert status == 1
    assert "posttrain-probe==2.0" in said
    assert "Traceback" not in said
    assert not is_ready(checkout)


def test_an_unknown_lock_is_refused_with_the_known_ones(checkout):
    status, said = make(checkout, "desktop")
    assert status == 1
    assert "'desktop'" in said
    assert "laptop" in said


@pytest.mark.parametrize("kind", ["link", "dangling link", "file"])
def test_what_stands_in_the_place_of_the_environment_is_removed_and_a_link_s_target_stays(checkout, kind):
    place, target = checkout / ".venv", checkout / "elsewhere"
    if kind == "link":
        target.mkdir()
        (target / "mine").touch()
    if kind == "file":
        place.touch()
    else:
        place.symlink_to(target)
    (checkout / ".venv.old").symlink_to(checkout / "nowhere")  # an earlier removal left it
    (checkout / "requirements" / "laptop.txt").write_text("posttrain-probe==2.0\n")  # not to be had: what is asked is the removal
    status, said = make(checkout, POSTTRAIN_INSTALLER="pip")
    assert status == 1
    assert "making it again" in said
    assert "Traceback" not in said
    assert place.is_dir()
    assert not place.is_symlink()
    assert not (checkout / ".venv.old").is_symlink()
    assert kind != "link" or (target / "mine").exists()


def test_a_checkout_that_cannot_be_written_is_named_without_a_traceback(checkout):
    (checkout / ".venv.lock").mkdir()  # also root cannot write a file there
    status, said = make(checkout)
    assert status == 1
    assert f"cannot be made in {checkout}" in said
    assert "Traceback" not in said


def test_make_mlflow_opens_the_database_of_any_workspace(tmp_path):
    root, workspace = tmp_path / "a check out", tmp_path / "w %20's #1"
    (root / "scripts").mkdir(parents=True)
    (root / "scripts" / "environment.py").touch()  # as if the environment were made
    (root / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(SCRIPTS.parent / "Makefile", root)
    python = root / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$PWD: $@"\n')
    python.chmod(0o755)
    variables = {**os.environ, "POSTTRAIN_WORKSPACE": str(workspace)}
    command = ["make", "--no-print-directory", f"PYTHON={sys.executable}", "mlflow", "mlflow-replay"]
    said = subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == [
        f"{workspace}: -m mlflow ui --host 127.0.0.1 --port 5000 --backend-store-uri sqlite:///mlflow.db",
        f"{root}: -m posttrain.tracking_replay {workspace}",
    ]
