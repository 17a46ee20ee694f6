"""What commands about access share: the desk, opened on the database, and who types."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from homing.errors import InvalidRequest

if TYPE_CHECKING:
    from homing.access.desk import Access
    from homing.settings import Settings

_SPAN = re.compile(r"(\d{1,6})([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


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


def seconds_in(text: str, flag: str) -> int:
    match = _SPAN.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"{flag} {text!r} is no span of time; write 90d, or m, h and w", flag)
    return int(match[1]) * _SECONDS[match[2]]
