"""What one client may take of the server before anybody knows who it is.

uvicorn with httptools bounds neither heads nor connections nor the time that a client takes for either.
We have patience with a client, in seconds: all of it when a request begins, less with each second in which
it is the client's turn, more with what it sends or reads. Where there is no room, who has least of it left
makes some.
"""

from __future__ import annotations

import asyncio
import socket
from collections import defaultdict
from collections.abc import Collection
from typing import Any, cast

import msgspec
from msgspec import Struct
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from homing.telemetry import Telemetry

LARGEST_URL = 8 * 1024
LARGEST_HEAD = 64 * 1024
MOST_HEADERS = 100
#: Connections of all clients together, where the process may open twice as many files.
MOST_CONNECTIONS = 2048
#: Requests on one connection that are sent before the first is answered.
_MOST_PIPELINED = 16
#: What is left of an answer, when its client reads at all.
_SMALL = 64 * 1024
#: Of a body, what a client sends in a second at the least; of an answer, what it reads.
_SLOWEST = 8 * 1024
_MAPPED = bytes(10) + b"\xff\xff"
#: By the reason that the metric tells: status, code, and what the client is told.
_REFUSALS = {
    "malformed": (400, "INVALID_REQUEST", "this is not a request of HTTP/1.1"),
    "slow": (408, "INVALID_REQUEST", "the request did not come in time; send it without a pause"),
    "long_url": (414, "INVALID_REQUEST", "the URL is longer than 8 KiB"),
    "large_head": (431, "INVALID_REQUEST", "the head of the request has more than 64 KiB or 100 fields"),
    "crowded": (503, "INTERNAL_ERROR", "too many connections are open; use fewer, or try again in a second"),
}


class Limits(Struct, frozen=True):
    #: For the head of a request, and for its body and the answer beyond 8 KiB a second.
    header_seconds: float = 10.0
    #: Between two requests on one connection.
    idle_seconds: int = 5
    connections_per_address: int = 500
    #: Of answers that nobody reads, all clients together.
    unread_bytes: int = 64 << 20


class Crowd(ServerState):
    """Who is connected."""

    def __init__(self, limits: Limits, room: int, telemetry: Telemetry) -> None:
        super().__init__()
        self.limits, self.telemetry = limits, telemetry
        self._room = min(room, MOST_CONNECTIONS)
        self._at: defaultdict[bytes, set[Connection]] = defaultdict(set)
        telemetry.count_connections(
            lambda: len(self.connections), lambda: sum(map(_unread, self.connections))
        )

    def admit(self, newcomer: Connection, place: bytes) -> bool:
        """Whether there is room for it, or somebody whom we wait for made some."""
        neighbours = self._at[place]
        neighbours.add(newcomer)
        # uvicorn's type names every protocol that it has; ours is the only one here.
        everybody: Collection[Any] = self.connections
        is_crowded = len(neighbours) > self.limits.connections_per_address
        if not is_crowded and len(everybody) <= self._room:
            return True
        others = (one for one in (neighbours if is_crowded else everybody) if one is not newcomer)
        slowest = min((one for one in others if one.is_awaited), key=_patience, default=None)
        if slowest is not None:
            slowest.give_up("crowded")
        return slowest is not None

    def bound_unread(self) -> None:
        """They stay in memory; the readers whom we have least patience with get no more of theirs."""
        everybody: Collection[Any] = self.connections
        unread: dict[Connection, int] = {one: size for one in everybody if (size := _unread(one)) > _SMALL}
        while sum(unread.values()) > self.limits.unread_bytes:
            slowest = min(unread, key=lambda one: (one.patience, -unread[one]))
            del unread[slowest]
            slowest.give_up("unread")

    def leave(self, connection: Connection, place: bytes) -> None:
        self._at[place].discard(connection)
        if not self._at[place]:
            del self._at[place]

    def pass_second(self) -> None:
        for connection in list(self.connections):
            connection.pass_second()  # type: ignore[union-attr]


class Connection(HttpToolsProtocol):
    """uvicorn's, with limits. Exceptions in what the parser calls end in `send_400_response`."""

    def __init__(
        self,
        config: Config,
        server_state: Crowd,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._crowd = server_state
        self.patience = server_state.limits.header_seconds
        self._place = b""
        self._is_in_head = False
        self._head = self._fields = 0
        #: Of our answers, as of the last look.
        self._unread = 0
        #: Bytes that came since the parser had something to say: a field that never ends, for one.
        self._unheard = 0
        self._reason = "malformed"

    # ── coming and going ─────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._place = _place(self.client[0] if self.client else "")
        if not self._crowd.admit(self, self._place):
            self._refuse("crowded")

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.leave(self, self._place)
        super().connection_lost(exc)

    @property
    def is_awaited(self) -> bool:
        """Whether it is the client's turn: to ask, to go on, to read what it asked for."""
        if self.transport.get_write_buffer_size():
            return True
        if self.transport.is_closing():
            return False
        asked = self._unanswered
        return asked is None or (asked.more_body and not self.flow.read_paused)

    @property
    def _unanswered(self) -> RequestResponseCycle | None:
        """The last request, unless it is answered."""
        # uvicorn says that there always is one.
        last = cast("RequestResponseCycle | None", self.cycle)
        return None if last is None or last.response_complete else last

    def pass_second(self) -> None:
        before, self._unread = self._unread, self.transport.get_write_buffer_size()
        # Between two requests uvicorn has a timer of its own.
        if self._unread or (self.timeout_keep_alive_task is None and self.is_awaited):
            self._regain(before - self._unread)
            self.patience -= 1.0
            if self.patience <= 0.0:
                self.give_up("slow")

    def _regain(self, moved: int) -> None:
        most = self._crowd.limits.header_seconds
        self.patience = min(self.patience + max(moved, 0) / _SLOWEST, most)

    def give_up(self, reason: str) -> None:
        """Without a word where nothing was asked: a browser may connect before it has a question."""
        if self.transport.get_write_buffer_size():
            # Closed, it would stay until that is read.
            self._crowd.telemetry.http_refused(reason)
            self.transport.abort()
        elif self._is_in_head or self._unanswered is not None:
            self._refuse(reason)
        else:
            self._crowd.telemetry.http_refused(reason)
            self.transport.close()

    def _refuse(self, reason: str) -> None:
        """An answer, unless it would be taken for that to the request before; and the end."""
        self._crowd.telemetry.http_refused(reason)
        asked = self._unanswered
        if asked is None or (asked.more_body and not asked.response_started and not self.pipeline):
            self.transport.write(_ANSWERS[reason])
        self.transport.close()

    # ── what the parser finds ────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        self._unheard += len(data)
        super().data_received(data)
        if self._unheard > LARGEST_HEAD and not self.transport.is_closing():
            self._refuse("large_head")

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - ours says it in our format
        self._refuse(self._reason)

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._head = self._fields = self._unheard = 0
        self.patience = self._crowd.limits.header_seconds
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._head += len(url)
        if self._head > LARGEST_URL:
            self._stop("long_url")
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Those behind a body that comes in chunks count, too, but nobody gets to see them.

        A proxy passes them on as the client wrote them: they would say who asks, and from where.
        """
        self._unheard = 0
        self._head += len(name) + len(value) + len(b": \r\n")
        self._fields += 1
        if self._head > LARGEST_HEAD or self._fields > MOST_HEADERS:
            self._stop("large_head")
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= _MOST_PIPELINED:
            self._stop("crowded")
        self._is_in_head = False
        self.patience = self._crowd.limits.header_seconds
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unheard = 0
        self._regain(len(body))
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if _unread(self) > _SMALL:
            self._crowd.bound_unread()

    def _stop(self, reason: str) -> None:
        self._reason = reason
        raise ValueError(reason)


def _patience(connection: Connection) -> float:
    return connection.patience


def _unread(connection: Any) -> int:
    """Bytes of its answers that its client has not taken."""
    size: int = connection.transport.get_write_buffer_size()
    return size


def _place(address: str) -> bytes:
    """Of IPv6 the network: whoever has one address there has all of them."""
    if ":" not in address:
        return address.encode()
    packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    return packed if packed.startswith(_MAPPED) else packed[:8]


def _answer(status: int, code: str, message: str) -> bytes:
    body = msgspec.json.encode({"error": {"code": code, "message": message, "details": {}}})
    again = b"Retry-After: 1\r\n" if status == 503 else b""
    head = b"Content-Type: application/json\r\nContent-Length: %d\r\n%bConnection: close\r\n\r\n"
    return STATUS_LINE[status] + head % (len(body), again) + body


_ANSWERS = {reason: _answer(*refusal) for reason, refusal in _REFUSALS.items()}
