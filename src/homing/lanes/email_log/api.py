"""`/api/emails`: emails ordered, looked at, and sent again by a person."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from litestar import Controller, Request, Response, get, post
from litestar.datastructures import ResponseHeader
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from msgspec import Struct

from homing.db import Row
from homing.engine.aside import aside
from homing.errors import Forbidden, InvalidRequest, NotAllowed, NotFound
from homing.lanes.email_log.email import STATES, Ordered
from homing.lanes.email_log.log import EmailLog
from homing.lanes.email_log.orders import EmailOrders, EmailRequest, order_of
from homing.lanes.email_log.requeue import EmailRequeueRequest, requeue_dead
from homing.lanes.email_log.view import (
    EmailSummary,
    EmailView,
    check_plain,
    email_id,
    email_number,
    listed,
    shown,
)
from homing.messages.mails import harmless_text, mail_sight_of, seen_mail, sees_mails_whole
from homing.replies import RequeueReply, answers, errors

AnyRequest = Request[Any, Any, Any]
Sight = Callable[[EmailSummary], EmailSummary]

#: A value of that type is all that says which type the header has.
_LOCATION = ResponseHeader(
    name="Location",
    description="Where the email can be looked at",
    value="",
    required=True,
    documentation_only=True,
)
_NO_CURSOR = errors({404: "`before` is not the id of an email"})
_NOT_NOW = errors({409: "The email is in a state in which that cannot be done"})
_BULK = {
    "scope": "emails:operate",
    "audit_body": ("reason", "all", "dryRun", "limit"),
    "audit_reply": ("matched", "requeued"),
}


class CreatedEmail(Struct, frozen=True, rename="camel"):
    id: str
    message_key: str
    status: str | None
    #: created, or duplicate when the message key was known with the same content
    verdict: str


class EmailPage(Struct, frozen=True):
    """Emails, newest first."""

    items: list[EmailSummary]
    #: What to give as `before` to go on; null at the end.
    next: str | None


class DeadEmails(Struct, frozen=True):
    """Emails that were given up, newest first, and of what they died."""

    reasons: dict[str, int]
    items: list[EmailSummary]
    next: str | None


class Emails(Controller):
    """Emails that go through a queue: a row and a message each."""

    path = "/api/emails"
    tags = ("email_log",)

    @post(
        "/",
        status_code=202,
        summary="Order one email",
        opt={"scope": "emails:write", "audit": "counted"},
        responses={
            **answers((200, CreatedEmail, "The message key is known with the same content")),
            **errors({409: "The message key is another email's"}),
        },
        response_headers=[_LOCATION],
    )
    async def create(
        self,
        email_orders: NamedDependency[EmailOrders],
        request: Request[Any, Any, Any],
        data: JSONBody[EmailRequest],
    ) -> Response[CreatedEmail]:
        """The row is written when this is answered, and nothing was sent yet.

        Its message is in the queue, or follows as soon as there is a broker again. With a `messageKey`, the
        same order again answers 200 with the first email, and another order under that key 409.
        """
        size = len(await request.body())
        ordered = await email_orders.place(await aside(size, order_of, data), size)
        created = ordered.verdict == "created"
        location = {"Location": f"/api/emails/{email_id(ordered.id)}"}
        return Response(_created(ordered), status_code=202 if created else 200, headers=location)

    @get("/", summary="Emails, newest first", opt={"scope": "emails:read"}, responses=_NO_CURSOR)
    async def list(
        self,
        *,
        request: AnyRequest,
        emails: NamedDependency[EmailLog],
        status: FromQuery[str | None] = None,
        message_key: Annotated[str | None, QueryParameter(name="messageKey")] = None,
        before: FromQuery[str | None] = None,
        limit: FromQuery[int] = 20,
    ) -> EmailPage:
        if status is not None and status not in STATES:
            raise InvalidRequest(f"status must be one of {', '.join(STATES)}", "status")
        _check_limit(limit)
        seen = mail_sight_of(request, "emails")
        check_plain("messageKey", message_key)
        if message_key is not None:
            if harmless_text(message_key) != message_key and not sees_mails_whole(request, "emails"):
                raise Forbidden("a key that is hidden needs the scope emails:write or emails:operate")
            return await _of_key(emails, message_key, status, seen)
        rows = await emails.page(status=status, before=_cursor(before), limit=limit)
        return EmailPage(*_page(rows, limit, seen))

    @get(
        "/dead",
        summary="Emails that were given up, and why",
        opt={"scope": "emails:read"},
        responses=_NO_CURSOR,
    )
    async def dead(
        self,
        *,
        request: AnyRequest,
        emails: NamedDependency[EmailLog],
        reason: FromQuery[str | None] = None,
        before: FromQuery[str | None] = None,
        limit: FromQuery[int] = 20,
    ) -> DeadEmails:
        _check_limit(limit)
        check_plain("reason", reason)
        rows = await emails.page(status="Dead", reason=reason, before=_cursor(before), limit=limit)
        return DeadEmails(await emails.dead_reasons(), *_page(rows, limit, mail_sight_of(request, "emails")))

    @post(
        "/requeue",
        status_code=200,
        summary="Send dead emails again",
        opt=_BULK,
    )
    async def requeue_some(
        self, emails: NamedDependency[EmailLog], data: JSONBody[EmailRequeueRequest]
    ) -> RequeueReply:
        """Those that died of one reason, or all; without `dryRun: false` they are only counted."""
        return await requeue_dead(emails, data)

    @get(
        "/{id:str}",
        summary="One email, with the verdict of each recipient",
        opt={"scope": "emails:read"},
    )
    async def get(
        self, request: AnyRequest, emails: NamedDependency[EmailLog], id: FromPath[str]
    ) -> EmailView:
        """Without what its links work by, and without codes, for who may only look."""
        return await seen_mail(request, "emails", shown, await _existing(emails, id))

    @post(
        "/{id:str}/requeue",
        status_code=200,
        summary="Send a dead email again, or a failed one at once",
        opt={"scope": "emails:operate"},
        responses=_NOT_NOW,
    )
    async def requeue(self, emails: NamedDependency[EmailLog], id: FromPath[str]) -> EmailView:
        """It has all its attempts again. Recipients that have the mail do not get it twice."""
        row = await _existing(emails, id)
        if not await emails.requeue([row["id"]]):
            raise NotAllowed(f"an email that is {row['status']} cannot be requeued: only Dead or Failed")
        return shown(await _existing(emails, id))


def _created(ordered: Ordered) -> CreatedEmail:
    return CreatedEmail(email_id(ordered.id), ordered.message_key, ordered.status, ordered.verdict)


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= 100:
        raise InvalidRequest("limit must be from 1 to 100", "limit")


def _cursor(before: str | None) -> int | None:
    return email_number(before) if before else None


def _page(rows: Any, limit: int, seen: Sight) -> tuple[list[EmailSummary], str | None]:
    items = [seen(listed(row)) for row in rows]
    return items, items[-1].id if len(items) == limit else None


async def _of_key(emails: EmailLog, message_key: str, status: str | None, seen: Sight) -> EmailPage:
    number = await emails.id_of(message_key)
    row = await emails.get(number) if number is not None else None
    found = [seen(listed(row))] if row is not None and status in {None, row["status"]} else []
    return EmailPage(found, None)


async def _existing(emails: EmailLog, id: str) -> Row:
    row = await emails.get(email_number(id))
    if row is None:
        raise NotFound(f"there is no email {id}")
    return row
