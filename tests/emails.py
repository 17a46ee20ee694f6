"""A Homing with emails on a database of the test's own, and plain SQL on it, as another program uses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import msgspec
from prometheus_client import CollectorRegistry
from tests.outbox import LogLines

from homing.app import Homing
from homing.brokers.base import Message, Publication
from homing.db import Query
from homing.engine.model import Settlement
from homing.lanes.email_log.email import Ordered
from homing.lanes.email_log.log import EmailLog
from homing.lanes.email_log.orders import EmailRequest, order_of
from homing.lanes.email_log.queues import Queues, queues_of
from homing.lanes.email_log.schedule.due import DueEmails
from homing.lines import Feed
from homing.senders.memory import MemorySender
from homing.settings import load_settings
from homing.telemetry import Telemetry, make_logger


class EmailBench:
    """What a test of the lane holds in its hands."""

    def __init__(self, homing: Homing, log: LogLines) -> None:
        self.homing = homing
        self.log = log

    @property
    def emails(self) -> EmailLog:
        return self.homing.emails

    @property
    def due(self) -> DueEmails:
        store = self.homing.email_schedule.lane.store
        assert isinstance(store, DueEmails)
        return store

    @property
    def sender(self) -> MemorySender:
        assert isinstance(self.homing.sender, MemorySender)
        return self.homing.sender

    @property
    def queues(self) -> Queues:
        dots = self.homing.email_broker.name != "sqs"
        return queues_of(self.homing.settings.email_queue_prefix, dots=dots)

    @property
    def is_postgres(self) -> bool:
        return self.homing.database.dialect == "postgres"

    # ── the table ────────────────────────────────────────────────────────────────────────────────

    async def sql(self, statement: str, **parameters: Any) -> list[dict[str, Any]]:
        """Run plain SQL with `:name` parameters, outside of everything Homing knows."""
        from homing.db.queries import parse_queries

        query: Query = next(parse_queries(f"-- name: plain\n{statement}", self.homing.database.dialect))
        query = msgspec.structs.replace(query, writes=not statement.lstrip().upper().startswith("SELECT"))
        return [dict(row) for row in await self.homing.database.fetch(query, parameters)]

    async def insert(self, count: int = 1, **columns: Any) -> list[int]:
        """Emails as another program would write them."""
        values = {"to_address": "ann@example.org", "subject": "Hi", "body": "Hello.", **columns}
        names, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
        statement = f"INSERT INTO email_log ({names}) VALUES ({marks}) RETURNING id"
        return [(await self.sql(statement, **values))[0]["id"] for _ in range(count)]

    async def set(self, id: int, **columns: Any) -> None:
        names = ", ".join(f"{name} = :{name}" for name in columns)
        await self.sql(f"UPDATE email_log SET {names} WHERE id = :id RETURNING id", id=id, **columns)

    async def shift(self, id: int, seconds: float, *columns: str) -> None:
        """Put times of a row so far into the past; those that it does not have become that long ago."""
        if self.is_postgres:
            forms = [f"{c} = coalesce({c}, now()) - make_interval(secs => :s)" for c in columns]
        else:
            now = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"
            form = "{0} = strftime('%Y-%m-%dT%H:%M:%fZ', coalesce({0}, {1}), printf('%+.3f seconds', -:s))"
            forms = [form.format(column, now) for column in columns]
        statement = f"UPDATE email_log SET {', '.join(forms)} WHERE id = :id RETURNING id"
        await self.sql(statement, id=id, s=float(seconds))

    async def age(self, id: int, seconds: float = 100_000) -> None:
        """Let time pass for a row: its next attempt, its lease and its place in the queue if it has one."""
        row = await self.row(id)
        others = ("locked_until", "leased_until", "last_queued_at", "published_at")
        await self.shift(id, seconds, "next_attempt_at", *(name for name in others if row[name]))

    async def row(self, id: int) -> dict[str, Any]:
        row = await self.emails.get(id)
        assert row is not None
        return dict(row)

    async def states(self, ids: Sequence[int]) -> list[str]:
        return [(await self.row(id))["status"] for id in ids]

    # ── the lane ─────────────────────────────────────────────────────────────────────────────────

    async def order(self, **fields: Any) -> Ordered:
        request = {"to": "ann@example.org", "subject": "Hi", "body": "Hello.", **fields}
        return await self.homing.email_orders.place(order_of(EmailRequest(**request)))

    async def schedule(self, limit: int = 500) -> dict[int, Settlement | None]:
        """One round of a scheduler, to its end."""
        deliverer = self.homing.email_schedule.deliverer
        return await deliverer.settled(await deliverer.run_batch(limit))

    async def consume(self) -> int:
        """Send what is in the queue, to its end; how many messages came."""
        waiting = await self.homing.email_broker.depth(self.queues.send) or 0
        handled = 0
        for _ in range(5):
            feed = self.homing.email_send.worker()
            assert isinstance(feed, Feed)
            handled += await feed.drain()
            await feed.finish()
            # What a busy broker is about to hand over is in no count, and looks like the end.
            if handled >= waiting:
                break
        return handled

    async def deliver(self) -> int:
        await self.schedule()
        return await self.consume()

    async def publish(self, *bodies: bytes) -> None:
        """Messages that others put into the queue."""
        failures = await self.homing.email_broker.publish(
            self.queues.send, [Publication(body) for body in bodies]
        )
        assert list(failures) == [None] * len(bodies)

    async def messages(self, *, dead: bool = False, wait: float = 0.3) -> list[Message]:
        """Take everything out of a queue."""
        queue = self.queues.dead_letters if dead else self.queues.send
        waiting = await self.homing.email_broker.depth(queue) or 0
        consumer = await self.homing.email_broker.consume(queue, 10_000)
        found: list[Message] = []
        async with asyncio.timeout(60):
            while (some := await consumer.receive(10_000, wait)) or len(found) < waiting:
                found += some
                await consumer.acknowledge(some)
        await consumer.close()
        return found


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def email_bench(database_url: str, **settings: Any) -> AsyncIterator[EmailBench]:
    """A migrated database and a Homing on it; mails go to a `MemorySender` unless said otherwise."""
    log = LogLines()
    telemetry = Telemetry(make_logger("json", 10, log.stream), CollectorRegistry())
    flags = {
        "encryption_key": "A" * 43 + "=",
        "mail_url": "memory://",
        "mail_from": "shop@example.com",
        "template_dir": "nowhere",
        # Queues of its own: who forgot to close a broker of this process would leave messages here.
        "email_broker_url": f"memory://{uuid4().hex}",
        **settings,
    }
    homing = Homing(load_settings({**flags, "database_url": database_url}, environ={}), telemetry)
    try:
        await homing.migrate()
        yield EmailBench(homing, log)
    finally:
        await homing.email_schedule.drain(5)
        await homing.email_send.drain(5)
        await homing.close()
