"""Rows with numbers and times at the ends of their types: whoever inserts one stops nobody else's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from tests.emails import email_bench
from tests.http.door import opened_door
from tests.jobs import JobBench, job_bench
from tests.notifications import notification_bench
from tests.outbox import Bench, bench

from homing.db import instant
from homing.db.mongo import MongoDatabase
from homing.engine.prune import Pace, Retention, plan, prune
from homing.errors import Refused
from homing.parts.retention import prunable_tables
from homing.testing.http_sink import HttpSink

INTEGER, BIGINT = 2**31 - 1, 2**63 - 1
#: What a producer has to fill in, by table.
LEAST = {
    "mail_outbox": "to_address, subject, text_body) VALUES ('ann@example.org', 'Hi', 'Hello.'",
    "dispatch_job": "source, type, target_url, payload) VALUES ('s', 't', 'http://127.0.0.1:1/', '{}'",
    "email_log": "to_address, subject, body) VALUES ('ann@example.org', 'Hi', 'Hello.'",
}
COUNTED = {
    "mail_outbox": ("retry_count", "rescue_count", "defer_count"),
    "dispatch_job": ("attempt_count", "attempts_before", "send_number", "rescue_count", "defer_count"),
    "email_log": ("attempt_count", "rescue_count", "defer_count", "publish_failures", "queue_count"),
}
ODD = [
    *((table, "claim_seq", number) for table in COUNTED for number in (BIGINT, 2**53 + 1, -1)),
    *((table, column, INTEGER) for table, columns in COUNTED.items() for column in columns),
    ("dispatch_job", "attempts_before", -1),
    ("email_log", "queue_count", -1),
]
#: What Python cannot hold, what PostgreSQL subtracts from nothing, and what it adds nothing to.
TIMES = ("4000-01-01 BC", "-infinity", "infinity", "290000-01-01")
JOB_TIMES = (
    "created_at", "updated_at", "scheduled_for", "expires_at", "next_attempt_at", "queue_at",
    "last_attempt_at", "completed_at", "lease_expires_at",
)  # fmt: skip
KEPT = "are kept by Homing; leave them out"
PAGES = (
    "/", "/messages", "/messages/outbox_1", "/api/messages", "/api/mail", "/api/emails", "/api/overview",
)  # fmt: skip


def insertion(table: str, **columns: Any) -> str:
    """Of a row, each value as SQL has it."""
    names, values = LEAST[table].split(") VALUES (")
    return (
        f"INSERT INTO {table} ({', '.join([names, *columns])}) "
        f"VALUES ({', '.join([values, *map(str, columns.values())])}) RETURNING id"
    )


async def insert(lane: Any, table: str, **columns: Any) -> int:
    id: int = (await lane.sql(insertion(table, **columns)))[0]["id"]
    return id


# ── refused where they come from ─────────────────────────────────────────────────────────────────


@pytest.fixture
async def lane(database_url: str) -> AsyncIterator[Bench]:
    async with bench(database_url) as opened:
        yield opened


async def test_what_homing_counts_is_no_producers_to_set(lane: Bench) -> None:
    for table, column, number in ODD:
        with pytest.raises(Refused, match=KEPT) as refused:
            await insert(lane, table, **{column: number})
        assert column in str(refused.value)


async def test_in_sqlite_words_are_no_numbers(sqlite_url: str) -> None:
    async with bench(sqlite_url) as lane:
        for table, columns in COUNTED.items():
            for column in ("claim_seq", *columns):
                with pytest.raises(Refused, match=KEPT):
                    await insert(lane, table, **{column: "'many'"})
        with pytest.raises(Refused, match=KEPT):
            await insert(lane, "dispatch_job", position=BIGINT)


async def test_in_sqlite_nobody_takes_the_last_id(sqlite_url: str) -> None:
    async with bench(sqlite_url) as lane:
        for table in ("mail_outbox", "email_log"):
            with pytest.raises(Refused, match=KEPT):
                await insert(lane, table, id=BIGINT)
            assert await insert(lane, table)


async def test_what_a_producer_may_count_is_taken(lane: Bench) -> None:
    """A row that is copied from another database brings what it has been through."""
    for table, columns in COUNTED.items():
        assert await insert(lane, table, claim_seq=2**53, **dict.fromkeys(columns, 1_000_000))
        assert await insert(lane, table, claim_seq=0, **dict.fromkeys(columns, 0))


async def test_times_of_jobs_that_nobody_can_count_with(postgres_url: str) -> None:
    async with bench(postgres_url) as lane:
        for column in JOB_TIMES:
            for time in TIMES:
                with pytest.raises(Refused, match=r"between 0001-01-02 and 9999-12-30"):
                    await insert(lane, "dispatch_job", **{column: f"'{time}'"})
            assert await insert(lane, "dispatch_job", **{column: "'9998-12-31Z'"})


async def test_who_may_only_insert_is_told_as_well(postgres_url: str) -> None:
    async with bench(postgres_url) as lane:
        role = "producer_" + postgres_url.rsplit("/", 1)[1].replace("-", "_")
        await lane.homing.database.run_script(
            f'CREATE ROLE "{role}";'
            f'GRANT INSERT ON mail_outbox, dispatch_job, email_log TO "{role}";'
            f'GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO "{role}";'
        )
        connection = await asyncpg.connect(postgres_url)
        try:
            await connection.execute(f'SET ROLE "{role}"')
            for table in LEAST:
                await connection.execute(insertion(table).removesuffix(" RETURNING id"))
                with pytest.raises(asyncpg.CheckViolationError, match=KEPT):
                    await connection.execute(insertion(table, claim_seq=BIGINT).removesuffix(" RETURNING id"))
            await connection.execute("RESET ROLE")
            await connection.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')
        finally:
            await connection.close()


# ── there already when the rule comes ────────────────────────────────────────────────────────────

#: What the rule is, by lane, in both dialects.
_RULES = {
    "mail_outbox": ("mail_outbox", 13, "homing_mail_counters", "homing_mail_check"),
    "dispatch_job": ("dispatch_jobs", 10, "homing_job_counters", None),
    "email_log": ("email_log", 10, "homing_email_counters", "homing_email_check"),
}


#: The trigger of the version before, which only completes a row.
_COMPLETED_ONLY = """
DROP TRIGGER homing_job_complete ON dispatch_job;
CREATE FUNCTION completed_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.target := homing_target_of(NEW.target_url, NEW.credentials_id);
    RETURN NEW;
END
$$;
CREATE TRIGGER homing_job_complete BEFORE INSERT ON dispatch_job
    FOR EACH ROW WHEN (NEW.target IS NULL) EXECUTE FUNCTION completed_only();
"""


async def as_before(lane: Any, table: str) -> None:
    component, version, trigger, function = _RULES[table]
    script = f"DROP TRIGGER {trigger};"
    if lane.homing.database.dialect == "postgres":
        script = f"DROP FUNCTION {function}() CASCADE;" if function else _COMPLETED_ONLY
    ledger = f"DELETE FROM homing_migration WHERE component = '{component}' AND version = {version};"
    await lane.homing.database.run_script(script + ledger)


async def test_mails_that_were_there_before(lane: Bench) -> None:
    await as_before(lane, "mail_outbox")
    ids = [await insert(lane, "mail_outbox", claim_seq=BIGINT), await insert(lane, "mail_outbox")]
    lost = [
        await insert(lane, "mail_outbox", status="'dispatching'", **columns)
        for columns in ({}, {"claim_seq": BIGINT}, {"rescue_count": INTEGER}, {"defer_count": -INTEGER})
    ]
    await lane.homing.migrate()
    await lane.deliver()
    assert [(await lane.row(id))["status"] for id in ids] == ["sent", "sent"]
    await lane.homing.mail.maintenance.once()
    await lane.deliver()
    assert {(await lane.row(id))["status"] for id in lost[:2]} == {"sent"}


async def test_emails_that_were_there_before(database_url: str) -> None:
    async with email_bench(database_url) as lane:
        await as_before(lane, "email_log")
        ids = [await insert(lane, "email_log", claim_seq=number) for number in (BIGINT, 0)]
        await lane.homing.migrate()
        await lane.deliver()
        assert await lane.states(ids) == ["Sent", "Sent"]


@pytest.mark.parametrize(
    "columns",
    [
        {"claim_seq": BIGINT},
        {"attempts_before": INTEGER, "attempt_count": INTEGER},
        {"rescue_count": INTEGER, "defer_count": INTEGER, "send_number": -INTEGER},
    ],
)
async def test_jobs_that_were_there_before(database_url: str, columns: dict[str, int]) -> None:
    await _are_both_delivered(database_url, columns)


@pytest.mark.parametrize(
    ("column", "time"),
    [("created_at", "-infinity"), ("updated_at", "290000-01-01"), ("next_attempt_at", "4000-01-01 BC")],
)
async def test_times_of_jobs_that_were_there_before(postgres_url: str, column: str, time: str) -> None:
    await _are_both_delivered(postgres_url, {column: f"'{time}'"})


async def _are_both_delivered(database_url: str, columns: dict[str, Any]) -> None:
    async with job_bench(database_url) as lane, HttpSink() as sink:
        await as_before(lane, "dispatch_job")
        odd = await _job(lane, sink.url, **columns)
        (ordinary,) = await lane.create(sink.url)
        await lane.homing.migrate()
        await lane.run_batch()
        assert await lane.states([odd, ordinary]) == ["COMPLETED", "COMPLETED"]


async def test_a_job_that_counts_too_many_attempts_says_so(database_url: str) -> None:
    async with job_bench(database_url) as lane, HttpSink() as sink:
        await as_before(lane, "dispatch_job")
        odd = await _job(lane, sink.url, attempts_before=-1, attempt_count=INTEGER)
        (ordinary,) = await lane.create(sink.url)
        await lane.homing.migrate()
        await lane.run_batch()
        assert await lane.states([odd, ordinary]) == ["ERROR", "COMPLETED"]
        assert (await lane.row(odd))["last_error"] == "all 3 attempts are used up"


async def _job(lane: JobBench, url: str, **columns: Any) -> int:
    statement = insertion("dispatch_job", **columns).replace("http://127.0.0.1:1/", url)
    id: int = (await lane.sql(statement))[0]["id"]
    return id


# ── read, whatever they are ──────────────────────────────────────────────────────────────────────


async def test_a_time_that_nobody_can_read_is_the_first_or_the_last(postgres_url: str) -> None:
    """On a page, too: the others on it are somebody's."""
    async with bench(postgres_url) as lane:
        years = {}
        for time, year in zip((*TIMES, "2026-01-02 03:04:05.678Z"), (1, 1, 9999, 9999, 2026), strict=True):
            id = await insert(lane, "mail_outbox", created_at=f"'{time}'", sent_at=f"'{time}'")
            years[id] = year
        found = {row["id"]: instant(row["created_at"]) for row in await lane.outbox.page(limit=10)}
        assert {id: at.year for id, at in found.items() if at} == years
        last = found[max(years)]
        assert last is not None
        assert last.isoformat() == "2026-01-02T03:04:05.678000+00:00"
        await lane.deliver()
        assert {(await lane.row(id))["status"] for id in years} == {"sent"}


@pytest.mark.parametrize("time", TIMES)
async def test_pages_and_pruning_beside_a_time_that_nobody_can_read(postgres_url: str, time: str) -> None:
    async with opened_door(postgres_url) as door:
        for table, ended in (("mail_outbox", "'sent'"), ("email_log", "'Sent'")):
            await insert(door, table, created_at=f"'{time}'")
            await insert(door, table, status=ended, created_at=f"'{time}'", sent_at=f"'{time}'")
        long_ago = "'2020-01-01Z'"
        times = dict.fromkeys(("created_at", "sent_at", "next_attempt_at"), long_ago)
        old = await insert(door, "mail_outbox", status="'sent'", **times)
        for path in PAGES:
            assert (await door.client.get(path)).status_code == 200, path
        database = door.homing.database
        retention = Retention({"mail_outbox": 86400.0, "email_log": 86400.0})
        for step in plan(retention, prunable_tables(database, database, database)):
            async for _ in prune(step, Pace(1.0)):
                pass
        assert await door.outbox.get(old) is None


async def test_a_mail_that_another_program_took_at_the_end_of_time(postgres_url: str) -> None:
    """A lease was added to when it did so: no other mail was rescued."""
    async with bench(postgres_url) as lane:
        await insert(lane, "mail_outbox", status="'dispatching'", last_attempt_at="'294276-12-31 23:59:59Z'")
        lost = await insert(lane, "mail_outbox", status="'dispatching'", last_attempt_at="'2020-01-01Z'")
        await lane.homing.mail.maintenance.once()
        await lane.deliver()
        assert (await lane.row(lost))["status"] == "sent"


@pytest.mark.parametrize("time", TIMES)
async def test_how_old_the_oldest_is_can_be_asked(postgres_url: str, time: str) -> None:
    async with bench(postgres_url) as lane:
        await insert(lane, "mail_outbox", created_at=f"'{time}'")
        await insert(lane, "email_log", created_at=f"'{time}'", next_attempt_at="NULL")
        assert await lane.outbox.oldest_due() >= 0
        assert await lane.homing.emails.oldest_due() >= 0
        # And hides no other.
        await insert(lane, "email_log", created_at="now() - interval '60 seconds'", next_attempt_at="NULL")
        assert await lane.homing.emails.oldest_due() >= 60
    async with notification_bench(postgres_url) as notices:
        id = await notices.notification()
        await notices.other.sql(
            f"UPDATE open_event_notifications SET created_at = '{time}' "
            f"WHERE notification_id = {id} RETURNING 1 AS one"
        )
        assert await notices.notifications.oldest_due() >= 0


async def test_in_sqlite_words_are_no_times(sqlite_url: str) -> None:
    async with bench(sqlite_url) as lane:
        ids = [
            await insert(lane, "mail_outbox", created_at=time)
            for time in ("'yesterday'", "'-4000-01-01'", 1700000000)
        ]
        found = {row["id"]: instant(row["created_at"]) for row in await lane.outbox.page(limit=10)}
        assert [at and at.year for at in map(found.__getitem__, ids)] == [1, 1, 2023]
        await lane.deliver()
        assert {(await lane.row(id))["status"] for id in ids} == {"sent"}


async def test_in_sqlite_a_job_of_no_time_is_sent(sqlite_url: str) -> None:
    async with job_bench(sqlite_url) as lane, HttpSink() as sink:
        ids = [
            await _job(lane, sink.url, **dict.fromkeys(("created_at", "updated_at", "queue_at"), time))
            for time in ("'yesterday'", "'-4000-01-01'", 1700000000)
        ]
        ordinary = await lane.create(sink.url)
        await lane.run_batch()
        assert await lane.states([*ids, *ordinary]) == ["COMPLETED"] * 4


async def test_notifications_of_another_program(database_url: str) -> None:
    """In its own tables nothing is refused: whatever they hold can be counted up."""
    async with notification_bench(database_url) as lane:
        ids = [
            await lane.notification(),
            await lane.notification(claim_seq=BIGINT),
            await lane.notification(claim_seq=-BIGINT),
        ]
        tried = [
            await lane.notification(fanout_attempts=INTEGER),
            await lane.notification(fanout_attempts=-1),
        ]
        for _ in range(3):
            await lane.deliver()
        rows = [await lane.other.row(id) for id in ids]
        assert [row["fanout_status"] for row in rows] == ["sent"] * 3
        assert {(await lane.other.row(id))["fanout_status"] for id in tried} <= {"sent", "failed"}


# ── documents ────────────────────────────────────────────────────────────────────────────────────

FAR, EARLY, EARLIEST = DatetimeMS(9 * 10**15), DatetimeMS(-3 * 10**14), DatetimeMS(-(2**63))
DOCUMENTS: list[dict[str, Any]] = [
    {"claim_seq": Int64(BIGINT)},
    {"status": "IN_PROGRESS", "claim_seq": Int64(BIGINT), "rescue_count": Int64(BIGINT)},
    {"status": "IN_PROGRESS", "claim_seq": Int64(BIGINT), "lease_expires_at": EARLY},
    {"attempt_count": Int64(BIGINT)},
    {"attempt_count": Int64(BIGINT), "attempts_before": Int64(BIGINT)},
    {"defer_count": Int64(BIGINT), "send_number": Int64(BIGINT)},
    *({name: time} for name in JOB_TIMES for time in (FAR, EARLY, EARLIEST)),
    {"status": "IN_PROGRESS", "updated_at": EARLIEST},
    {"status": "FAILED", "attempt_count": 1, "next_attempt_at": EARLIEST, "queued": True},
    {"next_attempt_at": DatetimeMS(BIGINT), "queued": True},
]


async def test_documents_at_the_ends_of_their_types(mongodb_url: str) -> None:
    """The validator cannot tell an insertion from a claim: so these are taken, and stop nobody."""
    async with job_bench(mongodb_url) as lane, HttpSink() as sink:
        database = lane.jobs.database
        assert isinstance(database, MongoDatabase)
        odd = await lane.create(sink.url, len(DOCUMENTS))
        for id, columns in zip(odd, DOCUMENTS, strict=True):
            await database.opened["dispatch_job"].update_one({"_id": id}, {"$set": columns})
        ordinary = await lane.create(sink.url, 2)
        await lane.homing.webhooks.maintenance.once()
        await lane.jobs.run("postpone_unsent", limit=100, window=60.0)
        await lane.jobs.run("claim_unsent", limit=100, window=60.0)
        for _ in range(2):
            await lane.run_batch()
            await lane.run_batch()
        assert await lane.states(ordinary) == ["COMPLETED", "COMPLETED"]
        assert {*await lane.states(odd)} <= {"COMPLETED", "PENDING", "IN_PROGRESS", "ERROR"}
        found = await lane.jobs.run("due_targets", after="", most=10)
        assert len(found) <= 1
