"""What the tables of open seats say, read from beside; and an operator's hand in them."""

from __future__ import annotations

from msgspec import Struct

from homing.db.queries import parse_queries
from homing.proof.chaos.table import Observer

_HELD = """
SELECT n.notification_id, n.claim_seq, n.locked_by, s.contact_value
FROM open_event_notifications AS n JOIN subscriptions AS s ON s.subscription_id = n.subscription_id
WHERE n.locked_by IS NOT NULL AND lower(n.fanout_status) = 'pending'
"""
_FENCES = "SELECT notification_id, coalesce(claim_seq, 0) FROM open_event_notifications"
#: What has failed is open as well: the other program puts it back.
_OPEN = "SELECT count(*) FROM open_event_notifications WHERE lower(fanout_status) IN ('pending', 'failed')"
_ENDS = """
SELECT n.notification_id, s.contact_value, lower(n.fanout_status), n.fanout_attempts,
    coalesce(n.claim_seq, 0), n.locked_by IS NOT NULL OR n.locked_at IS NOT NULL, n.error,
    n.last_attempt_at IS NOT NULL,
    s.last_notified_at IS NOT NULL, s.status, s.last_known_section_status,
    (SELECT count(*) FROM subscription_events AS t WHERE t.subscription_id = s.subscription_id
       AND t.event_type = 'notify_sent' AND t.section_status_snapshot = 'OPEN'),
    (SELECT count(*) FROM subscription_events AS t WHERE t.subscription_id = s.subscription_id
       AND t.event_type = 'notify_failed')
FROM open_event_notifications AS n LEFT JOIN subscriptions AS s ON s.subscription_id = n.subscription_id
ORDER BY n.notification_id
"""
#: As the runbook has it, for a worker of which the operator knows that it is dead.
_CLEAR = """
-- name: clear
UPDATE open_event_notifications SET locked_by = NULL, locked_at = NULL
WHERE locked_by = :owner AND fanout_status = 'pending'
RETURNING notification_id
"""


class NotificationEnd(Struct, frozen=True):
    """A notification after the run, with what is told of it elsewhere. SQLite knows no booleans."""

    id: int
    address: str
    status: str
    attempts: int
    claim_seq: int
    locked: bool | int
    error: str | None
    has_last_attempt: bool | int
    #: The subscription says when it was notified.
    notified: bool | int
    subscription_status: str
    known_section_status: str | None
    #: Lines of the subscription's history.
    told_sent: int
    told_failed: int


class NotificationTable(Observer):
    def __init__(self, url: str) -> None:
        super().__init__(url, held=_HELD, fences=_FENCES, open_rows=_OPEN)
        self._clear = next(parse_queries(_CLEAR, self.database.dialect))

    async def ends(self) -> list[NotificationEnd]:
        return [NotificationEnd(*row) for row in await self.read(_ENDS)]

    async def clear_locks(self, owner: str) -> int:
        """Take away the locks of a dead worker, by plain SQL: only the columns of the contract."""
        return len(await self.database.fetch(self._clear, {"owner": owner}))
