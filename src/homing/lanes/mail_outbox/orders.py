"""Orders of mails as the API takes them: checked, so that nothing is stored that could never be sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from homing.db import iso
from homing.engine.aside import LARGE, each
from homing.engine.coalesce import Batched
from homing.errors import InvalidRequest, MissingValue, NotAllowed
from homing.lanes.mail_outbox.mail import ALERT_KEY, NewMail
from homing.lanes.mail_outbox.outbox import MailOutbox, Ordered, new_token
from homing.replies import BatchReply, Verdict, invalid
from homing.senders.compose import StoredAttachment
from homing.senders.drafts import (
    check_draft,
    check_numbers,
    check_texts,
    checked_address,
    checked_recipients,
    fingerprint,
)
from homing.strict_json import decode
from homing.telemetry import Telemetry
from homing.tracing import Trace

MOST_PER_POST = 1000
_FIRST_YEAR, _LAST_YEAR = 1970, 9998


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
        self._batched: Batched[NewMail, Ordered] = Batched(outbox.enqueue)

    async def place(self, order: NewMail, size: int = 0) -> Ordered:
        """`size` is that of the request in bytes: a large one goes alone."""
        with self._telemetry.tracing.creating("mail_outbox") as trace:
            ordered = await self._enqueue(_of_trace(order, trace), size)
        if ordered.verdict == "conflict":
            raise NotAllowed(f"the idempotency key was used for another mail, outbox_{ordered.id}")
        self._count([ordered])
        return ordered

    async def place_all(self, items: Sequence[msgspec.Raw]) -> BatchReply:
        """Everything that can be taken is taken; each item gets its own verdict."""
        if not 1 <= len(items) <= MOST_PER_POST:
            raise InvalidRequest(f"an array must hold from 1 to {MOST_PER_POST} mails")
        read = await each(_read, items)
        size = sum(memoryview(item).nbytes for item in items)
        ordered = iter(await self._enqueue_all([one for one in read if isinstance(one, NewMail)], size))
        verdicts = [_verdict(next(ordered) if isinstance(one, NewMail) else one) for one in read]
        created = sum(one.verdict == "created" for one in verdicts)
        self._telemetry.enqueued("mail_outbox", created)
        return BatchReply(created, verdicts)

    async def _enqueue_all(self, orders: Sequence[NewMail], size: int) -> Sequence[Ordered | InvalidRequest]:
        if not orders:
            return []
        with self._telemetry.tracing.creating("mail_outbox", len(orders)) as trace:
            traced = [_of_trace(order, trace) for order in orders]
            try:
                return await self._outbox.enqueue(traced, size)
            except MissingValue:
                # Another program's table: some of the mails may have what it wants.
                return await asyncio.gather(*map(self._enqueue_or_say, traced))

    async def _enqueue(self, order: NewMail, size: int = 0) -> Ordered:
        try:
            if size > LARGE:
                return (await self._outbox.enqueue([order], size))[0]
            return await self._batched(order)
        except MissingValue as error:
            raise _unfilled(error.column) from error

    async def _enqueue_or_say(self, order: NewMail) -> Ordered | InvalidRequest:
        try:
            return await self._enqueue(order)
        except InvalidRequest as error:
            return error

    def _count(self, ordered: Sequence[Ordered]) -> None:
        self._telemetry.enqueued("mail_outbox", sum(o.verdict == "created" for o in ordered))


def _of_trace(order: NewMail, trace: Trace | None) -> NewMail:
    return order if trace is None else msgspec.structs.replace(order, traceparent=trace.traceparent)


#: What fills a column that another program's table may want filled, where a mail may come without it.
_FILLED_BY = {
    "text_body": "text",
    "html_body": "html",
    "from_address": "from",
    "cc_address": "cc",
    "bcc_address": "bcc",
    "reply_to": "replyTo",
    "unsubscribe_url": "unsubscribeUrl",
    "idempotency_key": "idempotencyKey",
    "expires_at": "expiresAt",
    "send_at": "sendAt",
    **{name: name for name in ("template", "variables", "locale", "headers", "attachments", "metadata")},
}


def _unfilled(column: str) -> InvalidRequest | NotAllowed:
    """Another program made the table, and wants something in every row."""
    if field := _FILLED_BY.get(column.rpartition(".")[2]):
        return InvalidRequest(f"{field}: every mail needs it here, for {column} is NOT NULL", field)
    return NotAllowed(
        f"{column} is NOT NULL, and Homing knows no value for it: give the column a default, or insert mails "
        "by the program that made the table"
    )


def _read(item: msgspec.Raw) -> NewMail | InvalidRequest:
    try:
        return read_order(item)
    except InvalidRequest as error:
        return error


def _verdict(one: Ordered | InvalidRequest) -> Verdict:
    if isinstance(one, InvalidRequest):
        return Verdict("invalid", error=invalid(one))
    return Verdict(one.verdict, f"outbox_{one.id}", one.status)


# ── from a request to a row ───────────────────────────────────────────────────────────────────────


def read_order(body: bytes | msgspec.Raw) -> NewMail:
    return order_of(decode(body, MailRequest))


def order_of(request: MailRequest) -> NewMail:
    """Check what a database would take and a sender would later refuse."""
    to, cc, bcc = (checked_recipients(name, getattr(request, name)) for name in ("to", "cc", "bcc"))
    if not (to or cc or bcc):
        raise InvalidRequest("to: a mail needs at least one recipient", "to")
    _check_key(request.idempotencyKey)
    _check_content(request)
    return NewMail(
        token=new_token(),
        to_address=", ".join(to),
        cc_address=", ".join(cc) or None,
        bcc_address=", ".join(bcc) or None,
        from_address=checked_address("from", request.sender),
        reply_to=checked_address("replyTo", request.replyTo),
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
        fingerprint=fingerprint(request) if request.idempotencyKey else None,
        expires_at=_moment("expiresAt", request.expiresAt),
        metadata=request.metadata,
        send_at=_moment("sendAt", request.sendAt),
        urgent=request.urgent,
    )


def _check_key(key: str | None) -> None:
    # In small letters: SQLite's LIKE, by which the triggers know alerts, takes capitals for the same.
    if key is not None and key.lower().startswith(ALERT_KEY):
        raise InvalidRequest(
            f"idempotencyKey: keys that begin with {ALERT_KEY} are those of Homing's own alerts",
            "idempotencyKey",
        )


def _check_content(request: MailRequest) -> None:
    if request.template is None and request.text is None and request.html is None:
        raise InvalidRequest("text: a mail needs a text, an html or a template", "text")
    if request.urgent and request.sendAt is not None:
        raise InvalidRequest("urgent: an urgent mail goes at once, so it cannot have a sendAt", "urgent")
    check_texts(request)
    check_numbers("variables", request.variables)
    check_numbers("metadata", request.metadata)
    check_draft(
        subject=request.subject,
        headers=request.headers,
        attachments=request.attachments,
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
