"""The form with which subscribers change what they want: from the row to its fields, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from msgspec import Struct

from homing.db import Row, iso
from homing.lanes.open_events.locales import LOCALE_NAMES
from homing.lanes.open_events.preferences import (
    DeliveryWindow,
    read_preferences,
    zone_of,
)
from homing.lanes.open_events.wishes import MOST_NOTIFICATIONS

_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::[0-5]\d)?").fullmatch
_LAST_YEAR = 9900


class Form(Struct, frozen=True):
    """The fields, as texts that a browser's inputs take."""

    notify_open: bool
    window_start: str
    window_end: str
    time_zone: str
    snooze_until: str
    max_notifications: str
    locale: str


class ReadForm(Struct, frozen=True):
    """What was asked for by a form: changes by name in the column, or what is wrong by field."""

    form: Form
    changes: dict[str, Any]
    locale: str | None
    mistakes: dict[str, str]


def form_of(row: Row, default_zone: str) -> Form:
    wishes = read_preferences(row["metadata"])
    window = wishes.window
    name = window.zone if window else wishes.zone
    zone = _zone(name or default_zone)
    most = wishes.max_notifications
    return Form(
        wishes.wants_open,
        _clock(window.start) if window else "",
        _clock(window.end) if window else "",
        name or "",
        _local(wishes.snooze_until, zone),
        "" if most is None else str(most),
        row["locale"] or "",
    )


def choices(locales: tuple[str, ...]) -> dict[str, Any]:
    return {"locales": [(tag, LOCALE_NAMES.get(tag, tag)) for tag in locales], "time_zones": _zones()}


def read_form(
    fields: Mapping[str, str], words: Mapping[str, str], locales: tuple[str, ...], default_zone: str
) -> ReadForm:
    """All mistakes at once, each in the reader's words."""
    form = _posted(fields)
    mistakes: dict[str, str] = {}
    if form.time_zone and zone_of(form.time_zone) is None:
        mistakes["timeZone"] = words["mistake_time_zone"]
    zone = _zone(form.time_zone or default_zone)
    window = _window(form)
    if window is None and (form.window_start or form.window_end):
        mistakes["windowStart"] = words["mistake_window"]
    snooze = _instant(form.snooze_until, zone)
    if form.snooze_until and snooze is None:
        mistakes["snoozeUntil"] = words["mistake_snooze"]
    most = _number(form.max_notifications)
    if form.max_notifications and most is None:
        mistakes["maxNotifications"] = words["mistake_max"]
    if form.locale and form.locale not in locales:
        mistakes["locale"] = words["mistake_locale"]
    changes = {
        "notifyOn": ["open"] if form.notify_open else [],
        "deliveryWindow": window.payload if window else None,
        "snoozeUntil": iso(snooze),
        "maxNotifications": most,
        # A snooze without a window has nowhere else to keep the zone that it was given in.
        "timeZone": form.time_zone or None if snooze and not window else None,
    }
    return ReadForm(form, changes, form.locale or None, mistakes)


def _posted(fields: Mapping[str, str]) -> Form:
    def field(name: str) -> str:
        return fields.get(name, "").strip()[:100]

    return Form(
        "open" in field("notifyOn"),
        field("windowStart"),
        field("windowEnd"),
        field("timeZone"),
        field("snoozeUntil"),
        field("maxNotifications"),
        field("locale"),
    )


def _window(form: Form) -> DeliveryWindow | None:
    start, end = _CLOCK(form.window_start), _CLOCK(form.window_end)
    if start is None or end is None:
        return None
    first, last = (int(time[1]) * 60 + int(time[2]) for time in (start, end))
    return DeliveryWindow(first, last, form.time_zone or None)


def _instant(text: str, zone: ZoneInfo) -> datetime | None:
    try:
        wall = datetime.fromisoformat(text)
    except ValueError:
        return None
    usable = wall.tzinfo is None and 1970 <= wall.year <= _LAST_YEAR
    return wall.replace(tzinfo=zone).astimezone(UTC) if usable else None


def _number(text: str) -> int | None:
    whole = text.isascii() and text.isdigit() and len(text) < 5
    return int(text) if whole and 1 <= int(text) <= MOST_NOTIFICATIONS else None


def _local(moment: datetime | None, zone: ZoneInfo) -> str:
    if moment is None or not 1970 <= moment.year <= _LAST_YEAR:
        return ""
    return moment.astimezone(zone).strftime("%Y-%m-%dT%H:%M")


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


def _zone(name: str) -> ZoneInfo:
    return zone_of(name) or ZoneInfo("UTC")


@lru_cache(maxsize=1)
def _zones() -> list[str]:
    return sorted(available_timezones())
