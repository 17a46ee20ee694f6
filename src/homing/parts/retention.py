"""Everything that can be pruned, in the order in which it is."""

from __future__ import annotations

from typing import Final

from homing.db import Database, load_queries
from homing.db.pruning import PrunableRows
from homing.engine.prune import Prunable
from homing.lanes.dispatch_jobs.pruning import prunable_jobs
from homing.lanes.open_events.pruning import prunable_notifications

#: No message, and the proof of who did what: it goes only where it is named.
AUDIT: Final = "audit"


def prunable_tables(database: Database, jobs_database: Database, notify_database: Database) -> list[Prunable]:
    def rows(lane: str, package: str, *states: str) -> PrunableRows:
        return PrunableRows(database, load_queries(package, database.dialect), lane, states)

    return [
        rows("mail_outbox", "homing.lanes.mail_outbox", "sent", "failed", "cancelled", "expired"),
        rows("email_log", "homing.lanes.email_log", "Sent", "Dead"),
        *prunable_jobs(jobs_database),
        *prunable_notifications(notify_database),
        rows("caught_mail", "homing.senders.caught_mail", "caught"),
        rows(AUDIT, "homing.access", "done", "refused", "failed"),
    ]
