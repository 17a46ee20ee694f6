"""Runs a lane's named queries, in either dialect. This is the engine's `Store` for every SQL lane."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from homing.db.attempts import Attempts
from homing.db.backlog import HeldBack
from homing.db.database import Database, Row
from homing.db.queries import Queries, Query
from homing.engine.aside import aside
from homing.engine.model import Claim, Settlement
from homing.errors import Conflict, DatabaseError, Unreachable

Item = TypeVar("Item")

#: Bytes from which on a row is put in alone.
_LARGE = 1 << 20

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
        size: Callable[[Item], int] | None = None,
        kept_attempts: Attempts | None = None,
    ) -> None:
        self.database = database
        self._queries = queries
        self._item = item
        self._size = size
        self._transition = transition
        #: What every query of the lane may name: owner, lease_seconds, max_attempts.
        self._parameters = parameters
        #: Where those that did not deliver are kept, by a lane whose own table has no place for them.
        self._kept_attempts = kept_attempts
        #: What settles a batch: queries of one transaction, of which the first returns the ids.
        self._settling: Sequence[str] = ("settle",)

    async def run(self, name: str, **parameters: Any) -> Sequence[Row]:
        """Run a query by name."""
        return await self.database.fetch(self._queries[name], {**self._parameters, **parameters})

    async def run_together(self, names: Sequence[str], **parameters: Any) -> dict[str, Sequence[Row]]:
        """Run several queries by name, in this order, as one transaction; their rows by name."""
        rows = await self._fetch_all([self._queries[name] for name in names], parameters)
        return dict(zip(names, rows, strict=True))

    async def _fetch_all(
        self, queries: Sequence[Query], parameters: Mapping[str, Any]
    ) -> Sequence[Sequence[Row]]:
        given = {**self._parameters, **parameters}
        if len(queries) == 1:
            return [await self.database.fetch(queries[0], given)]
        return await self.database.fetch_all(queries, given)

    async def claim(self, limit: int) -> list[Claim[Item]]:
        # On SQLite an empty claim would still take the file's only write lock, again and again, while other
        # programs want to write; a look before it takes none.
        if self.database.dialect == "sqlite" and not await self.run("preview", limit=1):
            return []
        return self._claims(await self.run("claim", limit=limit))

    async def claim_lost(self, limit: int) -> list[Claim[Item]]:
        return self._claims(await self.run("claim_lost", limit=limit))

    async def settle(self, batch: Sequence[tuple[Claim[Item], Settlement]]) -> set[int]:
        if not batch:
            return set()
        columns = [{"id": c.id, "fence": c.fence, **self._transition(c, end)} for c, end in batch]
        settled = await self._settle(_encode(columns).decode(), batch)
        return {row["id"] for row in settled}

    async def _settle(self, columns: str, batch: Sequence[tuple[Claim[Item], Settlement]]) -> Sequence[Row]:
        queries = [self._queries[name] for name in self._settling]
        kept = self._kept_attempts.kept(batch) if self._kept_attempts is not None else None
        if self._kept_attempts is not None and kept is not None:
            try:
                # Last: it is later than what the row itself says of this attempt.
                keeping = [*queries, self._kept_attempts.keeping]
                return (await self._fetch_all(keeping, {"batch": columns, **kept}))[0]
            except (Unreachable, Conflict):
                raise
            except DatabaseError as error:
                # What cannot be told later must not keep a message from its end. If it is the end itself that
                # cannot be written, this raises, and says so.
                settled = (await self._fetch_all(queries, {"batch": columns}))[0]
                self._kept_attempts.not_kept(batch, settled, error)
                return settled
        return (await self._fetch_all(queries, {"batch": columns}))[0]

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

    async def held_back(self) -> HeldBack:
        """Where all goes one way, nothing waits for a target."""
        return HeldBack()

    async def _write(self, name: str, columns: list[dict[str, Any]]) -> set[int]:
        if not columns:
            return set()
        rows = await self.run(name, batch=_encode(columns).decode())
        return {row["id"] for row in rows}

    def _claims(self, rows: Sequence[Row]) -> list[Claim[Item]]:
        # RETURNING promises no order.
        ordered = sorted(rows, key=lambda row: (row["due_at"], row["id"]))
        item, size = self._item, self._size
        return [
            Claim(
                row["id"], row["fence"], row["attempts"], one := item(row), row["deferrals"], row["age"],
                row["traceparent"], 0 if size is None else size(one),
            )
            for row in ordered
        ]  # fmt: skip


async def batches(
    rows: Sequence[Struct], bulky: Sequence[str], size: int
) -> AsyncIterator[dict[str, str | None]]:
    """What puts rows of about so many bytes in takes, statement by statement."""
    found = _batches(rows, bulky)
    while batch := await aside(size, next, found, None):
        yield batch


def _batches(rows: Sequence[Struct], bulky: Sequence[str]) -> Iterator[dict[str, str | None]]:
    """`batch`, and a parameter for each bulky column.

    All rows are in one batch but the large ones. Each of these comes alone, with what is bulky apart: SQLite
    holds a row of a batch once for each column that it takes of it, which made 450 MiB of 13.
    """
    nothing: dict[str, str | None] = dict.fromkeys(bulky)
    if len(encoded := _encode(rows)) <= _LARGE:
        yield {"batch": encoded.decode(), **nothing}
        return
    del encoded
    large = [len(_encode(row)) > _LARGE for row in rows]
    if small := [row for row, is_large in zip(rows, large, strict=True) if not is_large]:
        yield {"batch": _encode(small).decode(), **nothing}
    for row, is_large in zip(rows, large, strict=True):
        if is_large:
            apart = {name: _text(value) for name in bulky if (value := getattr(row, name)) is not None}
            rest = replace(row, **dict.fromkeys(apart))
            yield {"batch": _encode([rest]).decode(), **nothing, **apart}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _encode(value).decode()
