"""The other half of `email_log` as somebody else would write it: plain SQL, and RabbitMQ by its own client.

Nothing of Homing is imported here.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Literal, Protocol

import aio_pika
import asyncpg
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

Dialect = Literal["postgres", "sqlite"]
Rows = list[tuple[Any, ...]]


class Console(Protocol):
    """An SQL console. `?` are values; `{now}`, `{soon}` and `{later}` are times of the dialect."""

    dialect: Dialect

    async def __call__(self, statement: str, *values: Any) -> Rows: ...


class PostgresConsole:
    dialect: Dialect = "postgres"

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def __call__(self, statement: str, *values: Any) -> Rows:
        times = {"now": "now()", "soon": "now() + interval '2 minutes'", "later": "now() + interval '1 hour'"}
        numbers = count(1)
        sql = "".join(f"${next(numbers)}" if c == "?" else c for c in statement.format(**times))
        return [tuple(row) for row in await self._pool.fetch(sql, *values)]


class SqliteConsole:
    dialect: Dialect = "sqlite"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._lock = asyncio.Lock()

    async def __call__(self, statement: str, *values: Any) -> Rows:
        # In a form of its own, as such programs do.
        times = {
            "now": "datetime('now')",
            "soon": "datetime('now', '+2 minutes')",
            "later": "datetime('now', '+1 hour')",
        }
        async with self._lock:
            return await asyncio.to_thread(self._run, statement.format(**times), values)

    def _run(self, sql: str, values: Sequence[Any]) -> Rows:
        return self._connection.execute(sql, values).fetchall()


@asynccontextmanager
async def console(database_url: str) -> AsyncIterator[Console]:
    if database_url.startswith("sqlite"):
        path = database_url.removeprefix("sqlite:///")
        connection = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
        try:
            yield SqliteConsole(connection)
        finally:
            connection.close()
        return
    pool = await asyncpg.create_pool(database_url, min_size=1, max_size=8)
    try:
        yield PostgresConsole(pool)
    finally:
        await pool.close()


# ── a sender ─────────────────────────────────────────────────────────────────────────────────────

SENT = "UPDATE email_log SET status = 'Sent', locked_until = NULL, sent_at = {now} WHERE id = ?"
FAILED = """
UPDATE email_log SET status = 'Failed', attempt_count = attempt_count + 1, last_error = '421 try later',
    next_attempt_at = {later}, locked_until = NULL WHERE id = ?
"""
DEAD = """
UPDATE email_log SET status = 'Dead', dead_reason = 'Bounced', last_error = '550 no', locked_until = NULL,
    next_attempt_at = NULL WHERE id = ?
"""
LOCKED = "UPDATE email_log SET locked_until = {soon} WHERE id = ? AND status <> 'Sent'"


class Sender:
    """Marks each row as soon as its message is there."""

    def __init__(self, sql: Console, *statements: str) -> None:
        self._sql = sql
        self._statements = statements
        #: How often each email came, and how many of these were answered.
        self.received: Counter[int] = Counter()
        self.answered = 0
        self.content_types: set[str | None] = set()

    async def __call__(self, message: AbstractIncomingMessage) -> None:
        async with message.process():
            id = json.loads(message.body)["EmailId"]
            self.received[id] += 1
            self.content_types.add(message.content_type)
            for statement in self._statements:
                await self._sql(statement, id)
        self.answered += 1


@asynccontextmanager
async def consuming(
    rabbitmq_url: str, queue: str, handle: Callable[[AbstractIncomingMessage], Awaitable[None]]
) -> AsyncIterator[None]:
    connection = await aio_pika.connect(rabbitmq_url)
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=50)
        # Nothing is said of what it is like: as it was found.
        declared = await channel.declare_queue(queue, passive=True)
        await declared.consume(handle)
        yield


# ── a scheduler, a producer ──────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def publishing(rabbitmq_url: str) -> AsyncIterator[AbstractChannel]:
    connection = await aio_pika.connect(rabbitmq_url)
    async with connection:
        yield await connection.channel(publisher_confirms=True)


async def publish(channel: AbstractChannel, queue: str, message: Any) -> None:
    body = aio_pika.Message(json.dumps(message).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
    await channel.default_exchange.publish(body, routing_key=queue)


class Scheduler:
    """Steps A to D of the specification, each option as it is told."""

    def __init__(
        self,
        sql: Console,
        channel: AbstractChannel,
        queue: str,
        *,
        marks_claims: bool,
        ends: Literal["Pending", "RetryQueued"],
        clears_lock: bool,
        notes_time: bool,
    ) -> None:
        self._sql, self._channel, self._queue = sql, channel, queue
        self._claim = "locked_until = {soon}" + (", status = 'RetryQueued'" if marks_claims else "")
        self._settle = f"status = '{ends}'"
        self._settle += ", locked_until = NULL" if clears_lock else ""
        self._settle += ", last_queued_at = {now}" if notes_time else ""

    async def once(self, *, settles: bool = True) -> list[int]:
        # SQLite compares times as text, so each is brought into one form.
        of = "{0}" if self._sql.dialect == "postgres" else "datetime({0})"
        due = await self._sql(
            "SELECT id, message_key FROM email_log WHERE status = 'Failed' AND attempt_count < 8 "
            f"AND {of.format('next_attempt_at')} <= {{now}} "
            f"AND (locked_until IS NULL OR {of.format('locked_until')} < {{now}})"
        )
        for id, key in due:
            await self._sql(f"UPDATE email_log SET {self._claim} WHERE id = ?", id)
            await publish(self._channel, self._queue, {"EmailId": id, "MessageKey": key})
            if settles:
                await self._sql(f"UPDATE email_log SET {self._settle} WHERE id = ?", id)
        return [id for id, _ in due]
