"""Another worker's lock: respected in whatever form it is written."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from tests.notifications import TTL, NotificationBench, notification_bench

from homing.db.instants import read_instant

MOMENT = datetime(2026, 11, 19, 4, 36, 1, tzinfo=UTC)
EAST = datetime(2026, 11, 19, 4, 36, 1, tzinfo=UTC).astimezone()


def javascript(moment: datetime) -> str:
    """As `String(new Date())` has it."""
    return moment.strftime("%a %b %d %Y %H:%M:%S GMT%z (Coordinated Universal Time)")


FORMS: dict[str, Callable[[datetime], Any]] = {
    "ISO": lambda moment: moment.isoformat(),
    "ISO without a zone": lambda moment: moment.strftime("%Y-%m-%d %H:%M:%S"),
    "basic ISO": lambda moment: moment.strftime("%Y%m%dT%H%M%SZ"),
    "epoch seconds": lambda moment: int(moment.timestamp()),
    "epoch seconds with a fraction": lambda moment: moment.timestamp(),
    "epoch milliseconds": lambda moment: int(moment.timestamp() * 1000),
    "epoch milliseconds as text": lambda moment: str(int(moment.timestamp() * 1000)),
    "RFC 2822": format_datetime,
    "JavaScript": javascript,
    "JavaScript UTC": lambda moment: moment.strftime("%a, %d %b %Y %H:%M:%S GMT"),
}
#: Nobody can tell when these were.
UNREADABLE = ["locked", "half past four", "04:36:01", "now", "11/19/2026, 4:36:01 AM", "x'00'", "7", ""]


@pytest.fixture
async def bench(sqlite_url: str) -> AsyncIterator[NotificationBench]:
    async with notification_bench(sqlite_url) as opened:
        yield opened


async def lock(bench: NotificationBench, id: int, value: Any, who: str = "theirs") -> None:
    await bench.other.change(id, locked_by=who, locked_at=value)


async def look_around(bench: NotificationBench) -> list[int]:
    """A round of maintenance, and a claim; what was claimed is given back."""
    await bench.notifications.rescue(100)
    claims = await bench.notifications.claim(100)
    await bench.notifications.release(claims)
    return [claim.id for claim in claims]


async def pass_time(bench: NotificationBench, seconds: float) -> None:
    """What we have noted of a lock was noted that much earlier."""
    form = (
        "lock_seen_at - make_interval(secs => :s)"
        if bench.other.dialect == "postgres"
        else "strftime('%Y-%m-%dT%H:%M:%fZ', lock_seen_at, printf('%+.3f seconds', -:s))"
    )
    await bench.other.sql(
        f"UPDATE open_event_notifications SET lock_seen_at = {form} RETURNING 1 AS one", s=float(seconds)
    )


@pytest.mark.clause("NTF-29")
@pytest.mark.parametrize("form", FORMS)
def test_an_instant_is_read_in_every_form(form: str) -> None:
    assert read_instant(FORMS[form](MOMENT)) == MOMENT


@pytest.mark.clause("NTF-29")
def test_an_instant_is_read_with_the_offset_of_its_writer() -> None:
    assert read_instant("Thu Nov 19 2026 10:06:01 GMT+0530 (India Standard Time)") == MOMENT
    assert read_instant("Wed, 18 Nov 2026 23:36:01 -0500") == MOMENT
    assert read_instant("20261119T053601+0100") == MOMENT


@pytest.mark.clause("NTF-29")
@pytest.mark.parametrize("text", [*UNREADABLE, None, True, b"\xff", "9" * 400, 1e300, float("nan")])
def test_what_is_no_instant_is_none(text: Any) -> None:
    assert read_instant(text) is None


@pytest.mark.clause("NTF-29")
@pytest.mark.parametrize("form", FORMS)
async def test_a_fresh_lock_is_respected_and_an_old_one_is_over(bench: NotificationBench, form: str) -> None:
    write = FORMS[form]
    fresh, old = await bench.notification(), await bench.notification()
    now = datetime.now(UTC).replace(microsecond=0)
    await lock(bench, fresh, write(now - timedelta(seconds=TTL / 2)))
    await lock(bench, old, write(now - timedelta(seconds=TTL + 5)))
    assert await look_around(bench) == [old]
    assert (await bench.other.row(fresh))["lock_seen_at"] is None, "it can be read"


@pytest.mark.clause("NTF-29")
@pytest.mark.parametrize("value", UNREADABLE)
async def test_a_lock_that_cannot_be_read_holds_for_one_ttl_from_when_it_was_seen(
    bench: NotificationBench, value: str
) -> None:
    id = await bench.notification()
    await lock(bench, id, value)
    assert await look_around(bench) == []
    await pass_time(bench, TTL - 5)
    assert await look_around(bench) == []
    await pass_time(bench, 6)
    assert await look_around(bench) == [id]
    assert await bench.deliver() != {}
    assert len(bench.memory.messages) == 1


@pytest.mark.clause("NTF-29")
async def test_a_lock_that_changes_is_taken_anew(bench: NotificationBench) -> None:
    id = await bench.notification()
    for value in ("round 1", "round 2", "round 3"):
        await lock(bench, id, value)
        assert await look_around(bench) == []
        await pass_time(bench, TTL - 5)
    await lock(bench, id, "round 3", who="another of theirs")
    assert await look_around(bench) == []
    await pass_time(bench, TTL - 5)
    assert await look_around(bench) == []
    await pass_time(bench, 6)
    assert await look_around(bench) == [id]


@pytest.mark.clause("NTF-29")
async def test_what_was_seen_is_forgotten_when_the_row_is_ours(bench: NotificationBench) -> None:
    """The same value once more is a new lock."""
    id = await bench.notification()
    await lock(bench, id, "locked")
    await look_around(bench)
    await pass_time(bench, TTL + 1)
    assert await look_around(bench) == [id]
    await lock(bench, id, "locked")
    assert await look_around(bench) == []


@pytest.mark.clause("NTF-29")
async def test_a_lock_far_ahead_counts_from_when_it_was_seen(database_url: str) -> None:
    async with notification_bench(database_url) as bench:
        id, near = await bench.notification(), await bench.notification()
        await lock(bench, id, datetime.now(UTC) + timedelta(days=400))
        await lock(bench, near, datetime.now(UTC) + timedelta(seconds=TTL / 2))
        assert await look_around(bench) == []
        assert (await bench.other.row(near))["lock_seen_at"] is None, "their clock is a little ahead"
        await pass_time(bench, TTL - 5)
        assert await look_around(bench) == []
        await pass_time(bench, 6)
        assert await look_around(bench) == [id]


@pytest.mark.clause("NTF-29")
async def test_a_lock_that_cannot_be_read_is_logged_once(database_url: str) -> None:
    far = datetime.now(UTC) + timedelta(days=400)
    async with (
        notification_bench(database_url, owner="one") as one,
        notification_bench(database_url, owner="two", migrated=False) as two,
    ):
        id = await one.notification()
        await lock(one, id, far)
        for _ in range(3):
            for bench in (one, two):
                await look_around(bench)
        logged = [line for bench in (one, two) for line in bench.log.all("lock.unreadable")]
        assert [(line["id"], line["locked_by"]) for line in logged] == [(id, "theirs")]


@pytest.mark.clause("NTF-29")
async def test_once_takes_over_what_an_earlier_run_has_seen(sqlite_url: str) -> None:
    """What was seen is kept in the row: a worker that drains and exits sees that it has not changed."""
    async with notification_bench(sqlite_url) as first:
        id = await first.notification()
        await lock(first, id, "locked")
        assert await look_around(first) == []
        await pass_time(first, TTL + 1)
    async with notification_bench(sqlite_url, migrated=False) as second:
        assert await look_around(second) == [id]


@pytest.mark.clause("NTF-29")
async def test_looking_for_such_locks_reads_the_locked_rows_only(bench: NotificationBench) -> None:
    for number in range(3):
        await lock(bench, await bench.notification(), f"locked {number}")
    for _ in range(2000):
        await bench.notification(event=1, subscription=1000 + _)
    began = time.process_time()
    await bench.notifications.rescue(100)
    plan = await bench.database.fetch(
        type(bench.notifications._queries["note_locks"])(
            "explain",
            "EXPLAIN QUERY PLAN " + bench.notifications._queries["unread_locks"].sql,
            bench.notifications._queries["unread_locks"].parameters,
            writes=False,
        ),
        {**bench.notifications._parameters, "limit": 100},
    )
    assert "homing_notifications_locked" in str([dict(row) for row in plan])
    assert time.process_time() - began < 5
