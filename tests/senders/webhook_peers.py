"""Receivers to send to, names that stand for what a test wants, and a DNS server that nobody else asks."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

from homing.senders.egress import AddressInfo, EgressGuard, parse_networks
from homing.senders.webhook import WebhookRequest, WebhookSender
from homing.senders.webhook_dns import Addresses, LookupFailed

LOOPBACK = "127.0.0.0/8 ::1"

HEADERS = (("Content-Type", "application/json"), ("webhook-id", "msg_1"))


def post(
    url: str, body: bytes = b"{}", *, timeout: float = 10.0, headers: Mapping[str, str] | None = None
) -> WebhookRequest:
    return WebhookRequest(url, (*HEADERS, *(headers or {}).items()), body, timeout)


class CountingGuard(EgressGuard):
    """A guard that counts the sockets which it let through."""

    opened = 0

    def open_socket(self, info: AddressInfo) -> socket.socket:
        opened = super().open_socket(info)
        self.opened += 1
        return opened


def guard(allow: str = LOOPBACK, *, allow_http: bool = True) -> CountingGuard:
    return CountingGuard(parse_networks(allow), allow_http=allow_http)


@asynccontextmanager
async def sender_for(given: EgressGuard | None = None, **options: Any) -> Any:
    sender = WebhookSender(guard() if given is None else given, **options)
    try:
        yield sender
    finally:
        await sender.close()


class Names:
    """A lookup that knows what it was told; a callable is asked anew for every question."""

    def __init__(self, names: Mapping[str, tuple[str, ...] | Callable[[], tuple[str, ...]]]) -> None:
        self._names = names
        self.asked: list[str] = []

    async def find(self, host: str) -> Addresses:
        self.asked.append(host)
        found = self._names.get(host)
        if found is None:
            raise LookupFailed("the name does not exist")
        return Addresses(found() if callable(found) else found)

    async def close(self) -> None:
        """Nothing is open."""


class DnsServer(asyncio.DatagramProtocol):
    """Answers for the names it knows, says that `missing.` names do not exist, and ignores all others."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self.questions: list[str] = []

    async def start(self) -> str:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: self, ("127.0.0.1", 0))
        return f"127.0.0.1:{transport.get_extra_info('sockname')[1]}"

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, address: Any) -> None:
        name, kind, question = _question(data)
        self.questions.append(name)
        if name in self._names or name.startswith("missing."):
            self._transport.sendto(self._reply(data, name, kind, question), address)

    def _reply(self, data: bytes, name: str, kind: int, question: bytes) -> bytes:
        known = self._names.get(name)
        records = b""
        if known is not None and kind == 1:
            records = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 30, 4) + socket.inet_aton(known)
        flags = 0x8180 if known is not None else 0x8183
        return data[:2] + struct.pack(">HHHHH", flags, 1, 1 if records else 0, 0, 0) + question + records


def _question(data: bytes) -> tuple[str, int, bytes]:
    labels, place = [], 12
    while length := data[place]:
        labels.append(data[place + 1 : place + 1 + length].decode().lower())
        place += 1 + length
    end = place + 5
    return ".".join(labels), struct.unpack(">H", data[place + 1 : place + 3])[0], data[12:end]
