"""Migrations and the tables of programs at work: who holds one is waited for, and nobody waits with us."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import asyncpg
import pytest

from homing.db.migrate import Migration, migrate, run_again
from homing.db.patience import Patience
from homing.db.postgres import PostgresDatabase
from homing.errors import DatabaseError

GOODS = Migration("shop", 1, "goods", "CREATE TABLE goods (id integer PRIMARY KEY);")
PRICES = Migration("shop", 2, "prices", "ALTER TABLE goods ADD COLUMN price integer;")
#: One that wants to wait for longer, as one of ours does.
COLOURS = Migration(
    "shop",
    2,
    "colours",
    "SET LOCAL lock_timeout = '50s';\nALTER TABLE goods ADD COLUMN IF NOT EXISTS colour text;",
)


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[PostgresDatabase]:
    database = PostgresDatabase(postgres_url)
    try:
        await migrate(database, [GOODS])
        yield database
    finally:
        await database.close()


@pytest.fixture
async def reader(postgres_url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """Another program, which holds a transaction open that has read the table."""
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute("BEGIN; SELECT count(*) FROM goods")
        yield connection
    finally:
        await connection.close()


_WAITING = "SELECT count(*) FROM pg_locks WHERE relation = 'goods'::regclass AND NOT granted"


async def until_somebody_waits(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    async with asyncio.timeout(30):
        while not await connection.fetchval(_WAITING):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("migration", [PRICES, COLOURS], ids=str)
async def test_no_program_waits_for_long_behind_a_migration_that_waits(
    database: PostgresDatabase,
    reader: asyncpg.Connection[asyncpg.Record],
    postgres_url: str,
    migration: Migration,
) -> None:
    told: list[str] = []
    migrating = asyncio.create_task(migrate(database, [GOODS, migration], Patience(tell=told.append)))
    producer = await asyncpg.connect(postgres_url)
    try:
        await until_somebody_waits(reader)
        begun = time.monotonic()
        await producer.execute("INSERT INTO goods VALUES (1)", timeout=10)
        took = time.monotonic() - begun
        assert not migrating.done(), "the reader is still at it"
        await reader.execute("COMMIT")
        assert await migrating == [migration]
    finally:
        migrating.cancel()
        await producer.close()
    assert took < 5, "about a second, and what a busy machine takes"
    assert told[0].startswith(f"{migration} waits: another program holds what it needs")
    assert "try 1 of 25" in told[0]


async def test_who_never_gets_the_tables_gives_up_and_says_what_to_do(
    database: PostgresDatabase, reader: asyncpg.Connection[asyncpg.Record]
) -> None:
    told: list[str] = []
    with pytest.raises(
        DatabaseError, match=r"shop 0002 prices .*2 tries.* pg_stat_activity .*homing migrate"
    ):
        await migrate(database, [GOODS, PRICES], Patience(tries=2, tell=told.append))
    assert len(told) == 1
    await reader.execute("COMMIT")
    assert await migrate(database, [GOODS, PRICES]) == [PRICES], "nothing was left half done"


async def test_what_is_run_again_is_no_less_careful(
    database: PostgresDatabase, reader: asyncpg.Connection[asyncpg.Record]
) -> None:
    told: list[str] = []
    with pytest.raises(DatabaseError, match="2 tries"):
        await run_again(database, COLOURS, patience=Patience(tries=2, tell=told.append))
    await reader.execute("COMMIT")
    await run_again(database, COLOURS)
