"""A TCP proxy that breaks on demand: between Homing and its database, broker, relay or receiver.

    async with TcpProxy("127.0.0.1", 5432) as proxy:
        proxy.to_client = Fault(blackhole=True)     # connected, and silent for ever
        proxy.lose_reply_to(b"COMMIT")              # done over there, but nobody is told

Faults are read for every piece that passes, so they hold for connections that exist already.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Self

_PIECE = 65536
#: Close with a reset instead of a goodbye, and forget what was not sent.
_RESET = struct.pack("ii", 1, 0)

Direction = Literal["to_server", "to_client"]


@dataclass(frozen=True)
class Fault:
    """What is wrong in one direction. The default is nothing."""

    #: Seconds that each piece is late.
    delay: float = 0.0
    #: A throttle.
    bytes_per_second: float | None = None
    #: Larger pieces are sliced, so that the reader sees messages in fragments.
    largest_piece: int = _PIECE
    #: So many bytes pass on each connection; then it is reset.
    cut_after: int | None = None
    #: Everything is swallowed, and nobody hangs up: what a dead router looks like.
    blackhole: bool = False


class TcpProxy:
    """Listens on a loopback port of its own and passes on to a server, as well as its faults allow."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._server: asyncio.Server | None = None
        self._links: dict[_Link, asyncio.Task[None]] = {}
        self._traps: list[_Trap] = []
        self.to_server = Fault()
        self.to_client = Fault()
        #: New connections are reset at once, as by a port that nobody listens on.
        self.refusing = False
        #: How many connections were taken.
        self.connections = 0
        #: How many traps of `lose_reply_to` and `lose` have sprung.
        self.sprung = 0

    @property
    def port(self) -> int:
        assert self._server is not None, "the proxy is not open"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None, "the proxy is not open"
        self._server.close()
        for link, task in list(self._links.items()):
            link.reset()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self._server.wait_closed()

    def reset_all(self) -> None:
        """Cut every connection that is open now."""
        for link in list(self._links):
            link.reset()

    def heal(self) -> None:
        """No fault any more, for new connections; those that were harmed are cut."""
        self.to_server = self.to_client = Fault()
        self.refusing = False
        self._traps.clear()
        self.reset_all()

    def lose(self, request: bytes) -> None:
        """Cut the connection of the next request that contains these bytes, before it gets through."""
        self._traps.append(_Trap(request, None))

    def lose_reply_to(self, request: bytes, *, reply: bytes = b"") -> None:
        """Let the next such request through, and cut when the server has answered it (with `reply` in it)."""
        self._traps.append(_Trap(request, reply))

    def trap_for(self, piece: bytes) -> _Trap | None:
        """Taken away by the connection that walks into it."""
        trap = next((t for t in self._traps if t.request in piece), None)
        if trap is not None:
            self._traps.remove(trap)
            self.sprung += 1
        return trap

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        link = _Link(self, writer)
        task = asyncio.current_task()
        assert task is not None, "asyncio runs this as a task"
        self._links[link] = task
        try:
            await self._serve(link, reader)
        except OSError:
            link.reset()
        finally:
            del self._links[link]

    async def _serve(self, link: _Link, reader: asyncio.StreamReader) -> None:
        if self.refusing:
            link.reset()
            return
        there, link.server = await asyncio.open_connection(*self._target)
        pumps = [
            asyncio.ensure_future(link.pump(reader, link.server, "to_server")),
            asyncio.ensure_future(link.pump(there, link.client, "to_client")),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            link.close()


@dataclass(frozen=True)
class _Trap:
    request: bytes
    #: None cuts before the request passes; else the bytes of the answer that is lost.
    reply: bytes | None


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: TcpProxy, client: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self.client = client
        self.server: asyncio.StreamWriter | None = None
        self._passed: dict[Direction, int] = {"to_server": 0, "to_client": 0}
        self._losing: bytes | None = None

    async def pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, direction: Direction
    ) -> None:
        pass_on: Callable[[bytes], bytes | None] = (
            self._towards_server if direction == "to_server" else self._towards_client
        )
        with suppress(OSError):
            while piece := await source.read(_PIECE):
                allowed = pass_on(piece)
                if allowed is None:
                    self.reset()
                    return
                await self._forward(allowed, sink, direction)

    def _towards_server(self, piece: bytes) -> bytes | None:
        trap = self._proxy.trap_for(piece)
        if trap is not None:
            if trap.reply is None:
                return None
            self._losing = trap.reply
        return piece

    def _towards_client(self, piece: bytes) -> bytes | None:
        if self._losing is None:
            return piece
        return None if self._losing in piece else b""

    async def _forward(self, piece: bytes, sink: asyncio.StreamWriter, direction: Direction) -> None:
        start = 0
        while start < len(piece):
            fault: Fault = getattr(self._proxy, direction)
            part = piece[start : start + fault.largest_piece]
            start += len(part)
            await self._forward_part(part, fault, sink, direction)

    async def _forward_part(
        self, part: bytes, fault: Fault, sink: asyncio.StreamWriter, direction: Direction
    ) -> None:
        if fault.blackhole:
            return
        await asyncio.sleep(_lateness(part, fault))
        room = None if fault.cut_after is None else max(0, fault.cut_after - self._passed[direction])
        sink.write(part[:room])
        await sink.drain()
        self._passed[direction] += len(part)
        if room is not None and room < len(part):
            self.reset()
            raise ConnectionResetError("the proxy has cut the connection")

    def reset(self) -> None:
        for writer in (self.client, self.server):
            if writer is None:
                continue
            with suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()

    def close(self) -> None:
        """Pass on that one side has hung up."""
        self.client.close()
        if self.server is not None:
            self.server.close()


def _lateness(part: bytes, fault: Fault) -> float:
    throttled = len(part) / fault.bytes_per_second if fault.bytes_per_second else 0.0
    return fault.delay + throttled
