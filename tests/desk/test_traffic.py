"""What was delivered, retried and given up: counted without a database, written once, rolled up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from tests.outbox import bench

from homing.db import Database, Query, connect
from homing.db.migrate import load_migrations, migrate
from homing.desk.traffic import MINUTES_ARE_KEPT, Bar, TrafficCount, TrafficTable, quantile
from homing.errors import Unreachable
from homing.senders.mail import SendError, SendErrorCode, SendResult
from homing.telemetry import ATTEMPT_BOUNDS, WAIT_BOUNDS, Attempted, Telemetry

NOON = datetime(2026, 3, 1, 12, 0, 10, tzinfo=UTC)
SETTLEMENTS = {"delivered": "complete", "retry": "retry_in", "reject": "bury", "skip": "discard"}
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


class Clock:
    def __init__(self, now: datetime = NOON) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


class CutOff(TrafficTable):
    """A table that may be out of reach, or be written without an answer."""

    is_away = loses_answers = False

    async def write(self, rows: Sequence[Any]) -> None:
        if not self.is_away:
            await super().write(rows)
        if self.is_away or self.loses_answers:
            raise Unreachable("away")


class Process:
    """One that attempts."""

    def __init__(self, table: TrafficTable, clock: Clock) -> None:
        self.telemetry = Telemetry(registry=CollectorRegistry())
        self.count = TrafficCount(table, self.telemetry, clock)

    def attempt(
        self, outcome: str, times: int = 1, *, seconds: float = 0.02, lane: str = "mail_outbox"
    ) -> None:
        settlement = SETTLEMENTS[outcome]
        event = Attempted(
            lane=lane, id=1, claim_seq=1, attempt=1, outcome=outcome, settlement=settlement, settled=True,
            seconds=seconds, error_code=None, error=None, retry_in=None, charged=True, fields={},
            since_created=seconds * 10,
        )  # fmt: skip
        for _ in range(times):
            self.telemetry.attempted(event)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = connect(database_url)
    await migrate(opened, load_migrations(["homing.desk"], opened.dialect))
    yield opened
    await opened.close()


@pytest.fixture
def table(database: Database) -> CutOff:
    return CutOff(database)


async def rows(database: Database) -> list[tuple[Any, ...]]:
    sql = "SELECT at, lane, span, delivered FROM homing_traffic ORDER BY at, lane, span, writer"
    return [tuple(row) for row in await database.fetch(Query("rows", sql, (), False), {})]


async def test_several_processes_are_added_up(table: CutOff) -> None:
    clock = Clock()
    one, other = Process(table, clock), Process(table, clock)
    one.attempt("delivered", 3, seconds=0.02)
    one.attempt("retry", 2)
    other.attempt("delivered", 1, seconds=5.0)
    other.attempt("reject", 4, lane="email_log:send")
    other.attempt("delivered", 9, lane="email_log:schedule")
    for process in (one, other):
        await process.count.flush()
        await process.count.flush()
    clock.now += MINUTE
    one.attempt("delivered", 2)
    one.attempt("skip", 1)
    await one.count.flush()

    totals = await table.totals(NOON - HOUR, NOON + HOUR)
    assert set(totals) == {"mail_outbox", "email_log"}, "to publish is not to deliver"
    mails = totals["mail_outbox"]
    assert (mails.delivered, mails.retried, mails.dead, mails.stopped) == (6, 2, 0, 1)
    assert totals["email_log"].dead == 4
    assert sum(mails.attempts) == 9
    assert sum(mails.waits) == 6, "of those that arrived"
    begin = NOON.replace(second=0)
    assert await table.series(NOON - HOUR, MINUTE) == {
        ("mail_outbox", int(begin.timestamp())): Bar(4, 2, 0),
        ("email_log", int(begin.timestamp())): Bar(0, 0, 4),
        ("mail_outbox", int((begin + MINUTE).timestamp())): Bar(2, 0, 0),
    }
    hourly = await table.series(NOON - HOUR, HOUR)
    assert hourly["mail_outbox", int(begin.timestamp())] == Bar(6, 2, 0)


async def test_an_outage_costs_nothing_but_a_delay(database: Database, table: CutOff) -> None:
    clock = Clock()
    process = Process(table, clock)
    table.is_away = True
    for _ in range(3):
        process.attempt("delivered", 2)
        with pytest.raises(Unreachable):
            await process.count.flush()
        clock.now += MINUTE
    await process.count.close()
    assert await rows(database) == []
    table.is_away = False
    await process.count.close()
    assert [delivered for *_, delivered in await rows(database)] == [2, 2, 2], "each in its own minute"


async def test_a_write_that_may_have_been_done_is_done_again(database: Database, table: CutOff) -> None:
    process = Process(table, Clock())
    process.attempt("delivered", 5)
    await process.count.flush()
    process.attempt("delivered", 1)
    table.loses_answers = True
    with pytest.raises(Unreachable):
        await process.count.flush()
    table.loses_answers = False
    await process.count.flush()
    assert [delivered for *_, delivered in await rows(database)] == [6]


async def test_a_bug_while_it_is_tidied_does_not_end_the_counting(
    database: Database, table: CutOff, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_now: datetime) -> None:
        raise ValueError("a row that we cannot read")

    monkeypatch.setattr(table, "tidy", broken)
    monkeypatch.setattr("homing.desk.traffic._FLUSH_EVERY", 0.01)
    process = Process(table, Clock())
    counting = asyncio.create_task(process.count.run())
    try:
        async with asyncio.timeout(20):
            for sent in (1, 2):
                process.attempt("delivered")
                while [delivered for *_, delivered in await rows(database)] != [sent]:
                    assert not counting.done(), counting
                    await asyncio.sleep(0.01)
    finally:
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)


async def test_without_a_database_for_days_memory_stays_small(sqlite_url: str) -> None:
    database = connect(sqlite_url)
    await migrate(database, load_migrations(["homing.desk"], database.dialect))
    table, clock = TrafficTable(database), Clock()
    process = Process(table, clock)
    for _ in range(4 * 24 * 60 + 50):
        process.attempt("delivered")
        process.count.look()
        clock.now += MINUTE
    await process.count.flush()
    kept = await table.totals(NOON - HOUR, clock.now)
    assert kept["mail_outbox"].delivered == 4 * 24 * 60
    await database.close()


async def test_old_minutes_become_hours_and_old_hours_go(database: Database, table: CutOff) -> None:
    clock = Clock()
    one, other = Process(table, clock), Process(table, clock)
    for process in (one, other):
        for minutes in (0, 1, 59, 60):
            clock.now = NOON + minutes * MINUTE
            process.attempt("delivered", 1 + minutes)
            process.attempt("retry")
            await process.count.flush()
    before = await table.totals(NOON - HOUR, NOON + 3 * HOUR)
    now = NOON + MINUTES_ARE_KEPT + 2 * HOUR
    await table.tidy(now)
    await table.tidy(now)
    begin = int(NOON.replace(second=0).timestamp())
    assert await rows(database) == [
        (begin, "mail_outbox", 3600, 2 * (1 + 2 + 60)),
        (begin + 3600, "mail_outbox", 3600, 2 * 61),
    ]
    assert await table.totals(NOON - HOUR, NOON + 3 * HOUR) == before

    # A minute that comes when its hour was made already is not lost.
    clock.now = NOON + 30 * MINUTE
    late = Process(table, clock)
    late.attempt("delivered", 10)
    await late.count.flush()
    await table.tidy(now)
    assert (await rows(database))[0][3] == 2 * 63 + 10
    await table.tidy(now + timedelta(days=90))
    assert await rows(database) == []


async def test_deliveries_of_a_real_process_are_written_when_it_ends(migrated_postgres_url: str) -> None:
    async with bench(migrated_postgres_url) as opened:
        await opened.insert(3)
        opened.sender.answer_next(
            SendResult(
                status="retryable", provider="memory", error=SendError(SendErrorCode.NETWORK_ERROR, "away")
            )
        )
        await opened.deliver()
    async with _database(migrated_postgres_url) as database:
        found = await TrafficTable(database).totals(datetime.now(UTC) - HOUR, datetime.now(UTC) + HOUR)
        mails = found["mail_outbox"]
        assert (mails.delivered, mails.retried) == (2, 1)
        assert sum(mails.waits) == 2


@asynccontextmanager
async def _database(url: str) -> AsyncIterator[Database]:
    opened = connect(url)
    try:
        yield opened
    finally:
        await opened.close()


@given(
    st.lists(st.floats(0, 700), min_size=1, max_size=200), st.sampled_from([0.5, 0.95]),
    st.sampled_from([ATTEMPT_BOUNDS, WAIT_BOUNDS]),
)  # fmt: skip
def test_a_quantile_is_the_bound_of_the_true_one(
    seconds: list[float], share: float, bounds: tuple[float, ...]
) -> None:
    counts = [0] * (len(bounds) + 1)
    for one in seconds:
        counts[sum(one > bound for bound in bounds)] += 1
    told = quantile(bounds, counts, share)
    assert told is not None
    rank = next(n for n in range(1, len(seconds) + 1) if n >= len(seconds) * share)
    true = sorted(seconds)[rank - 1]
    above = [bound for bound in bounds if true <= bound]
    assert told == (above[0] if above else inf), "what is told is a bound, and holds"


def test_of_nothing_there_is_no_quantile() -> None:
    assert quantile(ATTEMPT_BOUNDS, [0] * (len(ATTEMPT_BOUNDS) + 1), 0.5) is None
