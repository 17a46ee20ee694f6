"""Another program makes its table anew, without what we had added: found, named, and added again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.lanes.open_events.test_adopt import FOREIGN, definitions, for_postgres, taken
from tests.notifications import OtherProgram, notification_bench

from homing.app import Homing, opened
from homing.doctor import examine
from homing.errors import SchemaError
from homing.settings import Settings, load_settings

TABLE = "open_event_notifications"
COLUMNS = (
    "notification_id, open_event_id, subscription_id, dedupe_key, fanout_status, fanout_attempts, "
    "last_attempt_at, locked_by, locked_at, error, created_at"
)


def settings_on(database_url: str) -> Settings:
    return load_settings({"database_url": database_url, "mail_url": "memory://"}, environ={})


@asynccontextmanager
async def taken_over(database_url: str) -> AsyncIterator[tuple[Homing, OtherProgram]]:
    async with taken(database_url) as (_, other), opened(settings_on(database_url)) as homing:
        await homing.migrate()
        yield homing, other


async def rebuild(other: OtherProgram, *, table: str | None = None, keeps_old: bool = False) -> None:
    """As a program of SQLite's does it, and one of PostgreSQL's can."""
    made = table or FOREIGN[TABLE]
    await other.sql(f"ALTER TABLE {TABLE} RENAME TO put_aside")
    await other.sql(for_postgres(made) if other.dialect == "postgres" else made)
    await other.sql(f"INSERT INTO {TABLE} ({COLUMNS}) SELECT {COLUMNS} FROM put_aside")
    if not keeps_old:
        # In PostgreSQL the old numbers belong to the old table.
        await other.sql("DROP TABLE put_aside")


@pytest.mark.clause("NTF-01")
@pytest.mark.parametrize("keeps_old", [False, True])
async def test_a_table_that_was_made_anew_gets_again_what_it_lost(database_url: str, keeps_old: bool) -> None:
    async with taken_over(database_url) as (homing, other):
        before = await definitions(other)
        await rebuild(other, keeps_old=keeps_old)
        lost = ["0001 open_events", "0002 delivered", "0003 ended_and_locks"]
        lost = [f"open_events {migration}" for migration in lost]
        assert [str(migration) for migration in await homing.pending()] == lost
        with pytest.raises(SchemaError, match=rf"without {TABLE}\.claim_seq, .*homing_notifications_new"):
            await homing.require_schema()
        assert [str(migration) for migration in await homing.migrate()] == lost
        await homing.require_schema()
        assert await homing.pending() == []
        assert await homing.migrate() == []
        if not keeps_old:
            assert len(await definitions(other)) == len(before)
    async with notification_bench(database_url, migrated=False) as bench:
        id = await bench.notification()
        await bench.deliver()
        assert (await bench.other.row(id))["fanout_status"] == "sent"


@pytest.mark.clause("NTF-01")
async def test_a_worker_on_such_a_table_says_that_the_schema_is_wrong(sqlite_url: str) -> None:
    async with taken_over(sqlite_url) as (homing, other):
        for index in ("new", "waiting", "reset"):
            await other.sql(f"DROP INDEX homing_notifications_{index}")
        with pytest.raises(SchemaError, match="run `homing migrate`"):
            await homing.notifications.claim(10)


@pytest.mark.clause("NTF-01")
async def test_the_doctor_names_what_is_gone(database_url: str) -> None:
    async with taken_over(database_url) as (_, other):
        await other.sql("DROP INDEX homing_subscription_history")
    findings = {finding.check: finding for finding in await examine(settings_on(database_url))}
    assert not findings["migrations"].well
    assert "without homing_subscription_history; `homing migrate`" in findings["migrations"].detail


async def test_a_table_that_came_back_with_doubles_is_refused_as_at_first(database_url: str) -> None:
    async with taken_over(database_url) as (homing, other):
        await rebuild(
            other, table=FOREIGN[TABLE].replace(",\n        UNIQUE (open_event_id, subscription_id)", "")
        )
        for number in (901, 902):
            await other.sql(
                f"INSERT INTO {TABLE} (notification_id, open_event_id, subscription_id, dedupe_key) "
                f"VALUES ({number}, 7, 7, 'k')"
            )
        before = await definitions(other)
        with pytest.raises(SchemaError, match="1 pairs of open_event_id and subscription_id more than once"):
            await homing.migrate()
        assert await definitions(other) == before


async def test_several_may_repair_at_once(database_url: str) -> None:
    async with taken_over(database_url) as (homing, other), opened(settings_on(database_url)) as second:
        await rebuild(other)
        await asyncio.gather(homing.migrate(), second.migrate())
        await homing.require_schema()


@pytest.mark.clause("NTF-01")
async def test_strict_tables_are_taken_over_and_worked_on(sqlite_url: str) -> None:
    strict = {name: f"{statement} STRICT" for name, statement in FOREIGN.items()}
    async with taken(sqlite_url, **strict), opened(settings_on(sqlite_url)) as homing:
        await homing.migrate()
    async with notification_bench(sqlite_url, migrated=False) as bench:
        sent = await bench.notification()
        await bench.deliver()
        row = await bench.other.row(sent)
        assert (row["fanout_status"], row["locked_at"]) == ("sent", None)
