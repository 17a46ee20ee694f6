"""What commands of operators share: who types, how long and since when, whether to go on, and access."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from homing.errors import InvalidRequest

if TYPE_CHECKING:
    from homing.access.desk import Access
    from homing.settings import Settings

_err = Console(stderr=True, highlight=False, soft_wrap=True)
_SPAN = re.compile(r"(\d{1,6})([smhdw])")
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@asynccontextmanager
async def opened_access(settings: Settings) -> AsyncIterator[Access]:
    """Only the database, without the lanes: who makes the first key may have no mail server yet."""
    from homing.access.desk import Access
    from homing.db import connect
    from homing.parts.signals import make_telemetry

    database = connect(settings.database_url, makes_file=False)
    access = Access(database, make_telemetry(settings), encryption_key=settings.encryption_key)
    try:
        yield access
    finally:
        await access.close()
        await database.close()


def typist() -> str:
    """As the audit log names who types: the account, and the machine."""
    try:
        account = getpass.getuser()
    except (KeyError, OSError):
        # In a container a number may have no name.
        account = str(os.getuid())
    return f"cli:{account}@{socket.gethostname()}"


def confirm(question: str) -> None:
    """Ask, and end the command unless the answer is yes. Outside of an event loop, which would keep Ctrl-C
    from a question.
    """
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort:
        _err.print()
        agreed = False
    if not agreed:
        _err.print("nothing was changed; with --yes it is not asked")
        # By which the audit log knows that somebody said no.
        raise typer.Abort


def seconds_in(text: str, flag: str) -> int:
    match = _SPAN.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"{flag} {text!r} is no span of time; write 30m, 2h, 90d, or with s or w", flag)
    return int(match[1]) * _SECONDS[match[2]]


def moment_since(text: str, now: datetime) -> datetime:
    """So long ago, at a time with its zone, or since a day began in UTC."""
    moment = _moment(text, now)
    if moment is None or moment.tzinfo is None:
        mend = "write 90s, 15m, 2h, 3d, 1w, 2026-01-31, or 2026-01-31T12:00:00Z, with its zone"
        raise InvalidRequest(f"--since {text[:40]!r} is no time: {mend}", "since")
    return moment


def _moment(text: str, now: datetime) -> datetime | None:
    try:
        if _SPAN.fullmatch(text):
            return now - timedelta(seconds=seconds_in(text, "--since"))
        if _DAY.fullmatch(text):
            return datetime.fromisoformat(text).replace(tzinfo=UTC)
        # In UTC, which an hour of the year 1 need not have.
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
