"""The program that made `mail_outbox` makes it anew, without what was ours: found, named, and added again."""

from __future__ import annotations

import asyncio
import re

import pytest
from tests.lanes.open_events.test_adopt import definitions
from tests.lanes.test_mail_outbox_adopt import BARE, SPECIFIED, TABLES, adopted, made, order
from tests.notifications import OtherProgram
from tests.outbox import Bench, bench

from homing.app import opened
from homing.doctor import examine
from homing.engine.model import Bury, Complete
from homing.errors import SchemaError
from homing.senders.mail import SendError, SendErrorCode, SendResult
from homing.settings import load_settings

#: What the other program knows of its tables.
COLUMNS = {
    "bare": "id, status, to_address, subject, html_body, campaign, created_at",
    "specified": "id, status, to_address, subject, text_body, retry_count, next_attempt_at, last_error, "
    "last_attempt_at",
}
REFUSED = SendResult(
    status="failed", provider="memory", error=SendError(SendErrorCode.INVALID_RECIPIENT, "no")
)


async def rebuild(other: OtherProgram, table: str, way: str) -> None:
    """`new first` is what SQLite's documentation says to do; `old aside` is as common."""
    statement, columns = TABLES[table][other.dialect], COLUMNS[table]
    copied = f"SELECT {columns} FROM"
    if way == "new first":
        await other.sql(statement.replace("TABLE mail_outbox", "TABLE mail_outbox_new"))
        await other.sql(f"INSERT INTO mail_outbox_new ({columns}) {copied} mail_outbox")
        await other.sql("DROP TABLE mail_outbox")
        await other.sql("ALTER TABLE mail_outbox_new RENAME TO mail_outbox")
    else:
        await other.sql("ALTER TABLE mail_outbox RENAME TO put_aside")
        await other.sql(statement)
        await other.sql(f"INSERT INTO mail_outbox ({columns}) {copied} put_aside")
    if way == "old aside":
        await other.sql("DROP TABLE put_aside")
    if other.dialect == "postgres":
        await other.sql("SELECT setval(pg_get_serial_sequence('mail_outbox', 'id'), 100)")


async def ends(lane: Bench, count: int) -> dict[int, type]:
    """What is inserted is due when its time, which a table of theirs may round up, has come."""
    found: dict[int, type] = {}
    while len(found) < count:
        found |= {id: type(end) for id, end in (await lane.deliver()).items()}
    return found


def tidy(found: list[object]) -> list[str]:
    """Names that a database makes up tell how the table was made."""
    told = (str(one).replace('"mail_outbox"', "mail_outbox") for one in found if one)
    return sorted(re.sub("mail_outbox_(new_)?pkey1?", "mail_outbox_pkey", one) for one in told)


async def made_by_us(other: OtherProgram) -> list[str]:
    if other.dialect == "sqlite":
        return tidy(await definitions(other))
    triggers = "SELECT tgname, tgrelid::regclass::text AS place FROM pg_trigger WHERE NOT tgisinternal"
    return tidy([*await definitions(other), *await other.sql(triggers)])


@pytest.mark.clause("OUT-14")
@pytest.mark.parametrize("way", ["new first", "old aside", "old kept"])
@pytest.mark.parametrize("table", TABLES)
async def test_a_table_that_was_made_anew_gets_again_what_it_lost(
    database_url: str, table: str, way: str
) -> None:
    async with adopted(database_url, table) as (lane, other):
        before = await made_by_us(other)
        for _ in range(3):
            await other.sql(order(table))
        await ends(lane, 3)
        (waiting,) = await other.sql(order(table))
        await rebuild(other, table, way)
        (later,) = await other.sql(order(table, to="bob@example.org"))

        # At work, at the start, and where somebody looks: the same is said.
        with pytest.raises(SchemaError, match="homing migrate"):
            await lane.outbox.claim(10)
        with pytest.raises(SchemaError, match=r"without mail_outbox\..*, mail_outbox_due,.*`homing migrate`"):
            await lane.homing.require_schema()
        findings = {one.check: one for one in await examine(lane.homing.settings)}
        assert "mail_outbox_due" in findings["migrations"].detail
        assert {one.component for one in await lane.homing.pending()} == {"mail_outbox"}

        assert {one.component for one in await lane.homing.migrate()} == {"mail_outbox"}
        await lane.homing.require_schema()
        assert await lane.homing.pending() == []
        assert await lane.homing.migrate() == []
        if way != "old kept":
            assert await made_by_us(other) == before
        assert await ends(lane, 2) == {waiting["id"]: Complete, later["id"]: Complete}
        await other.sql(order(table))
        await ends(lane, 1)
        counts = await lane.outbox.counts()
        assert counts == {**dict.fromkeys(counts, 0), "sent": 6}


@pytest.mark.clause("OUT-14")
async def test_a_mail_that_had_failed_before_is_sent_when_it_is_put_back(database_url: str) -> None:
    async with adopted(database_url, "specified") as (lane, other):
        await other.sql(order("specified"))
        lane.sender.answer_next(REFUSED)
        assert [*(await ends(lane, 1)).values()] == [Bury]
        await rebuild(other, "specified", "new first")
        await lane.homing.migrate()
        lane.sender.answer_next(REFUSED)
        await other.sql("UPDATE mail_outbox SET status = 'queued', retry_count = 0")
        assert [*(await ends(lane, 1)).values()] == [Bury], "it was attempted"
        assert (await lane.sql("SELECT count(*) AS count FROM homing_mail_death"))[0]["count"] == 1


@pytest.mark.clause("OUT-14")
async def test_an_index_or_a_trigger_alone_is_missed_and_made_again(database_url: str) -> None:
    """Also on a table of our own: tools of operators make it anew as another program would."""
    async with bench(database_url) as lane:
        on = " ON mail_outbox" if lane.homing.database.dialect == "postgres" else ""
        for lost, statement in (
            ("mail_outbox_retried", "DROP INDEX mail_outbox_retried"),
            ("homing_mail_death", f"DROP TRIGGER homing_mail_death{on}"),
        ):
            (mail,) = await lane.insert()
            await lane.homing.database.run_script(f"{statement};")
            with pytest.raises(SchemaError, match=f"without {lost}; `homing migrate`"):
                await lane.homing.require_schema()
            await lane.homing.migrate()
            await lane.homing.require_schema()
            assert list(await lane.deliver()) == [mail]
        assert (await lane.outbox.counts())["sent"] == 2


@pytest.mark.clause("OUT-14")
async def test_a_table_that_came_back_with_repeated_keys_is_refused_as_at_first(database_url: str) -> None:
    async with made(database_url, SPECIFIED) as other, bench(database_url) as lane:
        await rebuild(other, "specified", "new first")
        await other.sql("ALTER TABLE mail_outbox ADD COLUMN idempotency_key text")
        for _ in range(2):
            await other.sql(order("specified"))
        await other.sql("UPDATE mail_outbox SET idempotency_key = 'k'")
        before = await definitions(other)
        with pytest.raises(SchemaError, match="has 1 idempotency keys more than once"):
            await lane.homing.migrate()
        assert await definitions(other) == before


@pytest.mark.clause("OUT-14")
async def test_several_may_repair_at_once(database_url: str) -> None:
    settings = load_settings({"database_url": database_url, "mail_url": "memory://"}, environ={})
    async with adopted(database_url, "bare") as (lane, other), opened(settings) as second:
        await rebuild(other, "bare", "new first")
        await asyncio.gather(lane.homing.migrate(), second.migrate())
        await lane.homing.require_schema()
        await other.sql(order("bare"))
        await ends(lane, 1)


@pytest.mark.clause("OUT-14")
async def test_a_table_that_is_gone_is_made_as_one_of_ours(database_url: str) -> None:
    async with made(database_url, BARE) as other, bench(database_url) as lane:
        await other.sql("DROP TABLE mail_outbox")
        await lane.homing.migrate()
        await lane.homing.require_schema()
        (mail,) = await lane.insert()
        assert list(await lane.deliver()) == [mail]
