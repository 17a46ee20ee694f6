"""The job that a notification becomes: the specification's payload, checked against its schema every time.

`mail_job.schema.json` is the specification's text, byte for byte. Formats are annotations there; the address
is checked on its own, by whoever sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from importlib.resources import files
from typing import Any

import jsonschema_rs
import msgspec
from msgspec import Struct

from homing.db import iso
from homing.lanes.open_events.links import Links
from homing.lanes.open_events.locales import OPEN_SEAT, choose_locale, one_line, spoken_time
from homing.lanes.open_events.notification import (
    Meeting,
    Notification,
    OpenEvent,
    Subscriber,
    meetings_of,
    read_object,
)
from homing.lanes.open_events.preferences import name_in, read_preferences, zone_of
from homing.senders.mail import SendErrorCode

#: What we emit: the lowest version there is.
VERSION = "1.0"

_VALIDATOR = jsonschema_rs.Draft202012Validator(
    msgspec.json.decode(files(__package__ or "").joinpath("mail_job.schema.json").read_bytes()),
    validate_formats=False,
)

_TBA = "TBA"
_MINUTES_OF_A_DAY = 24 * 60


# ── checking ─────────────────────────────────────────────────────────────────────────────────────


def complaints(payload: Any) -> list[str]:
    """What is wrong with a payload of version 1.0, and where; no value of it is repeated."""
    try:
        if _VALIDATOR.is_valid(payload):
            return []
        return [_complaint(error) for error in _VALIDATOR.iter_errors(payload)]
    except ValueError:
        # It holds something that JSON has no word for.
        return ["it is not JSON"]


def _complaint(error: jsonschema_rs.ValidationError) -> str:
    where = ".".join(str(step) for step in error.instance_path) or "the payload"
    match error.kind:
        case jsonschema_rs.ValidationErrorKind.Required(property=missing):
            return f"{where}: {missing} is missing"
        case jsonschema_rs.ValidationErrorKind.AdditionalProperties():
            return f"{where}: there is a key that is not known"
        case other:
            return f"{where}: it breaks the rule {other.name!r}"


class Unusable(Struct, frozen=True):
    """Why a job is not sent; trying again changes nothing."""

    code: SendErrorCode
    message: str


def check(job: Mapping[str, Any]) -> Unusable | None:
    found = complaints(job)
    if not found:
        return None
    variables = [one for one in found if one.startswith("template.variables: ")]
    code = (
        SendErrorCode.TEMPLATE_VARIABLE_MISSING
        if len(variables) == len(found)
        else SendErrorCode.VALIDATION_ERROR
    )
    return Unusable(code, f"the job is not what the schema asks for: {'; '.join(found[:5])}")


# ── building ─────────────────────────────────────────────────────────────────────────────────────


class DeliveryPolicy(Struct, frozen=True):
    """As the payload tells it."""

    max_attempts: int
    lock_ttl_seconds: int
    retry_schedule_ms: tuple[int, ...]

    def payload(self) -> dict[str, Any]:
        return {
            "maxAttempts": self.max_attempts,
            "lockTtlSeconds": self.lock_ttl_seconds,
            "retryScheduleMs": list(self.retry_schedule_ms),
        }


class Jobs:
    """Builds payloads. What all subscribers of an event share is made once."""

    def __init__(
        self,
        links: Links,
        policy: DeliveryPolicy,
        *,
        locales: tuple[str, ...],
        default_locale: str | None = None,
        template_version: str = "v1",
        time_zone: str = "UTC",
    ) -> None:
        self._links = links
        self._policy = policy.payload()
        self._locales = locales
        self._default_locale = default_locale
        self._template_version = template_version
        self._time_zone = time_zone

    def shared(self, event: OpenEvent, subscriber: Subscriber) -> tuple[str, Mapping[str, Any]]:
        """The locale, and all variables but the links: the same object for all who get the same."""
        locale = choose_locale(subscriber.locale, self._locales, self._default_locale)
        window = read_preferences(subscriber.metadata).window
        return locale, _variables(event, locale, (window.zone if window else None) or self._time_zone)

    def build(
        self, id: int, notification: Notification, event: OpenEvent, subscriber: Subscriber
    ) -> dict[str, Any]:
        locale, variables = self.shared(event, subscriber)
        email = subscriber.contact_value or ""
        links = {
            "manageUrl": self._links.manage_url(notification.subscription_id, email),
            "unsubscribeUrl": self._links.unsubscribe_url(notification.subscription_id, email),
        }
        job = {
            "version": VERSION,
            "notificationId": id,
            "openEventId": notification.open_event_id,
            "subscriptionId": notification.subscription_id,
            "dedupeKey": notification.dedupe_key,
            "locale": locale,
            "recipient": _present({"email": email.strip(), "name": name_in(subscriber.metadata)}),
            "template": {
                "id": OPEN_SEAT,
                "version": self._template_version,
                "variables": {**variables, **links},
            },
            "event": _event(event),
            "subscription": _subscription(subscriber),
            "links": links,
            "deliveryPolicy": self._policy,
        }
        if event.trace_id is not None:
            job["traceId"] = event.trace_id
        return job


def _present(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _word(value: Any) -> str | None:
    """A text of somebody else's JSON, which may have been written as a number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(value) or None


def _subscription(subscriber: Subscriber) -> dict[str, Any]:
    return _present(
        {
            "status": subscriber.standing,
            "contactType": (subscriber.contact_type or "").strip().lower(),
            "contactValue": (subscriber.contact_value or "").strip(),
            "contactHash": subscriber.contact_hash,
            "lastKnownSectionStatus": subscriber.last_known_section_status,
            "preferences": _preferences(subscriber.metadata),
        }
    )


@lru_cache(maxsize=4096)
def _preferences(metadata: str | None) -> dict[str, Any]:
    return read_preferences(metadata).payload


@lru_cache(maxsize=1024)
def _event(event: OpenEvent) -> dict[str, Any]:
    """What was detected. Title, number and hash are those of that moment, which its payload keeps."""
    detected = read_object(event.payload)
    return _present(
        {
            "sectionId": event.section_id,
            "termId": event.term_id,
            "campusCode": event.campus_code,
            "indexNumber": event.index_number,
            "sectionNumber": _word(detected.get("sectionNumber")) or event.section_number,
            "subjectCode": _word(detected.get("subjectCode")) or event.subject_code,
            "courseTitle": _word(detected.get("courseTitle")) or event.course_title,
            "statusBefore": event.status_before,
            "statusAfter": event.status_after,
            "eventAt": _iso(event.event_at),
            "detectedBy": event.detected_by,
            "snapshotHash": _word(detected.get("snapshotHash")),
        }
    )


@lru_cache(maxsize=4096)
def _variables(event: OpenEvent, locale: str, zone: str) -> dict[str, Any]:
    detected, told = read_object(event.payload), _event(event)
    string = _word(detected.get("courseString")) or event.course_string or _course_string(event)
    words = {
        "courseTitle": told.get("courseTitle") or string,
        "courseString": string or told.get("courseTitle"),
        "sectionIndex": told.get("indexNumber"),
        "sectionNumber": told.get("sectionNumber"),
        "meetingSummary": summary_of(meetings_of(event.meetings)),
        "campus": told.get("campusCode"),
        "notes": _word(detected.get("notes")),
    }
    spoken = {name: one_line(word) for name, word in words.items() if word is not None}
    return _present({**spoken, "eventDetectedAt": told.get("eventAt"), **_detected(event, locale, zone)})


def _course_string(event: OpenEvent) -> str | None:
    parts = (event.subject_code, event.course_number)
    return ":".join(part for part in parts if part) or None


def _detected(event: OpenEvent, locale: str, zone: str) -> dict[str, str]:
    moment = _moment(event.event_at)
    return {"eventDetectedText": spoken_time(moment, locale, zone_of(zone) or UTC)} if moment else {}


def _moment(value: datetime | str | None) -> datetime | None:
    """None for a time that nobody can read."""
    try:
        moment = datetime.fromisoformat(value.strip()) if isinstance(value, str) else value
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


def _iso(value: datetime | str | None) -> str | None:
    try:
        moment = _moment(value)
        return iso(moment) if moment is not None else str(value) if value is not None else None
    except (ValueError, OverflowError):
        # A time at the end of what a calendar has.
        return str(value)


# ── when it meets ────────────────────────────────────────────────────────────────────────────────


def summary_of(meetings: Sequence[Meeting]) -> str:
    """`M 10:20-11:40 HLL 114; W 10:20-11:40 HLL 114`, or TBA."""
    return "; ".join(line for meeting in meetings if (line := _line(meeting))) or _TBA


def _line(meeting: Meeting) -> str:
    day, place = _joined(meeting.day), _joined(meeting.campus, meeting.building, meeting.room)
    start, end = _clock(meeting.start), _clock(meeting.end)
    hours = f"{start}-{end}" if start and end else start
    return " ".join(part for part in (day, hours or (_TBA if day or place else ""), place) if part)


def _joined(*parts: str | None) -> str:
    return " ".join(stripped for part in parts if part and (stripped := part.strip()))


def _clock(minutes: str | None) -> str:
    try:
        number = int(float(minutes)) if minutes else -1
    except (ValueError, OverflowError):
        number = -1
    return f"{number // 60:02}:{number % 60:02}" if 0 <= number < _MINUTES_OF_A_DAY else ""
