"""What subscribers want: read from what another program wrote, and when a mail may go out."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homing.lanes.open_events.preferences import (
    DEFAULTS,
    DeliveryWindow,
    Preferences,
    read_preferences,
    waits_until,
    with_preferences,
)

NEW_YORK = "America/New_York"
NOON = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def preferences(**given: Any) -> Preferences:
    return read_preferences(json.dumps({"preferences": given}))


def at(zone: str, year: int, month: int, day: int, hour: int, minute: int = 0, *, fold: int = 0) -> datetime:
    return datetime(year, month, day, hour, minute, tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("NTF-23")
def test_all_preferences_are_read() -> None:
    window = {"startMinutes": 480, "endMinutes": 1320, "timeZone": "America/New_York"}
    given = {
        "notifyOn": ["open", "waitlist"],
        "snoozeUntil": "2026-06-01T08:00:00-04:00",
        "maxNotifications": 7,
        "deliveryWindow": window,
    }
    expected = Preferences(True, 7, NOON, DeliveryWindow(480, 1320, "America/New_York"))
    assert preferences(**given) == expected
    assert read_preferences(json.dumps(given)) == expected, "the column may hold the preferences themselves"


@pytest.mark.parametrize(
    "metadata",
    [
        None, "", " ", "null", "[]", "5", '"text"', "{}", "{", '{"preferences": 5}', '{"preferences": {}}',
        '{"preferences": {"notifyOn": 5, "snoozeUntil": "", "maxNotifications": "x", "deliveryWindow": {}}}',
        '{"snoozeUntil": null, "maxNotifications": true, "deliveryWindow": false}',
        '{"maxNotifications": -1}',
        '{"maxNotifications": 1.5}', '{"maxNotifications": 1e400}', '{"snoozeUntil": 0}',
        "[" * 100_000, "\ud800",
    ],
)  # fmt: skip
def test_what_is_unusable_counts_as_left_out(metadata: str | None) -> None:
    assert read_preferences(metadata) == DEFAULTS


@pytest.mark.clause("NTF-23")
@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["open"], True), (["OPEN "], True), ("open", True), ([], False), (["closed"], False), ([5], False),
        ({"open": True}, True), ({"Open": 1}, True), ({"open": False}, False), ({"closed": True}, False),
        (True, True), (False, False), (None, True),
    ],
)  # fmt: skip
def test_who_wants_to_know_of_openings(given: Any, wanted: bool) -> None:
    assert preferences(notifyOn=given).wants_open is wanted


def test_a_zone_that_does_not_exist_is_the_default_one() -> None:
    for name in ("Mars/Olympus", "../etc/passwd", "America", "", "\x00", 5):
        window = {"startMinutes": 1, "endMinutes": 2, "timeZone": name}
        assert preferences(deliveryWindow=window).window == DeliveryWindow(1, 2, None)


@pytest.mark.parametrize(
    ("text", "moment"),
    [("2026-06-01T12:00:00Z", NOON), ("2026-06-01 12:00", NOON), ("2026-06-01T14:00:00.000+02:00", NOON)],
)
def test_a_snooze_is_an_instant_in_any_iso_form(text: str, moment: datetime) -> None:
    assert preferences(snoozeUntil=text).snooze_until == moment


@pytest.mark.clause("NTF-23")
@pytest.mark.parametrize("number", [1780315200, 1780315200.0, 1780315200000, "1780315200", "1780315200000"])
def test_a_snooze_may_be_a_number_of_seconds_or_milliseconds(number: Any) -> None:
    assert preferences(snoozeUntil=number).snooze_until == NOON


@pytest.mark.clause("NTF-23")
@pytest.mark.parametrize(
    ("start", "end", "window"),
    [(480, 1440, (480, 1439)), (1440, 480, (0, 480)), (0, 1440, (0, 1439)), ("480", "1200", (480, 1200))],
)
def test_a_window_may_end_at_midnight(start: Any, end: Any, window: tuple[int, int]) -> None:
    given = {"startMinutes": start, "endMinutes": end}
    assert preferences(deliveryWindow=given).window == DeliveryWindow(*window)


@pytest.mark.clause("NTF-28")
@pytest.mark.parametrize(
    ("window", "hours"),
    [
        ({"startMinutes": 480}, (480, 1439)), ({"endMinutes": 480}, (0, 480)),
        ({"startMinutes": None, "endMinutes": 480}, (0, 480)), ({"startMinutes": 0}, (0, 1439)),
        ({"startMinutes": 480, "timeZone": None}, (480, 1439)),
    ],
)  # fmt: skip
def test_a_window_with_one_edge_goes_on_to_the_other_end_of_the_day(
    window: dict[str, Any], hours: tuple[int, int]
) -> None:
    wishes = preferences(deliveryWindow=window)
    assert (wishes.window, wishes.unclear) == (DeliveryWindow(*hours), False)


@pytest.mark.clause("NTF-28")
@pytest.mark.parametrize(
    "window",
    [
        {},
        None,
        {"startMinutes": None, "endMinutes": None},
        {"timeZone": NEW_YORK},
        {"note": "any"},
        {"startMinutes": 0, "endMinutes": 0},
        {"startMinutes": 600, "endMinutes": 600.0},
    ],
)
def test_an_empty_window_is_no_window(window: dict[str, Any] | None) -> None:
    assert preferences(deliveryWindow=window) == DEFAULTS


@pytest.mark.clause("NTF-23")
@pytest.mark.parametrize(
    "given",
    [
        {"snoozeUntil": "tomorrow"}, {"snoozeUntil": 1e30}, {"snoozeUntil": ["2030-01-01"]},
        {"snoozeUntil": True}, {"snoozeUntil": "9" * 5000}, {"deliveryWindow": "08:00-22:00"},
        {"deliveryWindow": {"startMinutes": "soon"}},
        {"deliveryWindow": {"startMinutes": "soon", "endMinutes": "soon"}},
        {"deliveryWindow": {"startMinutes": -1, "endMinutes": 5}},
        {"deliveryWindow": {"startMinutes": 0, "endMinutes": 1441}},
    ],
)  # fmt: skip
def test_a_time_that_cannot_be_read_holds_the_mail_back(given: dict[str, Any]) -> None:
    """A mail at night cannot be taken back; whoever mends the column in time still gets it."""
    wishes = preferences(**given)
    assert wishes.wants_open
    waits = waits_until(wishes, NOON)
    assert waits is not None
    assert waits > NOON + timedelta(hours=1)


def test_a_change_keeps_what_is_not_ours() -> None:
    theirs = json.dumps({"source": "app", "preferences": {"theme": "dark", "maxNotifications": 5}})
    changed = json.loads(with_preferences(theirs, {"maxNotifications": None, "notifyOn": ["open"]}))
    assert changed == {"source": "app", "preferences": {"theme": "dark", "notifyOn": ["open"]}}
    flat = json.dumps({"maxNotifications": 5, "theme": "dark"})
    assert json.loads(with_preferences(flat, {"maxNotifications": 6})) == {
        "maxNotifications": 6,
        "theme": "dark",
    }
    assert json.loads(with_preferences("nonsense", {"maxNotifications": 6})) == {
        "preferences": {"maxNotifications": 6}
    }


# ── when ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("NTF-23")
def test_a_snoozed_mail_waits_until_then() -> None:
    later = NOON + timedelta(hours=5)
    assert waits_until(Preferences(snooze_until=later), NOON) == later
    assert waits_until(Preferences(snooze_until=later), later) is None
    assert waits_until(Preferences(snooze_until=NOON - MINUTE), NOON) is None
    for_ever = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
    wishes = Preferences(snooze_until=for_ever, window=DeliveryWindow(0, 1, "Asia/Tokyo"))
    assert waits_until(wishes, NOON) == for_ever


@pytest.mark.clause("NTF-23")
def test_a_window_includes_its_first_and_its_last_minute() -> None:
    wishes = Preferences(window=DeliveryWindow(8 * 60, 22 * 60))
    day = NOON.replace(hour=0)
    opening = day.replace(hour=8)
    assert waits_until(wishes, opening - timedelta(milliseconds=1)) == opening
    assert waits_until(wishes, opening) is None
    assert waits_until(wishes, day.replace(hour=22, second=59)) is None
    assert waits_until(wishes, day.replace(hour=22, minute=1)) == opening + timedelta(days=1)


@pytest.mark.clause("NTF-23")
def test_a_window_may_go_past_midnight() -> None:
    wishes = Preferences(window=DeliveryWindow(22 * 60, 6 * 60))
    day = NOON.replace(hour=0)
    assert waits_until(wishes, NOON) == day.replace(hour=22)
    assert waits_until(wishes, day.replace(hour=23)) is None
    assert waits_until(wishes, day.replace(hour=6)) is None
    assert waits_until(wishes, day.replace(hour=6, minute=1)) == day.replace(hour=22)


@pytest.mark.clause("NTF-23")
def test_a_window_is_in_its_own_time_zone_or_the_default_one() -> None:
    morning = DeliveryWindow(8 * 60, 9 * 60, "America/New_York")
    assert waits_until(Preferences(window=morning), NOON) is None
    elsewhere = Preferences(window=DeliveryWindow(8 * 60, 9 * 60))
    assert waits_until(elsewhere, NOON, "America/New_York") is None
    assert waits_until(elsewhere, NOON) == NOON.replace(hour=8) + timedelta(days=1)
    assert waits_until(elsewhere, NOON, "No/Zone") == NOON.replace(hour=8) + timedelta(days=1)


@pytest.mark.clause("NTF-23")
def test_a_snooze_that_ends_outside_the_window_waits_for_the_window() -> None:
    wishes = Preferences(snooze_until=NOON.replace(hour=23), window=DeliveryWindow(480, 1320))
    assert waits_until(wishes, NOON) == NOON.replace(hour=8) + timedelta(days=1)


@pytest.mark.clause("NTF-23")
def test_the_hour_that_clocks_skip_drops_nothing() -> None:
    evening = at(NEW_YORK, 2026, 3, 7, 22)
    wholly = Preferences(window=DeliveryWindow(2 * 60 + 15, 2 * 60 + 45, NEW_YORK))
    assert waits_until(wholly, evening) == at(NEW_YORK, 2026, 3, 8, 3, 15)
    assert waits_until(wholly, at(NEW_YORK, 2026, 3, 8, 3, 45)) is None
    assert waits_until(wholly, at(NEW_YORK, 2026, 3, 8, 3, 46)) == at(NEW_YORK, 2026, 3, 9, 2, 15)
    partly = Preferences(window=DeliveryWindow(2 * 60 + 30, 5 * 60, NEW_YORK))
    assert waits_until(partly, evening) == at(NEW_YORK, 2026, 3, 8, 3, 0)


@pytest.mark.clause("NTF-23")
def test_the_hour_that_clocks_repeat_is_in_the_window_twice() -> None:
    wishes = Preferences(window=DeliveryWindow(60, 90, NEW_YORK))
    assert waits_until(wishes, at(NEW_YORK, 2026, 11, 1, 0, 0)) == at(NEW_YORK, 2026, 11, 1, 1, 0)
    between = at(NEW_YORK, 2026, 11, 1, 1, 45)
    second = at(NEW_YORK, 2026, 11, 1, 1, 0, fold=1)
    assert waits_until(wishes, between) == second
    assert second - between == timedelta(minutes=15)
    assert waits_until(wishes, second) is None


def test_a_day_that_a_calendar_skipped_drops_nothing() -> None:
    wishes = Preferences(window=DeliveryWindow(12 * 60, 13 * 60, "Pacific/Apia"))
    moment = at("Pacific/Apia", 2011, 12, 29, 20)
    # Noon of the day that never was is noon of the next.
    assert waits_until(wishes, moment) == at("Pacific/Apia", 2011, 12, 31, 12)


ZONES = ["UTC", NEW_YORK, "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe", "America/St_Johns"]


@given(
    st.sampled_from(ZONES),
    st.integers(0, 1439),
    st.integers(0, 1439),
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)),  # noqa: DTZ001 - made UTC below
)
@settings(max_examples=100)
def test_it_waits_until_the_first_minute_of_the_window(
    zone: str, start: int, end: int, moment: datetime
) -> None:
    """Against a scan minute by minute, which knows nothing of how it is computed."""
    now = moment.replace(tzinfo=UTC)
    window = DeliveryWindow(start, end, zone)
    until = waits_until(Preferences(window=window), now)
    if until is None:
        return
    assert now < until <= now + timedelta(hours=26)
    here = until.astimezone(ZoneInfo(zone))
    moved = not window.contains(here.hour * 60 + here.minute)
    step = now
    while (step := step.replace(second=0, microsecond=0) + MINUTE) < until:
        there = step.astimezone(ZoneInfo(zone))
        assert not window.contains(there.hour * 60 + there.minute), (step, until)
    assert waits_until(Preferences(window=window), until) is None
    assert not moved or here.dst() != (until - timedelta(hours=3)).astimezone(ZoneInfo(zone)).dst()
