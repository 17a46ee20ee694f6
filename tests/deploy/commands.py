"""Command lines as files of `deploy/` and documents hold them, checked by the real command line."""

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

#: Where `homing` is what is run, by itself or inside of something else.
_COMMANDS = (
    re.compile(r"^homing (?P<arguments>[a-z].*)"),
    re.compile(r"^kubectl .*-- homing (?P<arguments>[a-z].*)"),
    re.compile(r"^docker compose .*\brun .*\shoming (?P<arguments>[a-z].*)"),
    re.compile(r"^docker run .*\shoming (?P<arguments>[a-z].*)"),
    re.compile(r"^(?:sudo )?/opt/homing/bin/homing (?P<arguments>[a-z].*)"),
)
_PROMPT = re.compile(r"^\s*(?:[$#] )*\s*")


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
    """What follows `homing` in lines that are commands."""
    for line in text.replace("\\\n", " ").splitlines():
        written = _PROMPT.sub("", line)
        for pattern in _COMMANDS:
            if found := pattern.match(written):
                yield shlex.split(re.split(r"[|>&]", found["arguments"])[0], comments=True)
