"""Bulk runs on real lanes: a desk, a runner of its own pace, and lanes that go wrong on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.outbox import Bench, bench

from homing.access.api import AuditEntry, shown
from homing.desk.bulk import Asker, BulkRun, BulkRuns
from homing.desk.bulk_runner import BulkRunner
from homing.messages.model import LaneDesk, LaneName, Verb

ANN = Asker("user:ann", lambda _scope: True, "127.0.0.1")
TIMEOUT = "timeout: no answer within 30 s"
Act = Callable[[Verb, Sequence[int]], Awaitable[Sequence[int]]]

_MANY: Mapping[str, str] = {
    "postgres": "SELECT 'ann@example.org', 'Hi', 'Hello.', :status, :error "
    "FROM generate_series(1, :count::int)",
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count) "
    "SELECT 'ann@example.org', 'Hi', 'Hello.', :status, :error FROM n WHERE true",
}


class Troubled:
    """A lane whose verbs go through somebody's hands; all else is its own."""

    def __init__(self, lane: LaneDesk, act: Callable[[Act, Verb, Sequence[int]], Awaitable[Any]]) -> None:
        self._lane, self._act = lane, act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lane, name)

    async def act(self, verb: Verb, numbers: Sequence[int]) -> Any:
        return await self._act(self._lane.act, verb, numbers)


class BulkBench(Bench):
    @property
    def runs(self) -> BulkRuns:
        return self.homing.bulk.runs

    def runner(self, runs: BulkRuns | None = None, **options: Any) -> BulkRunner:
        given = {"owner": "test", "pause": 0.0, **options}
        return BulkRunner(runs or self.runs, self.homing.telemetry, **given)

    def troubled(self, act: Callable[[Act, Verb, Sequence[int]], Awaitable[Any]]) -> BulkRuns:
        """The same runs, where mails go through somebody's hands."""
        lanes: dict[LaneName, Any] = {**self.homing.desk.lanes}
        lanes["mail_outbox"] = Troubled(lanes["mail_outbox"], act)
        access = self.homing.access
        return BulkRuns(self.homing.database, lanes, access.audit, access.scopes_of)

    async def hire(self, name: str, role: str = "admin") -> None:
        """A user without a password: to make one takes a while, and nobody logs in here."""
        await self.sql(
            "INSERT INTO homing_user (name, password, role, created_by) "
            "VALUES (:name, '', :role, 'cli:test') ON CONFLICT (name) DO NOTHING RETURNING name",
            name=name, role=role,
        )  # fmt: skip

    async def mails(self, count: int, status: str = "failed", error: str | None = TIMEOUT) -> None:
        """As another program would write them, all at once."""
        columns = "to_address, subject, text_body, status, last_error"
        await self.sql(
            f"INSERT INTO mail_outbox ({columns}) {_MANY[self.homing.database.dialect]} RETURNING id",
            status=status, error=error, count=count,
        )  # fmt: skip

    async def states(self) -> dict[str, int]:
        rows = await self.sql("SELECT status, count(*) AS count FROM mail_outbox GROUP BY status")
        return {row["status"]: row["count"] for row in rows}

    async def now(self, id: int) -> BulkRun:
        return await self.runs.existing(id)

    async def until(self, id: int, holds: Callable[[BulkRun], bool]) -> BulkRun:
        async with asyncio.timeout(50):
            while not holds(run := await self.now(id)):
                await asyncio.sleep(0.02)
        return run

    async def until_free(self, id: int) -> None:
        """Until the lease of whoever had it is over."""
        async with asyncio.timeout(50):
            while not await self.runs.run("waiting", id=id):
                await asyncio.sleep(0.02)

    async def told(self) -> list[AuditEntry]:
        """What the audit log has of bulk runs, oldest first."""
        rows = [shown(row) for row in await self.homing.access.audit.page(limit=100)]
        return [row for row in reversed(rows) if row.action.startswith("bulk.")]


@asynccontextmanager
async def bulk_bench(database_url: str, **settings: Any) -> AsyncIterator[BulkBench]:
    async with bench(database_url, **settings) as lane:
        found = BulkBench(lane.homing, lane.log)
        await found.hire("ann")
        yield found
