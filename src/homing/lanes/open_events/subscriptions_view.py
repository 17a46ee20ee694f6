"""Rows of `subscriptions` as the API shows them: addresses masked, tokens not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from homing.db import Row, iso
from homing.lanes.open_events.preferences import read_preferences
from homing.senders.addresses import mask


class SubscriptionSummary(Struct, frozen=True, rename="camel"):
    """A subscription, as lists show it."""

    subscription_id: int
    #: None where another program's table does not say which section it is for.
    term_id: str | None
    campus_code: str | None
    index_number: str | None
    section_id: int | None
    contact_type: str
    #: Masked.
    contact: str
    locale: str | None
    #: pending, active, paused, suppressed or unsubscribed
    status: str
    verified: bool
    #: As they are understood; what is unusable in the column counts as left out.
    preferences: dict[str, Any]
    last_notified_at: str | None
    last_known_section_status: str | None
    created_at: str | None
    updated_at: str | None

    @property
    def section_parts(self) -> list[str]:
        return [part for part in (self.term_id, self.campus_code, self.index_number) if part]

    @property
    def section(self) -> str:
        return " ".join(self.section_parts)


class SubscriptionEvent(Struct, frozen=True, rename="camel"):
    event_id: int
    type: str
    section_status: str | None
    details: Any
    created_at: str | None


class SubscriptionView(SubscriptionSummary, frozen=True, rename="camel", kw_only=True):
    """A subscription, with what is known of its section and the last that happened, newest first."""

    course_title: str | None
    course_string: str | None
    section_number: str | None
    events: list[SubscriptionEvent]


def listed_subscription(row: Row) -> SubscriptionSummary:
    return SubscriptionSummary(**_summary(row))


def shown_subscription(row: Row, history: Sequence[Row]) -> SubscriptionView:
    return SubscriptionView(
        **_summary(row),
        course_title=row["title"],
        course_string=row["course_string"],
        section_number=row["section_number"],
        events=[_event(event) for event in history],
    )


def _summary(row: Row) -> Mapping[str, Any]:
    return {
        "subscription_id": row["subscription_id"],
        "term_id": row["term_id"],
        "campus_code": row["campus_code"],
        "index_number": row["index_number"],
        "section_id": row["section_id"],
        "contact_type": row["contact_type"],
        "contact": mask(row["contact_value"]),
        "locale": row["locale"],
        "status": row["status"],
        "verified": bool(row["is_verified"]),
        "preferences": read_preferences(row["metadata"]).payload,
        "last_notified_at": _time(row["last_notified_at"]),
        "last_known_section_status": row["last_known_section_status"],
        "created_at": _time(row["created_at"]),
        "updated_at": _time(row["updated_at"]),
    }


def _event(row: Row) -> SubscriptionEvent:
    return SubscriptionEvent(
        row["event_id"],
        row["event_type"],
        row["section_status_snapshot"],
        _details(row["payload"]),
        _time(row["created_at"]),
    )


def _details(payload: str | None) -> Any:
    """Another program may have written it, so it may be anything."""
    try:
        return msgspec.json.decode(payload) if payload else None
    except (msgspec.DecodeError, UnicodeError):
        return None


def _time(value: Any) -> str | None:
    try:
        return iso(value)
    except (ValueError, TypeError):
        return str(value)
