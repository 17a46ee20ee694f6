"""Chromium, for tests of the desk as people see it: the installed one, or the package of the system."""

from __future__ import annotations

import shutil
from pathlib import Path

from homing.testing.components.obtain import Missing, find_or_install

_NAMES = ("chromium", "chromium-browser", "google-chrome")
#: It talks to nobody but the pages that it is given.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> Path | Missing:
    """The program, installed first where that is possible."""
    return find_or_install("Chromium", "chromium", _installed)


def _installed() -> Path | None:
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    return Path(found) if found else None
