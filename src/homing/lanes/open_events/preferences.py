"""What a subscriber wants: `subscriptions.metadata`, and when a mail may go out.

Another program writes that column too. What is unusable there counts as left out where it is about whether
somebody is told, for they have asked to be. Where it is about when, the mail waits: at night it could not be
taken back, and whoever mends the column before the event is too old still gets it. The API, which writes the
column for people, refuses all that (`wishes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Struct

from homing.db import iso
from homing.db.instants import read_instant
from homing.lanes.open_events.locales import one_line

MINUTES_OF_A_DAY = 24 * 60

_KEYS = frozenset({"notifyOn", "snoozeUntil", "maxNotifications", "deliveryWindow"})
_LONGEST_NAME = 100
_MINUTE = timedelta(minutes=1)
#: How long a mail waits at least when nobody can tell how long; then it is looked at again.
_UNCLEAR = timedelta(days=1)
#: Beyond it, time zones cannot be computed with; a mail that is snoozed until then never goes out anyway.
_LAST_YEAR = 9900


class DeliveryWindow(Struct, frozen=True):
    """Minutes of the day, both included; one that ends before it starts goes on past midnight."""

    start: int
    end: int
    #: IANA; None is the installation's.
    zone: str | None = None

    def contains(self, minute: int) -> bool:
        if self.start <= self.end:
            return self.start <= minute <= self.end
        return minute >= self.start or minute <= self.end

    @property
    def payload(self) -> dict[str, Any]:
        minutes: dict[str, Any] = {"startMinutes": self.start, "endMinutes": self.end}
        return {**minutes, "timeZone": self.zone} if self.zone else minutes


class Preferences(Struct, frozen=True):
    """What a subscriber wants; these are the defaults."""

    wants_open: bool = True
    #: None is no limit.
    max_notifications: int | None = None
    snooze_until: datetime | None = None
    window: DeliveryWindow | None = None
    #: IANA; in which a snooze is shown where there is no window with a zone.
    zone: str | None = None
    #: Whether there is a snooze or a window that cannot be read.
    unclear: bool = False

    @property
    def payload(self) -> dict[str, Any]:
        """As a job's payload tells them: what was unusable in the column is not in it."""
        said = {
            "notifyOn": ["open"] if self.wants_open else [],
            "maxNotifications": self.max_notifications,
            "deliveryWindow": self.window.payload if self.window else None,
            "snoozeUntil": iso(self.snooze_until),
        }
        return {name: value for name, value in said.items() if value is not None}


DEFAULTS = Preferences()


# ── the column ───────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=4096)
def read_preferences(metadata: str | None) -> Preferences:
    """From the column's text: `{"preferences": {…}}`, or the preferences themselves."""
    given = preferences_in(read_metadata(metadata))
    if not given:
        return DEFAULTS
    snooze, window = given.get("snoozeUntil"), _unless_empty(_named(given.get("deliveryWindow")))
    moment, hours = read_instant(snooze), _window(window)
    return Preferences(
        _wants_open(given.get("notifyOn")),
        _max_notifications(given.get("maxNotifications")),
        moment,
        hours,
        _zone_name(given.get("timeZone")),
        # What is empty (null, false, 0, "", {}) is left out, not unreadable.
        unclear=(bool(snooze) and moment is None) or (bool(window) and hours is None),
    )


@lru_cache(maxsize=4096)
def name_in(metadata: str | None) -> str | None:
    """What the subscriber is called, where the other program keeps that beside the preferences.

    The tables of the specification have no column for it; `metadata` is the one that is open for more.
    """
    name = read_metadata(metadata).get("name")
    return (one_line(name)[:_LONGEST_NAME].strip() or None) if isinstance(name, str) else None


def read_metadata(metadata: str | None) -> dict[str, Any]:
    """The column as an object; empty where it is none."""
    try:
        given = msgspec.json.decode(metadata) if metadata else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        given = None
    return given if isinstance(given, dict) else {}


def preferences_in(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The part that holds the preferences, as it is written."""
    nested = metadata.get("preferences")
    if isinstance(nested, dict):
        return nested
    return dict(metadata) if _KEYS.intersection(metadata) else {}


def with_preferences(metadata: str | None, changes: Mapping[str, Any]) -> str:
    """The column with some preferences changed (None takes one out), and all else as it was."""
    given = read_metadata(metadata)
    wanted = {**preferences_in(given), **changes}
    wanted = {name: value for name, value in wanted.items() if name not in changes or value is not None}
    flat = not isinstance(given.get("preferences"), dict) and bool(_KEYS.intersection(given))
    return msgspec.json.encode(wanted if flat else {**given, "preferences": wanted}).decode()


def _wants_open(given: Any) -> bool:
    if isinstance(given, bool):
        return given
    if isinstance(given, dict):
        given = [word for word, wanted in given.items() if wanted]
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list):
        return True
    return any(isinstance(word, str) and word.strip().lower() == "open" for word in given)


def _max_notifications(given: Any) -> int | None:
    number = _whole(given)
    return None if number is None or number < 0 else min(number, 2**31 - 1)


def _whole(given: Any) -> int | None:
    """A whole number, also one that is written as a text."""
    if isinstance(given, str):
        return int(given) if given.isascii() and given.isdigit() and len(given) < 16 else None
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    return int(given) if given == given // 1 else None


def _named(window: Any) -> Any:
    """A window that names nothing but a time zone is no window."""
    if isinstance(window, dict) and all(window[key] is None for key in window.keys() - {"timeZone"}):
        return None
    return window


def _unless_empty(window: Any) -> Any:
    """One without an edge, whatever else it says, or that ends where it starts, is no window."""
    if not isinstance(window, dict):
        return window
    edges = window.get("startMinutes"), window.get("endMinutes")
    is_empty = edges == (None, None) or (
        _whole(edges[0]) is not None and _whole(edges[0]) == _whole(edges[1])
    )
    return None if is_empty else window


def _window(given: Any) -> DeliveryWindow | None:
    if not isinstance(given, dict):
        return None
    edges = given.get("startMinutes"), given.get("endMinutes")
    # By the schema one may be missing: then the window goes on to that end of the day.
    start, end = (
        _whole(default if edge is None else edge)
        for edge, default in zip(edges, (0, MINUTES_OF_A_DAY), strict=True)
    )
    if start is None or end is None or not all(0 <= m <= MINUTES_OF_A_DAY for m in (start, end)):
        return None
    # Some programs write 1440 for midnight: the minute 0 at the start, the last of the day at the end.
    start, end = start % MINUTES_OF_A_DAY, min(end, MINUTES_OF_A_DAY - 1)
    return DeliveryWindow(start, end, _zone_name(given.get("timeZone")))


def _zone_name(given: Any) -> str | None:
    return given if isinstance(given, str) and zone_of(given) else None


@lru_cache(maxsize=1024)
def zone_of(name: str) -> ZoneInfo | None:
    """A time zone by its IANA name; None where there is none."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        # A name like `../x` or a folder's; what is merely unknown is a KeyError.
        return None


# ── when ─────────────────────────────────────────────────────────────────────────────────────────


def waits_until(preferences: Preferences, now: datetime, default_zone: str = "UTC") -> datetime | None:
    """When the mail may go out, if not now. It waits: a snooze and a window put mails off, they drop none."""
    if preferences.unclear:
        return now + _UNCLEAR
    if preferences.snooze_until is None and preferences.window is None:
        return None
    earliest = max(now, preferences.snooze_until or now)
    if preferences.window is not None and earliest.year < _LAST_YEAR:
        zone = zone_of(preferences.window.zone or default_zone) or ZoneInfo("UTC")
        earliest = _opening(preferences.window, earliest.astimezone(UTC), zone)
    return earliest if earliest > now else None


def _opening(window: DeliveryWindow, moment: datetime, zone: ZoneInfo) -> datetime:
    """The first moment from this one on that lies in the window, in UTC."""
    if _is_open(window, moment, zone):
        return moment
    today = moment.astimezone(zone).date()
    # A day can be missing from a calendar (Samoa, 2011), so one more than tomorrow is looked at.
    days = [today + timedelta(days=n) for n in (-1, 0, 1, 2)]
    starts = sorted(start for day in days for start in _starts(window, day, zone))
    return next(start for start in starts if start > moment and _is_open(window, start, zone))


def _is_open(window: DeliveryWindow, moment: datetime, zone: ZoneInfo) -> bool:
    here = moment.astimezone(zone)
    if window.contains(here.hour * 60 + here.minute):
        return True
    # A window that falls into the hour which clocks skip would not open at all that day: it moves along.
    days = (here.date() - timedelta(days=1), here.date())
    return any(start <= moment < end for day in days for start, end in _moved(window, day, zone))


def _moved(window: DeliveryWindow, day: date, zone: ZoneInfo) -> Iterator[tuple[datetime, datetime]]:
    start, end = (_instant(day, minute, zone, fold=0) for minute in (window.start, window.end))
    skipped = _is_skipped(start, window.start, zone) and _is_skipped(end, window.end, zone)
    if skipped and window.start <= window.end:
        yield start, end + _MINUTE


def _starts(window: DeliveryWindow, day: date, zone: ZoneInfo) -> Iterator[datetime]:
    """When the window of a day may open: once; twice in a repeated hour; or where clocks have jumped to."""
    later, sooner = (_instant(day, window.start, zone, fold=fold) for fold in (0, 1))
    yield from (later, sooner)
    if _is_skipped(later, window.start, zone):
        while sooner < later:
            yield (sooner := sooner + _MINUTE)


def _instant(day: date, minute: int, zone: ZoneInfo, *, fold: int) -> datetime:
    wall = datetime(day.year, day.month, day.day, minute // 60, minute % 60, tzinfo=zone, fold=fold)
    return wall.astimezone(UTC)


def _is_skipped(moment: datetime, minute: int, zone: ZoneInfo) -> bool:
    here = moment.astimezone(zone)
    return here.hour * 60 + here.minute != minute
