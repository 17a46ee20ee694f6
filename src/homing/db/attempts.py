"""The attempts that did not deliver, kept for whoever asks later what was tried.

A row of a lane's table holds its last attempt only. One that fails is kept in `homing_attempt` as well, in
the transaction that settles it; one that delivers costs nothing, for its row says by whom and how fast.
What never reached the other side is no attempt: a mail that waits for a provider all day leaves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from homing.db.database import Database, Row
from homing.db.plain import plain
from homing.db.queries import Query, load_queries
from homing.engine.model import Bury, Claim, RetryIn, Settlement

_LONGEST_MESSAGE = 500

_encode = msgspec.json.Encoder().encode


class Attempts:
    """Of one lane; `table` and `key` are where its messages stand."""

    def __init__(self, database: Database, lane: str, table: str, key: str = "id") -> None:
        self._database = database
        self._lane = lane
        self._queries = load_queries("homing.db", database.dialect, "attempts")
        forget = self._queries["forget"]
        #: Takes what `forgotten` gives.
        self.forgetting = replace(forget, sql=forget.sql.replace("MESSAGES", table).replace("KEY", key))

    @property
    def keeping(self) -> Query:
        """Takes what `kept` gives and `:owner`."""
        return self._queries["keep"]

    def kept(self, batch: Sequence[tuple[Claim[Any], Settlement]]) -> Mapping[str, Any] | None:
        """What there is to be kept of a batch; None when that is nothing."""
        failed = [
            _failed(claim, end) for claim, end in batch if isinstance(end, RetryIn | Bury) and end.charged
        ]
        return {"attempts_of": self._lane, "attempts": _encode(failed).decode()} if failed else None

    def forgotten(self, ids: Sequence[int]) -> Mapping[str, Any]:
        """For `forgetting`: of these messages, those that are gone."""
        return {"attempts_of": self._lane, "ids": _encode(ids).decode()}

    async def of(self, id: int) -> Sequence[Row]:
        """Of one message, the first first."""
        return await self._database.fetch(self._queries["of"], {"attempts_of": self._lane, "id": id})


def _failed(claim: Claim[Any], end: RetryIn | Bury) -> dict[str, Any]:
    return {
        "id": claim.id,
        "fence": claim.fence,
        "number": claim.attempts + 1,
        "millis": end.millis,
        "code": end.failure.code,
        "message": plain(end.failure.message, _LONGEST_MESSAGE),
    }
