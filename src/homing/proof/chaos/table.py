"""What a table says, read from beside: who holds which rows now, and how every row ended."""

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
_FENCES = "SELECT id, claim_seq FROM mail_outbox"
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
    #: What the receiver knows it by.
    mark: str


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


class Observer:
    """Looks at a table and claims nothing."""

    def __init__(self, url: str, *, held: str, fences: str, open_rows: str) -> None:
        self.database: Database = connect(url, pool_size=1)
        self._held, self._fences, self._open_rows = held, fences, open_rows

    async def held(self, owner: str | None = None) -> list[Held]:
        rows = await self.read(self._held)
        return [Held(row[0], row[1], row[2], self.mark(row)) for row in rows if owner in {None, row[2]}]

    def mark(self, row: Sequence[Any]) -> str:
        """What the receiver knows a row by."""
        return str(row[3])

    async def fences(self) -> dict[int, int]:
        return {row[0]: row[1] for row in await self.read(self._fences)}

    async def open_rows(self) -> int:
        """How many have not ended yet."""
        count: int = (await self.read(self._open_rows))[0][0]
        return count

    async def close(self) -> None:
        await self.database.close()

    async def read(self, sql: str) -> Sequence[tuple[Any, ...]]:
        return [tuple(row) for row in await self.database.fetch(Query("observe", sql, (), writes=False), {})]


class MailTable(Observer):
    """An observer of `mail_outbox`, which it has filled."""

    def __init__(self, url: str) -> None:
        super().__init__(url, held=_HELD, fences=_FENCES, open_rows=_OPEN)
        self._outbox = MailOutbox(
            self.database, transition, owner="observer", lease_seconds=1, max_attempts=1
        )

    async def fill(self, mails: int) -> list[str]:
        """Put mails in, each to an address of its own; the addresses."""
        addresses = [f"mail{number}@chaos.example" for number in range(mails)]
        for start in range(0, mails, _BATCH):
            await self._outbox.enqueue([_order(address) for address in addresses[start : start + _BATCH]])
        return addresses

    async def ends(self) -> list[End]:
        return [End(*row) for row in await self.read(_ENDS)]


def _order(address: str) -> NewMail:
    return NewMail(
        token=new_token(), to_address=address, subject=f"To {address}", text_body="It must arrive."
    )
