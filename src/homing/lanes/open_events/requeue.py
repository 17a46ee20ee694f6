"""Many ended notifications at once, by how and why they ended; without being told twice it only counts."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from homing.lanes.open_events.notifications import Notifications
from homing.replies import RequeueReply

_AT_ONCE = 500


class NotificationRequeueRequest(
    Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """Which ones, and whether it is meant: `dryRun` is true unless it is said to be false."""

    status: Literal["skipped", "failed", "expired"]
    #: Only those that ended for this, such as network_error.
    code: Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_.-]+$")] | None = None
    dry_run: bool = True
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 10_000


async def requeue_ended(notifications: Notifications, request: NotificationRequeueRequest) -> RequeueReply:
    matched = requeued = after = 0
    while ids := await notifications.ids_by_status(
        request.status, code=request.code, after=after, limit=_AT_ONCE
    ):
        chosen, after = ids[: request.limit - matched], ids[-1]
        matched += len(chosen)
        if chosen and not request.dry_run:
            requeued += len(await notifications.requeue(chosen))
        if len(chosen) < len(ids):
            return RequeueReply(matched, requeued, more=True, dry_run=request.dry_run)
    return RequeueReply(matched, requeued, more=False, dry_run=request.dry_run)
