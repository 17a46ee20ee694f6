from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homing.errors import SettingsError
from homing.lanes.open_events.locales import (
    LOCALE_NAMES,
    PACKAGED_TEMPLATES,
    canonical,
    choose_locale,
    missing_templates,
    one_line,
    spoken_time,
    supported_locales,
)
from homing.senders.templates import Templates

BOTH = ("en-US", "zh-CN")


@pytest.mark.clause("NTF-19")
@pytest.mark.parametrize(
    ("asked", "supported", "default", "chosen"),
    [
        # The same tag, however it is spelled.
        ("zh-CN", BOTH, "en", "zh-CN"),
        ("zh_cn", BOTH, "en", "zh-CN"),
        ("ZH-cn", BOTH, "en", "zh-CN"),
        (" zh-CN\n", BOTH, "en", "zh-CN"),
        ("zh_CN.UTF-8", BOTH, "en", "zh-CN"),
        ("EN-us", ("zh-CN", "en_us"), None, "en-US"),
        # The same language in the same script.
        ("zh", BOTH, "en", "zh-CN"),
        ("zh-Hans", BOTH, "en", "zh-CN"),
        ("zh-Hans-SG", BOTH, "en", "zh-CN"),
        ("zh-HK", ("zh-CN", "zh-TW"), None, "zh-TW"),
        ("zh-Hant", ("zh-CN", "zh-TW"), None, "zh-TW"),
        ("zh-SG", ("zh-TW", "zh-CN"), None, "zh-CN"),
        ("en", BOTH, "zh-CN", "en-US"),
        ("en-GB", ("zh-CN", "en-US", "en-AU"), None, "en-US"),
        # The same language at all.
        ("zh-TW", BOTH, "en", "zh-CN"),
        ("zh-Hant-HK", BOTH, "en", "zh-CN"),
        # Neither: the default, by the same rule.
        ("fr", BOTH, "zh", "zh-CN"),
        (None, BOTH, "zh_CN", "zh-CN"),
        ("", BOTH, "en", "en-US"),
        # Not even that: the first supported.
        ("fr", BOTH, "de", "en-US"),
        ("fr", ("zh-CN", "en-US"), None, "zh-CN"),
        (None, ("zh-CN", "en-US"), "../en", "zh-CN"),
        # Garbage.
        ("C", BOTH, "zh-CN", "zh-CN"),
        ("english", BOTH, "zh-CN", "zh-CN"),
        ("../zh-CN", BOTH, None, "en-US"),
        ("zh-CN/../en", BOTH, None, "en-US"),
        ("zh-", BOTH, None, "en-US"),
        ("zh CN", BOTH, None, "en-US"),
        ("{{ 7*7 }}", BOTH, None, "en-US"),
        ("中文", BOTH, None, "en-US"),
        ("z" * 10_000, BOTH, None, "en-US"),
        ("\x00", BOTH, None, "en-US"),
    ],
)
def test_the_locale_is_chosen_by_rule(
    asked: str | None, supported: tuple[str, ...], default: str | None, chosen: str
) -> None:
    assert choose_locale(asked, supported, default) == chosen


@settings(max_examples=300, deadline=None)
@given(asked=st.none() | st.text(max_size=20), default=st.none() | st.text(max_size=20))
def test_whatever_is_asked_for_a_supported_locale_is_chosen(asked: str | None, default: str | None) -> None:
    assert choose_locale(asked, BOTH, default) in BOTH


def test_supported_locales_are_read_once() -> None:
    assert supported_locales("en_us, zh-cn,en-US") == BOTH
    for wrong in ("", "en-US,../x", "en-US,,zh-CN"):
        with pytest.raises(SettingsError, match="HOMING_NOTIFY_LOCALES"):
            supported_locales(wrong)


def test_a_locale_has_a_name_of_its_own() -> None:
    assert tuple(LOCALE_NAMES) == BOTH
    assert all(canonical(tag) == tag for tag in LOCALE_NAMES)


# ── Words for values ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("zone", "english", "chinese", "german"),
    [
        ("UTC", "Mon, Nov 16, 3:05 PM UTC", "11月16日 周一 15:05 UTC", "2026-11-16 15:05 UTC"),
        ("America/New_York", "Mon, Nov 16, 10:05 AM EST", "11月16日 周一 10:05 EST", "2026-11-16 10:05 EST"),
        ("Europe/Berlin", "Mon, Nov 16, 4:05 PM CET", "11月16日 周一 16:05 CET", "2026-11-16 16:05 CET"),
        (
            "Asia/Shanghai",
            "Mon, Nov 16, 11:05 PM UTC+8",
            "北京时间 11月16日 周一 23:05",
            "2026-11-16 23:05 UTC+8",
        ),
        (
            "Asia/Kathmandu",
            "Mon, Nov 16, 8:50 PM UTC+5:45",
            "11月16日 周一 20:50 UTC+5:45",
            "2026-11-16 20:50 UTC+5:45",
        ),
    ],
)
def test_a_time_reads_as_people_say_it(zone: str, english: str, chinese: str, german: str) -> None:
    instant = datetime(2026, 11, 16, 15, 5, 59, tzinfo=UTC)
    assert spoken_time(instant, "en-US", ZoneInfo(zone)) == english
    assert spoken_time(instant, "zh-CN", ZoneInfo(zone)) == chinese
    assert spoken_time(instant, "de", ZoneInfo(zone)) == german


@pytest.mark.parametrize(
    ("hour", "said"), [(0, "12:00 AM"), (1, "1:00 AM"), (12, "12:00 PM"), (13, "1:00 PM"), (23, "11:00 PM")]
)
def test_noon_and_midnight(hour: int, said: str) -> None:
    assert spoken_time(datetime(2026, 7, 4, hour, tzinfo=UTC), "en-US") == f"Sat, Jul 4, {said} UTC"


def test_an_instant_reads_the_same_however_it_was_written() -> None:
    west = timezone(timedelta(hours=-3, minutes=-30))
    assert spoken_time(datetime(2026, 7, 4, 9, tzinfo=west), "en-US") == "Sat, Jul 4, 12:30 PM UTC"
    assert spoken_time(datetime(2026, 7, 4, 12, tzinfo=UTC), "en-US", west) == "Sat, Jul 4, 8:30 AM UTC-3:30"


def test_a_clock_that_is_far_off_does_no_harm() -> None:
    assert "Jan 1" in spoken_time(datetime(1, 1, 1, tzinfo=UTC), "en-US", ZoneInfo("America/New_York"))
    assert "Dec 31" in spoken_time(datetime(9999, 12, 31, 23, tzinfo=UTC), "en-US", ZoneInfo("Asia/Tokyo"))


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("Calculus I", "Calculus I"),
        ("  Calculus\r\n\tI\x00 ", "Calculus I"),
        ("a\u2028b\u0085c\u00a0d\udc80e", "a b c d e"),
        ("微积分\n上", "微积分 上"),
        ("\x1b", ""),
    ],
)
def test_foreign_texts_become_one_line(given: str, line: str) -> None:
    assert one_line(given) == line


# ── At start ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("NTF-22")
def test_every_supported_locale_has_every_template(tmp_path: Path) -> None:
    templates = Templates(tmp_path, PACKAGED_TEMPLATES)
    assert missing_templates(templates, BOTH, "v1") == []
    absent = missing_templates(templates, ("en-US", "de"), "v1")
    assert [line.split(":")[0] for line in absent] == [
        "template open-seat in de",
        "template verification in de",
    ]
    assert all("open-seat/v7" in line for line in missing_templates(templates, BOTH, "v7"))


def test_an_operator_adds_a_language_by_files(tmp_path: Path) -> None:
    for folder in ("open-seat/v1", "verification/v1"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "de.subject.txt").write_text("Platz frei", encoding="utf-8")
        (tmp_path / folder / "de.txt").write_text("{{ oops", encoding="utf-8")
    templates = Templates(tmp_path, PACKAGED_TEMPLATES)
    assert len(missing_templates(templates, ("de", *BOTH), "v1")) == 2
    for folder in ("open-seat/v1", "verification/v1"):
        (tmp_path / folder / "de.txt").write_text("Ein Platz ist frei.", encoding="utf-8")
    assert missing_templates(Templates(tmp_path, PACKAGED_TEMPLATES), ("de", *BOTH), "v1") == []
