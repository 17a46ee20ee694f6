"""A page of the documentation as something to be followed: its commands, in their order."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path

_BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
_REMARK = re.compile(r"\s{2,}#.*$")


class Tutorial:
    def __init__(self, page: Path) -> None:
        self._left = deque(_commands(page.read_text()))

    def next(self, beginning: str) -> str:
        """The next command, which has to be the one that is meant."""
        assert self._left, f"the page says nothing of: {beginning}"
        command = self._left.popleft()
        assert command.startswith(beginning), f"the page goes on with: {command}"
        return command

    def exports(self) -> Iterator[str]:
        """The settings that come next, by name."""
        while self._left and self._left[0].startswith("export "):
            yield self._left.popleft().removeprefix("export ").partition("=")[0]

    @property
    def left(self) -> list[str]:
        return list(self._left)


def _commands(text: str) -> Iterator[str]:
    """What stands after a prompt, with the lines that go on with it."""
    for block in _BLOCK.findall(text):
        command: list[str] = []
        for line in block.splitlines():
            if line.startswith("$ ") and command:
                yield "\n".join(command)
                command = []
            assert line.startswith("$ ") or command, f"not a command: {line}"
            command.append(_REMARK.sub("", line.removeprefix("$ ").removeprefix("> ")))
        yield "\n".join(command)
