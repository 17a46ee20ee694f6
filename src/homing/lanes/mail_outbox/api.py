"""`POST /internal/dispatch` as specified, and `/api/mail` to put mails in and look after them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import Struct

from homing.db import Row, iso
from homing.engine.coalesce import Batched
from homing.engine.deliver import Deliverer
from homing.engine.model import Claim, Complete, Discard, RetryIn, Settlement
from homing.engine.token_bucket import TokenBucket
from homing.errors import InvalidRequest, NotAllowed, NotFound, RateLimited
from homing.lanes.mail_outbox.mail import Mail, NewMail, StoredAttachment
from homing.lanes.mail_outbox.outbox import STATES, MailOutbox, Ordered, new_token
from homing.senders.addresses import InvalidAddress, parse_address, split_address_list
from homing.senders.mail import MailMessage
from homing.senders.mime import Unassemblable, assemble
from homing.strict_json import decode, require_json
from homing.telemetry import Telemetry

MOST_PER_BATCH = 1000
MOST_PER_POST = 1000
_MOST_RECIPIENTS = 1000
#: The escape of a NUL, as against the text of one after a backslash of its own.
_NUL_IN_JSON = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_SOME_DATE = datetime(2000, 1, 1, tzinfo=UTC)


# ── /internal/dispatch ───────────────────────────────────────────────────────────────────────────


class DispatchRequest(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    batch_size: int = 50
    dry_run: bool = False
    #: Ours: answer when everything is settled, and say how each mail ended.
    wait: bool = False


class DispatchedItem(Struct, frozen=True, rename="camel", omit_defaults=True):
    id: str
    retry_count: int
    next_attempt_at: str | None
    last_attempt_at: str | None
    status: str | None = None


class DispatchReply(Struct, frozen=True, rename="camel"):
    dispatched: int
    max_attempts: int
    items: list[DispatchedItem]


class InternalDispatch(Controller):
    """The trigger. Its claim has committed when the answer goes out; the mails follow."""

    path = "/internal"
    tags = ("mail_outbox",)

    @post("/dispatch", status_code=200, summary="Claim one batch of due mails and send it")
    async def dispatch(
        self, dispatching: NamedDependency[Dispatching], data: JSONBody[DispatchRequest | None] = None
    ) -> DispatchReply:
        return await dispatching(data or DispatchRequest())


class Dispatching:
    """What the trigger does, whoever pulls it: the API or `homing dispatch`."""

    def __init__(self, deliverer: Deliverer, outbox: MailOutbox, calls_per_minute: int = 0) -> None:
        self._deliverer = deliverer
        self._outbox = outbox
        self._max_attempts = deliverer.lane.policy.max_attempts
        self._calls = TokenBucket(calls_per_minute / 60, calls_per_minute) if calls_per_minute else None

    async def __call__(self, request: DispatchRequest) -> DispatchReply:
        self._limit_rate()
        _check_batch_size(request.batch_size)
        if request.dry_run:
            rows = await self._outbox.preview(request.batch_size)
            return DispatchReply(0, self._max_attempts, [_previewed(row) for row in rows])
        claims = await self._deliverer.run_batch(request.batch_size)
        ends = await self._deliverer.settled(claims) if request.wait else {}
        items = [_dispatched(claim, ends) for claim in claims]
        return DispatchReply(len(items), self._max_attempts, items)

    def _limit_rate(self) -> None:
        if self._calls is not None and (wait := self._calls.take()) > 0:
            raise RateLimited("too many calls of /internal/dispatch", wait)


def _check_batch_size(size: int) -> None:
    if size <= 0:
        raise InvalidRequest("batchSize must be a positive integer", "batchSize")
    if size > MOST_PER_BATCH:
        raise InvalidRequest(f"batchSize must be at most {MOST_PER_BATCH}", "batchSize")


def _previewed(row: Row) -> DispatchedItem:
    return DispatchedItem(
        f"outbox_{row['id']}",
        row["retry_count"],
        _seconds(row["next_attempt_at"]),
        _seconds(row["last_attempt_at"]),
    )


def _dispatched(claim: Claim[Mail], ends: dict[int, Settlement | None]) -> DispatchedItem:
    return DispatchedItem(
        f"outbox_{claim.id}",
        claim.attempts,
        _seconds(claim.item.due_at),
        _seconds(claim.item.last_attempt_at),
        _state_after(ends[claim.id]) if claim.id in ends else None,
    )


def _state_after(settlement: Settlement | None) -> str:
    match settlement:
        case Complete():
            return "sent"
        case RetryIn():
            return "queued"
        case Discard():
            return "expired"
        case None:
            # The row is another worker's by now, or was given back.
            return "dispatching"
        case _:
            return "failed"


def _seconds(value: datetime | str | None) -> str | None:
    """As the specification's example has it: to the second where nothing is lost, else milliseconds."""
    text = iso(value)
    return text.replace(".000Z", "Z") if text else None


# ── /api/mail ────────────────────────────────────────────────────────────────────────────────────


class MailRequest(Struct, frozen=True, rename={"sender": "from"}, forbid_unknown_fields=True):
    """One mail, as it is ordered by POST."""

    to: str | list[str]
    sender: str | None = None
    cc: str | list[str] = ""
    bcc: str | list[str] = ""
    replyTo: str | None = None
    subject: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    text: str | None = None
    html: str | None = None
    template: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    variables: dict[str, Any] | None = None
    locale: Annotated[str, msgspec.Meta(max_length=35)] | None = None
    headers: dict[str, str] | None = None
    attachments: tuple[StoredAttachment, ...] | None = None
    unsubscribeUrl: Annotated[str, msgspec.Meta(max_length=2000)] | None = None
    idempotencyKey: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    expiresAt: datetime | None = None
    sendAt: datetime | None = None
    urgent: bool = False
    metadata: dict[str, Any] | None = None


class CreatedMail(Struct, frozen=True, rename="camel"):
    id: str
    status: str
    #: created, or duplicate when the idempotency key was known with the same content
    verdict: str


class Mails(Controller):
    """Mails in the outbox."""

    path = "/api/mail"
    tags = ("mail_outbox",)

    @post("/", summary="Put one mail, or up to 1,000, into the outbox", opt={"reads_own_body": True})
    async def create(
        self,
        mail_orders: NamedDependency[MailOrders],
        request: Request[Any, Any, Any],
        data: JSONBody[MailRequest | list[MailRequest] | None] = None,  # noqa: ARG002 - documents the body
    ) -> Response[CreatedMail | dict[str, Any]]:
        """One mail gets 201, or 200 when its idempotency key is known. An array gets a verdict per item."""
        require_json(request.headers.get("content-type"))
        body = await request.body()
        if body.lstrip()[:1] == b"[":
            return Response(await mail_orders.place_all(decode(body, list[msgspec.Raw])), status_code=200)
        ordered = await mail_orders.place(order_of(decode(body, MailRequest)))
        return Response(_created(ordered), status_code=201 if ordered.verdict == "created" else 200)

    @get("/", summary="Mails, newest first")
    async def list(
        self,
        outbox: NamedDependency[MailOutbox],
        status: FromQuery[str | None] = None,
        before: FromQuery[str | None] = None,
        limit: FromQuery[int] = 20,
    ) -> dict[str, Any]:
        if status is not None and status not in STATES:
            raise InvalidRequest(f"status must be one of {', '.join(STATES)}", "status")
        if not 1 <= limit <= 100:
            raise InvalidRequest("limit must be from 1 to 100", "limit")
        cursor = row_number(before) if before else None
        rows = await outbox.page(status=status, before=cursor, limit=limit)
        items = [listed(row) for row in rows]
        return {"items": items, "next": items[-1]["id"] if len(items) == limit else None}

    @get("/{mail_id:str}", summary="One mail, with the verdict of each recipient")
    async def get(self, outbox: NamedDependency[MailOutbox], mail_id: FromPath[str]) -> dict[str, Any]:
        return shown(await _existing(outbox, mail_id))

    @post(
        "/{mail_id:str}/requeue",
        status_code=200,
        summary="Send an ended mail again, to those who did not get it",
    )
    async def requeue(self, outbox: NamedDependency[MailOutbox], mail_id: FromPath[str]) -> dict[str, Any]:
        row = await _existing(outbox, mail_id)
        if not await outbox.requeue([row["id"]]):
            raise NotAllowed(
                f"a mail that is {row['status']} cannot be requeued: only failed, cancelled or expired"
            )
        return shown(await _existing(outbox, mail_id))

    @post("/{mail_id:str}/cancel", status_code=200, summary="Take a mail out of the queue")
    async def cancel(self, outbox: NamedDependency[MailOutbox], mail_id: FromPath[str]) -> dict[str, Any]:
        row = await _existing(outbox, mail_id)
        if not await outbox.cancel([row["id"]]):
            raise NotAllowed(f"a mail that is {row['status']} cannot be cancelled: only a queued one")
        return shown(await _existing(outbox, mail_id))


class MailOrders:
    """Takes orders. Those that arrive at the same time share one insert."""

    def __init__(self, outbox: MailOutbox, telemetry: Telemetry) -> None:
        self._outbox = outbox
        self._telemetry = telemetry
        self._enqueue: Batched[NewMail, Ordered] = Batched(outbox.enqueue)

    async def place(self, order: NewMail) -> Ordered:
        ordered = await self._enqueue(order)
        if ordered.verdict == "conflict":
            raise NotAllowed(f"the idempotency key was used for another mail, outbox_{ordered.id}")
        self._count([ordered])
        return ordered

    async def place_all(self, items: Sequence[msgspec.Raw]) -> dict[str, Any]:
        """Everything that can be taken is taken; each item gets its own verdict."""
        if not 1 <= len(items) <= MOST_PER_POST:
            raise InvalidRequest(f"an array must hold from 1 to {MOST_PER_POST} mails")
        read = [_read(item) for item in items]
        orders = [order for order in read if isinstance(order, NewMail)]
        ordered = iter(await self._outbox.enqueue(orders) if orders else [])
        verdicts = [_verdict(next(ordered) if isinstance(one, NewMail) else one) for one in read]
        created = sum(v["verdict"] == "created" for v in verdicts)
        self._telemetry.enqueued("mail_outbox", created)
        return {"created": created, "items": verdicts}

    def _count(self, ordered: Sequence[Ordered]) -> None:
        self._telemetry.enqueued("mail_outbox", sum(o.verdict == "created" for o in ordered))


def _read(item: msgspec.Raw) -> NewMail | InvalidRequest:
    try:
        return order_of(decode(item, MailRequest))
    except InvalidRequest as error:
        return error


def _verdict(one: Ordered | InvalidRequest) -> dict[str, Any]:
    if isinstance(one, InvalidRequest):
        details = {"field": one.field} if one.field else {}
        return {
            "verdict": "invalid",
            "error": {"code": "INVALID_REQUEST", "message": str(one), "details": details},
        }
    return {"verdict": one.verdict, "id": f"outbox_{one.id}", "status": one.status}


def _created(ordered: Ordered) -> CreatedMail:
    return CreatedMail(f"outbox_{ordered.id}", ordered.status, ordered.verdict)


# ── from a request to a row, and back ────────────────────────────────────────────────────────────


def order_of(request: MailRequest) -> NewMail:
    """Check what a database would take and a sender would later refuse."""
    to, cc, bcc = (_recipients(name, getattr(request, name)) for name in ("to", "cc", "bcc"))
    if not (to or cc or bcc):
        raise InvalidRequest("to: a mail needs at least one recipient", "to")
    _check_content(request)
    return NewMail(
        token=new_token(),
        to_address=", ".join(to),
        cc_address=", ".join(cc) or None,
        bcc_address=", ".join(bcc) or None,
        from_address=_address("from", request.sender),
        reply_to=_address("replyTo", request.replyTo),
        subject=request.subject,
        text_body=request.text,
        html_body=request.html,
        template=request.template,
        variables=request.variables,
        locale=request.locale,
        headers=request.headers,
        attachments=request.attachments or None,
        unsubscribe_url=request.unsubscribeUrl,
        idempotency_key=request.idempotencyKey,
        fingerprint=_fingerprint(request) if request.idempotencyKey else None,
        expires_at=_moment("expiresAt", request.expiresAt),
        metadata=request.metadata,
        send_at=_moment("sendAt", request.sendAt),
        urgent=request.urgent,
    )


def _recipients(field: str, given: str | list[str]) -> list[str]:
    try:
        items = split_address_list(given) if isinstance(given, str) else given
        for item in items:
            parse_address(item)
    except InvalidAddress as error:
        raise InvalidRequest(f"{field}: {error}", field) from None
    if len(items) > _MOST_RECIPIENTS:
        raise InvalidRequest(f"{field}: at most {_MOST_RECIPIENTS} recipients", field)
    return items


def _address(field: str, given: str | None) -> str | None:
    try:
        if given is not None:
            parse_address(given)
    except InvalidAddress as error:
        raise InvalidRequest(f"{field}: {error}", field) from None
    return given


def _check_content(request: MailRequest) -> None:
    if request.template is None and request.text is None and request.html is None:
        raise InvalidRequest("text: a mail needs a text, an html or a template", "text")
    if request.urgent and request.sendAt is not None:
        raise InvalidRequest("urgent: an urgent mail goes at once, so it cannot have a sendAt", "urgent")
    if _NUL_IN_JSON.search(msgspec.json.encode(request)):
        raise InvalidRequest("a text contains a NUL character, which no database keeps")
    try:
        assemble(_draft(request))
    except Unassemblable as error:
        raise InvalidRequest(f"{error.field}: {error}", error.field) from None


def _draft(request: MailRequest) -> MailMessage:
    """Everything that can be wrong with the mail itself; addresses and bodies are judged elsewhere."""
    return MailMessage(
        message_id="<draft@localhost>",
        date=_SOME_DATE,
        sender="draft@localhost",
        recipients=(),
        subject=request.subject,
        headers=tuple((request.headers or {}).items()),
        attachments=tuple(a.attachment() for a in request.attachments or ()),
        unsubscribe_url=request.unsubscribeUrl,
    )


def _moment(field: str, value: datetime | None) -> str | None:
    if value is None:
        return None
    if value.tzinfo is None:
        raise InvalidRequest(f"{field}: the time needs a zone, such as Z", field)
    return iso(value)


def _fingerprint(request: MailRequest) -> str:
    return hashlib.sha256(msgspec.json.encode(request, order="deterministic")).hexdigest()


def row_number(text: str) -> int:
    digits = text.removeprefix("outbox_")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        raise NotFound(f"there is no mail {text[:40]!r}; ids look like outbox_123")
    return int(digits)


async def _existing(outbox: MailOutbox, mail_id: str) -> Row:
    row = await outbox.get(row_number(mail_id))
    if row is None:
        raise NotFound(f"there is no mail {mail_id}")
    return row


def listed(row: Row) -> dict[str, Any]:
    return {
        "id": f"outbox_{row['id']}",
        "status": row["status"],
        "retryCount": row["retry_count"],
        "nextAttemptAt": iso(row["next_attempt_at"]),
        "lastAttemptAt": iso(row["last_attempt_at"]),
        "lastError": row["last_error"],
        "to": row["to_address"],
        "subject": row["subject"],
        "template": row["template"],
        "idempotencyKey": row["idempotency_key"],
        "provider": row["provider"],
        "createdAt": iso(row["created_at"]),
        "sentAt": iso(row["sent_at"]),
    }


def shown(row: Row) -> dict[str, Any]:
    """Everything but the attachments' contents."""
    read = msgspec.json.decode
    return {
        **listed(row),
        "from": row["from_address"],
        "cc": row["cc_address"],
        "bcc": row["bcc_address"],
        "replyTo": row["reply_to"],
        "text": row["text_body"],
        "html": row["html_body"],
        "variables": read(row["variables"]) if row["variables"] else None,
        "locale": row["locale"],
        "headers": read(row["headers"]) if row["headers"] else None,
        "attachments": [a["filename"] for a in read(row["attachments"])] if row["attachments"] else [],
        "unsubscribeUrl": row["unsubscribe_url"],
        "metadata": read(row["metadata"]) if row["metadata"] else None,
        "expiresAt": iso(row["expires_at"]),
        "recipients": read(row["recipients"]) if row["recipients"] else {},
        "providerMessageId": row["provider_message_id"],
        "rescueCount": row["rescue_count"],
        "deferCount": row["defer_count"],
        "claimSeq": row["claim_seq"],
        "lockedBy": row["locked_by"],
        "leaseExpiresAt": iso(row["lease_expires_at"]),
    }
