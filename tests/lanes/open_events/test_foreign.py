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

import pytest
from tests.lanes.open_events.test_adopt import FOREIGN
from tests.notifications import NotificationBench, notification_bench, read_json, sqlite_path

from homing.db import connect
from homing.db.migrate import load_migrations, migrate
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
