"""One POST to a receiver who may be slow, broken or hostile, and what came of it as a value.

    sender = WebhookSender(EgressGuard())
    result = await sender.send(WebhookRequest(url="https://partner.example/hook", headers=(), body=b"{}"))

Connections are kept and shared. A request goes out once: where it may have arrived, the result says
`unknown`, and whether to try again is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from weakref import WeakSet

from aiohttp import ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from msgspec import Struct
from msgspec.structs import replace
from multidict import CIMultiDict
from yarl import URL

from homing import __version__
from homing.senders.egress import AddressInfo, EgressGuard, Malformed
from homing.senders.webhook_answer import body_text, kept_headers, parse_retry_after, read_body, secrets_of
from homing.senders.webhook_body import TrackedBody
from homing.senders.webhook_dns import GuardedResolver, Lookup
from homing.senders.webhook_failure import CONNECT_TIMEOUT, why

# These frame the message, and a job that could set them could smuggle a second request into it.
_NOT_FOR_CALLERS = frozenset(
    (
        "host", "content-length", "transfer-encoding", "connection", "keep-alive", "proxy-connection",
        "proxy-authorization", "te", "trailer", "upgrade", "expect", "accept-encoding",
    )
)  # fmt: skip
_USER_AGENT = f"Homing/{__version__}"
#: Seconds a connection may idle; servers commonly hang up after a minute or more.
_KEEP_ALIVE = 20.0
#: How many connections in a row may turn out to be dead before anything was written on them.
_STALE_CONNECTIONS = 3


class WebhookRequest(Struct, frozen=True):
    """A POST, signed and complete but for Host, Content-Length, Accept-Encoding and User-Agent."""

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
    #: protocol_error, egress_refused or invalid_url.
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
    ) -> None:
        self._guard = guard
        self._connections_per_host = connections_per_host
        self._connections = connections
        self._ssl_context = tls_context() if ssl_context is None else ssl_context
        self._monotonic = monotonic
        self._clock = clock
        self._resolver = GuardedResolver(guard, lookup, monotonic=monotonic)
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._session: ClientSession | None = None
        self._closed = False
        # Jobs come in crowds for few targets, and reading a URL costs as much as signing a body.
        self._target = lru_cache(maxsize=4096)(self._read_target)

    async def send(self, request: WebhookRequest) -> WebhookResult:
        """Try once. Raises nothing for what goes wrong out there."""
        started = self._monotonic()
        target = self._target(request.url)
        if isinstance(target, WebhookResult):
            return target
        left = request.timeout
        for _ in range(_STALE_CONNECTIONS):
            body = TrackedBody(request.body)
            result = await self._exchange(target, request, body, left)
            if body.begun or result.error_code not in _DIED_BEFORE_USE:
                break
            # A kept connection had ended meanwhile. Nothing was written, so nothing is sent twice.
            left = request.timeout - (self._monotonic() - started)
        return replace(result, seconds=self._monotonic() - started)

    async def close(self) -> None:
        """Drop the connections; what is under way fails."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
        await self._resolver.close()

    def _read_target(self, url: str) -> URL | WebhookResult:
        target = self._guard.target(url)
        if isinstance(target, Malformed):
            return WebhookResult(error_code="invalid_url", message=target.reason)
        reason = self._guard.target_refusal(target)
        if reason is not None:
            return WebhookResult(error_code="egress_refused", message=reason)
        # `encoded` leaves path and query byte for byte as they were given.
        return URL(target.url, encoded=True)

    async def _exchange(
        self, target: URL, request: WebhookRequest, body: TrackedBody, left: float
    ) -> WebhookResult:
        response: ClientResponse | None = None
        if self._closed:
            return _CLOSED
        try:
            response = await self._open().post(
                target,
                data=body,
                headers=self._headers(request.headers),
                timeout=_timeouts(left),
                allow_redirects=False,
            )
            content, whole = await _content(response)
        except asyncio.CancelledError:
            _drop(body, response)
            if _is_cancelled():
                raise
            return _CLOSED
        except Exception as error:  # noqa: BLE001 - whatever a receiver can provoke is a result
            _drop(body, response)
            return self._failed(error, request, body, response)
        if not (whole and body.begun):
            _drop(body, response)
        if not body.begun:
            return _UNASKED
        return self._answered(request, response, content, whole=whole)

    def _answered(
        self, request: WebhookRequest, response: ClientResponse, content: bytes, *, whole: bool
    ) -> WebhookResult:
        secrets = secrets_of(request.headers)
        headers = response.headers
        retry_after = headers.get("Retry-After")
        return WebhookResult(
            status=response.status,
            message=_said(response.status),
            body=body_text(content, secrets, complete=whole),
            headers=kept_headers(headers, secrets),
            retry_after=None if retry_after is None else parse_retry_after(retry_after, self._clock()),
        )

    def _failed(
        self, error: Exception, request: WebhookRequest, body: TrackedBody, response: ClientResponse | None
    ) -> WebhookResult:
        failure = why(error, request.timeout, begun=body.begun, answered=response is not None)
        if response is None:
            return WebhookResult(error_code=failure.code, message=failure.message, unknown=body.complete)
        begun = self._answered(request, response, b"", whole=True)
        message = f"HTTP {begun.status}, but {failure.message}"
        return replace(begun, error_code=failure.code, message=message, unknown=body.complete)

    def _headers(self, given: Sequence[tuple[str, str]]) -> CIMultiDict[str]:
        headers = CIMultiDict([pair for pair in given if pair[0].lower() not in _NOT_FOR_CALLERS])
        headers["Accept-Encoding"] = "identity"
        headers.setdefault("User-Agent", _USER_AGENT)
        if len(self._sockets) > self._connections:
            # aiohttp bounds connections in use and keeps any number of idle ones: with thousands of
            # receivers those would use up the files that a process may open.
            headers["Connection"] = "close"
        return headers

    def _open(self) -> ClientSession:
        """The session, made on first use because it belongs to the loop that runs then."""
        if self._session is None:
            self._session = ClientSession(
                connector=self._connector(),
                cookie_jar=DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session

    def _connector(self) -> TCPConnector:
        return TCPConnector(
            resolver=self._resolver,
            # The resolver keeps answers itself, failures too.
            use_dns_cache=False,
            socket_factory=self._open_socket,
            ssl=self._ssl_context,
            limit=self._connections,
            limit_per_host=self._connections_per_host,
            keepalive_timeout=_KEEP_ALIVE,
            timeout_ceil_threshold=math.inf,
        )

    def _open_socket(self, info: AddressInfo) -> socket.socket:
        opened = self._guard.open_socket(info)
        self._sockets.add(opened)
        return opened


def tls_context(cafile: str | None = None) -> ssl.SSLContext:
    """TLS as webhooks use it: 1.2 at least, and certificates are always checked."""
    context = ssl.create_default_context(cafile=cafile)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


_CLOSED = WebhookResult(error_code="connection_lost", message="the sender is closing")
_UNASKED = WebhookResult(error_code="protocol_error", message="the receiver answered before it was asked")
_DIED_BEFORE_USE = frozenset(("connection_lost", "protocol_error"))


@lru_cache(maxsize=64)
def _timeouts(seconds: float) -> ClientTimeout:
    # aiohttp takes zero and less for no limit at all, and rounds long times up unless told not to.
    total = max(seconds, 0.001)
    return ClientTimeout(total=total, sock_connect=min(CONNECT_TIMEOUT, total), ceil_threshold=math.inf)


async def _content(response: ClientResponse) -> tuple[bytes, bool]:
    if response.status == 101:
        # It changed to another protocol, whose bytes are no answer to anything.
        response.close()
        return b"", True
    return await read_body(response)


def _drop(body: TrackedBody, response: ClientResponse | None) -> None:
    """Let go of a connection that is in the middle of something."""
    body.abort()
    if response is not None:
        response.close()


def _is_cancelled() -> bool:
    """Whether somebody cancelled us. Closing the sender ends waits in the same way."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _said(status: int) -> str:
    if 300 <= status < 400:
        return f"HTTP {status}; redirects are not followed: update the target URL"
    return f"HTTP {status}"
