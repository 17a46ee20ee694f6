"""Chromium is found, or it is said why not: then tests are skipped, and in CI they fail."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from homing.testing.components.chromium import find_chromium
from homing.testing.components.obtain import Missing


def test_an_installed_one_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "chromium-browser"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_chromium() == program


def test_where_it_cannot_be_had_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_: None)
    found = find_chromium()
    assert isinstance(found, Missing)
    assert (
        str(found)
        == "Chromium cannot be had: it is not installed, and there is no apt-get to install it with"
    )
