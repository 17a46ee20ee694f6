"""One server for all processes of a test run, started by whichever asks first."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from homing.testing.components.obtain import Missing, announce


class Server(Protocol):
    home: Path

    @property
    def url(self) -> str: ...


def shared_url(run_directory: Path, name: str, start: Callable[[Path], Server | Missing]) -> str | Missing:
    """Where the server answers: the one that `HOMING_TEST_<NAME>_URL` names, or the one of this run.

    Everybody who holds `run_directory/holders` keeps it alive, and the guardian ends it afterwards.
    """
    if given := os.environ.get(f"HOMING_TEST_{name.upper()}_URL"):
        return given
    with (run_directory / f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        note = run_directory / f"{name}.json"
        if not note.exists():
            note.write_text(json.dumps(_start(run_directory, name, start)))
        told = json.loads(note.read_text())
    return Missing(name, told["reason"]) if "reason" in told else str(told["url"])


def _start(run_directory: Path, name: str, start: Callable[[Path], Server | Missing]) -> dict[str, str]:
    server = start(run_directory / "holders")
    if isinstance(server, Missing):
        return {"reason": server.reason}
    announce(f"{name} runs at {server.url.rpartition('@')[2].split('?')[0]}")
    (run_directory / f"{name}.home").write_text(str(server.home))
    return {"url": server.url}
