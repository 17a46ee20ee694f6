"""`POST /internal/dispatch` as specified, and `/api/mail` to put mails in and look after them."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import Struct

from homing.db import Row
from homing.engine.aside import aside
from homing.errors import InvalidRequest, NotAllowed, NotFound
from homing.lanes.mail_outbox.dispatching import Dispatching, DispatchReply, DispatchRequest
from homing.lanes.mail_outbox.orders import MailOrders, MailRequest, read_order
from homing.lanes.mail_outbox.outbox import STATES, MailOutbox, Ordered
from homing.lanes.mail_outbox.view import MailSummary, OutboxMail, listed, row_number, shown
from homing.messages.mails import mail_sight_of, seen_mail
from homing.replies import BatchReply, answers, errors
from homing.strict_json import decode, require_json

_NOT_NOW = errors({409: "The mail is in a state in which that cannot be done"})


class InternalDispatch(Controller):
    """The trigger. Its claim has committed when the answer goes out; the mails follow."""

    path = "/internal"
    tags = ("mail_outbox",)

    @post(
        "/dispatch",
        status_code=200,
        summary="Claim one batch of due mails and send it",
        opt={"scope": "internal:dispatch", "audit": "counted"},
    )
    async def dispatch(
        self, dispatching: NamedDependency[Dispatching], data: JSONBody[DispatchRequest | None] = None
    ) -> DispatchReply:
        return await dispatching(data or DispatchRequest())


class CreatedMail(Struct, frozen=True, rename="camel"):
    id: str
    status: str
    #: created, or duplicate when the idempotency key was known with the same content
    verdict: str


class MailPage(Struct, frozen=True):
    """Mails, newest first."""

    items: list[MailSummary]
    #: What to give as `before` to go on; null at the end.
    next: str | None


class Mails(Controller):
    """Mails in the outbox."""

    path = "/api/mail"
    tags = ("mail_outbox",)

    @post(
        "/",
        summary="Put one mail, or up to 1,000, into the outbox",
        opt={"scope": "mail:write", "audit": "counted", "reads_own_body": True},
        responses={
            **answers(
                (200, CreatedMail | BatchReply, "The idempotency key is known; or a verdict for each mail"),
                (201, CreatedMail, "The mail is in the outbox"),
            ),
            **errors({409: "The idempotency key is another mail's"}),
        },
    )
    async def create(
        self,
        mail_orders: NamedDependency[MailOrders],
        request: Request[Any, Any, Any],
        data: JSONBody[MailRequest | list[MailRequest] | None] = None,  # noqa: ARG002 - documents the body
    ) -> Response[CreatedMail | BatchReply]:
        """One mail gets 201, or 200 when its idempotency key is known. An array gets a verdict per item."""
        require_json(request.headers.get("content-type"))
        body = await request.body()
        if body.lstrip()[:1] == b"[":
            items = await aside(len(body), decode, body, list[msgspec.Raw])
            return Response(await mail_orders.place_all(items), status_code=200)
        order = await aside(len(body), read_order, body)
        ordered = await mail_orders.place(order, len(body))
        return Response(_created(ordered), status_code=201 if ordered.verdict == "created" else 200)

    @get(
        "/",
        summary="Mails, newest first",
        opt={"scope": "mail:read"},
        responses=errors({404: "`before` is not the id of a mail"}),
    )
    async def list(
        self,
        *,
        request: Request[Any, Any, Any],
        outbox: NamedDependency[MailOutbox],
        status: FromQuery[str | None] = None,
        before: FromQuery[str | None] = None,
        limit: FromQuery[int] = 20,
    ) -> MailPage:
        if status is not None and status not in STATES:
            raise InvalidRequest(f"status must be one of {', '.join(STATES)}", "status")
        if not 1 <= limit <= 100:
            raise InvalidRequest("limit must be from 1 to 100", "limit")
        cursor = row_number(before) if before else None
        rows = await outbox.page(status=status, before=cursor, limit=limit)
        seen = mail_sight_of(request, "mail")
        items = [seen(listed(row)) for row in rows]
        return MailPage(items, items[-1].id if len(items) == limit else None)

    @get(
        "/{mail_id:str}",
        summary="One mail, with the verdict of each recipient",
        opt={"scope": "mail:read"},
    )
    async def get(
        self, request: Request[Any, Any, Any], outbox: NamedDependency[MailOutbox], mail_id: FromPath[str]
    ) -> OutboxMail:
        """Without what its links work by, and without codes, for who may only look."""
        return await seen_mail(request, "mail", shown, await _existing(outbox, mail_id))

    @post(
        "/{mail_id:str}/requeue",
        status_code=200,
        summary="Send an ended mail again, to those who did not get it",
        opt={"scope": "mail:operate"},
        responses=_NOT_NOW,
    )
    async def requeue(self, outbox: NamedDependency[MailOutbox], mail_id: FromPath[str]) -> OutboxMail:
        row = await _existing(outbox, mail_id)
        if not await outbox.requeue([row["id"]]):
            raise NotAllowed(
                f"a mail that is {row['status']} cannot be requeued: only failed, cancelled or expired"
            )
        return shown(await _existing(outbox, mail_id))

    @post(
        "/{mail_id:str}/cancel",
        status_code=200,
        summary="Take a mail out of the queue",
        opt={"scope": "mail:operate"},
        responses=_NOT_NOW,
    )
    async def cancel(self, outbox: NamedDependency[MailOutbox], mail_id: FromPath[str]) -> OutboxMail:
        row = await _existing(outbox, mail_id)
        if not await outbox.cancel([row["id"]]):
            raise NotAllowed(f"a mail that is {row['status']} cannot be cancelled: only a queued one")
        return shown(await _existing(outbox, mail_id))


def _created(ordered: Ordered) -> CreatedMail:
    return CreatedMail(f"outbox_{ordered.id}", ordered.status, ordered.verdict)


async def _existing(outbox: MailOutbox, mail_id: str) -> Row:
    row = await outbox.get(row_number(mail_id))
    if row is None:
        raise NotFound(f"there is no mail {mail_id}")
    return row
