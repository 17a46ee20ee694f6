"""What is pruned of open_events: notifications, then events that have none, then what their history says.

Subscriptions are never pruned, and neither are sections and courses, which are not ours.
"""

from __future__ import annotations

from homing.db import Database, load_queries
from homing.db.pruning import PrunableRows, orphaned_attempts
from homing.engine.prune import Prunable
from homing.lanes.open_events.notifications import attempts_of_notifications

LANE = "open_events"
ENDED = ("sent", "skipped", "failed", "expired")


def prunable_notifications(database: Database) -> list[Prunable]:
    queries = load_queries(__package__ or "", database.dialect, "prune")
    attempts = attempts_of_notifications(database)
    return [
        PrunableRows(database, queries, LANE, ENDED, name="prune_notifications", attempts=attempts),
        orphaned_attempts(attempts, ENDED),
        PrunableRows(database, queries, LANE, ("events",), name="prune_events", follows=ENDED),
        PrunableRows(database, queries, LANE, ("history",), name="prune_history", follows=ENDED),
    ]
