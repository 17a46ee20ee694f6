"""One POST to a receiver who may be slow, broken or hostile, and what came of it as a value.

    sender = WebhookSender(EgressGuard())
    result = await sender.send(WebhookRequest(url="https://partner.example/hook", headers=(), body=b"{}"))

Connections are kept and shared. A request goes out once: where it may have arrived, the result says
`unknown`, and whether to try again is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache

from msgspec import Struct

from homing.senders.egress import EgressGuard, Malformed
from homing.senders.webhook_answer import body_text, kept_headers, retry_after, secrets_of
from homing.senders.webhook_connect import Connector
from homing.senders.webhook_dns import GuardedResolver, Lookup, OnRefused, untold
from homing.senders.webhook_failure import NOT_HTTP, UNWRITABLE, Failure, lost, no_connection
from homing.senders.webhook_head import Destination, destination, request_head
from homing.senders.webhook_pool import ConnectionPool
from homing.senders.webhook_protocol import Answer, Deadline

#: How many connections in a row may turn out to be dead before anything was written on them.
_STALE_CONNECTIONS = 3


class WebhookRequest(Struct, frozen=True):
    """A POST, signed and complete but for Host, Content-Length, Accept, Accept-Encoding and User-Agent."""

    url: str
    headers: Sequence[tuple[str, str]]
    body: bytes
    #: Seconds for everything: name, connection, TLS, request and answer.
    timeout: float = 30.0

    def __repr__(self) -> str:
        # A traceback with local variables would show the bearer token, and often a token in the URL.
        return f"<WebhookRequest of {len(self.body)} bytes>"


class WebhookResult(Struct, frozen=True):
    """What became of one attempt. Never raised."""

    #: None when no answer came. Beside an `error_code`, the answer broke off after its headers.
    status: int | None = None
    #: None for a complete answer; else timeout, dns_error, connect_error, tls_error, connection_lost,
    #: protocol_error, egress_refused, invalid_url or invalid_request.
    error_code: str | None = None
    #: One line for a person; nothing of the request or the body in it.
    message: str = ""
    #: At most 5,000 characters, fit for a database; the end says so when it was cut.
    body: str = ""
    #: At most fifty, without secrets.
    headers: tuple[tuple[str, str], ...] = ()
    #: Seconds the receiver asked us to wait.
    retry_after: float | None = None
    seconds: float = 0.0
    #: The request was written to its end and no complete answer came: it may have been processed.
    unknown: bool = False


class WebhookSender:
    """Sends webhooks over connections that it keeps.

    `connections` bounds those in use at a time, `connections_per_host` those to one receiver; a request
    that finds none free waits, within its time. More than `connections` are not kept open either.
    """

    def __init__(
        self,
        guard: EgressGuard,
        *,
        connections_per_host: int = 32,
        connections: int = 512,
        ssl_context: ssl.SSLContext | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        lookup: Lookup | None = None,
        on_refused: OnRefused = untold,
    ) -> None:
        self._guard = guard
        self._monotonic = monotonic
        self._clock = clock
        self._resolver = GuardedResolver(guard, lookup, monotonic=monotonic, on_refused=on_refused)
        context = _system_context if ssl_context is None else lambda: ssl_context
        self._pool = ConnectionPool(
            Connector(guard, self._resolver, context),
            per_origin=connections_per_host,
            total=connections,
            monotonic=monotonic,
        )
        # Jobs come in crowds for few targets, and reading a URL costs as much as signing a body.
        self._destination = lru_cache(maxsize=4096)(self._read_url)

    async def send(self, request: WebhookRequest) -> WebhookResult:
        """Try once. Raises nothing for what goes wrong out there."""
        started = self._monotonic()
        to = self._destination(request.url)
        if isinstance(to, Failure):
            return _failed(to)
        head = request_head(to, request.headers, len(request.body))
        if head is None:
            return _failed(UNWRITABLE)
        answer = await self._exchange(to, head, request)
        return self._result(request, answer, self._monotonic() - started)

    async def close(self) -> None:
        """Drop the connections; what is under way fails."""
        await self._pool.close()
        await self._resolver.close()

    def _read_url(self, url: str) -> Destination | Failure:
        target = self._guard.target(url)
        if isinstance(target, Malformed):
            return Failure("invalid_url", target.reason)
        reason = self._guard.target_refusal(target)
        return destination(target) if reason is None else Failure("egress_refused", reason)

    async def _exchange(self, to: Destination, head: bytes, request: WebhookRequest) -> Answer:
        if request.timeout <= 0:
            return Answer(failure=no_connection(request.timeout))
        now = asyncio.get_running_loop().time()
        deadline = Deadline(now + request.timeout, request.timeout)
        end: Failure | None = None
        for _ in range(_STALE_CONNECTIONS):
            connection = self._pool.take(to.origin) or await self._pool.open(to.origin, deadline)
            if isinstance(connection, Failure):
                return Answer(failure=connection)
            asked = connection.ask(head, request.body, deadline)
            if asked is not None:
                try:
                    return await asked
                except asyncio.CancelledError:
                    connection.abandon(asked)
                    raise
            # It had ended meanwhile. Nothing was written, so nothing is sent twice.
            end = connection.end
        return Answer(failure=end or lost(None))

    def _result(self, request: WebhookRequest, answer: Answer, seconds: float) -> WebhookResult:
        status, failure = answer.status, answer.failure
        if status is None:
            return _failed(failure or NOT_HTTP, seconds, unknown=answer.written)
        secrets = secrets_of(request.headers)
        return WebhookResult(
            status=status,
            error_code=None if failure is None else failure.code,
            message=_said(status, failure),
            body=body_text(answer.body, secrets, complete=answer.whole),
            headers=kept_headers(answer.headers, secrets),
            # A success asks for no patience.
            retry_after=None if status < 300 else retry_after(answer.headers, self._clock()),
            seconds=seconds,
            unknown=failure is not None and answer.written,
        )


def tls_context(cafile: str | None = None) -> ssl.SSLContext:
    """TLS as webhooks use it: 1.2 at least, and certificates are always checked."""
    context = ssl.create_default_context(cafile=cafile)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


@cache
def _system_context() -> ssl.SSLContext:
    """To read all authorities of a system takes 20 ms: once, and only where somebody speaks TLS."""
    return tls_context()


def _failed(failure: Failure, seconds: float = 0.0, *, unknown: bool = False) -> WebhookResult:
    return WebhookResult(error_code=failure.code, message=failure.message, seconds=seconds, unknown=unknown)


def _said(status: int, failure: Failure | None) -> str:
    if failure is not None:
        return f"HTTP {status}, but {failure.message}"
    if 300 <= status < 400:
        return f"HTTP {status}; redirects are not followed: update the target URL"
    return f"HTTP {status}"
