"""A row of `open_event_notifications` as it is claimed, and what it is about."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from homing.db import Row

#: Announced when something may be due.
CHANNEL = "homing_open_events"

STATES = ("pending", "sent", "skipped", "failed", "expired")
#: Those from which a notification can be put back.
ENDED_BADLY = ("skipped", "failed", "expired")


class Terms(Struct, frozen=True):
    """What the statements go by."""

    #: Whose name is on a lock.
    owner: str
    #: A lock that is older than this is nobody's.
    lock_ttl_seconds: float
    #: An event that is older than this is no news.
    expire_after_seconds: float


class Meeting(Struct, frozen=True, gc=False):
    """When and where a section meets. Another program fills it in, so each part may be missing."""

    day: str | None = None
    start: str | None = None
    end: str | None = None
    campus: str | None = None
    building: str | None = None
    room: str | None = None


class OpenEvent(Struct, frozen=True, gc=False):
    """What all subscribers of an event share, by column.

    The fields stand in the order in which `events` returns its columns.
    """

    id: int
    section_id: int | None
    term_id: str | None
    campus_code: str | None
    index_number: str | None
    status_before: str | None
    status_after: str | None
    event_at: datetime | str | None
    detected_by: str | None
    trace_id: str | None
    payload: str | None
    expired: bool | int | None
    section_number: str | None
    subject_code: str | None
    course_number: str | None
    course_string: str | None
    course_title: str | None
    meetings: str | None


class Subscriber(Struct, frozen=True, gc=False):
    """Who is to be told, by column; in the order in which `subscribers` returns them."""

    contact_type: str | None
    contact_value: str | None
    contact_hash: str | None
    locale: str | None
    status: str | None
    last_known_section_status: str | None
    metadata: str | None

    @property
    def standing(self) -> str:
        return (self.status or "").strip().lower()


class Notification(Struct, frozen=True, gc=False):
    """What a worker needs of a row. What is None was not there any more."""

    open_event_id: int
    subscription_id: int
    dedupe_key: str | None
    #: The row says how an earlier attempt went, and not only why it waits.
    has_error: bool
    #: It has ended once, and was put back: then it is sent, however old its event is.
    has_ended: bool
    #: By the database's clock.
    claimed_at: datetime
    #: By our own, for how long ago that was.
    claimed: float
    event: OpenEvent | None = None
    subscriber: Subscriber | None = None
    #: How often the subscriber was notified since the subscription was last changed; like `ahead`, counted
    #: only where there may be a limit.
    notified: int = 0
    #: Other notifications of the subscription that go before this one.
    ahead: int = 0
    #: One of these that has the same dedupe key.
    twin: int | None = None
    #: One with the same dedupe key was sent.
    duplicate: bool | int = False


def event_of(row: Row) -> OpenEvent:
    return OpenEvent(*row)


#: `subscribers` begins with the notification's id, two counts, and what is known of its twins.
COUNTED = 5


def subscriber_of(row: Row) -> Subscriber | None:
    """None where there is no such subscription: then the last column is."""
    *columns, found = tuple(row)[COUNTED:]
    return Subscriber(*columns) if found is not None else None


_read_meetings = msgspec.json.Decoder(tuple[Meeting, ...]).decode


@lru_cache(maxsize=1024)
def meetings_of(text: str | None) -> tuple[Meeting, ...]:
    return _read_meetings(text) if text else ()


@lru_cache(maxsize=1024)
def read_object(text: str | None) -> dict[str, Any]:
    """A JSON object that another program has written; empty where it is none. Not to be changed."""
    try:
        given = msgspec.json.decode(text) if text else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        given = None
    return given if isinstance(given, dict) else {}
