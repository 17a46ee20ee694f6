"""What the table says, read from beside: who holds which rows now, and how every row ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from homing.db import Database, Query, connect
from homing.lanes.mail_outbox.lane import transition
from homing.lanes.mail_outbox.mail import NewMail
from homing.lanes.mail_outbox.outbox import MailOutbox, new_token

_BATCH = 1000

_HELD = "SELECT id, claim_seq, locked_by, to_address FROM mail_outbox WHERE status = 'dispatching'"
_ENDS = """
SELECT id, status, to_address, token, claim_seq, retry_count, rescue_count,
    sent_at IS NOT NULL AS has_sent_at
FROM mail_outbox ORDER BY id
"""
_OPEN = "SELECT count(*) AS count FROM mail_outbox WHERE status IN ('queued', 'dispatching')"


class Held(Struct, frozen=True):
    """A row under somebody's lease."""

    id: int
    claim_seq: int
    owner: str
    address: str


class End(Struct, frozen=True):
    """A row after the run."""

    id: int
    status: str
    address: str
    token: str
    claim_seq: int
    retry_count: int
    rescue_count: int
    #: SQLite knows no booleans.
    has_sent_at: bool | int


class MailTable:
    """An observer of `mail_outbox`; it claims nothing."""

    def __init__(self, url: str) -> None:
        self._database: Database = connect(url, pool_size=1)
        self._outbox = MailOutbox(
            self._database, transition, owner="observer", lease_seconds=1, max_attempts=1
        )

    async def fill(self, mails: int) -> list[str]:
        """Put mails in, each to an address of its own; the addresses."""
        addresses = [f"mail{number}@chaos.example" for number in range(mails)]
        for start in range(0, mails, _BATCH):
            await self._outbox.enqueue([_order(address) for address in addresses[start : start + _BATCH]])
        return addresses

    async def held(self, owner: str | None = None) -> list[Held]:
        rows = await self._read(_HELD)
        return [Held(*row) for row in map(_values, rows) if owner in {None, row[2]}]

    async def ends(self) -> list[End]:
        return [End(*row) for row in map(_values, await self._read(_ENDS))]

    async def open_rows(self) -> int:
        """How many have not ended yet."""
        count: int = (await self._read(_OPEN))[0]["count"]
        return count

    async def close(self) -> None:
        await self._database.close()

    async def _read(self, sql: str) -> Sequence[Any]:
        return await self._database.fetch(Query("observe", sql, (), writes=False), {})


def _values(row: Any) -> tuple[Any, ...]:
    return tuple(row)


def _order(address: str) -> NewMail:
    return NewMail(
        token=new_token(), to_address=address, subject=f"To {address}", text_body="It must arrive."
    )
