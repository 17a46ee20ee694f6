"""From a host to a connection: its addresses in turn, each judged once more before it gets a socket."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence

from homing.senders.egress import AddressInfo, EgressGuard, EgressRefused, is_address
from homing.senders.webhook_dns import GuardedResolver, LookupFailed, address_info
from homing.senders.webhook_failure import CONNECT_TIMEOUT, NO_ADDRESS, Failure, no_connection, not_connected
from homing.senders.webhook_head import Origin
from homing.senders.webhook_protocol import Connection, Pool


class Connector:
    def __init__(
        self, guard: EgressGuard, resolver: GuardedResolver, context: Callable[[], ssl.SSLContext]
    ) -> None:
        self._guard = guard
        self._resolver = resolver
        self._context = context

    async def connect(self, origin: Origin, pool: Pool) -> Connection | Failure:
        """Open a connection that belongs to a pool."""
        try:
            addresses = await self._addresses(origin)
            return await self._try(addresses, origin, pool)
        except EgressRefused as refused:
            return Failure("egress_refused", refused.reason)
        except LookupFailed as failed:
            return Failure("dns_error", str(failed))

    async def _addresses(self, origin: Origin) -> Sequence[AddressInfo]:
        if is_address(origin.host):
            return (address_info(origin.host, origin.port),)
        return await self._resolver.resolve(origin.host, origin.port)

    async def _try(
        self, addresses: Sequence[AddressInfo], origin: Origin, pool: Pool
    ) -> Connection | Failure:
        loop = asyncio.get_running_loop()
        end = loop.time() + CONNECT_TIMEOUT
        failure = NO_ADDRESS
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            # A dead address leaves the others their share of the time.
            share = (end - loop.time()) / left
            attempt = await self._attempt(address, origin, pool, share)
            if isinstance(attempt, Connection):
                return attempt
            failure = attempt
        return failure

    async def _attempt(
        self, address: AddressInfo, origin: Origin, pool: Pool, seconds: float
    ) -> Connection | Failure:
        try:
            async with asyncio.timeout(seconds):
                return await self._open(address, origin, pool)
        except EgressRefused:
            raise
        except TimeoutError:
            return no_connection(CONNECT_TIMEOUT)
        except OSError as error:
            return not_connected(error)

    async def _open(self, address: AddressInfo, origin: Origin, pool: Pool) -> Connection:
        connected = await self._connected(address)
        # From here on the socket is the transport's, which closes it whatever happens.
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(origin, connected, pool),
            sock=connected,
            ssl=self._context() if origin.tls else None,
            server_hostname=origin.host if origin.tls else None,
        )
        return connection

    async def _connected(self, address: AddressInfo) -> socket.socket:
        opened = self._guard.open_socket(address)
        try:
            opened.setblocking(False)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(opened, address[4])
        except BaseException:
            opened.close()
            raise
        return opened
