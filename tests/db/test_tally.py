"""Tallies: exact whoever writes, from the migration on; and counts that keep nobody waiting."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import asyncpg
import pytest
from prometheus_client import CollectorRegistry

from homing.db import Database, Query, Row, connect, load_queries
from homing.db.backlog import Backlog, HeldBack
from homing.db.migrate import load_migrations, migrate
from homing.db.tally import Base, RunningTotal, Tallies, by_state, recount
from homing.telemetry import Telemetry

#: Each table with a tally: its lane, and a row as another program would insert it.
TABLES = {
    "mail_outbox": ("mail_outbox", "(to_address, subject, status) VALUES ('a@example.org', 'Hi', {})"),
    "email_log": ("email_log", "(to_address, subject, body, status) VALUES ('a@example.org', 'Hi', '.', {})"),
    "dispatch_job": (
        "dispatch_jobs",
        "(source, type, target_url, target, payload, status) VALUES ('a', 'b', 'https://c.d/', 'x', '.', {})",
    ),
}
#: Of each lane: waiting, under way, ended well, ended badly.
STATES = {
    "mail_outbox": ("queued", "dispatching", "sent", "failed"),
    "email_log": ("Pending", "RetryQueued", "Sent", "Dead"),
    "dispatch_jobs": ("PENDING", "IN_PROGRESS", "COMPLETED", "ERROR"),
}
MAIL = "homing.lanes.mail_outbox"
THREE = "INSERT INTO mail_outbox (to_address) SELECT 'a@b.c' FROM generate_series(1, 3)"
SOME_GO = "DELETE FROM mail_outbox WHERE id IN (SELECT id FROM mail_outbox WHERE id % 4 = $1 LIMIT 2)"


async def run(database: Database, sql: str) -> list[Any]:
    writes = not sql.startswith("SELECT")
    return [tuple(row) for row in await database.fetch(Query("plain", sql, (), writes), {})]


async def tallied(database: Database, lane: str) -> dict[str, int]:
    """As the lane's store reads it."""
    rows = await database.fetch(load_queries(f"homing.lanes.{lane}", database.dialect)["counts"], {})
    found = by_state(rows, STATES[lane], rest=STATES[lane][2])
    return {state: count for state, count in found.items() if count}


async def counted(database: Database, table: str) -> dict[str, int]:
    rows = await run(database, f"SELECT status, count(*) FROM {table} GROUP BY status")
    return dict(rows)


@asynccontextmanager
async def opened(url: str, *packages: str, upto: int = 99) -> AsyncIterator[Database]:
    database = connect(url)
    try:
        wanted = load_migrations(packages, database.dialect)
        await migrate(database, [migration for migration in wanted if migration.version <= upto])
        yield database
    finally:
        await database.close()


@pytest.mark.parametrize("table", TABLES)
async def test_every_change_is_tallied_whoever_makes_it(table: str, database_url: str) -> None:
    lane, row = TABLES[table]
    waiting, running, well, badly = STATES[lane]
    async with opened(database_url, f"homing.lanes.{lane}") as database:
        for state in (waiting, waiting, waiting, running, badly):
            await run(database, f"INSERT INTO {table} {row.format(repr(state))}")
        await run(database, f"UPDATE {table} SET status = '{well}' WHERE status = '{running}'")
        await run(database, f"UPDATE {table} SET next_attempt_at = next_attempt_at")
        assert await tallied(database, lane) == {waiting: 3, well: 1, badly: 1}
        await run(database, f"UPDATE {table} SET status = '{well}' WHERE status = '{waiting}'")
        await run(database, f"DELETE FROM {table} WHERE status = '{badly}'")
        assert await tallied(database, lane) == await counted(database, table) == {well: 4}
        await run(database, f"DELETE FROM {table}")
        assert await tallied(database, lane) == {}


@pytest.mark.parametrize("table", TABLES)
async def test_what_was_there_before_the_migration_is_counted(table: str, database_url: str) -> None:
    lane, row = TABLES[table]
    waiting, _, well, badly = STATES[lane]
    async with opened(database_url, f"homing.lanes.{lane}", upto=2) as database:
        for state in (waiting, waiting, well, badly):
            await run(database, f"INSERT INTO {table} {row.format(repr(state))}")
        await migrate(database, load_migrations([f"homing.lanes.{lane}"], database.dialect))
        assert await tallied(database, lane) == {waiting: 2, well: 1, badly: 1}


async def test_what_is_undone_is_not_counted(postgres_url: str) -> None:
    async with opened(postgres_url, MAIL) as database:
        connection = await asyncpg.connect(postgres_url)
        try:
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute("INSERT INTO mail_outbox (to_address) VALUES ('a@example.org')")
            await transaction.rollback()
            await connection.execute(THREE)
            await connection.execute("TRUNCATE mail_outbox")
            assert await tallied(database, "mail_outbox") == {}
            await connection.execute("INSERT INTO mail_outbox (to_address) VALUES ('a@example.org')")
            assert await tallied(database, "mail_outbox") == {"queued": 1}
        finally:
            await connection.close()


async def test_whoever_may_insert_a_mail_needs_to_know_nothing_of_tallies(postgres_url: str) -> None:
    role = f"producer_{postgres_url.rpartition('/')[2]}"[:60]
    async with opened(postgres_url, MAIL) as database:
        connection = await asyncpg.connect(postgres_url)
        try:
            await connection.execute(f'CREATE ROLE "{role}"; GRANT INSERT ON mail_outbox TO "{role}"')
            await connection.execute(f'SET ROLE "{role}"; SET search_path = pg_catalog')
            await connection.execute("INSERT INTO public.mail_outbox (to_address) VALUES ('a@example.org')")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute("INSERT INTO public.homing_tally VALUES ('mail_outbox', 'total', 9)")
            await connection.execute(f'RESET ROLE; DROP OWNED BY "{role}"; DROP ROLE "{role}"')
        finally:
            await connection.close()
        assert await tallied(database, "mail_outbox") == {"queued": 1}


class Writers:
    """Insert, change and delete mails until they are told to stop, some of it in vain."""

    def __init__(self, url: str, many: int) -> None:
        self._url, self._many = url, many
        self._stop = asyncio.Event()
        self.rounds = 0

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._write(number)) for number in range(self._many)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def reached(self, rounds: int) -> None:
        while self.rounds < rounds:
            await asyncio.sleep(0.005)

    async def _write(self, number: int) -> None:
        connection = await asyncpg.connect(self._url)
        try:
            while not self._stop.is_set():
                async with connection.transaction():
                    await connection.execute(THREE)
                    await connection.execute(SOME_GO, number)
                self.rounds += 1
        finally:
            await connection.close()


async def test_the_migration_misses_nothing_that_is_written_meanwhile(postgres_url: str) -> None:
    async with opened(postgres_url, MAIL, upto=2) as database:
        async with Writers(postgres_url, 3) as writers:
            await writers.reached(10)
            await migrate(database, load_migrations([MAIL], "postgres"))
            await writers.reached(writers.rounds + 10)
        assert await tallied(database, "mail_outbox") == await counted(database, "mail_outbox")


async def test_sums_stay_right_while_they_are_made(postgres_url: str) -> None:
    async with opened(postgres_url, MAIL) as database, opened(postgres_url) as another:
        tallies = [Tallies(one, Telemetry(registry=CollectorRegistry())) for one in (database, another)]
        async with Writers(postgres_url, 3) as writers:
            for _ in range(8):
                await writers.reached(writers.rounds + 20)
                await asyncio.gather(*(one.fold() for one in tallies))
                # Both in one statement, so at one moment.
                both = "SELECT (SELECT count(*) FROM mail_outbox), (SELECT sum(count) FROM homing_tally)"
                ((counted_now, summed),) = await run(database, both)
                assert counted_now == summed
        await tallies[0].fold()
        ((rows,),) = await run(database, "SELECT count(*) FROM homing_tally")
        assert rows < 50
        assert await tallied(database, "mail_outbox") == await counted(database, "mail_outbox")


@pytest.mark.parametrize("table", TABLES)
async def test_a_tally_that_is_wrong_is_put_right(table: str, database_url: str) -> None:
    lane, row = TABLES[table]
    waiting, _, well, _ = STATES[lane]
    async with opened(database_url, f"homing.lanes.{lane}") as database:
        for state in (waiting, well, well):
            await run(database, f"INSERT INTO {table} {row.format(repr(state))}")
        # As a restore of the data alone would leave it.
        await run(database, f"UPDATE homing_tally SET count = count + 5 WHERE lane = '{lane}'")
        assert await tallied(database, lane) != {waiting: 1, well: 2}
        for _ in range(2):
            await recount(database, lane, table)
            assert await tallied(database, lane) == {waiting: 1, well: 2}


async def test_to_count_again_while_others_write_changes_nothing(postgres_url: str) -> None:
    async with opened(postgres_url, MAIL) as database:
        async with Writers(postgres_url, 3) as writers:
            for _ in range(4):
                await writers.reached(writers.rounds + 10)
                await recount(database, "mail_outbox", "mail_outbox")
        assert await tallied(database, "mail_outbox") == await counted(database, "mail_outbox")


# ── without a tally ──────────────────────────────────────────────────────────────────────────────


class Table:
    """A table of which only numbers are known, and a clock."""

    def __init__(self) -> None:
        self.numbers = list(range(1, 200_001))
        self.now = 0.0
        self.asked: list[Base] = []

    async def count(self, base: Base) -> Sequence[Row]:
        self.asked.append(base)
        total = base.known + sum(1 for number in self.numbers if number > base.upto)
        rows: list[Any] = [
            {"status": "total", "count": total},
            {"status": "upto", "count": max(self.numbers)},
        ]
        return rows


async def test_of_a_large_table_only_what_is_new_is_counted() -> None:
    table = Table()
    running = RunningTotal(lambda: table.now)

    async def total() -> int:
        return by_state(await running.counted(table.count), ("sent",), rest="sent")["sent"]

    assert await total() == 200_000
    table.numbers += [200_001, 200_002]
    assert await total() == 200_002
    assert table.asked == [Base(), Base(200_000, 200_000)]
    del table.numbers[:5]
    table.now += 61.0
    assert await total() == 199_997, "what was deleted is noticed when all is counted again"
    del table.numbers[10:]
    table.now += 61.0
    assert [await total(), await total()] == [10, 10]
    assert table.asked[-2:] == [Base(), Base()], "a few are counted every time"


class SlowRows:
    """Rows whose count takes as long as the test likes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.takes = 1.0
        self.queued = 1
        self.let_go = asyncio.Event()
        self.let_go.set()

    async def counts(self) -> Mapping[str, int]:
        await self.let_go.wait()
        self.now += self.takes
        return {"queued": self.queued}

    async def oldest_due(self) -> float:
        return 0.0

    async def held_back(self) -> HeldBack:
        return HeldBack()


async def test_nobody_waits_for_a_slow_count_twice() -> None:
    rows = SlowRows()
    backlog = Backlog("mail_outbox", rows, Telemetry(registry=CollectorRegistry()), lambda: rows.now)
    assert (await backlog.look()).counts == {"queued": 1}
    rows.queued = 2
    assert (await backlog.look()).counts == {"queued": 1}, "it took a second, so it is not counted again yet"
    rows.now += 21.0
    rows.let_go.clear()
    assert (await backlog.look()).counts == {"queued": 1}, "the last answer, while it is counted"
    rows.let_go.set()
    async with asyncio.timeout(10):
        while (await backlog.look()).counts != {"queued": 2}:
            await asyncio.sleep(0)
    rows.takes, rows.queued = 0.001, 3
    rows.now += 100.0
    assert (await backlog.look()).counts == {"queued": 3}, "an old answer says little, so it is waited for"
    rows.queued = 4
    rows.now += 1.0
    assert (await backlog.look()).counts == {"queued": 4}, "what is quick is always fresh"


async def test_who_replaces_rows_on_sqlite_lets_triggers_know(sqlite_url: str) -> None:
    """As the documentation has it, with the pragma and without."""
    replace = (
        "INSERT OR REPLACE INTO mail_outbox (id, to_address, status) VALUES (1, 'b@example.org', 'sent')"
    )
    async with opened(sqlite_url, MAIL) as database:
        for id in (1, 2):
            await run(database, f"INSERT INTO mail_outbox (id, to_address) VALUES ({id}, 'a@example.org')")
        connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
        try:
            connection.execute("PRAGMA recursive_triggers = ON")
            connection.execute(replace)
            assert await tallied(database, "mail_outbox") == {"queued": 1, "sent": 1}
            connection.execute("PRAGMA recursive_triggers = OFF")
            connection.execute(replace)
            assert await tallied(database, "mail_outbox") != await counted(database, "mail_outbox")
        finally:
            connection.close()
        await recount(database, "mail_outbox", "mail_outbox")
        assert await tallied(database, "mail_outbox") == {"queued": 1, "sent": 1}
        await run(database, replace.replace("REPLACE", "IGNORE"))
        assert await tallied(database, "mail_outbox") == {"queued": 1, "sent": 1}
