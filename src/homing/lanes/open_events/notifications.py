"""The rows of `open_event_notifications`: the engine's store, and the verbs that people use on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from homing.db import Database, Row, instant, load_queries
from homing.db.attempts import Attempts, Untold
from homing.db.patience import patiently
from homing.db.plain import plain
from homing.db.store import SqlStore
from homing.db.tally import Base, RunningTotal, by_state
from homing.engine.coalesce import Batched
from homing.engine.model import Claim, Monotonic, Settlement
from homing.errors import DatabaseError
from homing.lanes.open_events.history import History
from homing.lanes.open_events.notification import (
    CHANNEL,
    COUNTED,
    ENDED_BADLY,
    STATES,
    Notification,
    OpenEvent,
    Terms,
    event_of,
    subscriber_of,
)

#: A statement about more rows would hold another program's file locked for too long. Measured: 500 claims
#: take 10 ms, 250 settlements 11 ms, five times that on a busy machine.
_MOST_AT_ONCE = 500
_MOST_SETTLED_IN_A_FILE = 250
#: Of one subscription's other notifications: as many as somebody may ask for at most.
_MOST_COUNTED = 1000

_LONGEST_NAME = 200

_encode = msgspec.json.Encoder().encode

#: In place of an item that could not be read.
_UNREAD = Notification(0, 0, None, False, False, datetime.fromtimestamp(0, UTC), 0.0)

_CANCELLED = _encode({"code": "cancelled", "message": "cancelled by an operator"}).decode()


#: Told of a lock whose time says nothing: of which row, and whose it is.
UnreadLock = Callable[[int, str], None]


def _ignore(_id: int, _locked_by: str) -> None:
    """Where nobody keeps a log."""


class Standing(Struct, frozen=True, gc=False):
    """What the tables say now, as far as it decides whether and where a mail goes.

    After the id, in the order in which `standings` returns its columns.
    """

    #: Of the claim that has the row; None when that is none of ours.
    fence: int | None
    #: There is such a subscription.
    subscribed: bool | int
    contact_value: str | None
    status: str | None
    metadata: str | None
    expired: bool | int | None
    #: Another one with the same dedupe key was sent.
    duplicate: bool | int


class Notifications(SqlStore[Notification]):
    def __init__(
        self,
        database: Database,
        transition: Any,
        *,
        terms: Terms,
        untold: Untold | None = None,
        unread_lock: UnreadLock = _ignore,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        super().__init__(
            database,
            load_queries(__package__ or "", database.dialect),
            # Not asked: an item is made of three queries' rows.
            item=lambda _row: _UNREAD,
            transition=self._written,
            parameters={**msgspec.structs.asdict(terms), "most_counted": _MOST_COUNTED},
            kept_attempts=attempts_of_notifications(database, untold),
        )
        self._columns_of = transition
        self._history = History(database)
        self._told: frozenset[str] = frozenset()
        self._unread_lock = unread_lock
        self._monotonic = monotonic
        self._total = RunningTotal(monotonic)
        #: How a notification stands now, by its id; many who ask at once cost one query.
        self.standing: Batched[int, Standing | None] = Batched(self._standings)

    # ── the engine's ─────────────────────────────────────────────────────────────────────────────

    async def claim(self, limit: int) -> list[Claim[Notification]]:
        """Locks whose time is over are taken over here, so there is nothing to rescue."""
        # An empty claim would take the write lock of another program's file.
        if self.database.dialect == "sqlite" and not await self.run("preview", limit=1):
            return []
        rows = await self.run("claim", limit=min(limit, _MOST_AT_ONCE))
        try:
            return await self._claims_of(rows)
        except DatabaseError:
            await self.release([Claim(row["id"], row["fence"], 0, _UNREAD) for row in rows])
            raise

    async def _claims_of(self, rows: Sequence[Row]) -> list[Claim[Notification]]:
        """With what they are about. It is read after the claim, which so holds no lock meanwhile."""
        if not rows:
            return []
        claimed = self._monotonic()
        people = await self._by_id("subscribers", [row["id"] for row in rows])
        found = await self._by_id("events", {row["open_event_id"] for row in rows})
        events = {id: event_of(row) for id, row in found.items()}
        # RETURNING promises no order.
        ordered = sorted(rows, key=lambda row: row["id"])
        return [
            _claim_of(row, claimed, events.get(row["open_event_id"]), people.get(row["id"]))
            for row in ordered
        ]

    async def _by_id(self, name: str, ids: Any) -> dict[int, Row]:
        rows = await self.run(name, ids=_encode(ids).decode())
        return {row[0]: row for row in rows}

    async def _standings(self, ids: Sequence[int]) -> list[Standing | None]:
        rows = await self.run("standings", ids=_encode(sorted(set(ids))).decode())
        found = {row[0]: Standing(*tuple(row)[1:]) for row in rows}
        return [found.get(id) for id in ids]

    async def settle(self, batch: Sequence[tuple[Claim[Notification], Settlement]]) -> set[int]:
        self._told = await self._history.kept()
        if self.database.dialect != "sqlite":
            return await super().settle(batch)
        settled: set[int] = set()
        for start in range(0, len(batch), _MOST_SETTLED_IN_A_FILE):
            settled |= await super().settle(batch[start : start + _MOST_SETTLED_IN_A_FILE])
        return settled

    def _written(self, claim: Claim[Notification], settlement: Settlement) -> Mapping[str, Any]:
        """What a settlement writes, without an event that the history does not take."""
        columns: Mapping[str, Any] = self._columns_of(claim, settlement)
        told = columns["told"]
        return columns if told is None or told in self._told else {**columns, "told": None}

    async def release(self, claims: Sequence[Claim[Notification]]) -> set[int]:
        released = await super().release(claims)
        if released:
            self.database.announce(CHANNEL)
        return released

    async def rescue(self, limit: int) -> int:
        """Nothing: a claim takes over what a dead worker held. But a lock that does not say since when it is
        held counts from when it was first seen, which is noted here.
        """
        unread = await self.run("unread_locks", limit=limit)
        # Looked for first: a statement that writes would take the lock of another program's file.
        if unread:
            ids = _encode([row["id"] for row in unread]).decode()
            for row in await self.run("note_locks", ids=ids):
                self._unread_lock(row["id"], plain(row["locked_by"] or "", _LONGEST_NAME))
        return 0

    async def claim_lost(self, limit: int) -> list[Claim[Notification]]:  # noqa: ARG002 - as every store is asked
        """Nothing: an attempt that was not completed is not charged, however often; the event expires."""
        return []

    async def sweep(self, limit: int) -> Mapping[str, int]:  # noqa: ARG002 - as every store is asked
        """Nothing: what is expired or used up, and what was reset by hand, is claimed, and ends then."""
        return {}

    # ── look ─────────────────────────────────────────────────────────────────────────────────────

    async def _ask(self, query: str, **parameters: Any) -> Sequence[Row]:
        """For people, who are not told that another program holds its lock for a while."""
        return await patiently(lambda: self.run(query, **parameters))

    async def preview(self, limit: int) -> Sequence[Row]:
        """Ids that a claim would take."""
        return await self._ask("preview", limit=limit)

    async def get(self, id: int) -> Row | None:
        rows = await self._ask("get", id=id)
        return rows[0] if rows else None

    async def page(
        self, *, status: str | None = None, before: int | None = None, limit: int = 20
    ) -> Sequence[Row]:
        """Newest first; `before` is the id that the last page ended with."""
        query = "page_ended" if status in ENDED_BADLY else "page"
        return await self._ask(query, status=status, before=before, limit=limit)

    async def counts(self) -> dict[str, int]:
        async def count(base: Base) -> Sequence[Row]:
            return await self._ask("counts", known=base.known, upto=base.upto)

        return by_state(await self._total.counted(count), STATES, rest="sent")

    async def oldest_due(self) -> float:
        """For how many seconds the first in the queue has been due."""
        rows = await self._ask("oldest_due")
        return max(0.0, rows[0]["age"]) if rows else 0.0

    async def reasons(self) -> Sequence[Row]:
        """`status, code, count` of what ended badly, the most frequent first."""
        return await self._ask("reasons")

    async def locks(self) -> Sequence[Row]:
        """`locked_by, count, oldest, over`: who holds how many, and how many of these locks are over."""
        return await self._ask("locks")

    async def churn(self) -> Sequence[Row]:
        """`attempts, count` of what was tried and is still pending."""
        return await self._ask("churn")

    # ── act ──────────────────────────────────────────────────────────────────────────────────────

    async def requeue(self, ids: Sequence[int]) -> list[int]:
        """Make skipped, failed and expired ones due at once, with all attempts; the ids that were."""
        requeued = [row["id"] for row in await self._ask("requeue", ids=_encode(ids).decode())]
        if requeued:
            self.database.announce(CHANNEL)
        return sorted(requeued)

    async def cancel(self, ids: Sequence[int]) -> list[int]:
        """End notifications that wait and that nobody has locked as `skipped`; the ids that were."""
        rows = await self._ask("cancel", ids=_encode(ids).decode(), error=_CANCELLED)
        return sorted(row["id"] for row in rows)

    async def send_now(self, ids: Sequence[int]) -> list[int]:
        """Have notifications looked at at once that wait and that nobody has locked; the ids that were."""
        waiting = [row["id"] for row in await self._ask("send_now", ids=_encode(ids).decode())]
        if waiting:
            self.database.announce(CHANNEL)
        return sorted(waiting)

    async def ids_by_status(
        self, status: str, *, code: str | None = None, after: int = 0, limit: int = 1000
    ) -> list[int]:
        """Some that are pending, skipped, failed or expired, by id; `after` is the last id seen."""
        if status == "pending":
            return [row["id"] for row in await self._ask("pending_ids", after=after, limit=limit)]
        rows = await self._ask("ended_ids", status=status, code=code, after=after, limit=limit)
        return [row["id"] for row in rows]


def _claim_of(row: Row, claimed: float, event: OpenEvent | None, person: Row | None) -> Claim[Notification]:
    id, fence, attempts, event_id, subscription_id, dedupe_key, has_error, has_ended, claimed_at, age = row
    locked = instant(claimed_at)
    assert locked is not None, "a claimed row has a lock"
    item = Notification(
        event_id,
        subscription_id,
        dedupe_key,
        bool(has_error),
        bool(has_ended),
        locked,
        claimed,
        event,
        subscriber_of(person) if person is not None else None,
        *(tuple(person)[1:COUNTED] if person is not None else ()),
    )
    return Claim(
        id, fence, attempts, item, age=age, traceparent=event.trace_id if event is not None else None
    )


def attempts_of_notifications(database: Database, untold: Untold | None = None) -> Attempts:
    return Attempts(database, "open_events", "open_event_notifications", "notification_id", untold=untold)
