"""How much of what is sent to the API it takes in at once, in bytes.

A body is held until its request is answered: it is read, decoded, and kept while the database writes. Small
ones are not counted, and go in also when large ones fill the budget; connections bound how many there are.
"""

from __future__ import annotations

from litestar.types import ASGIApp, HTTPReceiveMessage, Receive, Scope, Send

from homing.errors import Busy
from homing.telemetry import Telemetry

#: Bodies up to this size are small.
_SMALL = 64 * 1024
#: Seconds after which it makes sense to ask again.
_RETRY_AFTER = 2.0


class Intake:
    def __init__(self, most: int, telemetry: Telemetry) -> None:
        self._most, self._telemetry = most, telemetry
        self._held = 0
        telemetry.count_intake(lambda: self._held)

    def bound(self, app: ASGIApp) -> ASGIApp:
        async def bounded(scope: Scope, receive: Receive, send: Send) -> None:
            announced = _announced(scope)
            if announced is not None and announced <= _SMALL:
                await app(scope, receive, send)
                return
            share = _Share(self, receive, announced)
            try:
                await app(scope, share.receive, send)
            finally:
                self._held -= share.held

        return bounded

    def take(self, size: int) -> int:
        if self._held + size > self._most:
            self._telemetry.http_refused("intake")
            raise Busy(
                "as much as fits is being taken in; try again later, or send less at once", _RETRY_AFTER
            )
        self._held += size
        return size


class _Share:
    """What one request holds. Nothing, until somebody reads its body, and that is after the door."""

    def __init__(self, intake: Intake, receive: Receive, announced: int | None) -> None:
        self._intake, self._receive, self._announced = intake, receive, announced
        self.held = 0

    async def receive(self) -> HTTPReceiveMessage:
        if self._announced is not None and not self.held:
            self.held = self._intake.take(self._announced)
        message = await self._receive()
        if self._announced is None and message["type"] == "http.request":
            self.held += self._intake.take(len(message["body"]))
        return message  # type: ignore[return-value]


def _announced(scope: Scope) -> int | None:
    """None where it comes in chunks; the parser takes nothing for a length that is none."""
    is_chunked = False
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value)
        is_chunked = is_chunked or name == b"transfer-encoding"
    return None if is_chunked else 0
