"""Rows of `open_event_notifications` as the API and the command line show them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from homing.db import Row, iso
from homing.errors import NotFound
from homing.lanes.open_events.notification import read_object
from homing.lanes.open_events.preferences import read_preferences
from homing.senders.addresses import mask

_PREFIX = "notification_"


class NotificationSummary(Struct, frozen=True, rename="camel"):
    """A notification, as lists show it."""

    id: str
    #: pending, sent, skipped, failed or expired
    status: str
    attempts: int
    open_event_id: int
    subscription_id: int
    term_id: str | None
    campus_code: str | None
    index_number: str | None
    #: Masked: `a***@example.org`.
    to: str | None
    #: Why it ended, or what the last attempt said; None when it was sent, or never tried.
    error_code: str | None
    #: Of one that waits, where that is not now.
    due_at: str | None
    last_attempt_at: str | None
    locked_by: str | None
    created_at: str | None


class NotificationView(NotificationSummary, frozen=True, rename="camel", kw_only=True):
    """Everything about a notification."""

    dedupe_key: str | None
    trace_id: str | None
    #: The column, read; a text of another program that is no JSON is shown as `message`.
    error: Any
    locked_at: str | None
    claim_seq: int
    status_after: str | None
    event_at: str | None
    #: What was stored when the event was detected.
    event_payload: Any
    subscription_status: str | None
    contact_type: str | None
    locale: str | None
    preferences: Any
    last_notified_at: str | None
    last_known_section_status: str | None


def notification_id(number: int) -> str:
    return f"{_PREFIX}{number}"


def notification_number(text: str) -> int:
    digits = text.removeprefix(_PREFIX)
    if not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        raise NotFound(f"there is no notification {text[:40]!r}; ids look like notification_123")
    return int(digits)


def listed(row: Row) -> NotificationSummary:
    return NotificationSummary(**_summary(row))


def shown(row: Row) -> NotificationView:
    return NotificationView(
        **_summary(row),
        dedupe_key=row["dedupe_key"],
        trace_id=row["trace_id"],
        error=read_error(row["error"]),
        locked_at=_time(row["locked_at"]),
        claim_seq=row["claim_seq"] or 0,
        status_after=row["status_after"],
        event_at=_time(row["event_at"]),
        event_payload=read_object(row["event_payload"]),
        subscription_status=row["subscription_status"],
        contact_type=row["contact_type"],
        locale=row["locale"],
        preferences=read_preferences(row["metadata"]).payload,
        last_notified_at=_time(row["last_notified_at"]),
        last_known_section_status=row["last_known_section_status"],
    )


def _summary(row: Row) -> Mapping[str, Any]:
    error = read_error(row["error"])
    return {
        "id": notification_id(row["id"]),
        "status": row["status"],
        "attempts": row["attempts"],
        "open_event_id": row["open_event_id"],
        "subscription_id": row["subscription_id"],
        "term_id": row["term_id"],
        "campus_code": row["campus_code"],
        "index_number": row["index_number"],
        "to": mask(row["contact_value"]) if row["contact_value"] else None,
        "error_code": str(code) if error and (code := error.get("code")) is not None else None,
        "due_at": _time(row["due_at"]),
        "last_attempt_at": _time(row["last_attempt_at"]),
        "locked_by": row["locked_by"],
        "created_at": _time(row["created_at"]),
    }


def read_error(text: str | None) -> dict[str, Any] | None:
    if not text:
        return None
    try:
        given = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        given = text
    return given if isinstance(given, dict) else {"message": str(given)}


def _time(value: datetime | str | None) -> str | None:
    """Another program's time may be no time; then it is shown as it is."""
    try:
        return iso(value)
    except (ValueError, OverflowError):
        return str(value)
