"""Chromium, for tests of the desk as people see it: the installed one, or the package of the system."""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec
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


def find_driver() -> Path | Missing:
    """The Node.js that Playwright brings, and the library that it needs and a small system may not have."""
    return find_or_install("a library that Playwright needs", "libatomic1", _runnable_driver)


def find_chromium() -> Path | Missing:
    """The program, installed first where that is possible."""
    return find_or_install("Chromium", "chromium", _installed)


def _installed() -> Path | None:
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    return Path(found) if found else None


def _runnable_driver() -> Path | None:
    spec = find_spec("playwright")
    if spec is None or spec.origin is None:
        return None
    node = Path(spec.origin).with_name("driver") / "node"
    done = subprocess.run([node, "--version"], capture_output=True, check=False)
    return node if done.returncode == 0 else None
