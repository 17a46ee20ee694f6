"""One batch on demand: what `POST /internal/dispatch` and `homing dispatch` do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from homing.db import Row, iso
from homing.engine.deliver import Deliverer
from homing.engine.model import Claim
from homing.engine.token_bucket import TokenBucket
from homing.errors import Conflict, InvalidRequest, RateLimited
from homing.lanes.mail_outbox.mail import Mail
from homing.lanes.mail_outbox.outbox import MailOutbox

MOST_PER_BATCH = 1000


class DispatchRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    batch_size: int = 50
    dry_run: bool = False
    #: Ours: answer when everything is settled, and show each mail as it is then.
    wait: bool = False


class DispatchedItem(Struct, frozen=True, rename="camel", omit_defaults=True):
    id: str
    retry_count: int
    next_attempt_at: str | None
    last_attempt_at: str | None
    status: str | None = None


class Held(Struct, frozen=True, rename="camel"):
    """Mails are due, and are not sent."""

    due: int
    reason: str


class DispatchReply(Struct, frozen=True, rename="camel", omit_defaults=True):
    dispatched: int
    max_attempts: int
    items: list[DispatchedItem]
    #: Ours: only where mails are due and nothing is sent.
    held: Held | None = None


class Dispatching:
    """What the trigger does, whoever pulls it: the API or `homing dispatch`."""

    def __init__(
        self, deliverer: Deliverer, outbox: MailOutbox, *, max_attempts: int, calls_per_minute: int = 0
    ) -> None:
        self._deliverer = deliverer
        self._outbox = outbox
        self._max_attempts = max_attempts
        self._calls = TokenBucket(calls_per_minute / 60, calls_per_minute) if calls_per_minute else None

    async def __call__(self, request: DispatchRequest) -> DispatchReply:
        self._limit_rate()
        _check_batch_size(request.batch_size)
        if request.dry_run:
            rows = await self._outbox.preview(request.batch_size)
            return DispatchReply(0, self._max_attempts, [_row_item(row) for row in rows])
        if (reason := await self._why_held()) is not None:
            due = await self._outbox.due()
            return DispatchReply(0, self._max_attempts, [], Held(due, reason) if due else None)
        if self._deliverer.closing:
            raise Conflict("this process is stopping and claims nothing more; ask another one")
        claims = await self._deliverer.claim(request.batch_size)
        items = await self._settled(claims) if request.wait else [_dispatched(claim) for claim in claims]
        return DispatchReply(len(items), self._max_attempts, items)

    async def _why_held(self) -> str | None:
        if self._deliverer.paused:
            return "the lane mail_outbox is paused"
        if not await self._deliverer.lane.available():
            return "the breaker of the mail relay is open: it could not be reached"
        return None

    async def _settled(self, claims: Sequence[Claim[Mail]]) -> list[DispatchedItem]:
        await self._deliverer.settled(claims)
        rows = {row["id"]: row for row in await self._outbox.by_ids([claim.id for claim in claims])}
        # One that is gone was deleted by somebody else since.
        return [
            _row_item(rows[c.id], rows[c.id]["status"]) if c.id in rows else _dispatched(c) for c in claims
        ]

    def _limit_rate(self) -> None:
        if self._calls is not None and (wait := self._calls.take()) > 0:
            raise RateLimited("too many calls of /internal/dispatch", wait)


def _check_batch_size(size: int) -> None:
    if size <= 0:
        raise InvalidRequest("batchSize must be a positive integer", "batchSize")
    if size > MOST_PER_BATCH:
        raise InvalidRequest(f"batchSize must be at most {MOST_PER_BATCH}", "batchSize")


def _row_item(row: Row, status: str | None = None) -> DispatchedItem:
    return DispatchedItem(
        f"outbox_{row['id']}",
        row["retry_count"],
        _seconds(row["next_attempt_at"]),
        _seconds(row["last_attempt_at"]),
        status,
    )


def _dispatched(claim: Claim[Mail]) -> DispatchedItem:
    return DispatchedItem(
        f"outbox_{claim.id}",
        claim.attempts,
        _seconds(claim.item.due_at),
        _seconds(claim.item.last_attempt_at),
    )


def _seconds(value: datetime | str | None) -> str | None:
    """As the specification's example has it: to the second where nothing is lost, else milliseconds."""
    text = iso(value)
    return text.replace(".000Z", "Z") if text else None
