"""The router's mediator: has a job processed here, or over HTTP where its message says."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from ipaddress import ip_network

import msgspec
from msgspec import Struct

from homing.brokers.pointer import MessagePointer
from homing.brokers.router import Mediated
from homing.errors import DatabaseError
from homing.lanes.dispatch_jobs.processing import STATUS, Processing, ProcessReply
from homing.lanes.dispatch_jobs.tokens import ProcessTokens
from homing.lanes.dispatch_jobs.tsid import number_of
from homing.senders.egress import EgressGuard
from homing.senders.webhook import WebhookRequest, WebhookSender
from homing.tracing import Tracing

#: Longer than any attempt at a webhook, and what comes before and after it.
_PATIENCE = 900.0
#: Our own address was set by the operator, who may have put it anywhere.
_ANYWHERE = (ip_network("0.0.0.0/0"), ip_network("::/0"))


class _Reply(Struct, frozen=True, rename="camel"):
    ack: bool | None = None
    message: str = ""
    delay_seconds: float | None = None


_decode = msgspec.json.Decoder(_Reply).decode
_encode = msgspec.json.Encoder().encode


class DirectMediator:
    """For messages that name our own endpoint: what that would do, without the way there."""

    def __init__(self, processing: Processing, tokens: ProcessTokens) -> None:
        self._processing = processing
        self._tokens = tokens

    def knows(self, pointer: MessagePointer) -> bool:
        """Our token says that the job is ours, wherever the API was when the message was sent."""
        return self._tokens.accepts(pointer.id, pointer.auth_token or "")

    async def __call__(self, pointer: MessagePointer) -> Mediated:
        # Whoever can write to a queue must not be able to have jobs processed that are none of theirs.
        if not self.knows(pointer):
            return Mediated(401, message="the token is not that of this job")
        number = number_of(pointer.id)
        if number is None:
            return Mediated(200, message="there is no such job")
        try:
            reply = await self._processing(number)
        except DatabaseError as error:
            return Mediated(500, message=str(error))
        return _mediated(reply)


def _mediated(reply: ProcessReply) -> Mediated:
    return Mediated(STATUS[reply.ack], reply.ack, reply.delay_seconds, reply.message)


class HttpMediator:
    """A POST with the message's id and token; the answer says what is to become of the message."""

    def __init__(self, sender: WebhookSender, tracing: Tracing) -> None:
        self._sender = sender
        self._tracing = tracing

    def knows(self, _pointer: MessagePointer) -> bool:
        """The token is for a job, not for an address: whoever has it must not say where we send it."""
        return False

    async def __call__(self, pointer: MessagePointer) -> Mediated:
        headers = [
            ("Content-Type", "application/json"),
            ("Authorization", f"Bearer {pointer.auth_token or ''}"),
        ]
        if (trace := self._tracing.passed_on()) is not None:
            headers += trace.headers
        body = _encode({"messageId": pointer.id})
        result = await self._sender.send(
            WebhookRequest(pointer.mediation_target, headers, body, timeout=_PATIENCE)
        )
        if result.error_code is not None or result.status is None:
            return Mediated(None, message=result.message)
        return _read(result.status, result.body)


def _read(status: int, body: str) -> Mediated:
    try:
        reply = _decode(body)
    except msgspec.DecodeError:
        return Mediated(status)
    return Mediated(status, reply.ack is not False, reply.delay_seconds, reply.message[:200])


class Mediator:
    """Our own endpoint by a way of its own; everything else over HTTP, by the rules for webhooks."""

    def __init__(
        self, process_url: Callable[[], str], own: DirectMediator | HttpMediator, others: HttpMediator
    ) -> None:
        self._process_url = process_url
        self._own = own
        self._others = others

    async def __call__(self, pointer: MessagePointer) -> Mediated:
        if not (pointer.mediation_target == self._process_url() or self._own.knows(pointer)):
            return await self._others(pointer)
        answer = await self._own(pointer)
        # No time makes a wrong token right, and the message would hold up its group until then. Of a job that
        # waits for one, a message with the right token is sent. What a 401 means elsewhere we do not know.
        return msgspec.structs.replace(answer, is_refused=answer.status == HTTPStatus.UNAUTHORIZED)


def open_own_sender(connections: int) -> WebhookSender:
    """For our own endpoint: loopback and plain http are as good as anything there."""
    guard = EgressGuard(_ANYWHERE, allow_http=True)
    return WebhookSender(guard, connections=connections, connections_per_host=connections)
