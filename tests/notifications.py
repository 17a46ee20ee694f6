"""The lane of open seats on a database of the test's own, and another program on the same tables."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import msgspec
from prometheus_client import CollectorRegistry
from tests.outbox import LogLines

from homing.db import Database, connect, instant, iso
from homing.db.migrate import load_migrations, migrate, run_again
from homing.db.queries import Dialect, parse_queries
from homing.engine.deliver import Deliverer
from homing.engine.model import Claim, Settlement
from homing.engine.policy import read_milliseconds
from homing.engine.worker import Worker
from homing.lanes.open_events.lane import OpenEventsLane, policy_of_terms, transition
from homing.lanes.open_events.last_look import LastLook
from homing.lanes.open_events.links import LinkKeys, Links
from homing.lanes.open_events.locales import PACKAGED_TEMPLATES
from homing.lanes.open_events.notification import Notification, Terms
from homing.lanes.open_events.notifications import Notifications
from homing.lanes.open_events.payload import DeliveryPolicy, Jobs
from homing.senders.mail import MailSender
from homing.senders.memory import MemorySender
from homing.senders.templates import Templates
from homing.telemetry import Telemetry, make_logger

TTL = 120.0
KEY = b"k" * 32
PAYLOAD = '{"courseTitle": "Data Structures", "sectionNumber": "03", "snapshotHash": "abc123"}'


class OtherProgram:
    """Plain SQL by the plain driver, on a connection of its own: what is read here is what others see."""

    def __init__(self, dialect: Dialect, connection: Any) -> None:
        self.dialect = dialect
        self._connection = connection

    async def sql(self, statement: str, **parameters: Any) -> list[dict[str, Any]]:
        query = next(parse_queries(f"-- name: plain\n{statement}", self.dialect))
        given = {name: self.time(parameters[name]) for name in query.parameters}
        if self.dialect == "sqlite":
            return [dict(row) for row in self._connection.execute(query.sql, given).fetchall()]
        return [dict(row) for row in await self._connection.fetch(query.sql, *given.values())]

    def time(self, value: Any) -> Any:
        return iso(value) if isinstance(value, datetime) and self.dialect == "sqlite" else value

    async def insert(self, table: str, key: str, values: Mapping[str, Any]) -> int:
        names, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
        rows = await self.sql(f"INSERT INTO {table} ({names}) VALUES ({marks}) RETURNING {key}", **values)
        id: int = rows[0][key]
        return id

    async def change(self, id: int, **columns: Any) -> None:
        sets = ", ".join(f"{name} = :{name}" for name in columns)
        await self.sql(
            f"UPDATE open_event_notifications SET {sets} WHERE notification_id = :id RETURNING 1 AS one",
            **columns, id=id,
        )  # fmt: skip

    async def change_subscription(self, id: int, **columns: Any) -> None:
        sets = ", ".join(f"{name} = :{name}" for name in columns)
        await self.sql(
            f"UPDATE subscriptions SET {sets} WHERE subscription_id = :id RETURNING 1 AS one",
            **columns,
            id=id,
        )

    async def row(self, id: int) -> dict[str, Any]:
        (row,) = await self.sql("SELECT * FROM open_event_notifications WHERE notification_id = :id", id=id)
        return row

    async def subscription(self, id: int) -> dict[str, Any]:
        (row,) = await self.sql("SELECT * FROM subscriptions WHERE subscription_id = :id", id=id)
        return row

    async def history(self, subscription_id: int) -> list[dict[str, Any]]:
        return await self.sql(
            "SELECT * FROM subscription_events WHERE subscription_id = :id ORDER BY event_id",
            id=subscription_id,
        )

    async def close(self) -> None:
        closed = self._connection.close()
        if self.dialect == "postgres":
            await closed


async def other_program(url: str, *, busy_timeout: float = 30.0) -> OtherProgram:
    if url.startswith("sqlite"):
        connection = sqlite3.connect(sqlite_path(url), timeout=busy_timeout, isolation_level=None)
        connection.row_factory = sqlite3.Row
        # What a test prepares need not survive a power cut.
        connection.execute("PRAGMA synchronous = OFF")
        return OtherProgram("sqlite", connection)
    plain = await asyncpg.connect(url, server_settings={"timezone": "UTC"})
    return OtherProgram("postgres", plain)


def sqlite_path(url: str) -> Path:
    return Path(urlsplit(url).path[1:])


class NotificationBench:
    """What a test of the lane holds in its hands: one worker, and the other program."""

    def __init__(
        self,
        database: Database,
        other: OtherProgram,
        *,
        sender: MailSender,
        owner: str,
        policy: DeliveryPolicy,
    ) -> None:
        self.database = database
        self.other = other
        self.log = LogLines()
        self.telemetry = Telemetry(make_logger("json", 10, self.log.stream), CollectorRegistry())
        terms = Terms(owner, float(policy.lock_ttl_seconds), 86400.0)
        self.notifications = Notifications(
            database,
            transition,
            terms=terms,
            unread_lock=partial(self.telemetry.lock_unreadable, "open_events"),
        )
        self.sender = sender
        self.lane = lane_on(self.notifications, sender, policy)
        self.deliverer = Deliverer(self.lane, self.telemetry, concurrency=10, slots=500)
        self._numbers = count(1)

    @property
    def memory(self) -> MemorySender:
        assert isinstance(self.sender, MemorySender)
        return self.sender

    # ── rows, as a producer writes them ──────────────────────────────────────────────────────────

    async def event(self, **columns: Any) -> int:
        values = {
            "term_id": "20269",
            "campus_code": "NB",
            "index_number": f"{next(self._numbers):05}",
            "status_before": "CLOSED",
            "status_after": "OPEN",
            "event_at": datetime.now(UTC) - timedelta(seconds=5),
            "detected_by": "poller",
            "dedupe_key": f"{next(self._numbers):040x}",
            "trace_id": "trace-1",
            "payload": PAYLOAD,
            **columns,
        }
        return await self.other.insert("open_events", "open_event_id", values)

    async def subscription(self, **columns: Any) -> int:
        values = {
            "term_id": "20269",
            "campus_code": "NB",
            "index_number": "00001",
            "contact_type": "email",
            "contact_value": f"student{next(self._numbers)}@example.org",
            "status": "active",
            **columns,
        }
        return await self.other.insert("subscriptions", "subscription_id", values)

    async def notification(
        self, event: int | str | None = None, subscription: int | str | None = None, **columns: Any
    ) -> int:
        values = {
            "open_event_id": await self.event() if event is None else event,
            "subscription_id": await self.subscription() if subscription is None else subscription,
            "dedupe_key": f"{next(self._numbers):040x}",
            **columns,
        }
        return await self.other.insert("open_event_notifications", "notification_id", values)

    # ── the worker ───────────────────────────────────────────────────────────────────────────────

    async def deliver(self, limit: int = 100) -> dict[int, Settlement | None]:
        """One batch, to its end."""
        claims: list[Claim[Notification]] = await self.deliverer.run_batch(limit)
        return await self.deliverer.settled(claims)

    async def drain(self) -> int:
        return await Worker(self.deliverer, self.telemetry).drain()

    async def age(self, id: int, seconds: float) -> None:
        """Let time pass for a row: all its times are that much further back, also what we know of them."""
        columns = ("locked_at", "lock_written_at", "due_at")
        form = (
            "{0} - make_interval(secs => :s)"
            if self.other.dialect == "postgres"
            else "strftime('%Y-%m-%dT%H:%M:%fZ', {0}, printf('%+.3f seconds', -:s))"
        )
        sets = ", ".join(f"{column} = {form.format(column)}" for column in columns)
        await self.other.sql(
            f"UPDATE open_event_notifications SET {sets} WHERE notification_id = :id RETURNING 1 AS one",
            s=float(seconds), id=id,
        )  # fmt: skip

    async def run_migration_again(self, number: str) -> None:
        (one,) = [
            migration
            for migration in load_migrations(["homing.lanes.open_events"], self.database.dialect)
            if f"{migration.version:04d}" == number
        ]
        await run_again(self.database, one)

    async def due_in(self, id: int) -> float | None:
        """Seconds until the row is due; None when it is due now."""
        due = instant((await self.other.row(id))["due_at"])
        return (due - datetime.now(UTC)).total_seconds() if due else None


def lane_on(
    notifications: Notifications, sender: MailSender, policy: DeliveryPolicy, outer: MailSender | None = None
) -> OpenEventsLane:
    """`outer` is what the lane sends with, where that is not the last look itself."""
    look = LastLook(sender, notifications)
    schedule = read_milliseconds(",".join(map(str, policy.retry_schedule_ms)))
    return OpenEventsLane(
        notifications,
        outer or look,
        look,
        Templates(Path("nowhere"), PACKAGED_TEMPLATES, default_locale="en-US", recheck_seconds=1.0),
        Jobs(
            Links(lambda: LinkKeys([KEY]), lambda: "https://seats.example.com"),
            policy,
            locales=("en-US", "zh-CN"),
        ),
        policy=policy_of_terms(policy.max_attempts, schedule, policy.lock_ttl_seconds),
        lock_ttl_seconds=policy.lock_ttl_seconds,
        default_sender="Seats <seats@example.com>",
    )


@asynccontextmanager
async def notification_bench(
    url: str,
    *,
    sender: MailSender | None = None,
    owner: str = "worker-1",
    policy: DeliveryPolicy | None = None,
    migrated: bool = True,
) -> AsyncIterator[NotificationBench]:
    """A migrated database, a lane on it whose mails go to a `MemorySender` unless said otherwise."""
    database = connect(url)
    if migrated:
        await migrate(database, load_migrations(["homing.lanes.open_events"], database.dialect))
    other = await other_program(url)
    bench = NotificationBench(
        database,
        other,
        sender=sender or MemorySender("smtp"),
        owner=owner,
        policy=policy or DeliveryPolicy(3, int(TTL), (0, 2000, 7000)),
    )
    try:
        yield bench
    finally:
        await bench.deliverer.drain(5)
        await other.close()
        await database.close()


def read_json(text: str | None) -> Any:
    return msgspec.json.decode(text) if text else None
