"""What is pruned and what stays, on every database; and that nobody waits for it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.jobs import JobBench, eventually, job, job_bench
from tests.outbox import Bench, bench
from tests.tables import Tables

from homing.app import Homing
from homing.db.mongo import MongoDatabase
from homing.engine.prune import Pace, Retention, Step, plan, prune, survey
from homing.parts.retention import prunable_tables
from homing.service import Stop, run

DAY = 86400.0
MONTH = 30 * DAY


def steps(homing: Homing, **ages: float) -> list[Step]:
    """By `lane__state` or `lane`."""
    retention = Retention({name.replace("__", "."): age for name, age in ages.items()})
    return plan(retention, prunable_tables(homing.database, homing.jobs_database, homing.notify_database))


async def count(chosen: list[Step]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for step in chosen:
        async for found in survey(step):
            counts.update({one.state: one.count for one in found})
    return dict(counts)


async def delete(chosen: list[Step], *, share: float = 1.0) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for step in chosen:
        async for deleted in prune(step, Pace(share)):
            counts.update(deleted)
    return dict(counts)


async def ago(tables: Tables, seconds: float) -> datetime:
    return await tables.now() - timedelta(seconds=seconds)


async def ids(tables: Tables, table: str, column: str = "id") -> list[int]:
    return sorted(row[column] for row in await tables.rows(table))


# ── mails ────────────────────────────────────────────────────────────────────────────────────────


async def mail(lane: Bench, status: str, age: float, **columns: Any) -> int:
    """A mail that came, was tried and ended so long ago."""
    tables = Tables(lane.homing.database)
    then = tables.time(await ago(tables, age))
    times = {"created_at": then, "next_attempt_at": then, "last_attempt_at": then}
    sent = {"sent_at": then} if status == "sent" else {}
    (id,) = await lane.insert(status=status, **{**times, **sent, **columns})
    return id


@pytest.mark.clause("JOB-25")
async def test_mails_that_ended_long_ago_go(database_url: str) -> None:
    async with bench(database_url) as lane:
        tables = Tables(lane.homing.database)
        for status in ("queued", "dispatching", "sent", "failed", "cancelled", "expired"):
            await mail(lane, status, 40 * DAY)
        kept = [
            await mail(lane, "sent", 20 * DAY),
            # Sent late, cancelled before its time, expired late: each ended after it was made.
            await mail(lane, "sent", 40 * DAY, sent_at=tables.time(await ago(tables, 1 * DAY))),
            await mail(lane, "cancelled", 40 * DAY, next_attempt_at=tables.time(await ago(tables, -DAY))),
            await mail(lane, "expired", 40 * DAY, expires_at=tables.time(await ago(tables, 1 * DAY))),
        ]
        chosen = steps(lane.homing, mail_outbox=MONTH)
        expected = {"sent": 1, "failed": 1, "cancelled": 1, "expired": 1}
        assert await count(chosen) == expected
        assert await delete(chosen) == expected
        left = await tables.rows("mail_outbox")
        assert sorted(row["id"] for row in left if row["status"] not in {"queued", "dispatching"}) == kept
        assert len(left) == len(kept) + 2, "what is under way stays, however old"
        assert await delete(chosen) == {}


async def test_each_state_has_its_own_age(database_url: str) -> None:
    async with bench(database_url) as lane:
        for age in (40, 100):
            for status in ("sent", "failed", "cancelled"):
                await mail(lane, status, age * DAY)
        chosen = steps(lane.homing, mail_outbox__sent=MONTH, mail_outbox__failed=3 * MONTH)
        assert await delete(chosen) == {"sent": 2, "failed": 1}


async def test_a_key_is_known_until_its_mail_is_pruned(database_url: str) -> None:
    async with bench(database_url) as lane:
        await mail(lane, "sent", 25 * 3600.0, idempotency_key="old")
        young = await mail(lane, "sent", 23 * 3600.0, idempotency_key="young")
        await delete(steps(lane.homing, mail_outbox=DAY))
        assert await ids(Tables(lane.homing.database), "mail_outbox") == [young]


# ── emails ───────────────────────────────────────────────────────────────────────────────────────


async def email(tables: Tables, status: str, age: float, **columns: Any) -> str:
    then = await ago(tables, age)
    key = f"{status}-{age:.0f}-{len(await tables.rows('email_log'))}"
    values = {"message_key": key, "status": status, "to_address": "a@example.org", "created_at": then,
              "next_attempt_at": then, **columns}  # fmt: skip
    await tables.insert("email_log", values)
    (row,) = await tables.rows("email_log", message_key=key)
    await tables.insert("email_idempotency", {"message_key": key, "email_id": row["id"], "created_at": then})
    return key


@pytest.mark.clause("RTY-20")
async def test_emails_go_with_their_keys_announced_or_not(database_url: str) -> None:
    async with bench(database_url) as lane:
        tables = Tables(lane.homing.database)
        then = await ago(tables, 40 * DAY)
        await email(tables, "Sent", 40 * DAY, sent_at=then)
        await email(tables, "Dead", 40 * DAY, announced_at=then)
        await email(tables, "Dead", 40 * DAY)
        kept = {
            await email(tables, "Sent", 40 * DAY, sent_at=await ago(tables, DAY)),
            await email(tables, "Failed", 40 * DAY),
            await email(tables, "Pending", 40 * DAY),
            await email(tables, "Dead", 40 * DAY, announced_at=then, locked_until=await ago(tables, -60)),
        }
        chosen = steps(lane.homing, email_log=MONTH)
        assert await count(chosen) == await delete(chosen) == {"Sent": 1, "Dead": 2}
        assert {row["message_key"] for row in await tables.rows("email_log")} == kept
        assert {row["message_key"] for row in await tables.rows("email_idempotency")} == kept


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────


async def ended_job(lane: JobBench, status: str, age: float, *, made: float | None = None) -> int:
    """With metadata and a header. On PostgreSQL its id can say that it was made so long ago."""
    (id,) = await lane.create("https://hooks.example.org/", metadata={"tenant": "acme"})
    await lane.tables.add_header(id, "X-Kind", "test")
    moment = await ago(lane.tables, age)
    await lane.change(id, status=status, updated_at=moment, created_at=moment, completed_at=moment)
    if made is None:
        return id
    (row,) = await lane.tables.sql(
        "UPDATE dispatch_job SET id = homing_tsid_at(now() - make_interval(secs => :made)) + id % 1000"
        " WHERE id = :id RETURNING id",
        made=made,
        id=id,
    )
    then: int = row["id"]
    return then


async def attempts_of(lane: JobBench, id: int, *moments: datetime) -> None:
    """As they were made then: their ids say when."""
    for number, moment in enumerate(moments, start=1):
        values = {"dispatch_job_id": id, "attempt_number": number, "attempted_at": moment,
                  "status": "SUCCESS", "created_at": moment}  # fmt: skip
        if lane.homing.jobs_database.dialect == "postgres":
            (row,) = await lane.tables.sql("SELECT homing_tsid_at(:at) + :n AS id", at=moment, n=id % 1000)
            values["id"] = row["id"]
        if isinstance(lane.homing.jobs_database, MongoDatabase):
            values["id"] = id + number
        await lane.tables.insert("dispatch_attempt", values)


@pytest.mark.clause("JOB-25")
async def test_jobs_go_with_all_that_is_theirs(jobs_database_url: str) -> None:
    async with job_bench(jobs_database_url) as lane:
        for status in ("COMPLETED", "ERROR", "CANCELLED"):
            await attempts_of(lane, await ended_job(lane, status, 40 * DAY), await lane.tables.now())
        kept = [
            await ended_job(lane, "COMPLETED", 20 * DAY),
            await ended_job(lane, "PENDING", 40 * DAY),
            await ended_job(lane, "FAILED", 40 * DAY),
            await ended_job(lane, "IN_PROGRESS", 40 * DAY),
        ]
        for id in kept:
            await attempts_of(lane, id, await lane.tables.now())
        chosen = steps(lane.homing, dispatch_jobs__COMPLETED=MONTH, dispatch_jobs__ERROR=MONTH)
        assert await count(chosen) == await delete(chosen) == {"COMPLETED": 1, "ERROR": 1}
        chosen = steps(lane.homing, dispatch_jobs__CANCELLED=MONTH)
        assert await delete(chosen) == {"CANCELLED": 1}
        assert await ids(lane.tables, "dispatch_job") == sorted(kept)
        assert await ids(lane.tables, "dispatch_attempt", "dispatch_job_id") == sorted(kept)
        if not jobs_database_url.startswith("mongodb"):
            for table in ("dispatch_job_metadata", "dispatch_job_headers"):
                assert await ids(lane.tables, table, "dispatch_job_id") == sorted(kept), table


async def test_a_job_that_is_requeued_in_that_moment_stays(jobs_database_url: str) -> None:
    async with job_bench(jobs_database_url) as lane:
        id = await ended_job(lane, "ERROR", 40 * DAY)
        (step, *_) = steps(lane.homing, dispatch_jobs=MONTH)
        window = await step.table.window(step.ages, 0, 100)
        assert window.last == id
        chosen = await step.table.candidates(step.ages, 0, id, 10)
        assert chosen == [id]
        assert await lane.jobs.requeue([id]) == [id]
        assert await step.table.prune(step.ages, chosen) == {}
        assert await lane.states([id]) == ["PENDING"]


# ── weeks of attempts ────────────────────────────────────────────────────────────────────────────

_MAKE_WEEK = """
SELECT format('CREATE TABLE %I PARTITION OF dispatch_attempt FOR VALUES FROM (%s) TO (%s)',
    to_char(monday AT TIME ZONE 'UTC', '"dispatch_attempt_"IYYY"w"IW'),
    homing_tsid_at(monday), homing_tsid_at(monday + interval '7 days')) AS made
FROM date_trunc('week', now() - make_interval(secs => :age), 'UTC') AS monday
"""


async def make_week(lane: JobBench, age: float) -> None:
    (row,) = await lane.tables.sql(_MAKE_WEEK, age=age)
    await lane.homing.jobs_database.run_script(row["made"])


async def weeks(lane: JobBench) -> list[str]:
    rows = await lane.tables.sql(
        "SELECT inhrelid::regclass::text AS name FROM pg_inherits"
        " WHERE inhparent = 'dispatch_attempt'::regclass ORDER BY 1"
    )
    return [row["name"] for row in rows]


async def leftovers(lane: JobBench) -> int:
    (row,) = await lane.tables.sql("SELECT count(*) AS n FROM pg_class WHERE relname LIKE 'homing_pruned%'")
    found: int = row["n"]
    return found


@pytest.mark.clause("JOB-25")
async def test_weeks_of_attempts_are_dropped(postgres_url: str) -> None:
    async with job_bench(postgres_url) as lane:
        now = len(await weeks(lane))
        for age in (100 * DAY, 60 * DAY, 28 * DAY):
            await make_week(lane, age)
        done = await ended_job(lane, "COMPLETED", 60 * DAY, made=101 * DAY)
        await attempts_of(lane, done, await ago(lane.tables, 100 * DAY), await ago(lane.tables, 60 * DAY))
        late = await ended_job(lane, "ERROR", DAY)
        await attempts_of(lane, late, await ago(lane.tables, 28 * DAY))
        waiting = await ended_job(lane, "FAILED", DAY, made=61 * DAY)
        await attempts_of(lane, waiting, await ago(lane.tables, 60 * DAY))
        await lane.change(waiting, attempt_count=1)
        # Where nobody made a week in time, attempts lie among the rest.
        await attempts_of(lane, done, await ago(lane.tables, 200 * DAY))

        chosen = steps(lane.homing, dispatch_jobs=MONTH)
        deleted = await delete(chosen)
        assert deleted["COMPLETED"] == 1
        assert len(await weeks(lane)) == now + 2, (
            "the one in which an open job was tried, and the one not over"
        )
        left = {row["dispatch_job_id"] for row in await lane.tables.rows("dispatch_attempt")}
        assert left == {done, late, waiting}, "what is in a week that stays waits for its end"
        assert await lane.tables.rows("dispatch_attempt_rest") == []
        await lane.change(waiting, status="CANCELLED")
        await delete(chosen)
        assert {r["dispatch_job_id"] for r in await lane.tables.rows("dispatch_attempt")} == {late}
        assert await leftovers(lane) == 0


async def test_a_week_that_somebody_reads_is_dropped_later_and_holds_up_nobody(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.lanes.dispatch_jobs.pruning._TRIES", 5)
    import asyncpg

    async with job_bench(postgres_url) as lane:
        await make_week(lane, 60 * DAY)
        before = await weeks(lane)
        reader = await asyncpg.connect(postgres_url)
        reading = reader.transaction()
        await reading.start()
        await reader.fetch("SELECT count(*) FROM dispatch_attempt")
        job = await ended_job(lane, "COMPLETED", DAY)

        dropping = asyncio.create_task(delete(steps(lane.homing, dispatch_jobs__attempts=MONTH)))
        written = 0
        while not dropping.done():
            await attempts_of(lane, job, await lane.tables.now())
            await lane.tables.delete("dispatch_attempt", dispatch_job_id=job)
            written += 1
        assert await dropping == {}
        assert await weeks(lane) == before
        assert written >= 3, "attempts are written meanwhile, though somebody reads for as long as he likes"
        await reading.rollback()
        await reader.close()
        assert await delete(steps(lane.homing, dispatch_jobs__attempts=MONTH)) == {"attempts": 1}
        assert len(await weeks(lane)) == len(before) - 1


async def test_what_a_crash_left_is_dropped_with_the_next(postgres_url: str) -> None:
    async with job_bench(postgres_url) as lane:
        await lane.homing.jobs_database.run_script(
            "CREATE TABLE homing_pruned_dispatch_attempt_2024w07 (id int);"
        )
        await lane.homing.jobs_database.run_script("CREATE TABLE dispatch_attempt_2024w08 (id int);")
        await make_week(lane, 60 * DAY)
        await delete(steps(lane.homing, dispatch_jobs__attempts=MONTH))
        assert await leftovers(lane) == 0
        assert await lane.tables.rows("dispatch_attempt_2024w08") == [], "what somebody took out stays theirs"


# ── open seats ───────────────────────────────────────────────────────────────────────────────────


async def seat(tables: Tables, age: float, *statuses: str) -> int:
    """An event, and its notifications."""
    then = await ago(tables, age)
    key = f"k{age}-{len(await tables.rows('open_events'))}"
    event = {"term_id": "F26", "campus_code": "NB", "index_number": "1", "status_after": "open",
             "event_at": then, "dedupe_key": key, "created_at": then}  # fmt: skip
    await tables.insert("open_events", event)
    (row,) = await tables.rows("open_events", dedupe_key=key)
    for number, status in enumerate(statuses):
        notification = {"open_event_id": row["open_event_id"], "subscription_id": number, "dedupe_key": key,
                        "fanout_status": status, "created_at": then, "last_attempt_at": then}  # fmt: skip
        await tables.insert("open_event_notifications", notification)
    id: int = row["open_event_id"]
    return id


@pytest.mark.clause("NTF-16")
async def test_notifications_go_before_their_events(database_url: str) -> None:
    async with bench(database_url) as lane:
        tables = Tables(lane.homing.notify_database)
        await seat(tables, 40 * DAY, "sent", "Skipped", "failed", "expired")
        waits = await seat(tables, 40 * DAY, "sent", "pending")
        young = await seat(tables, 20 * DAY, "sent")
        await seat(tables, 40 * DAY)
        chosen = steps(lane.homing, open_events=MONTH)
        assert await delete(chosen[:1]) == {"sent": 2, "skipped": 1, "failed": 1, "expired": 1}
        assert await delete(chosen) == {"events": 2}
        assert await ids(tables, "open_events", "open_event_id") == [waits, young]
        left = await tables.rows("open_event_notifications")
        assert sorted((row["open_event_id"], row["fanout_status"]) for row in left) == [
            (waits, "pending"),
            (young, "sent"),
        ]


async def test_history_that_is_still_counted_stays(database_url: str) -> None:
    async with bench(database_url) as lane:
        tables = Tables(lane.homing.notify_database)
        then = await ago(tables, 40 * DAY)
        story = ["created", "verified", "notify_sent", "notify_failed", "status_changed", "notify_sent"]
        for event in story:
            values = {"subscription_id": 7, "event_type": event, "created_at": then}
            await tables.insert("subscription_events", values)
        assert await delete(steps(lane.homing, open_events__history=MONTH)) == {"history": 2}
        left = [row["event_type"] for row in await tables.rows("subscription_events")]
        assert sorted(left) == sorted(["created", "verified", "status_changed", "notify_sent"])


# ── caught mails ─────────────────────────────────────────────────────────────────────────────────


async def test_caught_mails_go_from_the_shelf(database_url: str) -> None:
    async with bench(database_url) as lane:
        tables = Tables(lane.homing.database)
        for age in (40 * DAY, 20 * DAY):
            caught = {"message_id": "m", "sender": "s", "recipients": "[]", "subject": "", "source": "",
                      "caught_at": await ago(tables, age)}  # fmt: skip
            await tables.insert("homing_caught_mail", caught)
        chosen = steps(lane.homing, caught_mail=MONTH)
        assert await count(chosen) == await delete(chosen) == {"caught": 1}
        assert len(await tables.rows("homing_caught_mail")) == 1


# ── beside claims ────────────────────────────────────────────────────────────────────────────────

_MANY = {
    "postgres": """
INSERT INTO mail_outbox (to_address, text_body, status, created_at, next_attempt_at, sent_at)
SELECT 'a@example.org', repeat('x', 500), 'sent', now() - interval '40 days', now() - interval '40 days',
    now() - interval '40 days'
FROM generate_series(1, :rows::integer) RETURNING 1 AS one""",
    "sqlite": """
WITH RECURSIVE series(g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM series WHERE g < :rows)
INSERT INTO mail_outbox (to_address, text_body, status, created_at, next_attempt_at, sent_at)
SELECT 'a@example.org', printf('%.500c', 'x'), 'sent', strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-40 days'),
    strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-40 days'), strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-40 days')
FROM series RETURNING 1 AS one""",
}


async def test_claims_go_on_during_a_prune(database_url: str) -> None:
    """Two that know nothing of each other: one prunes 8,000 mails, one claims, sends and settles."""
    async with bench(database_url) as prunes, bench(database_url) as works:
        tables = Tables(prunes.homing.database)
        await tables.sql(_MANY[prunes.homing.database.dialect], rows=8_000)
        pruning = asyncio.create_task(delete(steps(prunes.homing, mail_outbox=MONTH), share=0.5))
        delivered, slowest = 0, 0.0
        while not pruning.done():
            await works.insert()
            began = time.monotonic()
            delivered += len(await works.deliver())
            slowest = max(slowest, time.monotonic() - began)
        assert await pruning == {"sent": 8_000}
        assert delivered >= 3
        assert len(works.sender.delivered) == delivered
        assert slowest < 15.0, "a batch is a moment, on a busy machine too"


async def test_a_prune_waits_for_no_row_and_no_claim_waits_for_it(postgres_url: str) -> None:
    """With a batch that is held open, claims and settlements run, and a second prune finds nothing to do."""
    import asyncpg

    async with bench(postgres_url) as lane:
        old = [await mail(lane, "sent", 40 * DAY) for _ in range(3)]
        due = await lane.insert(2)
        step, _orphans = steps(lane.homing, mail_outbox=MONTH)
        query = step.table._queries["prune"]  # type: ignore[attr-defined]  # the statement itself is what is held
        other = await asyncpg.connect(postgres_url)
        held = other.transaction()
        await held.start()
        parameters: Mapping[str, Any] = {
            "ids": f"[{old[0]},{old[1]}]",
            "ages": '[{"state":"sent","seconds":2592000}]',
        }
        gone = await other.fetch(query.sql, *[parameters[name] for name in query.parameters])
        assert len(gone) == 2
        assert await asyncio.wait_for(step.table.prune(step.ages, old), 60) == {"sent": 1}
        assert sorted(await asyncio.wait_for(lane.deliver(), 60)) == due
        await held.commit()
        await other.close()
        assert await ids(Tables(lane.homing.database), "mail_outbox") == due


async def test_many_jobs_are_pruned_by_their_ids(jobs_database_url: str) -> None:
    """Several batches, of which each begins where the last ended."""
    async with job_bench(jobs_database_url) as lane:
        await lane.order([job("https://hooks.example.org/") for _ in range(700)])
        moment = await ago(lane.tables, 40 * DAY)
        await lane.tables.change(
            "dispatch_job", {"status": "COMPLETED", "updated_at": moment, "created_at": moment}
        )
        (step, *_) = steps(lane.homing, dispatch_jobs__COMPLETED=MONTH)
        deleted = [sum(counts.values()) async for counts in prune(step, Pace(1.0))]
        assert sum(deleted) == 700
        assert len(deleted) >= 2
        assert await ids(lane.tables, "dispatch_job") == []


# ── by itself ────────────────────────────────────────────────────────────────────────────────────


async def test_a_worker_prunes_by_itself(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homing.engine.prune._FIRST_ROUND_WITHIN", 0.0)
    async with bench(sqlite_url, retention="mail_outbox.sent=30d") as lane:
        await mail(lane, "sent", 40 * DAY)
        kept = [await mail(lane, "sent", 20 * DAY), await mail(lane, "failed", 40 * DAY)]
        stop = Stop()
        working = asyncio.create_task(
            run(lane.homing, stop, api=False, work=["mail_outbox"], ready=lambda _address: None)
        )
        await eventually(lambda: _is_all(lane, kept))
        await eventually(lambda: _was_told(lane))
        stop.ask()
        await working
        (told,) = lane.log.all("retention.pruned")
        assert (told["lane"], told["state"], told["count"]) == ("mail_outbox", "sent", 1)


async def _is_all(lane: Bench, kept: list[int]) -> bool:
    return await ids(Tables(lane.homing.database), "mail_outbox") == kept


async def _was_told(lane: Bench) -> bool:
    return bool(lane.log.all("retention.pruned"))
