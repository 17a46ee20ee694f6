"""Names into addresses for the webhook sender: asked once, kept for a while, and judged by the egress guard.

A name is refused as soon as one of its addresses is. What was judged is what is connected to: the
connector gets addresses from here and looks up nothing itself.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import aiodns
import aiodns.error
from msgspec import Struct

from homing.senders.egress import AddressInfo, EgressGuard, EgressRefused

#: Seconds for one name, however many servers are asked.
_DEADLINE = 5.0
#: Answers are kept as long as the DNS says, within these bounds (seconds).
_SHORTEST, _LONGEST = 2.0, 60.0
#: A name that failed is not asked for again at once: jobs for it come in crowds.
_AFTER_A_FAILURE = 5.0
_MOST_NAMES = 4096
#: To whoever has named it. Which address it is would tell them what our DNS knows of our network.
_LEADS_INSIDE = (
    "the name leads to an address that webhooks may not go to, which the log names; "
    "HOMING_EGRESS_ALLOW can permit it"
)

#: Is told of a name that was refused, and why; once for each time that it was looked up.
OnRefused = Callable[[str, str], None]
# They share the time for a connection, and with dozens none would get enough of it.
_MOST_ADDRESSES = 4


class Addresses(Struct, frozen=True):
    """What a name stands for, and for how many seconds that holds."""

    found: tuple[str, ...]
    ttl: float = 0.0


class LookupFailed(OSError):
    """There is no address; the message says why, without the name."""


class Lookup(Protocol):
    """A way to ask for a name's addresses."""

    async def find(self, host: str) -> Addresses:
        """All addresses of both families, or `LookupFailed`."""

    async def close(self) -> None:
        """Let go of sockets."""


class DnsLookup:
    """Asks the DNS and the hosts file through c-ares.

    No thread waits for an answer: a hundred dead names keep nobody from finding a live one.
    """

    def __init__(self, nameservers: Sequence[str] = ()) -> None:
        self._nameservers = nameservers
        self._resolver: aiodns.DNSResolver | None = None

    async def find(self, host: str) -> Addresses:
        if self._resolver is None:
            # Made here and not before: it belongs to the loop that runs now.
            self._resolver = aiodns.DNSResolver(self._nameservers or None, timeout=2.0, tries=2)
        try:
            answer = await self._resolver.getaddrinfo(host, family=socket.AF_UNSPEC, type=socket.SOCK_STREAM)
        except aiodns.error.DNSError as error:
            raise LookupFailed(_why(error)) from error
        found = tuple(dict.fromkeys(_text(node.addr[0]) for node in answer.nodes))
        return Addresses(found, float(min((node.ttl for node in answer.nodes), default=0)))

    async def close(self) -> None:
        if self._resolver is not None:
            await self._resolver.close()
            self._resolver = None


def _text(address: bytes | str) -> str:
    return address.decode() if isinstance(address, bytes) else address


def _why(error: aiodns.error.DNSError) -> str:
    match error.args[0] if error.args else None:
        case aiodns.error.ARES_ENOTFOUND:
            return "the name does not exist"
        case aiodns.error.ARES_ENODATA:
            return "the name has no address"
        case aiodns.error.ARES_ETIMEOUT:
            return "the name servers did not answer in time"
        case _:
            return "the name could not be looked up"


def untold(_host: str, _reason: str) -> None: ...


class _Known(Struct):
    """What is known of a name until `expires`: its addresses, or why it has none for us."""

    expires: float
    addresses: tuple[str, ...] = ()
    failure: str | None = None
    refused: bool = False
    #: Where the next caller begins, so that the addresses of a name share the load.
    turn: int = 0


class GuardedResolver:
    """The resolver of the sender's connector."""

    def __init__(
        self,
        guard: EgressGuard,
        lookup: Lookup | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        on_refused: OnRefused = untold,
    ) -> None:
        self._guard = guard
        self._on_refused = on_refused
        self._lookup = DnsLookup() if lookup is None else lookup
        self._monotonic = monotonic
        self._known: dict[str, _Known] = {}
        self._asking: dict[str, asyncio.Task[_Known]] = {}

    async def resolve(self, host: str, port: int) -> list[AddressInfo]:
        """Where to connect to, in the order of trying; raises `EgressRefused` or `LookupFailed`."""
        known = self._known.get(host)
        if known is None or known.expires <= self._monotonic():
            known = await self._ask_once(host)
        if known.failure is not None:
            raise EgressRefused(known.failure) if known.refused else LookupFailed(known.failure)
        return [address_info(address, port) for address in _in_turn(known)]

    async def close(self) -> None:
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await self._lookup.close()

    async def _ask_once(self, host: str) -> _Known:
        """Join the question that is under way, or begin one; it goes on when its first asker gives up."""
        task = self._asking.get(host)
        if task is None:
            task = self._asking[host] = asyncio.create_task(self._ask(host))
            task.add_done_callback(lambda _: self._asking.pop(host, None))
        return await asyncio.shield(task)

    async def _ask(self, host: str) -> _Known:
        known = await self._find(host)
        # The oldest goes first, and a name that is asked for anew is young again.
        self._known.pop(host, None)
        self._known[host] = known
        if len(self._known) > _MOST_NAMES:
            del self._known[next(iter(self._known))]
        return known

    async def _find(self, host: str) -> _Known:
        try:
            async with asyncio.timeout(_DEADLINE):
                addresses = await self._lookup.find(host)
        except TimeoutError:
            return self._failed("the name servers did not answer in time")
        except LookupFailed as error:
            return self._failed(str(error))
        return self._judged(host, addresses)

    def _judged(self, host: str, addresses: Addresses) -> _Known:
        reasons = map(self._guard.refusal, addresses.found)
        reason = next((reason for reason in reasons if reason is not None), None)
        if reason is not None:
            self._on_refused(host, reason)
            return self._failed(_LEADS_INSIDE, refused=True)
        if not addresses.found:
            return self._failed("the name has no address")
        until = self._monotonic() + min(max(addresses.ttl, _SHORTEST), _LONGEST)
        return _Known(until, addresses.found[:_MOST_ADDRESSES])

    def _failed(self, reason: str, *, refused: bool = False) -> _Known:
        return _Known(self._monotonic() + _AFTER_A_FAILURE, failure=reason, refused=refused)


def _in_turn(known: _Known) -> tuple[str, ...]:
    start = known.turn = (known.turn + 1) % len(known.addresses)
    return known.addresses[start:] + known.addresses[:start]


def address_info(address: str, port: int) -> AddressInfo:
    """What a socket is made of, for an address and not for a name."""
    if ":" in address:
        return socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port, 0, 0)
    return socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port)
