"""Orders of mails as the API takes them: checked, so that nothing is stored that could never be sent."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from homing.db import iso
from homing.engine.coalesce import Batched
from homing.errors import InvalidRequest, NotAllowed
from homing.lanes.mail_outbox.mail import NewMail, StoredAttachment
from homing.lanes.mail_outbox.outbox import MailOutbox, Ordered, new_token
from homing.senders.addresses import InvalidAddress, parse_address, split_address_list
from homing.senders.mail import MailMessage
from homing.senders.mime import Unassemblable, assemble
from homing.strict_json import decode
from homing.telemetry import Telemetry

MOST_PER_POST = 1000
_MOST_RECIPIENTS = 1000
#: The escape of a NUL, as against the text of one after a backslash of its own.
_NUL_IN_JSON = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_FIRST_YEAR, _LAST_YEAR = 1970, 9998
#: What the sender calls a field, and what the API does.
_JSON_NAMES = {"unsubscribe_url": "unsubscribeUrl", "reply_to": "replyTo"}
_SOME_DATE = datetime(2000, 1, 1, tzinfo=UTC)


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


# ── from a request to a row ───────────────────────────────────────────────────────────────────────


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
        field = _JSON_NAMES.get(error.field, error.field)
        raise InvalidRequest(f"{field}: {error.reason}", field) from None


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
    if not _FIRST_YEAR <= value.year <= _LAST_YEAR:
        raise InvalidRequest(f"{field}: the year must be from {_FIRST_YEAR} to {_LAST_YEAR}", field)
    return iso(value)


def _fingerprint(request: MailRequest) -> str:
    return hashlib.sha256(msgspec.json.encode(request, order="deterministic")).hexdigest()
