"""`subscription_events`: which types of event it takes. Another program's may know `notify_sent` alone."""

from __future__ import annotations

from typing import Final

from homing.db import Database
from homing.db.adoption import refused_words
from homing.lanes.open_events.adopt import HISTORY

#: All that we write.
EVENT_TYPES: Final = (
    "notify_sent",
    "notify_failed",
    "created",
    "verification_sent",
    "verified",
    "status_changed",
    "unsubscribed",
)


class History:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: frozenset[str] | None = None

    async def kept(self) -> frozenset[str]:
        """The types that a CHECK of the table allows; the others are left out."""
        if self._kept is None:
            refused = await refused_words(self._database, HISTORY, "event_type", EVENT_TYPES)
            self._kept = frozenset(EVENT_TYPES) - frozenset(refused)
        return self._kept
