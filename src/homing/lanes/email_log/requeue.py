"""Many dead emails at once, by what they died of; without being told twice it only counts."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from homing.errors import InvalidRequest
from homing.lanes.email_log.log import EmailLog
from homing.lanes.email_log.view import check_plain
from homing.replies import RequeueReply

_AT_ONCE = 1000


class EmailRequeueRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Which of the dead, and whether it is meant: `dryRun` is true unless it is said to be false."""

    #: Those that died of this, such as MaxAttemptsExceeded.
    reason: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    #: Instead of a reason: all of them.
    all: bool = False
    dry_run: bool = True
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 10_000


async def requeue_dead(emails: EmailLog, request: EmailRequeueRequest) -> RequeueReply:
    if (request.reason is None) != request.all:
        raise InvalidRequest(
            'reason: name what they died of, such as {"reason": "MaxAttemptsExceeded"}, or say {"all": true}',
            "reason",
        )
    check_plain("reason", request.reason)
    matched = requeued = after = 0
    while ids := await emails.dead_ids(reason=request.reason, after=after, limit=_AT_ONCE):
        chosen, after = ids[: request.limit - matched], ids[-1]
        matched += len(chosen)
        if chosen and not request.dry_run:
            requeued += len(await emails.requeue(chosen))
        if len(chosen) < len(ids):
            return RequeueReply(matched, requeued, more=True, dry_run=request.dry_run)
    return RequeueReply(matched, requeued, more=False, dry_run=request.dry_run)
