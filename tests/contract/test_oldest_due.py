"""Since when the oldest row has been due, by one definition for every lane: every due row counts.

Whether its target is held back or not, whatever is urgent, and however much waits before it. What targets
hold back is told beside it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from tests.emails import email_bench
from tests.jobs import JobBench, job_bench
from tests.notifications import notification_bench, sqlite_path
from tests.outbox import Bench, bench
from tests.plans import measuring, plan_of
from tests.tables import Tables

from homing.lanes.mail_outbox.mail import NewMail
from homing.lanes.mail_outbox.outbox import new_token
from homing.proof.bench.jobs_scale import Kind, add_jobs

pytestmark = pytest.mark.timeout(200)

ONE, OTHER = "http://127.0.0.9:1", "http://127.0.0.9:2"
MANY = 100_000
NUMBERS = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MANY})"


async def allow_null(url: str, table: str, column: str) -> None:
    """As in a table that another program made, to which the column was added."""
    if url.startswith("postgres"):
        other = await asyncpg.connect(url)
        await other.execute(f"ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL")
        await other.close()
        return
    with closing(sqlite3.connect(sqlite_path(url))) as file:
        (text,) = file.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        nullable = re.sub(rf"(\n\s+{column}\b[^\n]*) NOT NULL", r"\1", text)
        (version,) = file.execute("PRAGMA schema_version").fetchone()
        file.execute("PRAGMA writable_schema = ON")
        file.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (nullable, table))
        # So that whoever has the file open reads it again.
        file.execute(f"PRAGMA schema_version = {version + 1}")
        file.commit()


# ── mail_outbox ──────────────────────────────────────────────────────────────────────────────────


def urgent_mail() -> NewMail:
    return NewMail(to_address="ann@example.org", text_body="Hi", token=new_token(), urgent=True)


async def late_mail(opened: Bench, seconds: float) -> int:
    (id,) = await opened.insert()
    await Tables(opened.homing.database).shift(
        "mail_outbox", ["next_attempt_at", "created_at"], seconds, id=id
    )
    return id


async def test_urgent_mails_hide_no_older_backlog(database_url: str) -> None:
    async with bench(database_url) as opened:
        assert await opened.outbox.oldest_due() == 0.0
        await opened.outbox.enqueue([urgent_mail() for _ in range(150)])
        assert await opened.outbox.oldest_due() < 600, "an urgent mail is due since it was ordered"
        await late_mail(opened, 3601)
        assert 3600 <= await opened.outbox.oldest_due() < 7200


async def test_a_mail_for_later_is_not_due(database_url: str) -> None:
    async with bench(database_url) as opened:
        await late_mail(opened, -3600)
        assert await opened.outbox.oldest_due() == 0.0


async def test_a_mail_that_does_not_say_when_it_was_made_is_due_since_its_next_attempt(
    database_url: str,
) -> None:
    """As in a table that another program made."""
    async with bench(database_url) as opened:
        id = await late_mail(opened, 900)
        await allow_null(database_url, "mail_outbox", "created_at")
        await opened.sql("UPDATE mail_outbox SET created_at = NULL WHERE id = :id RETURNING id", id=id)
        assert 900 <= await opened.outbox.oldest_due() < 3600


async def test_postgres_finds_it_behind_many_urgent_mails_by_a_step_into_an_index(postgres_url: str) -> None:
    async with bench(postgres_url) as opened:
        await late_mail(opened, 3600)
        await opened.sql(
            f"{NUMBERS} INSERT INTO mail_outbox (to_address, text_body, next_attempt_at) "
            "SELECT 'a@example.org', 'b', now() - interval '1 day' FROM n RETURNING 1"
        )
        query = opened.outbox._queries["oldest_due"]
        async with measuring(postgres_url) as connection:
            await connection.execute("VACUUM ANALYZE mail_outbox")
            for generic in (False, True):
                plan = await plan_of(connection, query, {"with_alerts": True}, generic=generic)
                assert plan.rows_read <= 5, generic
                assert plan.buffers <= 50, generic
        assert 3600 <= await opened.outbox.oldest_due() < 7200


async def test_postgres_reads_a_time_without_a_zone_as_utc(postgres_url: str) -> None:
    """A table that another program made may have one; an index takes it all the same."""
    async with bench(postgres_url) as opened:
        await opened.homing.database.run_script(
            """
            DROP INDEX mail_outbox_due_since;
            ALTER TABLE mail_outbox ALTER COLUMN created_at DROP DEFAULT;
            ALTER TABLE mail_outbox ALTER COLUMN created_at TYPE timestamp;
            ALTER TABLE mail_outbox ALTER COLUMN created_at SET DEFAULT (now() AT TIME ZONE 'UTC');
            CREATE INDEX mail_outbox_due_since ON mail_outbox
                (greatest(homing_instant(next_attempt_at), homing_instant(created_at)))
                WHERE status = 'queued'
            """
        )
        await opened.outbox.enqueue([urgent_mail()])
        assert 0 < await opened.outbox.oldest_due() < 600


async def test_sqlite_finds_it_behind_many_urgent_mails_by_a_step_into_an_index(sqlite_url: str) -> None:
    async with bench(sqlite_url) as opened:
        await late_mail(opened, 3600)
        await opened.sql(
            f"{NUMBERS} INSERT INTO mail_outbox (to_address, text_body, next_attempt_at) "
            "SELECT 'a@example.org', 'b', strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 day') FROM n RETURNING 1"
        )
        assert 3600 <= await opened.outbox.oldest_due() < 7200
        query = opened.outbox._queries["oldest_due"]
    ticks = [0]

    def tick() -> int:
        ticks[0] += 1
        return 0

    with closing(sqlite3.connect(sqlite_path(sqlite_url))) as connection:
        # The schema is read first, and takes steps too.
        connection.execute(query.sql, {"with_alerts": True}).fetchall()
        connection.set_progress_handler(tick, 100)
        assert connection.execute(query.sql, {"with_alerts": True}).fetchall()
    assert ticks[0] <= 2, "hundreds of steps, of which each row takes some"


# ── dispatch_jobs ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def jobs(jobs_database_url: str) -> AsyncIterator[JobBench]:
    async with job_bench(jobs_database_url) as opened:
        yield opened


async def pause(jobs: JobBench, target: str) -> None:
    until = jobs.time(datetime.now(UTC) + timedelta(hours=1))
    await jobs.jobs.run("pause_target", target=target, until=until, reason="they move house")


async def test_jobs_of_a_paused_target_count_and_are_told_as_held_back(jobs: JobBench) -> None:
    assert await jobs.jobs.oldest_due() == 0.0
    assert (await jobs.jobs.held_back()).targets == ()
    first, *_ = await jobs.create(f"{ONE}/a", 3)
    await jobs.create(f"{OTHER}/b")
    await jobs.pass_time(900, only=first)
    held = await jobs.jobs.held_back()
    assert held.count == 0, "they are due, and nothing holds them back"
    await pause(jobs, ONE)
    held = await jobs.jobs.held_back()
    assert (held.count, held.places, held.is_lower_bound) == (3, [ONE], False)
    assert held.since is not None
    waited = datetime.now(UTC) - datetime.fromisoformat(held.since)
    assert timedelta(seconds=890) < waited < timedelta(seconds=1500)
    assert 900 <= await jobs.jobs.oldest_due() < 1500, "whatever holds it back"
    assert await jobs.jobs.oldest_due(but_for=ONE) < 600


async def test_what_is_not_due_is_not_held_back(jobs: JobBench) -> None:
    (later,) = await jobs.create(f"{ONE}/a")
    await jobs.pass_time(-1000, only=later)
    await pause(jobs, ONE)
    assert (await jobs.jobs.held_back()).targets == ()
    assert await jobs.jobs.oldest_due() == 0.0


async def test_of_a_very_large_number_so_many_are_counted(
    jobs: JobBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.lanes.dispatch_jobs.jobs._MOST_COUNTED", 5)
    await jobs.create(f"{ONE}/a", 7)
    await pause(jobs, ONE)
    held = await jobs.jobs.held_back()
    assert (held.count, held.is_lower_bound) == (5, True)


async def test_what_is_held_back_is_counted_by_the_index_and_not_to_its_end(postgres_url: str) -> None:
    async with job_bench(postgres_url) as jobs:
        await jobs.create(f"{ONE}/a")
        await add_jobs(postgres_url, Kind(0, MANY, "one paused target"))
        query = jobs.jobs._queries["held_back"]
        given = {"after": "", "most": 1000, "most_held": 100, "counted": 1000}
        async with measuring(postgres_url) as connection:
            await connection.execute("VACUUM ANALYZE dispatch_job")
            for generic in (False, True):
                plan = await plan_of(connection, query, given, generic=generic)
                assert not plan.scanned, generic
                assert plan.rows_read <= 1100, generic
                assert plan.buffers <= 200, generic
        held = await jobs.jobs.held_back()
    assert (held.count, held.is_lower_bound) == (10_000, True)


async def test_metrics_tell_what_targets_hold_back_and_for_how_long(jobs: JobBench) -> None:
    value = jobs.homing.telemetry.registry.get_sample_value
    await jobs.create(f"{ONE}/a", 2)
    await jobs.pass_time(900)
    await pause(jobs, ONE)
    backlog = jobs.homing.webhooks.backlog
    await backlog.refresh()
    held = {"lane": "dispatch_jobs", "target": ONE}
    assert value("homing_held_back_messages", held) == 2
    assert (value("homing_held_back_age_seconds", held) or 0) >= 900
    assert (value("homing_oldest_due_age_seconds", {"lane": "dispatch_jobs"}) or 0) >= 900
    await jobs.jobs.run("resume_target", target=ONE)
    backlog.look._last = None
    await backlog.refresh()
    assert value("homing_held_back_messages", held) is None, "a target that takes jobs again is not named"
    assert value("homing_held_back_age_seconds", held) is None


# ── email_log ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", ["Failed", "Pending", "RetryQueued"])
async def test_an_email_is_due_in_every_state_that_something_is_to_follow(
    database_url: str, status: str
) -> None:
    async with email_bench(database_url) as lane:
        assert await lane.emails.oldest_due() == 0.0
        (id,) = await lane.insert(1, status=status)
        await lane.age(id, 700)
        await lane.insert(1, status="Failed")
        for rows in (lane.emails, lane.due):
            assert 700 <= await rows.oldest_due() < 3600
        await lane.shift(id, -3600, "locked_until")
        assert await lane.emails.oldest_due() < 600, "somebody has it in hand"


# ── open_events ──────────────────────────────────────────────────────────────────────────────────


async def test_a_notification_that_does_not_say_when_it_was_made_is_as_old_as_its_event(
    database_url: str,
) -> None:
    """The specification names no such column, so another program need not fill it."""
    async with notification_bench(database_url) as bench:
        event = await bench.event(event_at=datetime.now(UTC) - timedelta(seconds=800))
        first = await bench.notification(event)
        await bench.notification()
        await allow_null(database_url, "open_event_notifications", "created_at")
        await Tables(bench.notifications.database).change(
            "open_event_notifications", {"created_at": None}, notification_id=first
        )
        assert 800 <= await bench.notifications.oldest_due() < 3600
