"""A `mail_outbox` of another program: only what is missing is added, and what cannot be used is named."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.http.door import opened_door
from tests.lanes.open_events.test_adopt import definitions
from tests.notifications import OtherProgram, other_program
from tests.outbox import Bench, bench

from homing.app import opened
from homing.doctor import examine
from homing.engine.model import Bury, Complete, RetryIn
from homing.errors import SchemaError
from homing.lanes.mail_outbox.view import shown
from homing.messages.model import Wanted
from homing.senders.mail import SendError, SendErrorCode, SendResult
from homing.settings import load_settings

#: As another program's first migration may have it: what the specification adds is missing.
BARE = {
    "sqlite": """CREATE TABLE mail_outbox (
        id INTEGER PRIMARY KEY AUTOINCREMENT, status TEXT NOT NULL DEFAULT 'draft', to_address TEXT NOT NULL,
        subject TEXT NOT NULL, html_body TEXT NOT NULL DEFAULT '<p>Hi</p>', campaign INTEGER,
        created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)""",
    "postgres": """CREATE TABLE mail_outbox (
        id serial PRIMARY KEY, status varchar(20) NOT NULL DEFAULT 'draft', to_address varchar(255) NOT NULL,
        subject varchar(255) NOT NULL, html_body text NOT NULL DEFAULT '<p>Hi</p>', campaign integer,
        created_at timestamp NOT NULL DEFAULT (now() AT TIME ZONE 'utc'))""",
}
#: As seed 000 has it, without a zone, and with a rule for the states.
SPECIFIED = {
    "sqlite": """CREATE TABLE mail_outbox (
        id INTEGER PRIMARY KEY, status TEXT NOT NULL CHECK (status IN
            ('queued', 'dispatching', 'sent', 'failed', 'cancelled', 'expired', 'draft')),
        to_address TEXT NOT NULL, subject TEXT NOT NULL, text_body TEXT, "Tenant" TEXT,
        retry_count INTEGER NOT NULL, next_attempt_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
        last_error TEXT, last_attempt_at TIMESTAMP) STRICT""".replace(" TIMESTAMP ", " TEXT ").replace(
        " TIMESTAMP)", " TEXT)"
    ),
    "postgres": """CREATE TABLE mail_outbox (
        id bigserial PRIMARY KEY, status text NOT NULL CHECK (status IN
            ('queued', 'dispatching', 'sent', 'failed', 'cancelled', 'expired', 'draft')),
        to_address text NOT NULL, subject text NOT NULL, text_body text, "Tenant" text,
        retry_count integer NOT NULL,
        next_attempt_at timestamp(3) NOT NULL DEFAULT (now() AT TIME ZONE 'utc'),
        last_error text, last_attempt_at timestamp)""",
}
GONE = SendResult(status="retryable", provider="memory", error=SendError(SendErrorCode.NETWORK_ERROR, "gone"))
TABLES = {"bare": BARE, "specified": SPECIFIED}


@asynccontextmanager
async def made(url: str, tables: Mapping[str, str]) -> AsyncIterator[OtherProgram]:
    other = await other_program(url)
    await other.sql(tables[other.dialect])
    try:
        yield other
    finally:
        await other.close()


@asynccontextmanager
async def adopted(url: str, table: str, **settings: Any) -> AsyncIterator[tuple[Bench, OtherProgram]]:
    async with made(url, TABLES[table]) as other, bench(url, **settings) as lane:
        yield lane, other


def order(table: str, *, to: str = "ann@example.org", status: str = "queued") -> str:
    """An INSERT as the other program has always made it."""
    if table == "bare":
        return (
            f"INSERT INTO mail_outbox (status, to_address, subject, campaign) VALUES "
            f"('{status}', '{to}', 'Hi', 7) RETURNING id"
        )
    return (
        f"INSERT INTO mail_outbox (status, to_address, subject, text_body, retry_count) VALUES "
        f"('{status}', '{to}', 'Hi', 'Hello.', 0) RETURNING id"
    )


@pytest.mark.clause("OUT-14")
@pytest.mark.parametrize("table", TABLES)
async def test_inserts_of_the_other_program_go_on_and_are_sent(database_url: str, table: str) -> None:
    async with made(database_url, TABLES[table]) as other:
        (before,) = await other.sql(order(table))
        (draft,) = await other.sql(order(table, status="draft"))
        async with bench(database_url) as lane:
            (after,) = await other.sql(order(table, to="bob@example.org"))
            ends = await lane.deliver()
            assert {id: type(end) for id, end in ends.items()} == {
                before["id"]: Complete,
                after["id"]: Complete,
            }
            rows = {row["id"]: row for row in await other.sql("SELECT * FROM mail_outbox")}
            assert rows[draft["id"]]["status"] == "draft"
            assert rows[before["id"]]["status"] == rows[after["id"]]["status"] == "sent"
            assert len({row["token"] for row in rows.values()}) == 3, "each has a Message-ID of its own"
            assert all(row["token"] for row in rows.values())
            counts = await lane.outbox.counts()
            assert counts == {**dict.fromkeys(counts, 0), "sent": 2}, "a draft is no state of ours"


@pytest.mark.clause("OUT-14", "OUT-09")
@pytest.mark.parametrize("table", TABLES)
async def test_a_retry_of_a_foreign_row_waits_and_is_taken_when_due(database_url: str, table: str) -> None:
    async with adopted(database_url, table) as (lane, other):
        (row,) = await other.sql(order(table))
        lane.sender.answer_next(GONE)
        (end,) = (await lane.deliver()).values()
        assert isinstance(end, RetryIn)
        assert await lane.deliver() == {}
        (found,) = await other.sql("SELECT status, retry_count, last_error FROM mail_outbox")
        assert (found["status"], found["retry_count"]) == ("queued", 1)
        now = "now() AT TIME ZONE 'utc'" if other.dialect == "postgres" else "datetime('now')"
        await other.sql(f"UPDATE mail_outbox SET next_attempt_at = {now} WHERE id = :id RETURNING id", **row)
        assert [type(end) for end in (await lane.deliver()).values()] == [Complete]


@pytest.mark.clause("OUT-14")
@pytest.mark.parametrize("table", TABLES)
async def test_everything_a_person_does_works_on_foreign_rows(database_url: str, table: str) -> None:
    async with adopted(database_url, table) as (lane, other):
        ids = [(await other.sql(order(table)))[0]["id"] for _ in range(3)]
        assert await lane.outbox.cancel(ids[:1]) == ids[:1]
        assert await lane.outbox.requeue(ids[:1]) == ids[:1]
        assert await lane.outbox.send_now(ids) == ids
        assert len(await lane.outbox.preview(10)) == 3
        assert [row["id"] for row in await lane.outbox.page(limit=10)] == ids[::-1]
        assert await lane.outbox.oldest_due() < 3600
        (claim, *_) = await lane.outbox.claim(10)
        assert await lane.outbox.renew([claim]) == {claim.id}
        assert await lane.outbox.release([claim]) == {claim.id}
        assert (await lane.outbox.counts())["dispatching"] == 2


#: part of the table on PostgreSQL, on SQLite; what stands there instead; what is said of it
REFUSED = {
    "a text as the key": (
        "id serial PRIMARY KEY",
        "id INTEGER PRIMARY KEY AUTOINCREMENT",
        "id text PRIMARY KEY",
        "mail_outbox.id is text; it has to hold whole numbers",
    ),
    "no status": (
        "status varchar(20) NOT NULL DEFAULT 'draft', ",
        "status TEXT NOT NULL DEFAULT 'draft', ",
        "",
        "mail_outbox has no column status",
    ),
    "no body": (
        "html_body text NOT NULL DEFAULT '<p>Hi</p>', ",
        "html_body TEXT NOT NULL DEFAULT '<p>Hi</p>', ",
        "",
        "mail_outbox has no column text_body or html_body",
    ),
    "a time that is a number": (
        "campaign integer",
        "campaign INTEGER",
        "next_attempt_at bigint",
        "mail_outbox.next_attempt_at is bigint; it has to hold times",
    ),
    "another program's index": (
        "created_at timestamp NOT NULL DEFAULT (now() AT TIME ZONE 'utc'))",
        "created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)",
        "due text); CREATE INDEX mail_outbox_due ON mail_outbox (due)",
        "there is an index mail_outbox_due",
    ),
    "states that are refused": (
        "'draft', to_address",
        "'draft', to_address",
        "'draft' CHECK (status IN ('queued', 'sent')), to_address",
        "mail_outbox.status does not take dispatching, failed, cancelled, expired",
    ),
}


@pytest.mark.clause("OUT-14")
@pytest.mark.parametrize("case", REFUSED)
async def test_what_cannot_be_adopted_is_named_and_nothing_is_changed(database_url: str, case: str) -> None:
    on_postgres, on_sqlite, instead, sentence = REFUSED[case]
    bare = {
        "postgres": BARE["postgres"].replace(on_postgres, instead),
        "sqlite": BARE["sqlite"].replace(on_sqlite, instead),
    }
    assert bare["postgres"] != BARE["postgres"]
    assert bare["sqlite"] != BARE["sqlite"]
    other = await other_program(database_url)
    for statement in bare[other.dialect].split("; "):
        await other.sql(statement)
    before = await definitions(other)
    settings = load_settings({"database_url": database_url, "mail_url": "memory://"}, environ={})
    async with opened(settings) as homing:
        with pytest.raises(SchemaError, match="nothing was changed") as refusal:
            await homing.migrate()
    assert sentence.lower() in str(refusal.value).lower()
    assert await definitions(other) == before
    await other.close()


@pytest.mark.clause("OUT-14")
async def test_an_enum_status_is_refused(postgres_url: str) -> None:
    other = await other_program(postgres_url)
    await other.sql("CREATE TYPE mail_status AS ENUM ('queued', 'dispatching', 'sent', 'failed')")
    await other.sql(
        BARE["postgres"].replace(
            "varchar(20) NOT NULL DEFAULT 'draft'", "mail_status NOT NULL DEFAULT 'queued'"
        )
    )
    settings = load_settings({"database_url": postgres_url, "mail_url": "memory://"}, environ={})
    async with opened(settings) as homing:
        with pytest.raises(SchemaError, match=r"mail_outbox\.status is mail_status; it has to hold text"):
            await homing.migrate()
    await other.close()


@pytest.mark.clause("OUT-14")
async def test_a_table_of_another_owner_is_refused_before_anything_is_changed(postgres_url: str) -> None:
    role = f"homing_{postgres_url.rpartition('/')[2]}"[:60]
    async with made(postgres_url, BARE) as other:
        await other.sql(f'CREATE ROLE "{role}"')
        await other.sql(f'GRANT CREATE, USAGE ON SCHEMA public TO "{role}"')
        before = await definitions(other)
        settings = load_settings(
            {"database_url": f"{postgres_url}?role={role}", "mail_url": "memory://"}, environ={}
        )
        async with opened(settings) as homing:
            with pytest.raises(
                SchemaError, match=r"mail_outbox belongs to .*; only its owner can add columns"
            ):
                await homing.migrate()
        assert await definitions(other) == before
        await other.sql(f'DROP OWNED BY "{role}"')
        await other.sql(f'DROP ROLE "{role}"')


@pytest.mark.clause("OUT-14")
async def test_times_that_are_numbers_are_refused(sqlite_url: str) -> None:
    async with made(
        sqlite_url,
        {"sqlite": BARE["sqlite"].replace("campaign INTEGER", "next_attempt_at DATETIME NOT NULL")},
    ) as other:
        await other.sql(
            "INSERT INTO mail_outbox (to_address, subject, next_attempt_at) VALUES ('a@b.c', '', 1763500000)"
        )
        settings = load_settings({"database_url": sqlite_url, "mail_url": "memory://"}, environ={})
        async with opened(settings) as homing:
            with pytest.raises(SchemaError, match="next_attempt_at is a number in 1 rows"):
                await homing.migrate()


@pytest.mark.clause("OUT-14")
@pytest.mark.parametrize(
    "time",
    [
        "datetime('now')",
        "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
        "unixepoch('now') * 1000",
        "unixepoch('now')",
    ],
)
@pytest.mark.parametrize("table", TABLES)
async def test_a_time_is_understood_in_any_form(sqlite_url: str, table: str, time: str) -> None:
    """Due now is due, in an hour is not, and the other program's own comparison stays true."""
    async with adopted(sqlite_url, table) as (lane, other):
        (now,), (later,) = await other.sql(order(table)), await other.sql(order(table))
        ahead = time.replace("'now'", "'now', '+1 hour'")
        set_time = "UPDATE mail_outbox SET next_attempt_at = {0} WHERE id = {1} RETURNING id"
        await other.sql(set_time.format(time, now["id"]))
        await other.sql(set_time.format(ahead, later["id"]))
        if table == "specified":
            due = "SELECT id FROM mail_outbox WHERE next_attempt_at <= datetime('now', '+1 second')"
            assert await other.sql(due) == [now]
        assert list(await lane.deliver()) == [now["id"]]


@pytest.mark.clause("OUT-14")
@pytest.mark.parametrize("kind", ["timestamp(3)", "timestamptz"])
async def test_a_time_without_end_holds_nothing_up(postgres_url: str, kind: str) -> None:
    """A table of ours has a rule against it; another program's need not."""
    made_so = {"postgres": SPECIFIED["postgres"].replace("timestamp(3)", kind)}
    async with made(postgres_url, made_so) as other, bench(postgres_url) as lane:
        ids = [(await other.sql(order("specified")))[0]["id"] for _ in range(3)]
        for id, time in zip(ids, ("-infinity", "infinity", "2020-01-01"), strict=True):
            await other.sql(f"UPDATE mail_outbox SET next_attempt_at = '{time}' WHERE id = {id}")
        await lane.deliver()
        states = {row["id"]: row["status"] for row in await other.sql("SELECT id, status FROM mail_outbox")}
        assert states == {ids[0]: "sent", ids[1]: "queued", ids[2]: "sent"}
        assert len(await lane.outbox.page(limit=10)) == 3


@pytest.mark.clause("OUT-14")
async def test_a_due_time_that_may_be_empty_is_refused(sqlite_url: str) -> None:
    nullable = BARE["sqlite"].replace("campaign INTEGER", "next_attempt_at DATETIME")
    async with made(sqlite_url, {"sqlite": nullable}):
        settings = load_settings({"database_url": sqlite_url, "mail_url": "memory://"}, environ={})
        async with opened(settings) as homing:
            with pytest.raises(SchemaError, match="next_attempt_at may be NULL; declare it NOT NULL"):
                await homing.migrate()


@pytest.mark.clause("OUT-14")
async def test_text_that_is_no_json_is_refused_until_it_is_mended(sqlite_url: str) -> None:
    """PostgreSQL takes no such text into a column of JSON, and no other column is adopted there."""
    table = {"sqlite": BARE["sqlite"].replace("campaign INTEGER", "headers TEXT, metadata TEXT")}
    async with made(sqlite_url, table) as other:
        for headers in ("X-Shop: 7", "{", "", '{"X-Shop": "7"}'):
            await other.sql(
                "INSERT INTO mail_outbox (to_address, subject, headers) VALUES ('a@b.c', '', :headers)",
                headers=headers,
            )
        before = await definitions(other)
        settings = load_settings({"database_url": sqlite_url, "mail_url": "memory://"}, environ={})
        async with opened(settings) as homing:
            with pytest.raises(SchemaError, match=r"headers is no JSON in 2 rows; .* NULL there") as refusal:
                await homing.migrate()
            assert "X-Shop" not in str(refusal.value)
            assert await definitions(other) == before
            (found,) = re.findall("`(SELECT .*?)`", str(refusal.value))
            assert [row["id"] for row in await other.sql(found)] == [1, 2, 3]
            await other.sql("UPDATE mail_outbox SET headers = NULL WHERE NOT json_valid(headers)")
            await homing.migrate()


ENDS: Mapping[str, type] = {"headers": Bury, "attachments": Bury, "recipients": RetryIn}


@pytest.mark.clause("OUT-14")
@pytest.mark.parametrize("column", ["headers", "variables", "attachments", "metadata", "recipients"])
async def test_text_that_is_no_json_and_comes_later_holds_up_nobody(sqlite_url: str, column: str) -> None:
    """The other program's INSERTs are not refused, whatever they write."""
    table = {"sqlite": BARE["sqlite"].replace("campaign INTEGER", f"{column} TEXT")}
    async with made(sqlite_url, table) as other, bench(sqlite_url) as lane:
        statement = (
            f"INSERT INTO mail_outbox (status, to_address, subject, {column}) "
            "VALUES ('queued', 'a@b.c', 'Hi', :text) RETURNING id"
        )
        (odd,), (good,) = [await other.sql(statement, text=text) for text in ("X: y", None)]
        ends = await lane.deliver()
        assert isinstance(ends[good["id"]], Complete)
        # What Homing puts into no mail is nothing that a mail can fail by.
        assert isinstance(ends[odd["id"]], ENDS.get(column, Complete)), ends
        assert shown(await lane.row(odd["id"])).id == f"outbox_{odd['id']}"
        wanted = Wanted(lanes=("mail_outbox",), meta={"tenant": "acme"})
        assert not (await lane.homing.desk.lanes["mail_outbox"].find(wanted, before=None, limit=10)).rows


REPEATING = {
    dialect: statement.replace("campaign integer", "idempotency_key text").replace(
        "campaign INTEGER", "idempotency_key TEXT"
    )
    for dialect, statement in BARE.items()
}


@pytest.mark.clause("OUT-14")
async def test_idempotency_keys_that_repeat_are_refused_and_can_be_found(database_url: str) -> None:
    async with made(database_url, REPEATING) as other:
        for key in ("secret", "secret", "secret", "", "", "once", None, None):
            await other.sql(
                "INSERT INTO mail_outbox (to_address, subject, idempotency_key) "
                "VALUES ('a@b.c', '', :key) RETURNING id",
                key=key,
            )
        before = await definitions(other)
        settings = load_settings({"database_url": database_url, "mail_url": "memory://"}, environ={})
        async with opened(settings) as homing:
            with pytest.raises(SchemaError, match="has 2 idempotency keys more than once") as refusal:
                await homing.migrate()
            assert "secret" not in str(refusal.value)
            assert await definitions(other) == before
            (found,) = re.findall("`(SELECT .*?)`", str(refusal.value))
            keys = [row["idempotency_key"] for row in await other.sql(found)]
            assert sorted(keys) == ["", "secret"]
            await other.sql("UPDATE mail_outbox SET idempotency_key = NULL WHERE idempotency_key <> 'once'")
            await homing.migrate()


def wanting(column: str) -> dict[str, str]:
    """A table in which every row needs something that Homing does not know."""
    return {
        dialect: statement.replace("campaign integer", column).replace("campaign INTEGER", column)
        for dialect, statement in BARE.items()
    }


@pytest.mark.clause("OUT-14")
async def test_a_column_that_homing_cannot_fill_is_named_wherever_it_matters(database_url: str) -> None:
    async with (
        made(database_url, wanting("campaign integer NOT NULL")) as other,
        opened_door(database_url) as lane,
    ):
        (warned,) = lane.log.all("migrate.unfilled")
        assert (
            "mail_outbox.campaign wants a value that Homing does not know; give it a default" in warned["why"]
        )
        await other.sql(order("bare"))
        assert [type(end) for end in (await lane.deliver()).values()] == [Complete], "theirs are sent"
        mail = {"to": "ann@example.org", "subject": "Hi", "text": "Hello.", "html": "<p>Hello.</p>"}
        for body in (mail, [mail]):
            answer = await lane.client.post("/api/mail", json=body)
            assert answer.status_code == 409, answer.text
            error = answer.json()["error"]
            assert error["code"] == "CONFLICT"
            assert "mail_outbox.campaign is NOT NULL" in error["message"]
            assert "give the column a default" in error["message"]
        assert len(await other.sql("SELECT id FROM mail_outbox")) == 1
        findings = {one.check: one for one in await examine(lane.homing.settings)}
        assert findings["migrations"].well
        assert not findings["mail_outbox"].well
        assert "mail_outbox.campaign" in findings["mail_outbox"].detail


@pytest.mark.clause("OUT-14")
async def test_what_their_table_wants_of_a_mail_is_asked_of_each(database_url: str) -> None:
    """The table wants an HTML part: a mail without it is refused, and keeps no other from its place."""
    async with made(database_url, BARE), opened_door(database_url) as lane:
        assert lane.log.all("migrate.unfilled") == []
        plain = {"to": "ann@example.org", "subject": "Hi", "text": "Hello."}
        rich = {**plain, "html": "<p>Hello.</p>"}
        answer = await lane.client.post("/api/mail", json=plain)
        assert answer.status_code == 400
        assert answer.json()["error"]["details"] == {"field": "html"}
        assert "mail_outbox.html_body is NOT NULL" in answer.json()["error"]["message"]
        answer = await lane.client.post("/api/mail", json=[plain, rich])
        assert answer.status_code == 200
        verdicts = [item["verdict"] for item in answer.json()["items"]]
        assert verdicts == ["invalid", "created"]
        assert [type(end) for end in (await lane.deliver()).values()] == [Complete]
