"""Flips: an opening becomes one event, and a notification for each subscription that wants one."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from tests.lanes.open_events.desk import OPENED, SECTION, Desk, opened_desk

from homing.db import connect, instant, iso
from homing.errors import InvalidRequest
from homing.lanes.open_events.fanout import Fanout, FlipReply, FlipRequest, dedupe_key, flip_of

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
#: A moment at which a bucket of three minutes begins.
EDGE = datetime.fromtimestamp(int(NOON.timestamp()) // 180 * 180, UTC)


@pytest.fixture
async def desk(seats_url: str) -> AsyncIterator[Desk]:
    async with opened_desk(seats_url) as desk:
        desk.clock.now = NOON
        yield desk


def _is_postgres(desk: Desk) -> bool:
    return desk.database.dialect == "postgres"


async def _at(desk: Desk, **time: float) -> FlipReply:
    return await desk.flip(EDGE + timedelta(**time))


# ── one event ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("NTF-23", "NTF-04", "NTF-08")
async def test_an_opening_is_one_event_and_a_row_for_each_subscriber(desk: Desk) -> None:
    ids = [await desk.subscriber(f"s{n}@example.org") for n in range(3)]
    await desk.subscriber("elsewhere@example.org", index_number="99999")
    reply = await desk.flip(
        EDGE,
        statusBefore="wait",
        statusAfter="OPEN",
        seatDelta=2,
        detectedBy="poller-1",
        snapshotId=7,
        traceId="trace-1",
        payload={"courseTitle": "Algebra", "sectionNumber": "01", "more": {"x": 1}},
    )
    assert reply == FlipReply(1, 3, False, "opened")
    event = (await desk.sql("SELECT * FROM open_events"))[0]
    assert instant(event["event_at"]) == EDGE
    assert json.loads(event["payload"]) == {
        "courseTitle": "Algebra", "sectionNumber": "01", "more": {"x": 1},
    }  # fmt: skip
    text = f"92026|NB|12345|OPEN|{int(EDGE.timestamp() * 1000) // 180000}"
    assert event["dedupe_key"] == hashlib.sha1(text.encode()).hexdigest()
    columns = ["status_before", "status_after", "seat_delta", "detected_by", "snapshot_id", "trace_id"]
    assert [event[name] for name in columns] == ["WAIT", "OPEN", 2, "poller-1", 7, "trace-1"]
    rows = await desk.sql("SELECT * FROM open_event_notifications ORDER BY notification_id")
    assert [row["subscription_id"] for row in rows] == ids
    for row in rows:
        assert (row["open_event_id"], row["dedupe_key"]) == (1, event["dedupe_key"])
        assert (row["fanout_status"], row["fanout_attempts"]) == ("pending", 0)
        assert [row[name] for name in ("locked_by", "locked_at", "error", "last_attempt_at")] == [None] * 4


@pytest.mark.clause("NTF-23")
async def test_a_flip_in_the_same_three_minutes_is_the_same_event(desk: Desk) -> None:
    await desk.subscriber()
    assert (await _at(desk, seconds=5)).verdict == "opened"
    assert await _at(desk, seconds=170) == FlipReply(1, 0, True, "duplicate")
    assert await _at(desk, seconds=0) == FlipReply(1, 0, True, "duplicate")
    assert await desk.count("open_events") == 1
    assert len(await desk.told()) == 1


@pytest.mark.clause("NTF-23")
async def test_a_flip_within_180_seconds_is_the_same_event_also_across_the_edge_of_a_bucket(
    desk: Desk,
) -> None:
    await desk.subscriber()
    first = EDGE - timedelta(seconds=1)
    keys = {dedupe_key("t", "c", "i", status="OPEN", moment=m) for m in (first, EDGE)}
    assert len(keys) == 2, "the clock's bucket alone would take them for two"
    assert (await desk.flip(first)).verdict == "opened"
    assert (await desk.flip(EDGE)).verdict == "duplicate"
    assert (await desk.flip(first + timedelta(seconds=179.999))).verdict == "duplicate"
    assert (await desk.flip(first - timedelta(seconds=179.999))).verdict == "duplicate"
    assert (await desk.flip(first + timedelta(seconds=180))) == FlipReply(2, 1, False, "opened")
    assert (await desk.flip(first + timedelta(seconds=200))).open_event_id == 2, "the nearest one"


@pytest.mark.clause("NTF-23")
async def test_other_sections_are_other_events(desk: Desk) -> None:
    for change in ({"termId": "12027"}, {"campusCode": "NK"}, {"indexNumber": "54321"}, {}):
        assert (await desk.flip(EDGE, **change)).verdict == "opened"
    assert await desk.count("open_events") == 4


@pytest.mark.clause("NTF-23", "NTF-01")
async def test_an_event_that_another_program_recorded_is_known(desk: Desk) -> None:
    forms = [
        "{0:%Y-%m-%d %H:%M:%S}",
        "{0:%Y-%m-%dT%H:%M:%S}.250+00:00",
        "{0:%Y-%m-%dT%H:%MZ}",
        # Not known to julianday().
        "{0:%Y%m%dT%H%M%SZ}",
        "{0:%Y-%m-%dT%H:%M:%S}+0000",
    ]
    for index, form in enumerate(forms):
        text: Any = form.format(EDGE)
        row = {
            **SECTION,
            "index_number": str(index),
            "status_after": "Open",
            "dedupe_key": f"another {index}",
        }
        moment = instant(text) if _is_postgres(desk) else text
        await desk.insert("open_events", "open_event_id", **row, event_at=moment)
        replies = [
            await desk.flip(EDGE + timedelta(seconds=seconds), indexNumber=str(index))
            for seconds in (100, -100, 240)
        ]
        assert [reply.verdict for reply in replies] == ["duplicate", "duplicate", "opened"]


@pytest.mark.clause("NTF-23")
async def test_requests_that_race_are_one_event(seats_url: str, desk: Desk) -> None:
    await _race(seats_url, desk)


@pytest.mark.clause("NTF-23", "NTF-01")
async def test_requests_that_race_on_a_file_without_wal_are_one_event(tmp_path: Path) -> None:
    """Another program's file keeps its journal: there, readers and writers wait for each other."""
    with sqlite3.connect(tmp_path / "theirs.db") as file:
        file.execute("CREATE TABLE theirs (id INTEGER)")
    file.close()
    url = f"sqlite:///{tmp_path / 'theirs.db'}"
    async with opened_desk(url) as desk:
        desk.clock.now = NOON
        await _race(url, desk)
        assert (await desk.sql("SELECT * FROM pragma_journal_mode"))[0]["journal_mode"] == "delete"


async def _race(database_url: str, desk: Desk) -> None:
    """Two processes' worth of connections, flips on both sides of a bucket's edge, many times over."""
    other_database = connect(database_url)
    other = Fanout(other_database, desk.telemetry)
    try:
        for n in range(8):
            section = {"termId": "92026", "campusCode": "NB", "indexNumber": f"{n:05}"}
            ids = [await desk.subscriber(f"r{k}@example.org", index_number=f"{n:05}") for k in range(2)]
            flips = [
                flip_of(msgspec.convert({**OPENED, **section, "eventAt": at.isoformat()}, FlipRequest), NOON)
                for at in (EDGE - timedelta(seconds=1), EDGE, EDGE + timedelta(seconds=1))
            ]
            replies = await asyncio.gather(
                *(fanout.record(flip) for flip in flips for fanout in (desk.fanout, other))
            )
            assert sorted(reply.verdict for reply in replies) == ["duplicate"] * 5 + ["opened"]
            assert len({reply.open_event_id for reply in replies}) == 1
            assert sum(reply.notifications for reply in replies) == len(ids)
        assert await desk.count("open_events") == 8
        assert await desk.count("open_event_notifications") == 16
    finally:
        await other_database.close()


@pytest.mark.clause("NTF-04", "NTF-23")
async def test_a_key_that_another_program_has_used_is_known_whatever_else_its_row_says(desk: Desk) -> None:
    await desk.database.run_script("CREATE UNIQUE INDEX theirs ON open_events (dedupe_key);")
    key = dedupe_key(*SECTION.values(), status="OPEN", moment=EDGE)
    yesterday = EDGE - timedelta(days=1)
    moment: Any = yesterday if _is_postgres(desk) else iso(yesterday)
    row = {**SECTION, "status_after": "open?", "event_at": moment, "dedupe_key": key}
    id = await desk.insert("open_events", "open_event_id", **row)
    assert await _at(desk) == FlipReply(id, 0, True, "duplicate")


@pytest.mark.clause("NTF-23")
async def test_a_program_that_knows_no_lock_of_ours_may_be_quicker(postgres_url: str) -> None:
    """It has written the same event and not committed yet: we wait for it, and then see it."""
    async with opened_desk(postgres_url) as desk:
        desk.clock.now = NOON
        await desk.subscriber()
        await desk.database.run_script("CREATE UNIQUE INDEX theirs ON open_events (dedupe_key);")
        key = dedupe_key(*SECTION.values(), status="OPEN", moment=EDGE)
        other = await asyncpg.connect(postgres_url)
        try:
            transaction = other.transaction()
            await transaction.start()
            await other.execute(
                """INSERT INTO open_events
                    (term_id, campus_code, index_number, status_after, event_at, dedupe_key)
                VALUES ('92026', 'NB', '12345', 'OPEN', $1, $2)""",
                EDGE, key,
            )  # fmt: skip
            flip = asyncio.create_task(_at(desk))
            while not await desk.sql("SELECT 1 AS waits FROM pg_locks WHERE NOT granted"):
                await asyncio.sleep(0.02)
            await transaction.commit()
            assert await flip == FlipReply(1, 0, True, "duplicate")
        finally:
            await other.close()
        assert await desk.count("open_events") == 1


# ── what is no opening ───────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("NTF-23")
async def test_any_other_flip_is_noted_and_nobody_is_told(desk: Desk) -> None:
    await desk.insert("sections", "section_id", **SECTION, open_status="OPEN")
    mine = await desk.subscriber(last_known_section_status="OPEN")
    other = await desk.subscriber("b@example.org", index_number="1", last_known_section_status="OPEN")
    for before, after in (("Open", "Closed"), ("OPEN", "wait"), ("Wait", "Closed")):
        reply = await desk.flip(statusBefore=before, statusAfter=after)
        assert reply == FlipReply(None, 0, False, "closed")
        assert (await desk.sql("SELECT open_status FROM sections"))[0]["open_status"] == after.upper()
        assert (await desk.row(mine))["last_known_section_status"] == after.upper()
    assert (await desk.row(other))["last_known_section_status"] == "OPEN"
    assert await desk.count("open_events") == 0
    assert await desk.told() == []


@pytest.mark.clause("NTF-23")
async def test_what_has_not_changed_is_no_flip(desk: Desk) -> None:
    await desk.subscriber()
    assert await desk.flip(statusBefore="open") == FlipReply(None, 0, False, "unchanged")
    assert await desk.count("open_events") == 0


async def test_an_opening_marks_its_section_and_finds_its_id(desk: Desk) -> None:
    section = await desk.insert("sections", "section_id", **SECTION, open_status="CLOSED")
    await desk.insert("sections", "section_id", **{**SECTION, "index_number": "1"}, open_status="CLOSED")
    await desk.flip()
    assert (await desk.sql("SELECT section_id FROM open_events"))[0]["section_id"] == section
    states = await desk.sql("SELECT open_status FROM sections ORDER BY section_id")
    assert [row["open_status"] for row in states] == ["OPEN", "CLOSED"]


@pytest.mark.clause("NTF-23")
async def test_a_section_that_closes_and_opens_again_at_once_is_open(desk: Desk) -> None:
    """Nobody is told a second time; what the section is, is noted all the same."""
    await desk.insert("sections", "section_id", **SECTION, open_status="CLOSED")
    await desk.subscriber()

    async def status() -> str:
        return str((await desk.sql("SELECT open_status FROM sections"))[0]["open_status"])

    assert (await _at(desk)).verdict == "opened"
    await desk.flip(EDGE + timedelta(seconds=20), statusBefore="Open", statusAfter="Closed")
    assert (await _at(desk)).verdict == "duplicate"
    assert await status() == "CLOSED", "the same opening, told once more, is no news"
    assert await _at(desk, seconds=40) == FlipReply(1, 0, True, "duplicate")
    assert await status() == "OPEN"


@pytest.mark.clause("NTF-23")
async def test_what_one_flip_is_refused_stops_no_other(desk: Desk) -> None:
    """A table of another program may have rules of its own; here one for one section."""
    if _is_postgres(desk):
        rule = "ALTER TABLE open_events ADD CHECK (index_number <> '2')"
    else:
        rule = """CREATE TRIGGER refuse BEFORE INSERT ON open_events
            WHEN new.index_number = '2' BEGIN SELECT RAISE(ABORT, 'not here'); END"""
    await desk.database.run_script(rule + ";")
    flips = [msgspec.Raw(msgspec.json.encode({**OPENED, "indexNumber": index})) for index in "123"]
    answer = await desk.fanout.record_all(flips, NOON)
    assert [item.verdict for item in answer.items] == ["opened", "failed", "opened"]
    failed = answer.items[1].error
    assert failed
    assert failed.code == "INTERNAL_ERROR"
    assert "not here" not in str(answer)
    assert await desk.count("open_events") == 2


async def test_what_the_mail_will_say_is_kept_as_it_was(desk: Desk) -> None:
    """As the event was told, else as the tables have it at that time."""
    course = await desk.insert("courses", "course_id", course_string="01:640:151", title="Calculus")
    await desk.insert(
        "sections", "section_id", **SECTION, course_id=course, section_number="07", subject_code="640"
    )
    await desk.flip(payload={"courseTitle": "Calculus I", "snapshotHash": "abc"})
    payload = (await desk.sql("SELECT payload FROM open_events"))[0]["payload"]
    assert json.loads(payload) == {
        "courseTitle": "Calculus I", "courseString": "01:640:151", "sectionNumber": "07",
        "subjectCode": "640", "snapshotHash": "abc",
    }  # fmt: skip
    await desk.flip(indexNumber="unknown")
    assert (await desk.sql("SELECT payload FROM open_events"))[1]["payload"] is None


# ── who is told ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("NTF-23")
async def test_only_active_subscriptions_are_told(desk: Desk) -> None:
    states = ["pending", "paused", "suppressed", "unsubscribed", "Active", "active"]
    ids = {status: await desk.subscriber(f"{status}@example.org", status=status) for status in states}
    assert (await desk.flip()).notifications == 2
    assert await desk.told() == [ids["Active"], ids["active"]]


@pytest.mark.clause("NTF-23")
async def test_who_does_not_want_to_know_of_openings_is_not_told(desk: Desk) -> None:
    wanting = await desk.subscriber("a@example.org", preferences={"notifyOn": ["closed", "open"]})
    await desk.subscriber("b@example.org", preferences={"notifyOn": ["closed"]})
    await desk.subscriber("c@example.org", metadata='{"notifyOn": []}')
    unusable = await desk.subscriber("d@example.org", metadata='{"notifyOn": [')
    assert (await desk.flip()).notifications == 2
    assert await desk.told() == [wanting, unusable]


@pytest.mark.clause("NTF-23")
async def test_who_is_snoozed_or_outside_of_the_window_has_a_row_that_waits(desk: Desk) -> None:
    later = {"snoozeUntil": iso(NOON + timedelta(days=1))}
    closed = {"deliveryWindow": {"startMinutes": 0, "endMinutes": 1}}
    ids = [await desk.subscriber(f"w{n}@example.org", preferences=p) for n, p in enumerate((later, closed))]
    assert (await desk.flip()).notifications == 2
    assert await desk.told() == ids, "the worker puts it off; nothing is dropped"


@pytest.mark.clause("NTF-23")
async def test_who_has_had_all_the_mails_wanted_is_not_told(desk: Desk) -> None:
    sent = ("notify_sent",)
    without_limit = await desk.subscriber("a@example.org")
    await desk.happened(without_limit, *sent * 30)
    two_left = await desk.subscriber("b@example.org", preferences={"maxNotifications": 5})
    await desk.happened(two_left, *sent * 3)
    used_up = await desk.subscriber("c@example.org", preferences={"maxNotifications": 1})
    await desk.happened(used_up, "notify_failed", *sent)
    resumed = await desk.subscriber("d@example.org", preferences={"maxNotifications": 3})
    await desk.happened(resumed, *sent * 3, "status_changed", *sent * 2)
    none = await desk.subscriber("e@example.org", preferences={"maxNotifications": 0})
    assert (await desk.flip()).notifications == 3
    assert await desk.told() == [without_limit, two_left, resumed]
    assert none not in await desk.told()


@pytest.mark.clause("NTF-23")
async def test_what_still_waits_counts_as_sent(desk: Desk) -> None:
    once = await desk.subscriber(preferences={"maxNotifications": 1})
    assert (await _at(desk)).notifications == 1
    assert (await _at(desk, seconds=200)).notifications == 0, "the first is still on its way"
    await desk.sql(
        "UPDATE open_event_notifications SET fanout_status = 'Expired' WHERE subscription_id = :id", id=once
    )
    assert (await _at(desk, seconds=-200)).notifications == 1, "it was never sent"


@pytest.mark.clause("NTF-09")
async def test_another_kind_of_contact_has_a_row_too(desk: Desk) -> None:
    """The worker ends it `skipped`, and says why."""
    id = await desk.subscriber("+1 555 0100", contact_type="sms")
    await desk.flip()
    assert await desk.told() == [id]


async def test_a_failure_leaves_neither_the_event_nor_a_part_of_its_rows(desk: Desk) -> None:
    """A table of another program may refuse a row; here by a rule for one address."""
    await desk.subscriber("a@example.org")
    bad = await desk.subscriber("b@example.org")
    if _is_postgres(desk):
        rule = f"ALTER TABLE open_event_notifications ADD CHECK (subscription_id <> {bad})"
    else:
        rule = f"""CREATE TRIGGER refuse BEFORE INSERT ON open_event_notifications
            WHEN new.subscription_id = {bad} BEGIN SELECT RAISE(ABORT, 'no'); END"""
    await desk.database.run_script(rule + ";")
    with pytest.raises(Exception, match=r"no|check"):
        await desk.flip()
    assert await desk.count("open_events") == 0
    assert await desk.told() == []


async def test_very_many_subscribers_are_told_by_one_statement(desk: Desk) -> None:
    """What `docs/open_events.md` gives a figure for; here only that it is right."""
    numbers = {
        "postgres": "SELECT n FROM generate_series(1, 5000) AS g(n)",
        "sqlite": """WITH RECURSIVE g(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM g WHERE n < 5000)
            SELECT n FROM g""",
    }[desk.database.dialect]
    await desk.sql(
        f"""INSERT INTO subscriptions (term_id, campus_code, index_number, contact_value, status, metadata)
        SELECT '92026', 'NB', '12345', 's' || n || '@example.org', 'active',
            CASE n % 10 WHEN 0 THEN '{{"preferences":{{"notifyOn":[]}}}}'
                WHEN 1 THEN '{{"preferences":{{"maxNotifications":' || n || '}}}}' END
        FROM ({numbers}) AS numbers"""
    )
    assert (await desk.flip()).notifications == 4500
    assert len(set(await desk.told())) == 4500


# ── requests ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"statusAfter": "ajar"}, "statusAfter"),
        ({"statusBefore": "?"}, "statusBefore"),
        ({"termId": "a|b"}, "termId"),
        ({"campusCode": "  "}, "campusCode"),
        ({"indexNumber": "1\n2"}, "indexNumber"),
        ({"traceId": "\x07"}, "traceId"),
        ({"eventAt": "2026-11-16T12:06:00Z"}, "eventAt"),
        ({"eventAt": "1969-11-16T12:06:00Z"}, "eventAt"),
        ({"payload": {"courseTitle": "x" * 20_000}}, "payload"),
        ({"payload": {"courseTitle": "nul \x00"}}, None),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], field: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        flip_of(msgspec.convert({**OPENED, **change}, FlipRequest), NOON)
    assert refused.value.field == field


async def test_an_event_of_which_nobody_names_the_trace_gets_one(desk: Desk) -> None:
    unnamed = flip_of(msgspec.convert(OPENED, FlipRequest), EDGE)
    assert unnamed.trace_id is None
    await desk.fanout.record(unnamed)
    (event,) = await desk.sql("SELECT trace_id FROM open_events")
    assert len(event["trace_id"]) == 32


def test_a_flip_without_a_time_is_of_now() -> None:
    flip = flip_of(msgspec.convert({**OPENED, "termId": " 92026 "}, FlipRequest), NOON)
    assert (flip.event_at, flip.term_id) == ("2026-11-16T12:00:00.000Z", "92026")
