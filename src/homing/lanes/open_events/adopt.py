"""The tables of this lane that another program may have made, as `homing.db.adoption` checks them."""

from __future__ import annotations

from typing import Final

from homing.db.adoption import TableSpec, UniqueSpec, added, required
from homing.lanes.open_events.notification import STATES

_TEXT, _INTEGER, _TIME = required("text"), required("integer"), required("time")
_CLEARED_TEXT, _CLEARED_TIME, _CLEARED_INTEGER = (
    added("text", is_cleared=True),
    added("time", is_cleared=True),
    added("integer", is_cleared=True),
)

HISTORY: Final = TableSpec(
    name="subscription_events",
    columns={
        "event_id": added("integer"),
        "subscription_id": _INTEGER,
        # Other types are left out where a CHECK forbids them (history.py).
        "event_type": required("text", words=("notify_sent",)),
        "section_status_snapshot": _CLEARED_TEXT,
        "payload": added("text"),
        "created_at": added("time"),
    },
    numbered="event_id",
    filled=frozenset(),
    by_rowid=True,
)

TABLES: Final = (
    TableSpec(
        name="open_events",
        columns={
            "open_event_id": _INTEGER,
            "term_id": _TEXT,
            "campus_code": _TEXT,
            "index_number": _TEXT,
            "status_after": _TEXT,
            "event_at": _TIME,
            "dedupe_key": _TEXT,
            "section_id": added("integer"),
            "payload": added("text"),
            "trace_id": added("text"),
            "created_at": added("time"),
        },
        key="open_event_id",
        numbered="open_event_id",
        filled=frozenset({"status_before", "seat_delta", "detected_by", "snapshot_id"}),
    ),
    TableSpec(
        name="open_event_notifications",
        columns={
            "notification_id": _INTEGER,
            "open_event_id": _INTEGER,
            "subscription_id": _INTEGER,
            "dedupe_key": _TEXT,
            "fanout_status": required("text", words=STATES),
            "fanout_attempts": _INTEGER,
            "last_attempt_at": added("time"),
            "locked_by": _CLEARED_TEXT,
            "locked_at": _CLEARED_TIME,
            "error": _CLEARED_TEXT,
            "created_at": added("time"),
            "claim_seq": added("integer"),
            "due_at": _CLEARED_TIME,
            "due_attempts": _CLEARED_INTEGER,
            "lock_written_at": _CLEARED_TIME,
            "delivered_by": added("text"),
            "delivered_millis": added("integer"),
            "ended_claim": added("integer"),
            "lock_seen": _CLEARED_TEXT,
            "lock_seen_at": _CLEARED_TIME,
        },
        key="notification_id",
        numbered="notification_id",
        filled=frozenset(),
        unique=UniqueSpec(
            ("open_event_id", "subscription_id"),
            "homing_notifications_once",
            "pairs of open_event_id and subscription_id",
            "nobody is to be told twice of one event, so delete the others",
        ),
    ),
    TableSpec(
        name="subscriptions",
        columns={
            "subscription_id": _INTEGER,
            "term_id": added("text"),
            "campus_code": added("text"),
            "index_number": added("text"),
            "contact_type": required("text", sample="email"),
            "contact_value": _TEXT,
            "status": required("text", words=("pending", "active", "paused", "suppressed", "unsubscribed")),
            "locale": added("text"),
            "metadata": added("text"),
            "updated_at": added("time"),
            "last_notified_at": added("time"),
            "last_known_section_status": added("text"),
        },
        key="subscription_id",
        numbered="subscription_id",
        filled=frozenset({"section_id", "contact_hash", "is_verified", "created_at", "unsubscribe_token"}),
    ),
    HISTORY,
    TableSpec(name="sections", columns={"section_id": added("integer"), "course_id": added("integer")}),
    TableSpec(name="courses", columns={"course_id": added("integer")}),
    TableSpec(
        name="section_meetings",
        columns={"meeting_id": added("integer"), "section_id": added("integer")},
    ),
)
