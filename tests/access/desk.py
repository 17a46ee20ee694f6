"""A desk on a database of the test's own, plain SQL beside it, and time that can be moved."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry
from tests.outbox import LogLines

from homing.access.desk import Access
from homing.access.passwords import Cost
from homing.access.sessions import SessionTerms
from homing.db import Database, connect
from homing.db.migrate import load_migrations, migrate
from homing.db.queries import parse_queries
from homing.telemetry import Telemetry, make_logger

#: Weak, and quick: what is tested is what is made of it.
CHEAP = Cost(log_n=10, r=8, p=1)
PASSWORD = "correct horse battery staple"


class Desk:
    """Several may be on one database, as several processes are."""

    def __init__(self, database: Database, log: LogLines, encryption_key: str | None = None) -> None:
        self.now = 1000.0
        self.log = log
        self.database = database
        telemetry = Telemetry(make_logger("json", 10, log.stream), CollectorRegistry())
        self.access = Access(
            database,
            telemetry,
            encryption_key=encryption_key,
            sessions=SessionTerms(idle=600, longest=3600),
            password_cost=CHEAP,
            monotonic=lambda: self.now,
        )

    async def sql(self, statement: str, **parameters: Any) -> list[dict[str, Any]]:
        """As another program would write it."""
        query = next(parse_queries(f"-- name: plain\n{statement}", self.database.dialect))
        query = msgspec.structs.replace(query, writes=not statement.lstrip().startswith("SELECT"))
        return [dict(row) for row in await self.database.fetch(query, parameters)]

    async def let_pass(self, table: str, seconds: float, *columns: str) -> None:
        """Everything in these columns happened so much longer ago."""
        for column in columns:
            earlier = (
                f"{column} - make_interval(secs => {seconds})"
                if self.database.dialect == "postgres"
                else f"strftime('%Y-%m-%dT%H:%M:%fZ', {column}, '-{seconds} seconds')"
            )
            await self.sql(f"UPDATE {table} SET {column} = {earlier}")

    async def entries(self) -> list[tuple[str, str, str | None, str]]:
        """Who did what to what, and how it ended; oldest first."""
        rows = await self.access.audit.page(limit=100)
        return [(row["who"], row["action"], row["object"], row["outcome"]) for row in reversed(rows)]


@asynccontextmanager
async def opened_desk(url: str, encryption_key: str | None = None) -> AsyncIterator[Desk]:
    database = connect(url)
    await migrate(database, load_migrations(["homing.access"], database.dialect))
    desk = Desk(database, LogLines(), encryption_key)
    try:
        yield desk
    finally:
        await desk.access.close()
        await database.close()
