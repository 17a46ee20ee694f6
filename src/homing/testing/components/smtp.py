"""Postfix's `smtp-sink`: a real SMTP peer in C that takes more mails than we can send it."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Self

from homing.testing.components.obtain import Missing, find_or_install
from homing.testing.components.processes import (
    account_for_servers,
    free_port,
    guard,
    hold,
    make_home,
    wait_until,
)

#: Administrators' folders, which an ordinary user's PATH leaves out.
_FOLDERS = "/usr/sbin:/usr/local/sbin:/usr/libexec/postfix:/usr/lib/postfix/sbin"


def find_smtp_sink() -> Path | Missing:
    """The program, installed first where that is possible."""
    return find_or_install("smtp-sink (of Postfix)", "postfix", _installed_sink)


def _installed_sink() -> Path | None:
    found = shutil.which("smtp-sink") or shutil.which("smtp-sink", path=_FOLDERS)
    return Path(found) if found else None


class SmtpSink:
    """A running `smtp-sink` on loopback. It ends with the process that started it.

    `options` are its own: `("-r", "RCPT", "-b", "450 4.2.1 busy")` for faults.
    """

    def __init__(self, program: Path, options: Sequence[str] = (), *, backlog: int = 500) -> None:
        self.program = program
        self._options = tuple(options)
        self._backlog = backlog
        self._home: Path | None = None
        self._hold: IO[str] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self.port}"

    def start(self) -> None:
        # As root it drops its privileges itself, so it starts as we are.
        account = account_for_servers("postfix")
        user = ["-u", account.name] if account else []
        home = self._home = make_home("homing-smtp-", account)
        self._hold = hold(home / "holders")
        address = f"127.0.0.1:{self.port}"
        command = [str(self.program), *user, *self._options, address, str(self._backlog)]
        guard("run", home / "holders", home, command)
        wait_until(self._answers, f"starting smtp-sink on {address}")

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                return connection.recv(1) != b""
        except OSError:
            return False

    def stop(self) -> None:
        if self._hold is None or self._home is None:
            return
        home, self._home = self._home, None
        self._hold.close()
        self._hold = None
        wait_until(lambda: not home.exists(), "stopping smtp-sink")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
