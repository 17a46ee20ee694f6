"""`/api/notifications`: flips in; subscriptions and notifications looked at and looked after."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from msgspec import Struct

from homing.db import Row
from homing.engine.aside import aside
from homing.errors import InvalidRequest, NotAllowed, NotFound
from homing.lanes.open_events.fanout import Fanout, FlipBatchReply, FlipReply, FlipRequest, flip_of
from homing.lanes.open_events.notification import STATES as NOTIFICATION_STATES
from homing.lanes.open_events.notifications import Notifications
from homing.lanes.open_events.requeue import NotificationRequeueRequest, requeue_ended
from homing.lanes.open_events.subscriptions import STATES, Subscriptions, new_token
from homing.lanes.open_events.subscriptions_view import (
    SubscriptionSummary,
    SubscriptionView,
    listed_subscription,
    shown_subscription,
)
from homing.lanes.open_events.view import (
    NotificationSummary,
    NotificationView,
    listed,
    notification_number,
    shown,
)
from homing.lanes.open_events.wishes import (
    ChangeRequest,
    SubscriptionRequest,
    changes_of,
    checked_email,
    checked_locale,
    order_of,
)
from homing.replies import RequeueReply, answers, errors
from homing.senders.addresses import mask
from homing.strict_json import decode, require_json

_LARGEST_ID = 2**63 - 1

_READS = {"scope": "notifications:read"}
_REPORTS = {"scope": "notifications:write", "audit": "counted"}
_OPERATES = {"scope": "notifications:operate"}
_BULK = {
    **_OPERATES,
    "audit_body": ("status", "code", "dryRun", "limit"),
    "audit_reply": ("matched", "requeued"),
}


_NO_CURSOR = errors({404: "`before` is not the id of a notification"})
_NOT_NOW = errors({409: "It is in a state in which that cannot be done"})


# ── flips ────────────────────────────────────────────────────────────────────────────────────────


class SeatEvents(Controller):
    """What pollers saw."""

    path = "/api/notifications/events"
    tags = ("open_events",)

    @post(
        "/",
        status_code=202,
        summary="A section's status has changed",
        opt=_REPORTS,
        responses=answers((200, FlipReply, "Nothing opened, or it is known already")),
    )
    async def create(
        self,
        fanout: NamedDependency[Fanout],
        subscriptions: NamedDependency[Subscriptions],
        data: JSONBody[FlipRequest],
    ) -> Response[FlipReply]:
        """An opening is written down with one notification for each subscription that wants to know.

        An opening of the same section within 180 seconds of another one is the same. Any other change is
        noted, and nobody is told.
        """
        reply = await fanout.record(flip_of(data, subscriptions.clock()))
        return Response(reply, status_code=202 if reply.verdict == "opened" else 200)

    @post(
        "/batch",
        status_code=200,
        summary="Up to 500 changes at once",
        opt={**_REPORTS, "reads_own_body": True},
    )
    async def create_some(
        self,
        fanout: NamedDependency[Fanout],
        subscriptions: NamedDependency[Subscriptions],
        request: Request[Any, Any, Any],
        data: JSONBody[list[FlipRequest] | None] = None,  # noqa: ARG002 - documents the body
    ) -> FlipBatchReply:
        """Each is taken on its own and gets its own verdict: what is wrong with one stops no other."""
        require_json(request.headers.get("content-type"))
        body = await request.body()
        items = await aside(len(body), decode, body, list[msgspec.Raw])
        return await fanout.record_all(items, subscriptions.clock())


# ── subscriptions ────────────────────────────────────────────────────────────────────────────────


class SubscriptionReply(Struct, frozen=True, rename="camel"):
    """The same for every address, whether it is subscribed or not."""

    term_id: str
    campus_code: str
    index_number: str
    #: Masked.
    email: str
    status: str
    message: str


class SubscriptionPage(Struct, frozen=True):
    """Subscriptions, newest first."""

    items: list[SubscriptionSummary]
    #: What to give as `before` to go on; null at the end.
    next: int | None


class SubscriptionDesk(Controller):
    """Who wants to know of which section."""

    path = "/api/notifications/subscriptions"
    tags = ("open_events",)

    @post(
        "/",
        status_code=201,
        summary="Ask for a subscription",
        opt={"scope": "notifications:write", "audit": "counted"},
    )
    async def create(
        self, subscriptions: NamedDependency[Subscriptions], data: JSONBody[SubscriptionRequest]
    ) -> SubscriptionReply:
        """The owner of the address confirms it by the link in a mail; before that, it gets no other.

        The answer never tells whether the address is subscribed. An address gets at most one such mail in ten
        minutes; it confirms all that waits.
        """
        order = order_of(data, new_token())
        await subscriptions.subscribe(order)
        return SubscriptionReply(
            order.term_id,
            order.campus_code,
            order.index_number,
            mask(order.contact_value),
            "pending",
            "unless it is subscribed already, the address gets a mail with a link to confirm this",
        )

    @get("/", summary="Subscriptions, newest first", opt=_READS)
    async def list(
        self,
        *,
        subscriptions: NamedDependency[Subscriptions],
        status: FromQuery[str | None] = None,
        email: FromQuery[str | None] = None,
        term_id: Annotated[str | None, QueryParameter(name="termId")] = None,
        campus_code: Annotated[str | None, QueryParameter(name="campusCode")] = None,
        index_number: Annotated[str | None, QueryParameter(name="indexNumber")] = None,
        before: FromQuery[int | None] = None,
        limit: FromQuery[int] = 20,
    ) -> SubscriptionPage:
        """Of one section (`termId`, `campusCode` and `indexNumber` together), of one address, or all."""
        if status is not None and status not in STATES:
            raise InvalidRequest(f"status must be one of {', '.join(STATES)}", "status")
        _check_limit(limit)
        rows = await subscriptions.page(
            section=_section(term_id, campus_code, index_number),
            email=checked_email(email) if email is not None else None,
            status=status,
            before=_checked_cursor(before),
            limit=limit,
        )
        items = [listed_subscription(row) for row in rows]
        return SubscriptionPage(items, items[-1].subscription_id if len(items) == limit else None)

    @get("/{id:int}", summary="One subscription, with its history", opt=_READS)
    async def get(self, subscriptions: NamedDependency[Subscriptions], id: FromPath[int]) -> SubscriptionView:
        return await _shown(subscriptions, id)

    @patch(
        "/{id:int}",
        summary="Change preferences or locale",
        opt={"scope": "notifications:write"},
    )
    async def change(
        self,
        subscriptions: NamedDependency[Subscriptions],
        id: FromPath[int],
        data: JSONBody[ChangeRequest],
    ) -> SubscriptionView:
        """What is left out stays as it is; null goes back to the default."""
        changes, locale = changes_of(data.preferences), checked_locale(data.locale)
        await _existing(subscriptions, id)
        await subscriptions.change(id, changes, locale)
        return await _shown(subscriptions, id)

    @post(
        "/{id:int}/pause",
        status_code=200,
        summary="No mails for now",
        opt=_OPERATES,
        responses=_NOT_NOW,
    )
    async def pause(
        self, subscriptions: NamedDependency[Subscriptions], id: FromPath[int]
    ) -> SubscriptionView:
        row = await _existing(subscriptions, id)
        if not await subscriptions.pause(id, "api"):
            raise NotAllowed(f"a subscription that is {row['status']} cannot be paused: only an active one")
        return await _shown(subscriptions, id)

    @post(
        "/{id:int}/resume",
        status_code=200,
        summary="Mails again",
        opt=_OPERATES,
        responses=_NOT_NOW,
    )
    async def resume(
        self, subscriptions: NamedDependency[Subscriptions], id: FromPath[int]
    ) -> SubscriptionView:
        """How often it may be notified is counted anew."""
        row = await _existing(subscriptions, id)
        if not await subscriptions.resume(id, "api"):
            raise NotAllowed(f"a subscription that is {row['status']} cannot be resumed: only a paused one")
        return await _shown(subscriptions, id)

    @delete("/{id:int}", status_code=200, summary="End it for good", opt=_OPERATES)
    async def end(self, subscriptions: NamedDependency[Subscriptions], id: FromPath[int]) -> SubscriptionView:
        """Mails that are queued for it are not sent either. It stays to be looked at; twice is as once."""
        await _existing(subscriptions, id)
        await subscriptions.unsubscribe(id, "api")
        return await _shown(subscriptions, id)

    @post(
        "/{id:int}/unsubscribe",
        status_code=200,
        summary="End it for good",
        opt=_OPERATES,
    )
    async def unsubscribe(
        self, subscriptions: NamedDependency[Subscriptions], id: FromPath[int]
    ) -> SubscriptionView:
        """As DELETE."""
        await _existing(subscriptions, id)
        await subscriptions.unsubscribe(id, "api")
        return await _shown(subscriptions, id)


# ── notifications ────────────────────────────────────────────────────────────────────────────────


class NotificationPage(Struct, frozen=True):
    """Notifications, newest first."""

    items: list[NotificationSummary]
    #: What to give as `before` to go on; null at the end.
    next: str | None


class NotificationDesk(Controller):
    """The mails that openings cause."""

    path = "/api/notifications"
    tags = ("open_events",)

    @get("/", summary="Notifications, newest first", opt=_READS, responses=_NO_CURSOR)
    async def list(
        self,
        notifications: NamedDependency[Notifications],
        status: FromQuery[str | None] = None,
        before: FromQuery[str | None] = None,
        limit: FromQuery[int] = 20,
    ) -> NotificationPage:
        if status is not None and status not in NOTIFICATION_STATES:
            raise InvalidRequest(f"status must be one of {', '.join(NOTIFICATION_STATES)}", "status")
        _check_limit(limit)
        cursor = notification_number(before) if before else None
        rows = await notifications.page(status=status, before=cursor, limit=limit)
        items = [listed(row) for row in rows]
        return NotificationPage(items, items[-1].id if len(items) == limit else None)

    @post(
        "/requeue",
        status_code=200,
        summary="Send ended notifications again",
        opt=_BULK,
    )
    async def requeue_some(
        self, notifications: NamedDependency[Notifications], data: JSONBody[NotificationRequeueRequest]
    ) -> RequeueReply:
        """By how they ended, and of what; without `dryRun: false` they are only counted."""
        return await requeue_ended(notifications, data)

    @get("/{id:str}", summary="One notification", opt=_READS)
    async def get(self, notifications: NamedDependency[Notifications], id: FromPath[str]) -> NotificationView:
        return shown(await _notification(notifications, id))

    @post(
        "/{id:str}/requeue",
        status_code=200,
        summary="Send an ended notification again",
        opt={**_OPERATES, "document": ("action",)},
        responses=_NOT_NOW,
    )
    async def requeue(
        self, notifications: NamedDependency[Notifications], id: FromPath[str]
    ) -> NotificationView:
        """It has all its attempts again. Who has unsubscribed gets no mail all the same."""
        row = await _notification(notifications, id)
        if not await notifications.requeue([row["id"]]):
            raise NotAllowed(
                f"a notification that is {row['status']} cannot be requeued: only skipped, failed or expired"
            )
        return shown(await _notification(notifications, id))


async def _notification(notifications: Notifications, id: str) -> Row:
    row = await notifications.get(notification_number(id))
    if row is None:
        raise NotFound(f"there is no notification {id}")
    return row


#: In the order of the documentation.
ROUTES = (SeatEvents, SubscriptionDesk, NotificationDesk)


# ── what they share ──────────────────────────────────────────────────────────────────────────────


def _section(term_id: str | None, campus_code: str | None, index_number: str | None) -> dict[str, str] | None:
    given = {"term_id": term_id, "campus_code": campus_code, "index_number": index_number}
    named = {name: value for name, value in given.items() if value}
    if named and len(named) < len(given):
        raise InvalidRequest("a section is named by termId, campusCode and indexNumber together", "termId")
    if any("\x00" in value for value in named.values()):
        raise InvalidRequest("termId, campusCode, indexNumber: no NUL character is possible", "termId")
    return named or None


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= 100:
        raise InvalidRequest("limit must be from 1 to 100", "limit")


def _checked_cursor(before: int | None) -> int | None:
    if before is not None and not 0 <= before <= _LARGEST_ID:
        raise InvalidRequest("before is the id that the last page ended with", "before")
    return before


async def _existing(subscriptions: Subscriptions, id: int) -> Row:
    row = await subscriptions.get(id) if 0 < id <= _LARGEST_ID else None
    if row is None:
        raise NotFound(f"there is no subscription {id}")
    return row


async def _shown(subscriptions: Subscriptions, id: int) -> SubscriptionView:
    row = await _existing(subscriptions, id)
    return shown_subscription(row, await subscriptions.history(id))
