"""Tables that another program has made: only what is missing is added, and what cannot be used is named."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
from tests.lanes.open_events.desk import WHERE, called_desk, opened_desk
from tests.notifications import OtherProgram, notification_bench, other_program, read_json

from homing.db import Database, connect
from homing.db.adoption import refusals
from homing.db.migrate import load_migrations, migrate
from homing.db.patience import Patience
from homing.db.repair import repair
from homing.errors import NotAllowed
from homing.lanes.open_events.adopt import TABLES

#: As the origin's migrations write them: names, defaults and keys of its own, and columns we do not know.
FOREIGN = {
    "open_events": """CREATE TABLE open_events (
        open_event_id INTEGER PRIMARY KEY AUTOINCREMENT, section_id INTEGER, term_id TEXT NOT NULL,
        campus_code TEXT NOT NULL, index_number TEXT NOT NULL, status_before TEXT, status_after TEXT NOT NULL,
        seat_delta INTEGER, event_at TEXT NOT NULL, detected_by TEXT NOT NULL DEFAULT 'open_sections',
        snapshot_id INTEGER, dedupe_key TEXT NOT NULL, trace_id TEXT, payload TEXT,
        created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)""",
    "subscriptions": """CREATE TABLE subscriptions (
        subscription_id INTEGER PRIMARY KEY AUTOINCREMENT, section_id INTEGER, term_id TEXT NOT NULL,
        campus_code TEXT NOT NULL, index_number TEXT NOT NULL, contact_type TEXT NOT NULL,
        contact_value TEXT NOT NULL, contact_hash TEXT NOT NULL DEFAULT '', locale TEXT,
        status TEXT NOT NULL DEFAULT 'pending'
            CHECK (status IN ('pending', 'active', 'paused', 'suppressed', 'unsubscribed')),
        favourite_colour TEXT, unsubscribe_token TEXT, metadata TEXT)""",
    "subscription_events": """CREATE TABLE subscription_events (
        event_id INTEGER PRIMARY KEY AUTOINCREMENT, subscription_id INTEGER NOT NULL,
        event_type TEXT NOT NULL, section_status_snapshot TEXT, payload TEXT,
        created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)""",
    "open_event_notifications": """CREATE TABLE open_event_notifications (
        notification_id INTEGER PRIMARY KEY AUTOINCREMENT, open_event_id INTEGER NOT NULL,
        subscription_id INTEGER NOT NULL, dedupe_key TEXT NOT NULL,
        fanout_status TEXT NOT NULL DEFAULT 'pending'
            CHECK (fanout_status IN ('pending', 'sent', 'skipped', 'failed', 'expired')),
        fanout_attempts INTEGER NOT NULL DEFAULT 0, last_attempt_at TEXT, locked_by TEXT, locked_at TEXT,
        error TEXT, priority INTEGER NOT NULL DEFAULT 5, created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
        UNIQUE (open_event_id, subscription_id))""",
}


def for_postgres(statement: str) -> str:
    """The same table as a PostgreSQL program would make it."""
    words = {
        "INTEGER PRIMARY KEY AUTOINCREMENT": "serial PRIMARY KEY",
        "event_at TEXT": "event_at timestamptz",
        "created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP": "created_at timestamptz NOT NULL DEFAULT now()",
        "last_attempt_at TEXT": "last_attempt_at timestamptz",
        "locked_at TEXT": "locked_at timestamptz(3)",
    }
    for before, after in words.items():
        statement = statement.replace(before, after)
    return statement


@asynccontextmanager
async def taken(url: str, **tables: str) -> AsyncIterator[tuple[Database, OtherProgram]]:
    """A database on which another program has made tables, some of them as given."""
    other = await other_program(url)
    for statement in {**FOREIGN, **tables}.values():
        await other.sql(for_postgres(statement) if other.dialect == "postgres" else statement)
    database = connect(url)
    try:
        yield database, other
    finally:
        await database.close()
        await other.close()


async def take_over(database: Database) -> None:
    await migrate(database, load_migrations(["homing.lanes.open_events"], database.dialect))


async def definitions(other: OtherProgram) -> list[Any]:
    if other.dialect == "sqlite":
        return [row["sql"] for row in await other.sql("SELECT sql FROM sqlite_master ORDER BY name")]
    columns = "SELECT table_name, column_name, data_type FROM information_schema.columns "
    mine = "WHERE table_schema = 'public' ORDER BY 1, ordinal_position"
    indexes = await other.sql("SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1")
    return [*await other.sql(columns + mine), *indexes]


@pytest.mark.clause("NTF-01")
async def test_what_is_missing_is_added_and_what_is_there_stays(database_url: str) -> None:
    async with taken(database_url) as (database, other):
        await other.sql(
            "INSERT INTO open_event_notifications (open_event_id, subscription_id, dedupe_key, priority) "
            "VALUES (1, 1, 'k', 9) RETURNING 1 AS one"
        )
        assert await refusals(database, TABLES) == []
        await take_over(database)
        row = await other.row(1)
        assert (row["priority"], row["fanout_status"], row["claim_seq"]) == (9, "pending", None)
        for table in ("sections", "courses", "section_meetings"):
            assert await other.sql(f"SELECT * FROM {table}") == []
        await other.sql("SELECT favourite_colour, last_notified_at FROM subscriptions")
        assert await refusals(database, TABLES) == [], "our own additions are understood, too"


@pytest.mark.clause("NTF-01", "NTF-04")
async def test_a_unique_key_that_is_there_is_not_made_twice(database_url: str) -> None:
    async with taken(database_url) as (database, other):
        await take_over(database)
        assert "homing_notifications_once" not in str(await definitions(other))
        refused = False
        for _ in range(2):
            try:
                await other.sql(
                    "INSERT INTO open_event_notifications (open_event_id, subscription_id, dedupe_key) "
                    "VALUES (7, 7, 'k') RETURNING 1 AS one"
                )
            except (sqlite3.IntegrityError, asyncpg.UniqueViolationError):
                refused = True
        assert refused


@pytest.mark.clause("NTF-01", "NTF-04")
async def test_a_missing_unique_key_is_added(database_url: str) -> None:
    without = FOREIGN["open_event_notifications"].replace(
        ",\n        UNIQUE (open_event_id, subscription_id)", ""
    )
    async with taken(database_url, open_event_notifications=without) as (database, other):
        assert await refusals(database, TABLES) == []
        await take_over(database)
        assert "homing_notifications_once" in str(await definitions(other))


@pytest.mark.clause("NTF-01")
async def test_a_worker_works_on_what_was_taken_over(database_url: str) -> None:
    async with taken(database_url) as (database, _):
        await take_over(database)
        async with notification_bench(database_url, migrated=False) as bench:
            sent = await bench.notification()
            gone = await bench.notification(subscription=await bench.subscription(status="unsubscribed"))
            await bench.deliver()
            assert (await bench.other.row(sent))["fanout_status"] == "sent"
            assert (await bench.other.row(gone))["fanout_status"] == "skipped"
            subscription = (await bench.other.row(sent))["subscription_id"]
            (line,) = await bench.other.history(subscription)
            assert line["event_type"] == "notify_sent"


_DEFAULTS = {
    "open_events": FOREIGN["open_events"]
    .replace("seat_delta INTEGER", "seat_delta INTEGER NOT NULL DEFAULT 0")
    .replace("payload TEXT", "payload TEXT NOT NULL DEFAULT '{}'"),
    "subscriptions": FOREIGN["subscriptions"]
    .replace("locale TEXT", "locale TEXT NOT NULL DEFAULT 'en'")
    .replace("metadata TEXT", "metadata TEXT NOT NULL DEFAULT '{}'"),
    "subscription_events": FOREIGN["subscription_events"].replace("payload TEXT", "payload TEXT NOT NULL"),
}


@pytest.mark.clause("NTF-01", "NTF-23")
@pytest.mark.parametrize("tables", [FOREIGN, {**FOREIGN, **_DEFAULTS}], ids=["the origin's", "no nulls"])
async def test_flips_and_subscriptions_work_on_what_was_taken_over(
    database_url: str, tables: dict[str, str]
) -> None:
    """What is not said is left to the defaults of the other program's columns."""
    async with taken(database_url, **tables) as (database, other):
        assert await refusals(database, TABLES) == []
        async with opened_desk(database_url) as desk:
            await desk.subscribe("ann@example.org")
            assert await desk.subscriptions.confirm([1], "ann@example.org") == [1]
            assert (await desk.flip()).notifications == 1
            await desk.subscriptions.unsubscribe(1, "api")
            await desk.subscribe("ann@example.org")
            assert (await desk.row(1))["status"] == "pending"
        (event,) = await other.sql("SELECT * FROM open_events")
        assert event["detected_by"] == "homing"
        if tables is not FOREIGN:
            assert (event["seat_delta"], event["payload"]) == (0, "{}")
            assert (await other.sql("SELECT locale FROM subscriptions")) == [{"locale": "en"}]


#: The columns and event types that the specification names, and nothing else.
NAMED = {
    "open_events": """CREATE TABLE open_events (
        open_event_id INTEGER PRIMARY KEY AUTOINCREMENT, section_id INTEGER, term_id TEXT, campus_code TEXT,
        index_number TEXT, status_before TEXT, status_after TEXT, event_at TEXT, detected_by TEXT,
        dedupe_key TEXT, trace_id TEXT, payload TEXT)""",
    "subscriptions": """CREATE TABLE subscriptions (
        subscription_id INTEGER PRIMARY KEY AUTOINCREMENT, contact_type TEXT, contact_value TEXT,
        status TEXT, locale TEXT)""",
    "subscription_events": """CREATE TABLE subscription_events (
        subscription_id INTEGER NOT NULL, event_type TEXT NOT NULL CHECK (event_type IN ('notify_sent')),
        section_status_snapshot TEXT)""",
    "open_event_notifications": """CREATE TABLE open_event_notifications (
        notification_id INTEGER PRIMARY KEY AUTOINCREMENT, open_event_id INTEGER NOT NULL,
        subscription_id INTEGER NOT NULL, dedupe_key TEXT NOT NULL, fanout_status TEXT NOT NULL,
        fanout_attempts INTEGER NOT NULL, last_attempt_at TEXT, locked_by TEXT, locked_at TEXT, error TEXT,
        UNIQUE (open_event_id, subscription_id))""",
    "sections": "CREATE TABLE sections (section_id INTEGER, section_number TEXT)",
    "courses": "CREATE TABLE courses (title TEXT)",
    "section_meetings": "CREATE TABLE section_meetings (meeting_day TEXT)",
}


async def named_rows(other: OtherProgram, count: int = 1, **subscription: str) -> list[int]:
    """Notifications, as a producer writes them who knows only these columns."""
    event = {
        "term_id": "92026", "campus_code": "NB", "index_number": "12345", "status_after": "OPEN",
        "event_at": datetime.now(UTC), "dedupe_key": "a key of this opening", "section_id": 1,
        "payload": '{"courseTitle": "Algebra", "sectionNumber": "03"}',
    }  # fmt: skip
    number = await other.insert("open_events", "open_event_id", event)
    who = {"contact_type": "email", "contact_value": "ann@example.org", "status": "active", **subscription}
    whose = [await other.insert("subscriptions", "subscription_id", who) for _ in range(count)]
    row = {"open_event_id": number, "dedupe_key": "a key of this opening"}
    fresh = {"fanout_status": "pending", "fanout_attempts": 0}
    return [
        await other.insert(
            "open_event_notifications", "notification_id", {**row, **fresh, "subscription_id": id}
        )
        for id in whose
    ]


@pytest.mark.clause("NTF-27")
async def test_tables_with_the_named_columns_alone_are_adopted(database_url: str) -> None:
    async with taken(database_url, **NAMED) as (database, other):
        await named_rows(other)
        assert await refusals(database, TABLES) == []
        await take_over(database)
        assert await refusals(database, TABLES) == []
        ids = [1, *await named_rows(other, 2), *await named_rows(other, status="unsubscribed")]
        async with notification_bench(database_url, migrated=False) as bench:
            assert await bench.drain() == len(ids)
            states = [(await other.row(id))["fanout_status"] for id in ids]
            assert states == ["sent", "sent", "sent", "skipped"]
            for message in bench.memory.messages:
                assert message.manage_url is not None
                assert message.unsubscribe_url is not None
        lines = await other.sql("SELECT * FROM subscription_events ORDER BY subscription_id")
        told = [(line["subscription_id"], line["event_type"]) for line in lines]
        assert told == [(1, "notify_sent"), (2, "notify_sent"), (3, "notify_sent")]
        assert {line["section_status_snapshot"] for line in lines} == {"OPEN"}
        await other.sql(
            "INSERT INTO subscription_events (subscription_id, event_type) VALUES (1, 'notify_sent') "
            "RETURNING 1 AS one"
        )


@pytest.mark.clause("NTF-27", "NTF-23")
async def test_a_limit_is_counted_in_a_history_without_numbers(database_url: str) -> None:
    with_metadata = NAMED["subscriptions"].replace("locale TEXT", "locale TEXT, metadata TEXT")
    async with taken(database_url, **{**NAMED, "subscriptions": with_metadata}) as (database, other):
        await take_over(database)
        (id,) = await named_rows(other, metadata='{"maxNotifications": 2}')
        for _ in range(2):
            await other.sql(
                "INSERT INTO subscription_events (subscription_id, event_type) VALUES (1, 'notify_sent') "
                "RETURNING 1 AS one"
            )
        async with notification_bench(database_url, migrated=False) as bench:
            await bench.drain()
            row = await other.row(id)
            assert (row["fanout_status"], read_json(row["error"])["code"]) == ("skipped", "limit_reached")


@pytest.mark.clause("NTF-27", "NTF-26")
async def test_links_and_flips_work_on_tables_with_the_named_columns_alone(database_url: str) -> None:
    async with taken(database_url, **NAMED) as (database, other):
        await take_over(database)
        (id,) = await named_rows(other)
        await named_rows(other, status="pending")
        async with opened_desk(database_url) as desk:
            assert (await desk.flip(desk.clock())).notifications == 0, "nobody's section is known"
            assert await desk.subscriptions.confirm([2], "ann@example.org") == [2]
            assert await desk.subscriptions.pause(2, "page")
            assert await desk.subscriptions.resume(2, "page")
            shown = await desk.subscriptions.get(1)
            assert shown is not None
            assert (shown["status"], shown["term_id"]) == ("active", None)
            await desk.subscriptions.unsubscribe(1, "one-click")
            assert (await other.subscription(1))["status"] == "unsubscribed"
            assert (await other.row(id))["fanout_status"] == "skipped"
            assert await desk.subscriptions.history(1) == []
            with pytest.raises(NotAllowed, match="verification_sent"):
                await desk.subscribe("bob@example.org")
        assert await other.sql("SELECT 1 AS one FROM subscription_events") == []


@pytest.mark.clause("NTF-27")
async def test_a_table_that_lost_the_columns_again_is_repaired(database_url: str) -> None:
    """The other program has made it anew, as it knows it."""
    async with taken(database_url, **NAMED) as (database, other):
        await take_over(database)
        statement = (
            for_postgres(NAMED["subscriptions"]) if other.dialect == "postgres" else NAMED["subscriptions"]
        )
        await other.sql("DROP TABLE subscriptions")
        await other.sql(statement)
        migrations = load_migrations(["homing.lanes.open_events"], database.dialect)
        assert [m.version for m in await repair(database, migrations, TABLES, Patience())] == [0, 1]
        ids = await named_rows(other)
        async with notification_bench(database_url, migrated=False) as bench:
            await bench.drain()
            assert (await other.row(ids[0]))["fanout_status"] == "sent"


def changed(table: str, before: str, after: str) -> dict[str, str]:
    assert before in FOREIGN[table]
    return {table: FOREIGN[table].replace(before, after)}


_STATES = "'pending', 'sent', 'skipped', 'failed', 'expired'"

#: what another program has made → what is said of it
REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "a view in a table's place": (
        {"subscription_events": "CREATE VIEW subscription_events AS SELECT 1 AS event_id"},
        "subscription_events is no table",
    ),
    "no key column": (
        changed("open_event_notifications", "notification_id INTEGER PRIMARY KEY AUTOINCREMENT",
                "id INTEGER"),
        "open_event_notifications has no column notification_id",
    ),
    "no status": (
        changed("subscriptions", "\n        status TEXT NOT NULL DEFAULT 'pending'\n            "
                "CHECK (status IN ('pending', 'active', 'paused', 'suppressed', 'unsubscribed')),", ""),
        "subscriptions has no column status",
    ),
    "a key that is not unique": (
        changed("open_event_notifications", "notification_id INTEGER PRIMARY KEY AUTOINCREMENT",
                "notification_id INTEGER NOT NULL"),
        "open_event_notifications.notification_id is no unique key",
    ),
    "an id that is a text": (
        changed("open_events", "open_event_id INTEGER PRIMARY KEY AUTOINCREMENT",
                "open_event_id TEXT PRIMARY KEY"),
        "open_events.open_event_id is TEXT; it has to hold whole numbers",
    ),
    "a status that is a number": (
        changed("open_event_notifications", f"fanout_status TEXT NOT NULL DEFAULT 'pending'\n            "
                f"CHECK (fanout_status IN ({_STATES}))", "fanout_status INTEGER NOT NULL DEFAULT 0"),
        "open_event_notifications.fanout_status is INTEGER; it has to hold text",
    ),
    "a time that is a number": (
        changed("open_event_notifications", "locked_at TEXT", "locked_at BIGINT"),
        "open_event_notifications.locked_at is BIGINT; it has to hold times",
    ),
    "a lock that is always there": (
        changed("open_event_notifications", "locked_by TEXT", "locked_by TEXT NOT NULL DEFAULT ''"),
        "open_event_notifications.locked_by is NOT NULL",
    ),
    "a state that is forbidden": (
        changed("open_event_notifications", f"({_STATES})", "('pending', 'sent', 'skipped', 'failed')"),
        "open_event_notifications.fanout_status does not take expired",
    ),
    "states in capitals": (
        changed("open_event_notifications", f"({_STATES})", f"({_STATES.upper()})"),
        "open_event_notifications.fanout_status does not take pending, sent, skipped, failed, expired",
    ),
    "an event type that is forbidden": (
        changed("subscription_events", "event_type TEXT NOT NULL",
                "event_type TEXT NOT NULL CHECK (event_type IN ('NOTIFY_SENT'))"),
        "subscription_events.event_type does not take notify_sent",
    ),
    "a value that nobody knows": (
        changed("subscription_events", "payload TEXT", "payload TEXT, tenant TEXT NOT NULL"),
        "subscription_events.tenant wants a value that Homing does not know",
    ),
    "an event's value that nobody knows": (
        changed("open_events", "payload TEXT", "payload TEXT, tenant TEXT NOT NULL"),
        "open_events.tenant wants a value that Homing does not know",
    ),
    "a notification's value that nobody knows": (
        changed("open_event_notifications", "error TEXT", "error TEXT, tenant TEXT NOT NULL"),
        "open_event_notifications.tenant wants a value that Homing does not know",
    ),
    "a subscription's value that nobody knows": (
        changed("subscriptions", "favourite_colour TEXT", "favourite_colour TEXT NOT NULL"),
        "subscriptions.favourite_colour wants a value that Homing does not know",
    ),
    "events without numbers": (
        changed("open_events", "open_event_id INTEGER PRIMARY KEY AUTOINCREMENT",
                "open_event_id BIGINT NOT NULL PRIMARY KEY"),
        "open_events.open_event_id does not number its rows",
    ),
    "lines without numbers": (
        changed("subscription_events", "event_id INTEGER PRIMARY KEY AUTOINCREMENT",
                "event_id BIGINT NOT NULL PRIMARY KEY"),
        "subscription_events.event_id does not number its rows",
    ),
}  # fmt: skip


@pytest.mark.clause("NTF-01")
@pytest.mark.parametrize("case", REFUSED)
async def test_what_cannot_be_used_is_named_and_nothing_is_changed(database_url: str, case: str) -> None:
    tables, sentence = REFUSED[case]
    async with taken(database_url, **tables) as (database, other):
        before = await definitions(other)
        said = await refusals(database, TABLES)
        assert any(sentence.lower() in line.lower() for line in said), said
        assert await definitions(other) == before


_LINE = (
    "subscription_id INTEGER, event_type TEXT, section_status_snapshot TEXT, payload TEXT, created_at TEXT"
)


@pytest.mark.clause("NTF-01", "NTF-27")
@pytest.mark.parametrize(
    ("table", "keys", "sentence"),
    [
        ("subscription_events", f"({_LINE}, PRIMARY KEY (subscription_id, created_at)) WITHOUT ROWID",
         "subscription_events has no rowid"),
        ("subscription_events", f"(id TEXT DEFAULT (hex(randomblob(9))) PRIMARY KEY, {_LINE}) WITHOUT ROWID",
         "subscription_events has no rowid"),
        ("subscription_events", f"(rowid TEXT, {_LINE})", "subscription_events has no rowid"),
        ("subscription_events", f"(id TEXT PRIMARY KEY, {_LINE})", None),
        ("subscription_events", f"(id INTEGER PRIMARY KEY, {_LINE})", None),
        ("subscription_events", f"(RowID INTEGER PRIMARY KEY, {_LINE})", None),
        ("open_events", None, "open_events.open_event_id does not number its rows"),
    ],
)  # fmt: skip
async def test_a_history_whose_lines_have_no_order_is_refused(
    sqlite_url: str, table: str, keys: str | None, sentence: str | None
) -> None:
    made = f"CREATE TABLE {table} {keys}"
    if keys is None:
        made = FOREIGN[table].replace(" AUTOINCREMENT", "") + " WITHOUT ROWID"
    async with taken(sqlite_url, **{table: made}) as (database, _):
        said = await refusals(database, TABLES)
        assert [re.split("[;,]", line)[0] for line in said] == ([] if sentence is None else [sentence])
        if sentence is None:
            await take_over(database)
            assert await refusals(database, TABLES) == []


@pytest.mark.clause("NTF-01", "NTF-04")
async def test_rows_that_are_there_twice_are_named(database_url: str) -> None:
    without = FOREIGN["open_event_notifications"].replace(
        ",\n        UNIQUE (open_event_id, subscription_id)", ""
    )
    async with taken(database_url, open_event_notifications=without) as (database, other):
        for _ in range(3):
            await other.sql(
                "INSERT INTO open_event_notifications (open_event_id, subscription_id, dedupe_key) "
                "VALUES (1, 2, 'k') RETURNING 1 AS one"
            )
        (said,) = await refusals(database, TABLES)
        assert "1 pairs of open_event_id and subscription_id more than once" in said


async def test_a_database_without_such_tables_is_fine(database_url: str) -> None:
    database = connect(database_url)
    assert await refusals(database, TABLES) == []
    await take_over(database)
    assert await refusals(database, TABLES) == []
    await database.close()


async def test_a_check_that_the_row_itself_breaks_says_nothing_of_the_words(sqlite_url: str) -> None:
    """Nobody can know what a foreign CHECK on other columns wants, so an invented row proves nothing."""
    strange = changed(
        "open_event_notifications",
        "priority INTEGER",
        "priority INTEGER CHECK (priority > 100) DEFAULT 101, x INTEGER",
    )
    async with taken(sqlite_url, **strange) as (database, _):
        assert await refusals(database, TABLES) == []


@pytest.mark.clause("NTF-27")
async def test_subscriptions_without_a_section_are_shown(database_url: str) -> None:
    async with taken(database_url, **NAMED) as (database, other):
        await take_over(database)
        await named_rows(other)
        async with called_desk(database_url) as desk:
            shown = (await desk.client.get("/api/notifications/subscriptions/1")).json()
            assert (shown["status"], shown["termId"], shown["indexNumber"]) == ("active", None, None)
            listed = (await desk.client.get("/api/notifications/subscriptions")).json()
            assert len(listed["items"]) == 1
            page = await desk.client.get(desk.links.manage_url(1, "ann@example.org"))
            assert page.status_code == 200
            assert "None" not in page.text
            refused = await desk.client.post(
                "/api/notifications/subscriptions", json={**WHERE, "email": "bob@example.org"}
            )
            assert refused.status_code == 409
