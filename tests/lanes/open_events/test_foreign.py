"""Another program's producer and worker on the same file: each notification is sent once, by whomever."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from tests.lanes.open_events.desk import OPENED, opened_desk
from tests.lanes.open_events.test_adopt import FOREIGN, NAMED, take_over, taken
from tests.notifications import (
    NotificationBench,
    OtherProgram,
    notification_bench,
    read_json,
    sqlite_path,
)

from homing.db import connect
from homing.db.migrate import load_migrations, migrate
from homing.lanes.open_events.fanout import FlipRequest, flip_of
from homing.senders.mail import SendError, SendErrorCode, SendResult

JOURNALS = ("wal", "delete")
ROWS = 240
BATCH = 25
TTL_SECONDS = 120


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class ForeignWorker:
    """As the origin's dispatcher works, in plain SQL: it knows the contract's columns and nothing else."""

    def __init__(self, path: Path, name: str = "mail-dispatcher-1") -> None:
        self.name = name
        self.sent: list[int] = []
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA synchronous = OFF")

    def work(self, until: Callable[[], bool]) -> None:
        with closing(self._connection):
            while not until():
                for id in self._lock_some():
                    self._send(id)

    def _lock_some(self) -> list[int]:
        over = (datetime.now(UTC) - timedelta(seconds=TTL_SECONDS)).isoformat(timespec="milliseconds")
        self._connection.execute("BEGIN IMMEDIATE")
        rows = self._connection.execute(
            "SELECT n.notification_id FROM open_event_notifications AS n "
            "JOIN subscriptions AS s ON s.subscription_id = n.subscription_id "
            "WHERE n.fanout_status = 'pending' AND s.contact_type = 'email' "
            "AND (n.locked_at IS NULL OR n.locked_at < ?) ORDER BY n.notification_id LIMIT ?",
            (over.replace("+00:00", "Z"), BATCH),
        ).fetchall()
        for (id,) in rows:
            self._connection.execute(
                "UPDATE open_event_notifications SET locked_by = ?, locked_at = ? WHERE notification_id = ?",
                (self.name, now(), id),
            )
        self._connection.execute("COMMIT")
        return [id for (id,) in rows]

    def _send(self, id: int) -> None:
        self.sent.append(id)
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute(
            "UPDATE open_event_notifications "
            "SET fanout_status = 'sent', fanout_attempts = fanout_attempts + 1, last_attempt_at = ?, "
            "error = ?, locked_by = NULL, locked_at = NULL WHERE notification_id = ?",
            (now(), '{"provider":"sendgrid","providerMessageId":"x","status":"sent"}', id),
        )
        self._connection.execute(
            "INSERT INTO subscription_events (subscription_id, event_type, section_status_snapshot) "
            "SELECT subscription_id, 'notify_sent', 'OPEN' FROM open_event_notifications "
            "WHERE notification_id = ?",
            (id,),
        )
        self._connection.execute("COMMIT")


def produce(path: Path, count: int) -> None:
    """Openings come in, a few subscribers each, as the poller writes them."""
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        for start in range(0, count, 20):
            connection.execute("BEGIN IMMEDIATE")
            event = connection.execute(
                "INSERT INTO open_events (term_id, campus_code, index_number, status_before, status_after, "
                "event_at, dedupe_key, payload) VALUES ('20269', 'NB', ?, 'CLOSED', 'OPEN', ?, ?, ?)",
                (f"{start:05}", now(), f"{start:040x}", '{"courseTitle": "Algebra", "sectionNumber": "01"}'),
            ).lastrowid
            for number in range(start, min(start + 20, count)):
                subscription = connection.execute(
                    "INSERT INTO subscriptions (term_id, campus_code, index_number, contact_type, "
                    "contact_value, status) VALUES ('20269', 'NB', ?, 'email', ?, 'active')",
                    (f"{start:05}", f"s{number}@example.org"),
                ).lastrowid
                connection.execute(
                    "INSERT INTO open_event_notifications (open_event_id, subscription_id, dedupe_key) "
                    "VALUES (?, ?, ?)",
                    (event, subscription, f"{start:040x}"),
                )
            connection.execute("COMMIT")


@asynccontextmanager
async def foreign_file(path: Path, journal: str) -> AsyncIterator[str]:
    """A file that another program has made and that we have taken over."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal}")
        for statement in FOREIGN.values():
            connection.execute(statement)
    database = connect(f"sqlite:///{path}")
    await migrate(database, load_migrations(["homing.lanes.open_events"], "sqlite"))
    await database.close()
    yield f"sqlite:///{path}"


@pytest.mark.clause("NTF-01", "NTF-02", "NTF-03", "NTF-17")
@pytest.mark.parametrize("journal", JOURNALS)
async def test_two_workers_a_foreign_worker_and_a_producer_share_a_file(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "theirs.db"
    async with (
        foreign_file(path, journal) as url,
        notification_bench(url, migrated=False, owner="homing-1") as one,
        notification_bench(url, migrated=False, owner="homing-2") as two,
    ):
        stopped = threading.Event()
        foreign = ForeignWorker(path)
        working = asyncio.create_task(asyncio.to_thread(foreign.work, stopped.is_set))
        producing = asyncio.create_task(asyncio.to_thread(produce, path, ROWS))
        try:
            while not (producing.done() and await _is_done(one)):
                await asyncio.gather(one.deliver(15), two.deliver(10))
        finally:
            stopped.set()
            await asyncio.gather(working, producing)
        ours = [message.to[0] for bench in (one, two) for message in bench.memory.messages]
        rows = await one.other.sql(
            "SELECT n.*, s.contact_value FROM open_event_notifications AS n "
            "JOIN subscriptions AS s ON s.subscription_id = n.subscription_id"
        )
        theirs = [row["contact_value"] for row in rows if row["notification_id"] in foreign.sent]
        assert Counter([*ours, *theirs]) == Counter(row["contact_value"] for row in rows), "each once"
        assert len(rows) == ROWS
        assert {(row["fanout_status"], row["fanout_attempts"], row["locked_by"]) for row in rows} == {
            ("sent", 1, None)
        }
        told = await one.other.sql("SELECT event_type, count(*) AS count FROM subscription_events GROUP BY 1")
        assert told == [{"event_type": "notify_sent", "count": ROWS}]
        for bench in (one, two):
            assert "crashed" not in bench.log.text
            assert "lease_lost" not in bench.log.text


async def _is_done(bench: NotificationBench) -> bool:
    left = await bench.other.sql(
        "SELECT 1 FROM open_event_notifications WHERE fanout_status = 'pending' LIMIT 1"
    )
    return not left


@pytest.mark.clause("NTF-01")
@pytest.mark.parametrize("journal", JOURNALS)
async def test_a_file_keeps_the_journal_of_its_owner(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "theirs.db"
    async with foreign_file(path, journal) as url, notification_bench(url, migrated=False) as bench:
        produce(path, 5)
        await bench.drain()
        (mode,) = await bench.other.sql("PRAGMA journal_mode")
        assert mode["journal_mode"] == journal
        assert len(bench.memory.messages) == 5


@pytest.mark.clause("NTF-01", "NTF-13", "NTF-17")
async def test_a_foreign_worker_finds_our_rows_as_it_knows_them(sqlite_url: str) -> None:
    """What we retry is pending and unlocked; what we hold is locked; what it holds we leave alone."""
    async with notification_bench(sqlite_url) as bench:
        foreign = ForeignWorker(sqlite_path(sqlite_url))
        held = await bench.notification()
        await bench.notifications.claim(10)
        assert foreign._lock_some() == [], "our lock is respected"
        await bench.other.change(held, fanout_status="sent")

        gone = SendError(SendErrorCode.NETWORK_ERROR, "gone")
        bench.memory.answer_next(
            SendResult(status="retryable", provider="smtp", error=gone, retry_after=500.0)
        )
        retried = await bench.notification()
        await bench.deliver()
        assert foreign._lock_some() == [retried]
        assert await bench.deliver() == {}, "and theirs by us"
        foreign._send(retried)
        row = await bench.other.row(retried)
        assert (row["fanout_status"], row["fanout_attempts"]) == ("sent", 2)
        assert read_json(row["error"])["provider"] == "sendgrid"
        foreign._connection.close()


@pytest.mark.clause("NTF-01")
async def test_the_file_is_never_locked_for_long(sqlite_url: str) -> None:
    """While a worker drains thousands, another writer gets its turn, each time, in a fraction of a second."""
    async with notification_bench(sqlite_url) as bench:
        produce(sqlite_path(sqlite_url), 2000)
        waits: list[float] = []
        stopped = threading.Event()

        def write_now_and_then() -> None:
            with closing(sqlite3.connect(sqlite_path(sqlite_url), timeout=30, isolation_level=None)) as other:
                while not stopped.wait(0.02):
                    began = datetime.now(UTC)
                    other.execute("UPDATE subscriptions SET locale = 'en-US' WHERE subscription_id = 1")
                    waits.append((datetime.now(UTC) - began).total_seconds())

        writing = asyncio.create_task(asyncio.to_thread(write_now_and_then))
        assert await bench.drain() == 2000
        stopped.set()
        await writing
        assert waits
        # A transaction of ours takes some 20 ms; SQLite looks every 100 ms whether the lock is free.
        assert sorted(waits)[len(waits) // 2] < 1.0


# ── in every combination ─────────────────────────────────────────────────────────────────────────


class TheirWorker:
    """As the specification describes a worker, and nothing more: by plain SQL, on either database."""

    _LOCK = """
UPDATE open_event_notifications SET locked_by = :who, locked_at = :now
WHERE notification_id IN (SELECT notification_id FROM open_event_notifications
                          WHERE fanout_status = 'pending' AND (locked_at IS NULL OR locked_at < :over)
                          ORDER BY notification_id LIMIT 7)
  AND fanout_status = 'pending' AND (locked_at IS NULL OR locked_at < :over)
RETURNING notification_id AS id, subscription_id
"""
    _END = """
UPDATE open_event_notifications
SET fanout_status = :status, fanout_attempts = fanout_attempts + 1, last_attempt_at = :now, error = :error,
    locked_by = NULL, locked_at = NULL
WHERE notification_id = :id RETURNING 1 AS one
"""
    _NOTE = """
INSERT INTO subscription_events (subscription_id, event_type, section_status_snapshot)
VALUES (:id, 'notify_sent', 'OPEN') RETURNING 1 AS one
"""

    def __init__(self, program: OtherProgram) -> None:
        self._program = program
        self.mailed: list[int] = []

    async def step(self) -> None:
        moment = datetime.now(UTC)
        over = moment - timedelta(seconds=TTL_SECONDS)
        for row in await self._program.sql(self._LOCK, who="their-1", now=moment, over=over):
            await self._send(row["id"], row["subscription_id"])

    async def _send(self, id: int, subscription: int) -> None:
        who = await self._program.subscription(subscription)
        moment = datetime.now(UTC)
        if who["status"] != "active" or who["contact_type"] != "email":
            told = '{"code":"ineligible","message":"not to be told"}'
            await self._program.sql(self._END, status="skipped", now=moment, error=told, id=id)
            return
        self.mailed.append(subscription)
        told = '{"provider":"their","providerMessageId":"x","status":"sent"}'
        await self._program.sql(self._END, status="sent", now=moment, error=told, id=id)
        await self._program.sql(self._NOTE, id=subscription)


class Console:
    """An operator with an SQL console: puts back what failed, and clears a lock that hangs."""

    def __init__(self, program: OtherProgram) -> None:
        self._program = program

    async def requeue_failed(self) -> int:
        requeued = await self._program.sql(
            "UPDATE open_event_notifications SET fanout_status = 'pending', fanout_attempts = 0, "
            "error = NULL WHERE fanout_status = 'failed' RETURNING 1 AS one"
        )
        return len(requeued)

    async def requeue(self, id: int) -> None:
        await self._program.change(id, fanout_status="pending", fanout_attempts=0, error=None)

    async def clear_lock(self, id: int) -> None:
        await self._program.change(id, locked_by=None, locked_at=None)


class Place:
    """One database with whoever works on it, and what has to come out."""

    def __init__(self, ours: NotificationBench, theirs: TheirWorker | None, *, ours_work: bool) -> None:
        self._ours, self._theirs, self._ours_work = ours, theirs, ours_work

    async def work_until(self, hung: int) -> None:
        """Until nothing but the row that hangs is pending."""
        left = "SELECT notification_id AS id FROM open_event_notifications WHERE fanout_status = 'pending'"
        while [row["id"] for row in await self._ours.other.sql(left)] not in ([], [hung]):
            if self._ours_work:
                await self._ours.deliver(11)
            if self._theirs is not None:
                await self._theirs.step()

    async def mailed(self) -> Counter[int]:
        """How often each subscription was written to, by whom ever."""
        rows = await self._ours.other.sql("SELECT subscription_id AS id, contact_value FROM subscriptions")
        ids = {row["contact_value"]: row["id"] for row in rows}
        ours = [ids[message.recipients[0]] for message in self._ours.memory.messages]
        return Counter([*ours, *(self._theirs.mailed if self._theirs else [])])


async def add_subscriptions(program: OtherProgram, count: int) -> list[int]:
    """Of every ten one has unsubscribed, and one wants no mails but messages."""
    ids = []
    for number in range(count):
        who = {"contact_type": "email", "contact_value": f"s{number}@example.org", "status": "active"}
        if number % 10 == 8:
            who["status"] = "unsubscribed"
        if number % 10 == 9:
            who["contact_type"] = "sms"
        ids.append(await program.insert("subscriptions", "subscription_id", who))
    return ids


async def produce_for(program: OtherProgram, subscriptions: list[int], key: str) -> list[int]:
    """An opening, and a row for each subscription, with the columns that the specification names."""
    event = {
        "term_id": "92026", "campus_code": "NB", "index_number": "12345", "status_before": "CLOSED",
        "status_after": "OPEN", "event_at": datetime.now(UTC), "dedupe_key": key, "trace_id": "t-1",
        "payload": '{"courseTitle": "Algebra", "sectionNumber": "01"}',
    }  # fmt: skip
    number = await program.insert("open_events", "open_event_id", event)
    fresh = {"open_event_id": number, "dedupe_key": key, "fanout_status": "pending", "fanout_attempts": 0}
    return [
        await program.insert(
            "open_event_notifications", "notification_id", {**fresh, "subscription_id": subscription}
        )
        for subscription in subscriptions
    ]


@asynccontextmanager
async def their_place(url: str) -> AsyncIterator[tuple[NotificationBench, OtherProgram]]:
    """Their tables, with the columns that the specification names; a worker of ours beside theirs."""
    async with taken(url, **NAMED) as (database, program):
        await take_over(database)
        async with notification_bench(url, migrated=False) as ours:
            yield ours, program


@pytest.mark.clause("NTF-01", "NTF-02", "NTF-11", "NTF-16", "NTF-27")
@pytest.mark.parametrize("workers", ["ours", "theirs", "both"])
@pytest.mark.parametrize("producer", ["ours", "theirs"])
async def test_every_combination_that_the_specification_allows(
    database_url: str, producer: str, workers: str
) -> None:
    """A producer, a worker and an operator, each of them ours or another program by plain SQL."""
    async with their_place(database_url) as (ours, program):
        theirs = TheirWorker(program) if workers != "ours" else None
        place, console = Place(ours, theirs, ours_work=workers != "theirs"), Console(program)
        subscriptions = await add_subscriptions(program, 40)
        if producer == "theirs":
            ids = await produce_for(program, subscriptions, "k" * 40)
        else:
            ids = await flip(database_url, program)
        eligible = [id for number, id in enumerate(subscriptions) if number % 10 < 8]
        hung = ids[-3] if producer == "theirs" else ids[-1]
        await program.change(hung, locked_by="hung", locked_at=datetime.now(UTC) + timedelta(seconds=60))
        if workers != "theirs":
            for _ in range(3):
                ours.memory.answer_next(REFUSED)

        await place.work_until(hung)
        assert (await program.row(hung))["fanout_attempts"] == 0, "a fresh lock is respected by everybody"
        refused = 3 if workers != "theirs" else 0
        assert await console.requeue_failed() == refused
        await console.clear_lock(hung)
        await place.work_until(0)

        rows = await program.sql("SELECT * FROM open_event_notifications ORDER BY notification_id")
        told = {row["subscription_id"] for row in rows if row["fanout_status"] == "sent"}
        assert Counter(row["fanout_status"] for row in rows)["failed"] == 0
        assert {(row["fanout_attempts"], row["locked_by"], row["locked_at"]) for row in rows} == {
            (1, None, None)
        }
        lines = await program.sql("SELECT subscription_id AS id, event_type FROM subscription_events")
        assert Counter((line["id"], line["event_type"]) for line in lines) == {
            (id, "notify_sent"): 1 for id in told
        }
        mailed = await place.mailed()
        # What was refused was handed to the provider, too.
        assert sum(mailed.values()) == len(told) + refused
        assert set(mailed) == told
        assert told <= set(eligible)

        again = next(row["notification_id"] for row in rows if row["fanout_status"] == "sent")
        await console.requeue(again)
        await place.work_until(0)
        assert sum((await place.mailed()).values()) == len(told) + refused + 1
        assert "crashed" not in ours.log.text


REFUSED = SendResult(status="failed", provider="smtp", error=SendError(SendErrorCode.UNAUTHORIZED, "no"))


async def flip(url: str, program: OtherProgram) -> list[int]:
    """Our API tells the opening, to subscriptions whose section the other program has filled in since."""
    await program.sql(
        "UPDATE subscriptions SET term_id = '92026', campus_code = 'NB', index_number = '12345' "
        "RETURNING 1 AS one"
    )
    async with opened_desk(url) as desk:
        payload = {"courseTitle": "Algebra", "sectionNumber": "01"}
        given = {**OPENED, "eventAt": datetime.now(UTC).isoformat(), "payload": payload}
        read = msgspec.convert(given, FlipRequest)
        assert (await desk.fanout.record(flip_of(read, datetime.now(UTC)))).notifications > 0
    rows = await program.sql("SELECT notification_id AS id FROM open_event_notifications ORDER BY 1")
    return [row["id"] for row in rows]


@pytest.mark.clause("NTF-25", "NTF-29", "NTF-30")
async def test_their_producer_repeats_a_key_their_worker_died_and_the_events_are_old(
    database_url: str,
) -> None:
    """What a foreign program leaves behind, all at once: each subscriber has one mail of it."""
    async with their_place(database_url) as (ours, program):
        console = Console(program)
        subscriptions = [one for n, one in enumerate(await add_subscriptions(program, 10)) if n < 8]
        first = await produce_for(program, subscriptions, "k" * 40)
        second = await produce_for(program, subscriptions, "k" * 40)
        # Their worker locked some and died; on SQLite it writes milliseconds since 1970.
        died = datetime.now(UTC) - timedelta(seconds=TTL_SECONDS + 60)
        for id in first[:4]:
            lock = str(int(died.timestamp() * 1000)) if program.dialect == "sqlite" else died
            await program.change(id, locked_by="their-dead", locked_at=lock)
        while not all([(await program.row(id))["fanout_status"] != "pending" for id in (*first, *second)]):
            await ours.deliver()
            for id in second:
                if (await program.row(id))["fanout_status"] == "pending":
                    await ours.age(id, 10)
        assert [(await program.row(id))["fanout_status"] for id in first] == ["sent"] * 8
        codes = [read_json((await program.row(id))["error"])["code"] for id in second]
        assert codes == ["duplicate"] * 8
        assert len(ours.memory.messages) == 8

        await program.sql(
            "UPDATE open_events SET event_at = :then RETURNING 1 AS one",
            then=datetime.now(UTC) - timedelta(days=3),
        )
        for id in (first[0], second[1]):
            await console.requeue(id)
        await ours.drain()
        assert (await program.row(first[0]))["fanout_status"] == "sent"
        assert read_json((await program.row(second[1]))["error"])["code"] == "duplicate"
        assert len(ours.memory.messages) == 9
        lines = await program.sql("SELECT event_type, count(*) AS count FROM subscription_events GROUP BY 1")
        assert lines == [{"event_type": "notify_sent", "count": 9}]
