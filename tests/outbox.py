"""A Homing on a database of the test's own, and plain SQL on its tables, as another program would use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from io import BytesIO, TextIOWrapper
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from homing.app import Homing
from homing.db import Query, Row
from homing.engine.deliver import Deliverer
from homing.engine.model import Claim, Settlement
from homing.lanes.mail_outbox.mail import Mail
from homing.lanes.mail_outbox.outbox import MailOutbox
from homing.senders.memory import MemorySender
from homing.settings import load_settings
from homing.telemetry import Telemetry, make_logger


class LogLines:
    """A real JSON log, kept in memory."""

    def __init__(self) -> None:
        self._buffer = BytesIO()
        self.stream = TextIOWrapper(self._buffer, encoding="utf-8")

    @property
    def text(self) -> str:
        return self._buffer.getvalue().decode()

    def all(self, event: str | None = None) -> list[dict[str, Any]]:
        lines = [msgspec.json.decode(line) for line in self.text.splitlines()]
        return [line for line in lines if event is None or line["event"] == event]


class Bench:
    """What a test of the lane holds in its hands."""

    def __init__(self, homing: Homing, log: LogLines) -> None:
        self.homing = homing
        self.log = log

    @property
    def outbox(self) -> MailOutbox:
        return self.homing.outbox

    @property
    def deliverer(self) -> Deliverer:
        return self.homing.mail.deliverer

    @property
    def sender(self) -> MemorySender:
        assert isinstance(self.homing.sender, MemorySender)
        return self.homing.sender

    async def sql(self, statement: str, **parameters: Any) -> list[dict[str, Any]]:
        """Run plain SQL with `:name` parameters, outside of everything Homing knows."""
        from homing.db.queries import parse_queries

        dialect = self.homing.database.dialect
        query: Query = next(parse_queries(f"-- name: plain\n{statement}", dialect))
        query = msgspec.structs.replace(query, writes=not statement.lstrip().upper().startswith("SELECT"))
        return [dict(row) for row in await self.homing.database.fetch(query, parameters)]

    async def insert(self, count: int = 1, **columns: Any) -> list[int]:
        """Mails as another program would order them."""
        values: Mapping[str, Any] = {
            "to_address": "ann@example.org",
            "subject": "Hi",
            "text_body": "Hello.",
            **columns,
        }
        names = ", ".join(values)
        marks = ", ".join(f":{name}" for name in values)
        statement = f"INSERT INTO mail_outbox ({names}) VALUES ({marks}) RETURNING id"
        return [(await self.sql(statement, **values))[0]["id"] for _ in range(count)]

    async def row(self, id: int) -> Row:
        row = await self.outbox.get(id)
        assert row is not None
        return row

    async def age(self, id: int, seconds: float) -> None:
        """Let time pass for a row: its next attempt and its lease are that much nearer."""
        if self.homing.database.dialect == "postgres":
            await self.sql(
                "UPDATE mail_outbox SET next_attempt_at = next_attempt_at - make_interval(secs => :s), "
                "lease_expires_at = lease_expires_at - make_interval(secs => :s) WHERE id = :id RETURNING id",
                id=id, s=float(seconds),
            )  # fmt: skip
        else:
            form = "strftime('%Y-%m-%dT%H:%M:%fZ', {0}, printf('%+.3f seconds', -:s))"
            await self.sql(
                f"UPDATE mail_outbox SET next_attempt_at = {form.format('next_attempt_at')}, "
                f"lease_expires_at = {form.format('lease_expires_at')} WHERE id = :id RETURNING id",
                id=id, s=float(seconds),
            )  # fmt: skip

    async def deliver(self, limit: int = 100) -> dict[int, Settlement | None]:
        """One batch, to its end."""
        # A column of milliseconds rounds up: what was written just now is due half a millisecond later.
        await asyncio.sleep(0.001)
        claims: list[Claim[Mail]] = await self.deliverer.run_batch(limit)
        return await self.deliverer.settled(claims)


@asynccontextmanager
async def bench(database_url: str, **settings: Any) -> AsyncIterator[Bench]:
    """A migrated database and a Homing on it; mails go to a `MemorySender` unless said otherwise."""
    log = LogLines()
    telemetry = Telemetry(make_logger("json", 10, log.stream), CollectorRegistry())
    flags = {
        "encryption_key": "A" * 43 + "=",
        "mail_url": "memory://",
        "mail_from": "shop@example.com",
        "template_dir": "nowhere",
        **settings,
    }
    homing = Homing(load_settings({**flags, "database_url": database_url}, environ={}), telemetry)
    try:
        await homing.migrate()
        yield Bench(homing, log)
    finally:
        await homing.mail.deliverer.drain(5)
        await homing.close()
