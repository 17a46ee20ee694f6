"""Runs a lane's named queries, in either dialect. This is the engine's `Store` for every SQL lane."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from homing.db.database import Database, Row
from homing.db.queries import Queries
from homing.engine.model import Claim, Settlement

Item = TypeVar("Item")

_encode = msgspec.json.Encoder().encode


class SqlStore(Generic[Item]):
    """A lane gives its queries, how a row becomes an item, and which columns a settlement writes.

    What the engine asks of every lane's SQL:

    claim, claim_lost     return `id, fence, attempts, deferrals, age, traceparent, due_at` and the item's
                          columns
    settle, confirm,      take `:batch`, a JSON array of objects with `id` and `fence`,
    renew, release        and return the `id` of each row that was still ours; for `confirm`, that was
                          settled with this fence
    preview               returns what a claim would take, and changes nothing
    rescue                returns the `id` of each row that is due again
    sweep                 returns the new `status` of each row that ended
    """

    def __init__(
        self,
        database: Database,
        queries: Queries,
        *,
        item: Callable[[Row], Item],
        transition: Callable[[Claim[Item], Settlement], Mapping[str, Any]],
        parameters: Mapping[str, Any],
    ) -> None:
        self.database = database
        self._queries = queries
        self._item = item
        self._transition = transition
        #: What every query of the lane may name: owner, lease_seconds, max_attempts.
        self._parameters = parameters

    async def run(self, name: str, **parameters: Any) -> Sequence[Row]:
        """Run a query by name."""
        return await self.database.fetch(self._queries[name], {**self._parameters, **parameters})

    async def run_together(self, names: Sequence[str], **parameters: Any) -> dict[str, Sequence[Row]]:
        """Run several queries by name, in this order, as one transaction; their rows by name."""
        if len(names) == 1:
            return {names[0]: await self.run(names[0], **parameters)}
        queries = [self._queries[name] for name in names]
        rows = await self.database.fetch_all(queries, {**self._parameters, **parameters})
        return dict(zip(names, rows, strict=True))

    async def claim(self, limit: int) -> list[Claim[Item]]:
        # On SQLite an empty claim would still take the file's only write lock, again and again, while other
        # programs want to write; a look before it takes none.
        if self.database.dialect == "sqlite" and not await self.run("preview", limit=1):
            return []
        return self._claims(await self.run("claim", limit=limit))

    async def claim_lost(self, limit: int) -> list[Claim[Item]]:
        return self._claims(await self.run("claim_lost", limit=limit))

    async def settle(self, batch: Sequence[tuple[Claim[Item], Settlement]]) -> set[int]:
        columns = [
            {"id": claim.id, "fence": claim.fence, **self._transition(claim, settlement)}
            for claim, settlement in batch
        ]
        return await self._write("settle", columns)

    async def confirm(self, claims: Sequence[Claim[Item]]) -> set[int]:
        return await self._write("confirm", [{"id": c.id, "fence": c.fence} for c in claims])

    async def renew(self, claims: Sequence[Claim[Item]]) -> set[int]:
        return await self._write("renew", [{"id": c.id, "fence": c.fence} for c in claims])

    async def release(self, claims: Sequence[Claim[Item]]) -> set[int]:
        return await self._write("release", [{"id": c.id, "fence": c.fence} for c in claims])

    async def rescue(self, limit: int) -> int:
        return len(await self.run("rescue", limit=limit))

    async def sweep(self, limit: int) -> Mapping[str, int]:
        ended: dict[str, int] = {}
        for row in await self.run("sweep", limit=limit):
            ended[row["status"]] = ended.get(row["status"], 0) + 1
        return ended

    async def _write(self, name: str, columns: list[dict[str, Any]]) -> set[int]:
        if not columns:
            return set()
        rows = await self.run(name, batch=_encode(columns).decode())
        return {row["id"] for row in rows}

    def _claims(self, rows: Sequence[Row]) -> list[Claim[Item]]:
        # RETURNING promises no order.
        ordered = sorted(rows, key=lambda row: (row["due_at"], row["id"]))
        item = self._item
        return [
            Claim(
                row["id"], row["fence"], row["attempts"], item(row), row["deferrals"], row["age"],
                row["traceparent"],
            )
            for row in ordered
        ]  # fmt: skip
