"""Migrations: applied once each, whoever comes first; what was changed or is newer is refused."""

from __future__ import annotations

import asyncio
import sys

import pytest
from msgspec.structs import replace

from homing.app import MIGRATED
from homing.db import Database, Query, connect
from homing.db.migrate import Migration, check, load_migrations, migrate
from homing.errors import DatabaseError, SchemaError

_GOODS = "CREATE TABLE goods (id integer PRIMARY KEY, name text);\nINSERT INTO goods VALUES (1, 'a;b');"
TWO = [
    Migration("shop", 1, "goods", _GOODS),
    Migration("shop", 2, "prices", "ALTER TABLE goods ADD COLUMN price integer NOT NULL DEFAULT 0;"),
]


async def rows(database: Database, sql: str) -> list[dict[str, object]]:
    return [dict(row) for row in await database.fetch(Query("rows", sql, (), writes=False), {})]


async def test_what_is_missing_is_applied_once_and_in_order(database_url: str) -> None:
    database = connect(database_url)
    try:
        assert (await check(database, TWO)).migrations == tuple(TWO)
        with pytest.raises(SchemaError, match=r"shop 0001 goods, shop 0002 prices; run `homing migrate`"):
            (await check(database, TWO)).require_none()
        assert await migrate(database, TWO[:1]) == TWO[:1]
        assert (await check(database, TWO)).migrations == (TWO[1],)
        assert await migrate(database, TWO) == [TWO[1]]
        assert await migrate(database, TWO) == []
        (await check(database, TWO)).require_none()
        assert await rows(database, "SELECT * FROM goods") == [{"id": 1, "name": "a;b", "price": 0}]
    finally:
        await database.close()


async def test_a_check_changes_nothing(database_url: str) -> None:
    database = connect(database_url)
    try:
        await check(database, TWO)
        with pytest.raises(SchemaError):
            await rows(database, "SELECT * FROM homing_migration")
    finally:
        await database.close()


async def test_a_file_that_was_changed_afterwards_is_noticed(database_url: str) -> None:
    database = connect(database_url)
    try:
        await migrate(database, TWO)
        changed = [TWO[0], replace(TWO[1], sql=TWO[1].sql + " ")]
        with pytest.raises(SchemaError, match="shop 0002 prices was changed after it had been applied"):
            await migrate(database, changed)
    finally:
        await database.close()


async def test_a_database_of_a_newer_version_is_refused(database_url: str) -> None:
    database = connect(database_url)
    try:
        await migrate(database, TWO)
        with pytest.raises(SchemaError, match=r"a newer Homing has migrated this database \(shop 0002\)"):
            await check(database, TWO[:1])
        other = [Migration("office", 1, "desks", "CREATE TABLE desks (id integer);")]
        assert await migrate(database, other) == other, "another component is nobody's newer version"
    finally:
        await database.close()


async def test_a_migration_that_fails_leaves_nothing_behind(database_url: str) -> None:
    database = connect(database_url)
    bad = Migration(
        "shop", 1, "bad", "CREATE TABLE half (id integer);\nINSERT INTO no_such_table VALUES (1);"
    )
    try:
        with pytest.raises(DatabaseError):
            await migrate(database, [bad])
        with pytest.raises(SchemaError):
            await rows(database, "SELECT * FROM half")
        assert (await check(database, [bad])).migrations == (bad,)
        assert await migrate(database, TWO) == TWO
    finally:
        await database.close()


async def test_eight_at_once_in_one_process(database_url: str) -> None:
    databases = [connect(database_url) for _ in range(8)]
    migrations = load_migrations(MIGRATED, databases[0].dialect)
    try:
        applied = await asyncio.gather(*(migrate(database, migrations) for database in databases))
        assert sorted(m for by_one in applied for m in by_one) == sorted(migrations), "each by exactly one"
        assert [await migrate(database, migrations) for database in databases] == [[]] * 8
    finally:
        await asyncio.gather(*(database.close() for database in databases))


@pytest.mark.slow
async def test_eight_processes_at_once(database_url: str) -> None:
    script = (
        "import asyncio, sys\n"
        "from homing.app import MIGRATED\n"
        "from homing.db import connect\n"
        "from homing.db.migrate import load_migrations, migrate\n"
        "async def main():\n"
        "    database = connect(sys.argv[1])\n"
        "    sys.stdin.readline()\n"
        "    print(len(await migrate(database, load_migrations(MIGRATED, database.dialect))))\n"
        "    await database.close()\n"
        "asyncio.run(main())\n"
    )
    pipe = asyncio.subprocess.PIPE
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, database_url, stdin=pipe, stdout=pipe, stderr=pipe
        )
        for _ in range(8)
    ]
    answers = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    assert [errors.decode() for _, errors in answers] == [""] * 8
    assert sum(int(out) for out, _ in answers) == len(
        load_migrations(MIGRATED, connect(database_url).dialect)
    )
