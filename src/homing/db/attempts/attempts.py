"""What is kept of a batch, what is told of a message, and what is forgotten with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from homing.db.database import Database, Row
from homing.db.plain import plain
from homing.db.queries import Query, load_queries
from homing.engine.model import Bury, Claim, RetryIn, Settlement
from homing.errors import DatabaseError

_LONGEST_MESSAGE = 500

_encode = msgspec.json.Encoder().encode

#: Told of failed attempts of which nothing could be kept: how many, and why.
Untold = Callable[[int, DatabaseError], None]


class Attempts:
    """Of one lane; `table` and `key` are where its messages stand."""

    def __init__(
        self, database: Database, lane: str, table: str, key: str = "id", *, untold: Untold | None = None
    ) -> None:
        self.database, self.lane = database, lane
        self._untold = untold
        self.queries = load_queries(
            __package__ or "", database.dialect, lane=f"'{lane}'", messages=table, key=key
        )

    @property
    def keeping(self) -> Query:
        """Takes what `kept` gives and `:owner`; of claims that are not the last of their message, nothing."""
        return self.queries["keep"]

    def kept(self, batch: Sequence[tuple[Claim[Any], Settlement]]) -> Mapping[str, Any] | None:
        """What there is to be kept of a batch; None when that is nothing."""
        failed = [_failed(claim, end) for claim, end in _charged(batch)]
        return {"attempts": _encode(failed).decode()} if failed else None

    def not_kept(
        self, batch: Sequence[tuple[Claim[Any], Settlement]], settled: Sequence[Row], why: DatabaseError
    ) -> None:
        """The batch is settled all the same; of its failures nobody can be told later."""
        ids = {row["id"] for row in settled}
        count = sum(claim.id in ids for claim, _ in _charged(batch))
        if count and self._untold is not None:
            self._untold(count, why)

    @property
    def forgetting(self) -> Query:
        """Takes `:ids`; of these messages, those that are gone."""
        return self.queries["forget"]

    async def of(self, id: int) -> Sequence[Row]:
        """Of one message, the first first."""
        return await self.database.fetch(self.queries["of"], {"id": id})


def _charged(batch: Sequence[tuple[Claim[Any], Settlement]]) -> list[tuple[Claim[Any], RetryIn | Bury]]:
    return [(claim, end) for claim, end in batch if isinstance(end, RetryIn | Bury) and end.charged]


def _failed(claim: Claim[Any], end: RetryIn | Bury) -> dict[str, Any]:
    return {
        "id": claim.id,
        "fence": claim.fence,
        "number": claim.attempts + 1,
        "millis": end.millis,
        "code": end.failure.code,
        "message": plain(end.failure.message, _LONGEST_MESSAGE),
        # A lane that can tell says so in its report.
        "unknown": bool(getattr(end.report, "unknown", False)),
    }
