"""The rows of `email_log` as the scheduler sees them: what is due, what is beyond the limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from homing.db import Database, Row, load_queries
from homing.db.store import SqlStore
from homing.engine.model import Claim, Complete, RetryIn, Settlement
from homing.lanes.email_log.email import EXHAUSTED, Due, Terms, due_of
from homing.lanes.email_log.log import CHANNEL, oldest_due
from homing.lanes.email_log.schedule.queue_watch import QueueWatch
from homing.senders.mailing import compact
from homing.telemetry import Telemetry

#: Tells the dead letter queue; for each row whether it now knows.
Tell = Callable[[Sequence[Row]], Awaitable[Sequence[bool]]]

_encode = msgspec.json.Encoder().encode


class DueEmails(SqlStore[Due]):
    """`tell` and `watch` are for brokers that other processes reach, too; one in memory has neither."""

    def __init__(
        self,
        database: Database,
        *,
        terms: Terms,
        telemetry: Telemetry,
        tell: Tell | None,
        watch: QueueWatch | None,
    ) -> None:
        super().__init__(
            database,
            load_queries(__package__ or "", database.dialect),
            item=due_of,
            transition=transition,
            parameters=msgspec.structs.asdict(terms),
        )
        self._telemetry = telemetry
        self._tell = tell
        self._watch = watch

    async def settle(self, batch: Sequence[tuple[Claim[Due], Settlement]]) -> set[int]:
        """A publish that was confirmed has ended well, also when nothing is written here.

        Then a consumer was quicker than this statement, and has taken the row.
        """
        written = await super().settle(batch)
        return written | {claim.id for claim, settlement in batch if isinstance(settlement, Complete)}

    async def rescue(self, limit: int) -> int:  # noqa: ARG002 - as every store is asked
        """Nothing: what a dead scheduler held is due again by itself."""
        return 0

    async def claim_lost(self, limit: int) -> list[Claim[Due]]:  # noqa: ARG002 - as every store is asked
        return []

    async def sweep(self, limit: int) -> Mapping[str, int]:
        ended = await self.run("sweep", limit=limit)
        for row in ended:
            self._telemetry.email_died(EXHAUSTED)
            self._telemetry.email_scheduled(
                row["id"], row["attempt_count"], row["next_attempt_at"], reason=EXHAUSTED
            )
        await self._find_lost(limit)
        if self._tell is None:
            self._count_deaths(await self.run("waive_deaths", limit=limit))
        else:
            await self._announce_deaths(self._tell, limit)
        return {"Dead": len(ended)} if ended else {}

    async def _find_lost(self, limit: int) -> None:
        """Messages that seem lost are as if they had never been published, and the row is due again."""
        sighting = await self._watch.look() if self._watch is not None else None
        if sighting is not None:
            await self.run("saw_queue", **msgspec.structs.asdict(sighting))
        if await self.run("lost", limit=limit):
            self.database.announce(CHANNEL)

    async def _announce_deaths(self, tell: Tell, limit: int) -> None:
        rows = await self.run("claim_deaths", limit=limit)
        if not rows:
            return
        told = await tell(rows)
        batch = [{"id": row["id"], "told": known} for row, known in zip(rows, told, strict=True)]
        await self.run("settle_deaths", batch=_encode(batch).decode())
        self._count_deaths([row for row, known in zip(rows, told, strict=True) if known])

    def _count_deaths(self, rows: Sequence[Row]) -> None:
        """Those that another program has written. Ours are counted where they end."""
        for row in rows:
            if row["is_foreign"]:
                self._telemetry.email_died(row["dead_reason"] or "")

    async def unpublished(self, limit: int) -> int:
        """How many have been Pending for an hour though nobody has noted that they were published."""
        return int((await self.run("unpublished", limit=limit))[0]["count"])

    async def counts(self) -> dict[str, int]:
        return {row["status"]: row["count"] for row in await self.run("counts")}

    async def oldest_due(self) -> float:
        return await oldest_due(self.database)


def transition(_claim: Claim[Due], settlement: Settlement) -> Mapping[str, Any]:
    """The columns that each settlement writes: a publish is confirmed, or it is tried again."""
    if isinstance(settlement, Complete):
        return {"published": True}
    delay = settlement.delay if isinstance(settlement, RetryIn) else 0.0
    return {"published": False, "delay": delay, "error": compact(settlement.failure)}
