"""Chromium, for tests of the desk as people see it: the installed one, or the package of the system."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

from homing.testing.components.obtain import Missing, install_package

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


def find_chromium(run_directory: Path) -> Path | Missing:
    """The program, installed first where that is possible, by one process of a test run for all."""
    with (run_directory / "chromium.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if found := _installed():
            return found
        refused = install_package("Chromium", "chromium")
        return refused or _installed() or Missing("Chromium", "the package chromium does not bring it")


def _installed() -> Path | None:
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    return Path(found) if found else None
