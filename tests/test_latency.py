"""From a message's creation to its delivery, by the database's clock, in every lane."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from tests.emails import EmailBench, email_bench
from tests.jobs import job
from tests.tables import Tables

from homing.app import Homing
from homing.lanes.mail_outbox.orders import MailRequest, order_of
from homing.lines import Line
from homing.testing.http_sink import HttpSink

HOUR = 3600.0
DAY = timedelta(days=1)
MAIL = {"to_address": "ann@example.org", "subject": "Hi", "text_body": "Hello."}
TOLERANCE = 300.0


def observed(homing: Homing, lane: str) -> tuple[float, float]:
    """How many were measured, and their sum in seconds."""
    value = homing.telemetry.registry.get_sample_value
    name = "homing_delivery_latency_seconds"
    counted, total = (value(f"{name}_{end}", {"lane": lane}) for end in ("count", "sum"))
    return counted or 0.0, total or 0.0


def assert_about(homing: Homing, lane: str, seconds: float) -> None:
    counted, total = observed(homing, lane)
    assert counted == 1
    assert seconds <= total < seconds + TOLERANCE


async def deliver(line: Line) -> None:
    await line.deliverer.settled(await line.deliverer.run_batch(10))


async def ago(tables: Tables, seconds: float) -> datetime:
    return await tables.now() - timedelta(seconds=seconds)


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    name = "sqlite_url" if request.param == "sqlite" else "migrated_postgres_url"
    url: str = request.getfixturevalue(name)
    return url


async def put_in_mail(bench: EmailBench, **columns: Any) -> None:
    await Tables(bench.homing.database).insert("mail_outbox", {**MAIL, **columns})


async def test_mails_count_from_their_creation(database_url: str) -> None:
    async with email_bench(database_url) as bench:
        tables = Tables(bench.homing.database)
        await put_in_mail(bench, created_at=await ago(tables, HOUR), next_attempt_at=await ago(tables, HOUR))
        await deliver(bench.homing.mail)
        assert_about(bench.homing, "mail_outbox", HOUR)


async def test_a_mail_for_later_counts_from_then(database_url: str) -> None:
    """As its row says, or as the order said; the order is known also after a retry."""
    async with email_bench(database_url) as bench:
        tables = Tables(bench.homing.database)
        created, due = await ago(tables, 48 * HOUR), await ago(tables, HOUR)
        await put_in_mail(bench, created_at=created, next_attempt_at=due)
        await deliver(bench.homing.mail)
        assert_about(bench.homing, "mail_outbox", HOUR)
        await put_in_mail(bench, created_at=created, next_attempt_at=created, send_at=due, claim_seq=3)
        await deliver(bench.homing.mail)
        counted, total = observed(bench.homing, "mail_outbox")
        assert counted == 2
        assert 2 * HOUR <= total < 2 * HOUR + TOLERANCE


async def test_an_ordered_time_is_kept(database_url: str) -> None:
    async with email_bench(database_url) as bench:
        tables = Tables(bench.homing.database)
        moment = (await tables.now()).replace(microsecond=0) + DAY
        await bench.homing.mails_part.orders.place(
            order_of(MailRequest(to="ann@example.org", text="Hello.", sendAt=moment))
        )
        (row,) = await tables.rows("mail_outbox")
        assert row["send_at"] == row["next_attempt_at"] == tables.time(moment)


@pytest.mark.parametrize("database", ["sqlite", "postgres", "mongodb"])
async def test_jobs_count_from_their_creation_or_their_time(
    request: pytest.FixtureRequest, sqlite_url: str, database: str
) -> None:
    url = None if database == "sqlite" else request.getfixturevalue(f"migrated_{database}_url")
    async with email_bench(sqlite_url, jobs_database_url=url) as bench, HttpSink() as sink:
        tables = Tables(bench.homing.jobs_database)
        for scheduled in (None, HOUR):
            await _put_in_job(bench, tables, sink.url, scheduled)
        await deliver(bench.homing.webhooks)
        counted, total = observed(bench.homing, "dispatch_jobs")
        assert counted == 2
        assert 25 * HOUR <= total < 25 * HOUR + TOLERANCE


async def _put_in_job(bench: EmailBench, tables: Tables, url: str, scheduled: float | None) -> None:
    (ordered,) = await bench.homing.jobs.enqueue([job(f"{url}/hooks")])
    columns: Mapping[str, Any] = {
        "created_at": await ago(tables, 24 * HOUR),
        "scheduled_for": None if scheduled is None else await ago(tables, scheduled),
    }
    await tables.change("dispatch_job", columns, id=ordered.id)


async def test_emails_count_where_they_are_sent(database_url: str) -> None:
    async with email_bench(database_url, email_broker_url=f"memory://{uuid4().hex}") as bench:
        (id,) = await bench.insert()
        await bench.shift(id, HOUR, "created_at")
        await bench.deliver()
        assert_about(bench.homing, "email_log:send", HOUR)
        # To queue it is not to deliver it.
        assert observed(bench.homing, "email_log:schedule") == (0, 0)


async def test_a_creation_that_makes_no_sense_is_not_counted(database_url: str) -> None:
    """Another program wrote it; the mail, here at a second attempt, goes out all the same."""
    async with email_bench(database_url) as bench:
        if bench.is_postgres:
            for column in ("'-infinity'", "'infinity'", "now() + interval '1 day'"):
                await bench.sql(
                    "INSERT INTO mail_outbox (to_address, text_body, claim_seq, created_at) "
                    f"VALUES ('ann@example.org', 'Hi', 1, {column}) RETURNING 1 AS one"
                )
        else:
            for text in ("yesterday", "", "9999-01-01T00:00:00.000Z"):
                await put_in_mail(bench, created_at=text, claim_seq=1)
        await deliver(bench.homing.mail)
        assert (await bench.homing.outbox.counts())["sent"] == 3
        assert observed(bench.homing, "mail_outbox") == (0, 0)
