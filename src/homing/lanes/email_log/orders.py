"""Orders of emails: checked, written with their key in one statement, and published in the same breath."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from homing.engine.aside import LARGE
from homing.engine.coalesce import Batched
from homing.engine.deliver import Deliverer
from homing.engine.model import Claim, Monotonic
from homing.errors import InvalidRequest, NotAllowed
from homing.lanes.email_log.email import Due, NewEmail, Ordered
from homing.lanes.email_log.log import EmailLog, new_token
from homing.lanes.email_log.queues import LONGEST_KEY
from homing.lanes.email_log.view import check_plain, email_id
from homing.senders.compose import StoredAttachment
from homing.senders.drafts import (
    check_draft,
    check_numbers,
    check_texts,
    checked_address,
    checked_recipients,
    fingerprint,
)
from homing.telemetry import Telemetry

#: An order is answered when its message is in the queue, or after this long: the row is written by then, and
#: the message follows.
_LONGEST_WAIT = 1.0

Key = Annotated[str, Meta(min_length=1, max_length=LONGEST_KEY)]


class EmailRequest(Struct, frozen=True, rename={"sender": "from"}, forbid_unknown_fields=True):
    """One email, as it is ordered by POST. It needs a `body`, an `html` or a `template`."""

    to: str | list[str]
    subject: Annotated[str, Meta(max_length=2000)] = ""
    #: The text.
    body: str | None = None
    #: The same key again is the same email; left out, each order is an email of its own.
    messageKey: Key | None = None
    html: str | None = None
    sender: str | None = None
    cc: str | list[str] = ""
    bcc: str | list[str] = ""
    replyTo: str | None = None
    template: Annotated[str, Meta(max_length=200)] | None = None
    variables: dict[str, Any] | None = None
    locale: Annotated[str, Meta(max_length=35)] | None = None
    headers: dict[str, str] | None = None
    attachments: tuple[StoredAttachment, ...] | None = None
    unsubscribeUrl: Annotated[str, Meta(max_length=2000)] | None = None


class EmailOrders:
    """Takes orders. Those that arrive at the same time share one insert, and one publish.

    To create is to claim: a new row is ours to publish from the moment in which it is written, by the same
    deliverer, lease and settlement as any other that a scheduler claims. Who dies in between is followed by a
    scheduler when the lease is over.
    """

    def __init__(
        self,
        emails: EmailLog,
        scheduling: Deliverer,
        telemetry: Telemetry,
        *,
        publishes: bool,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._scheduling = scheduling
        self._telemetry = telemetry
        self._monotonic = monotonic
        #: False when the broker is one in memory: the process that sends need not be this one.
        self._write = partial(emails.enqueue, publish=publishes)
        self._enqueue: Batched[NewEmail, Ordered] = Batched(self._write)

    async def place(self, order: NewEmail, size: int = 0) -> Ordered:
        """Written, and queued if the broker is there; raises `NotAllowed` when the key is another email's.

        `size` is that of the request in bytes: a large one goes alone.
        """
        asked = self._monotonic()
        with self._telemetry.tracing.creating("email_log") as trace:
            traceparent = trace.traceparent if trace is not None else None
            traced = msgspec.structs.replace(order, traceparent=traceparent)
            if size > LARGE:
                (ordered,) = await self._write([traced], size=size)
            else:
                ordered = await self._enqueue(traced)
        if ordered.verdict == "conflict":
            raise NotAllowed(f"the message key was used for another email, {email_id(ordered.id)}")
        if ordered.verdict == "created":
            self._telemetry.enqueued("email_log", 1)
        if ordered.claim is not None:
            await self._publish(ordered.claim, asked + self._scheduling.lane.lease_seconds)
        return ordered

    async def _publish(self, claim: Claim[Due], until: float) -> None:
        if self._scheduling.closing or self._scheduling.paused:
            await self._scheduling.lane.store.release([claim])
            return
        self._scheduling.take([claim], until)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_WAIT):
                await self._scheduling.settled([claim])


def order_of(request: EmailRequest) -> NewEmail:
    """Check what a database would take and a sender would later refuse."""
    to, cc, bcc = (checked_recipients(name, getattr(request, name)) for name in ("to", "cc", "bcc"))
    if not (to or cc or bcc):
        raise InvalidRequest("to: an email needs at least one recipient", "to")
    _check_content(request)
    return NewEmail(
        message_key=request.messageKey or new_token(),
        fingerprint=fingerprint(msgspec.structs.replace(request, messageKey=None)),
        token=new_token(),
        to_address=", ".join(to),
        cc_address=", ".join(cc) or None,
        bcc_address=", ".join(bcc) or None,
        from_address=checked_address("from", request.sender),
        reply_to=checked_address("replyTo", request.replyTo),
        subject=request.subject,
        body=request.body,
        html_body=request.html,
        template=request.template,
        variables=request.variables,
        locale=request.locale,
        headers=request.headers,
        attachments=request.attachments or None,
        unsubscribe_url=request.unsubscribeUrl,
    )


def _check_content(request: EmailRequest) -> None:
    if request.template is None and request.body is None and request.html is None:
        raise InvalidRequest("body: an email needs a body, an html or a template", "body")
    check_plain("messageKey", request.messageKey)
    check_texts(request)
    check_numbers("variables", request.variables)
    check_draft(
        subject=request.subject,
        headers=request.headers,
        attachments=request.attachments,
        unsubscribe_url=request.unsubscribeUrl,
    )
