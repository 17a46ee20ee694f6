"""Command lines as files of `deploy/` hold them, checked by the real command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typer.main import get_command

from homing.cli import app

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"

#: A line of documentation or of a script in which `homing` is what is run, perhaps inside of something else.
_LINE = re.compile(r"(?:^|\s|/)homing\s+(?P<arguments>[a-z][^`|>#&]*)")
_BEFORE = ("docker compose", "kubectl", "docker run", "$ homing", "/opt/homing/bin/homing", "sudo", "homing ")


def parse(arguments: Sequence[str]) -> None:
    """Raises what the command line would complain about."""
    command: Any = get_command(app)
    rest = list(arguments)
    while hasattr(command, "commands"):
        name = rest.pop(0)
        assert name in command.commands, f"there is no command {name!r}: homing {shlex.join(arguments)}"
        command = command.commands[name]
    command.make_context("homing", rest)


def lines_of(text: str) -> Iterator[list[str]]:
    """What follows `homing` in lines that are commands, as documents have them."""
    for line in text.replace("\\\n", " ").splitlines():
        stripped = line.strip().removeprefix("# ").strip()
        if stripped.startswith(_BEFORE) and (found := _LINE.search(stripped)):
            # What compose itself is told of its services is no command of ours.
            if re.search(r"docker compose .*\b(up|logs|ps|stop|down|exec -T postgres)\b", stripped):
                continue
            yield shlex.split(found["arguments"])
