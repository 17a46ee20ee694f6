"""How much of what is sent to the API it takes in at once, in bytes.

A body is held until its request is answered: it is read, decoded, and kept while the database writes. Small
ones are not counted, and go in also when large ones fill the budget; connections bound how many there are.
What counts is what has come, not what was announced; and whoever asks leaves room for a body of another one.
Large ones are worked on one at a time, and leave most of the time to small requests, if there are any.
"""

from __future__ import annotations

from asyncio import Lock, get_running_loop
from collections import Counter
from collections.abc import Callable
from typing import Any

from litestar.types import ASGIApp, HTTPReceiveMessage, Message, Receive, Scope, Send

from homing.access.principal import Principal
from homing.errors import Busy
from homing.telemetry import Telemetry

#: A thousand mails with some attachments.
LARGEST_BODY = 16 * 1024 * 1024
#: Bodies up to this size are small.
_SMALL = 64 * 1024
#: Bodies above this size are large: to check one, and to write it, keeps everybody else waiting.
_LARGE = 1024 * 1024
#: So many times as long as the last one took, and at most so many seconds, the next large body waits.
_REST, _LONGEST_REST = 3.0, 1.0
#: Seconds after which it makes sense to ask again.
_RETRY_AFTER = 2.0


class Intake:
    def __init__(self, most: int, telemetry: Telemetry) -> None:
        self._most, self._telemetry = most, telemetry
        self._most_of_one = max(most - LARGEST_BODY, LARGEST_BODY)
        self._held: Counter[str] = Counter()
        self._turn = Lock()
        #: Small requests that there were.
        self._small = 0
        telemetry.count_intake(self._held.total)

    def bound(self, app: ASGIApp) -> ASGIApp:
        # No coroutine of its own for small ones: each layer costs every await of every request.
        def bounded(scope: Scope, receive: Receive, send: Send) -> Any:
            announced = _announced(scope)
            if announced is not None and announced <= _SMALL:
                self._small += 1
                return app(scope, receive, send)
            return large(scope, _Share(self, scope, receive, send, announced or 0))

        async def large(scope: Scope, share: _Share) -> None:
            try:
                await app(scope, share.receive, share.send)
            finally:
                share.end_turn()
                self.give_back(share.who, share.held)

        return bounded

    def require_room(self, who: str, size: int) -> None:
        if self._held.total() + size > self._most or self._held[who] + size > self._most_of_one:
            self._telemetry.http_refused("intake")
            raise Busy(
                "as much as fits is being taken in; try again later, or send less at once", _RETRY_AFTER
            )

    def take(self, who: str, size: int) -> None:
        self.require_room(who, size)
        self._held[who] += size

    async def take_turn(self) -> Callable[[], None]:
        """When no other large body is worked on; what is returned ends the turn."""
        await self._turn.acquire()
        loop = get_running_loop()
        began, small = loop.time(), self._small

        def end() -> None:
            rest = min(_REST * (loop.time() - began), _LONGEST_REST) if self._small > small else 0.0
            loop.call_later(rest, self._turn.release)

        return end

    def give_back(self, who: str, size: int) -> None:
        self._held[who] -= size
        if not self._held[who]:
            del self._held[who]


class _Share:
    """What one request holds. Nothing, until somebody reads its body, and that is after the door."""

    def __init__(self, intake: Intake, scope: Scope, receive: Receive, send: Send, announced: int) -> None:
        self._intake, self._scope, self._announced = intake, scope, announced
        self._receive, self._send = receive, send
        self.who, self.held = "", 0
        self._end_turn: Callable[[], None] | None = None

    async def receive(self) -> HTTPReceiveMessage:
        if not self.held:
            # One that would not fit is told so before it is sent.
            self.who = _who(self._scope)
            self._intake.require_room(self.who, self._announced)
        message = await self._receive()
        if message["type"] == "http.request":
            size = len(message["body"])
            self._intake.take(self.who, size)
            self.held += size
            if self.held > _LARGE and not message["more_body"]:
                self._end_turn = await self._intake.take_turn()
        return message  # type: ignore[return-value]

    async def send(self, message: Message) -> None:
        # Whoever is slow to read an answer keeps no other body waiting.
        self.end_turn()
        await self._send(message)

    def end_turn(self) -> None:
        if self._end_turn is not None:
            self._end_turn()
            self._end_turn = None


def _who(scope: Scope) -> str:
    """All together who are not known, and read a form at most."""
    principal = scope.get("user")
    return principal.who if isinstance(principal, Principal) else ""


def _announced(scope: Scope) -> int | None:
    """None where it comes in chunks; the parser takes nothing for a length that is none."""
    is_chunked = False
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value)
        is_chunked = is_chunked or name == b"transfer-encoding"
    return None if is_chunked else 0
