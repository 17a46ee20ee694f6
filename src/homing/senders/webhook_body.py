"""The body of a request on its way: how far it got decides whether it may have been processed."""

from __future__ import annotations

import asyncio

from aiohttp import Payload
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from multidict import CIMultiDict


class TrackedBody(Payload):
    """Bytes that note whether they were begun and whether they were handed over to their end."""

    # The base class would make these anew for every request, at a few percent of the whole cost. aiohttp
    # wants a type to fall back on; a caller's own Content-Type goes first.
    _headers = CIMultiDict({"Content-Type": "application/octet-stream"})
    _autoclose = True

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._size = len(content)
        self._transport: asyncio.Transport | None = None
        #: Something may have reached the network.
        self.begun = False
        #: All was handed to the operating system, but for what the transport's own buffer holds.
        self.complete = False

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._content.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        # aiohttp keeps the headers back until here, so nothing at all has been sent yet.
        protocol = getattr(writer, "protocol", None)
        if isinstance(protocol, ResponseHandler):
            if protocol.should_close or not protocol.is_connected():
                # The receiver hung up or spoke unasked: what it says next answers no request of ours.
                raise ConnectionResetError
            self._transport = protocol.transport
        self.begun = True
        await writer.write(self._content)
        await writer.drain()
        self.complete = True

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:  # noqa: ARG002 - aiohttp's signature; the length is our own
        await self.write(writer)

    def abort(self) -> None:
        """Drop the connection. A mere close would wait for ever for a receiver who reads nothing."""
        if self._transport is not None:
            self._transport.abort()
