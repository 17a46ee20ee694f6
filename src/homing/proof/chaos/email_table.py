"""What `email_log` says, read from beside."""

from __future__ import annotations

from msgspec import Struct

from homing.proof.chaos.table import Observer

_HELD = """
SELECT id, claim_seq, locked_by, to_address FROM email_log WHERE locked_by IS NOT NULL
"""
_FENCES = "SELECT id, claim_seq FROM email_log"
_OPEN = "SELECT count(*) AS count FROM email_log WHERE status NOT IN ('Sent', 'Dead')"
_ENDS = """
SELECT e.id, e.to_address, e.status, e.attempt_count, e.claim_seq, e.locked_until IS NOT NULL,
    e.sent_at IS NOT NULL AND i.completed_at IS NOT NULL
FROM email_log e LEFT JOIN email_idempotency i ON i.email_id = e.id ORDER BY e.id
"""


class EmailEnd(Struct, frozen=True):
    """An email after the run."""

    id: int
    address: str
    status: str
    attempt_count: int
    claim_seq: int
    locked: bool
    #: Whether it says when it was sent, and its idempotency key that it is done with.
    completed: bool


class EmailTable(Observer):
    """An observer of `email_log`, on PostgreSQL."""

    def __init__(self, url: str) -> None:
        super().__init__(url, held=_HELD, fences=_FENCES, open_rows=_OPEN)

    async def ends(self) -> list[EmailEnd]:
        return [EmailEnd(*row) for row in await self.read(_ENDS)]
