"""A machine that Homing is deployed on: the units of systemd without systemd.

Each command is a process with the settings that its unit hands over: secrets as files, the rest from the
environment. What it prints and logs is in files, to be read while it runs.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from tests.deploy.commands import DEPLOY
from tests.deploy.test_units import directives

Answer = TypeVar("Answer")

#: Much more than anything takes; a machine may be busy.
PATIENCE = 60.0


def quiet_ports(*names: str) -> dict[str, int]:
    """Free ones that no outgoing connection of anybody will be given meanwhile."""
    found: set[int] = set()
    while len(found) < len(names):
        port = random.randrange(15_000, 30_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                found.add(port)
    return dict(zip(names, found, strict=True))


async def until(look: Callable[[], Awaitable[Answer | None]], what: str) -> Answer:
    """The first answer that is one."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not (answer := await look()):
        assert asyncio.get_running_loop().time() < deadline, f"never came: {what}"
        await asyncio.sleep(0.1)
    return answer


class Service(Struct, frozen=True):
    """A process that runs until it is told to end, and what it wrote."""

    said: Path
    logged: Path

    def lines(self) -> list[dict[str, Any]]:
        """Of standard output, each an object."""
        return _objects(self.said)

    def logs(self, text: str) -> bool:
        return text in self.logged.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in _objects(self.logged) if line.get("event") == name]


class Machine:
    def __init__(self, folder: Path, secrets: Mapping[str, str], settings: Mapping[str, str]) -> None:
        self.folder = folder
        (folder / "secrets").mkdir(mode=0o700)
        for name, text in secrets.items():
            (folder / "secrets" / name).write_text(text)
        self._settings = settings

    def environment(self, unit: str) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("HOMING_", "DISPATCH_"))
        }
        given = dict(one.split("=", 1) for one in directives(DEPLOY / "systemd" / unit, "Environment"))
        own = {name: text.replace("%d", str(self.folder / "secrets")) for name, text in given.items()}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        return {**kept, **own, "PATH": path, "NO_COLOR": "1", "COLUMNS": "200", **self._settings}

    async def run(self, command: str, typed: str = "", *, ends: int = 0) -> str:
        """What it printed; it must have ended as expected."""
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", command, cwd=self.folder, env=self.environment("homing-migrate.service"),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        said, complained = await process.communicate(typed.encode())
        assert process.returncode == ends, f"{command}\n{said.decode()}\n{complained.decode()}"
        return said.decode()

    @asynccontextmanager
    async def service(self, command: str, unit: str) -> AsyncIterator[Service]:
        """Ended as systemd and Ctrl-C do, and well."""
        name = re.sub(r"\W+", "-", command)
        number = len(list(self.folder.glob(f"{name}.*.log")))
        service = Service(self.folder / f"{name}.{number}.out", self.folder / f"{name}.{number}.log")
        with service.said.open("wb") as said, service.logged.open("wb") as logged:
            process = await asyncio.create_subprocess_exec(
                "bash", "-c", f"exec {command}", cwd=self.folder, env=self.environment(unit),
                stdin=asyncio.subprocess.DEVNULL, stdout=said, stderr=logged,
            )  # fmt: skip
        try:
            yield service
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
        assert process.returncode == 0, service.logged.read_text()


def _objects(path: Path) -> list[dict[str, Any]]:
    """Lines that are none are for people; the last one may be half written."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line) for line in lines if line.startswith(b"{")]
