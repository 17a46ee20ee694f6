"""A connection to RabbitMQ that is made again whenever it is gone.

Losses are values here, not surprises: whoever needs a channel gets one, or the reason why there is none now.
The client's own robust connections are not used: they heal out of sight, and we want an answer for each
message.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import suppress
from typing import TypeAlias

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection
from aiormq import Channel as RawChannel
from aiormq.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelAccessRefused,
    ConnectionNotAllowed,
    ProbableAuthenticationError,
)
from yarl import URL

from homing.brokers.address import redacted
from homing.engine.model import Failure, Monotonic, Rand
from homing.telemetry import Telemetry

#: What an outage looks like from here. A closed channel is a RuntimeError to the client.
TROUBLE = (AMQPError, OSError, RuntimeError)

_CONNECT_SECONDS = 5.0
#: A peer that says nothing for about three times as long is given up.
_HEARTBEAT_SECONDS = 10
_SHORTEST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0
_CLOSE_SECONDS = 2.0

Channel: TypeAlias = AbstractChannel

# What the client has to say about losses is said here, once and in our words; without a handler of its own
# Python would print it between our lines.
for _name in ("aio_pika", "aiormq"):
    logging.getLogger(_name).addHandler(logging.NullHandler())


class Link:
    """One connection, for one purpose.

    Publishers and consumers have their own: a broker that runs out of memory stops reading from those who
    publish, and acknowledgements must get through even then.
    """

    def __init__(
        self,
        url: str,
        purpose: str,
        telemetry: Telemetry,
        *,
        monotonic: Monotonic = time.monotonic,
        rand: Rand = random.random,
    ) -> None:
        self._url = URL(url)
        if "heartbeat" not in self._url.query:
            self._url = self._url.update_query(heartbeat=_HEARTBEAT_SECONDS)
        self.address = redacted(url)
        self._purpose = purpose
        self._telemetry = telemetry
        self._monotonic = monotonic
        self._rand = rand
        self._lock = asyncio.Lock()
        self._connection: AbstractConnection | None = None
        self._losses = 0
        self._not_before = 0.0
        self._failure = Failure("broker_unreachable", "not connected yet")
        #: Rises with every connection: what was known of an earlier one does not hold for the next.
        self.generation = 0

    @property
    def pause(self) -> float:
        """Seconds until it makes sense to try again."""
        return max(0.0, self._not_before - self._monotonic())

    async def channel(self, *, confirms: bool = False) -> Channel | Failure:
        connection = await self._connected()
        if isinstance(connection, Failure):
            return connection
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                return await connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
        except TROUBLE as error:
            # A connection that opens no channel is of no use, whatever it says of itself.
            await close_quietly(connection)
            return self.failure_of(error)

    async def _connected(self) -> AbstractConnection | Failure:
        async with self._lock:
            if self._connection is not None and not _is_closed(self._connection):
                return self._connection
            # Whoever publishes during an outage gets an answer at once, and does not wait for each attempt.
            if self.pause > 0:
                return self._failure
            return await self._connect()

    async def _connect(self) -> AbstractConnection | Failure:
        await self._forget()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                self._connection = await aio_pika.connect(self._url)
        except TROUBLE as error:
            return self._lost(self.failure_of(error))
        if self._losses:
            self._telemetry.log.info("broker.connected", broker=self.address, purpose=self._purpose)
        self._losses = 0
        self.generation += 1
        return self._connection

    def _lost(self, failure: Failure) -> Failure:
        self._losses += 1
        # Half of the pause is fixed and half is chance, so that a fleet does not come back in one moment.
        longest = min(_SHORTEST_PAUSE * 2.0 ** min(self._losses - 1, 10), _LONGEST_PAUSE)
        self._not_before = self._monotonic() + longest * (0.5 + self._rand() / 2)
        self._failure = failure
        self._telemetry.log.warning(
            "broker.unreachable", broker=self.address, purpose=self._purpose, error=failure.message
        )
        return failure

    def failure_of(self, error: BaseException) -> Failure:
        """In our words: what the client says may quote the URL, and with it the password."""
        if isinstance(error, AuthenticationError | ProbableAuthenticationError):
            return Failure("broker_refused", f"{self.address} refuses this user and password")
        if isinstance(error, ConnectionNotAllowed | ChannelAccessRefused):
            return Failure("broker_refused", f"{self.address} does not let this user do that")
        reason = getattr(error, "strerror", None) or type(error).__name__
        return Failure("broker_unreachable", f"{self.address}: {reason}")

    async def _forget(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_quietly(connection)

    async def close(self) -> None:
        async with self._lock:
            await self._forget()


async def raw(channel: Channel) -> RawChannel:
    """The channel below, which acknowledges many at once and publishes without waiting for each write."""
    under = await channel.get_underlay_channel()
    assert isinstance(under, RawChannel), "aio-pika rests on aiormq"
    return under


def _is_closed(connection: AbstractConnection) -> bool:
    return connection.is_closed or connection.transport is None or connection.transport.connection.is_closed


async def close_quietly(closable: AbstractConnection | AbstractChannel) -> None:
    # However it ends, it is not used any more.
    with suppress(*TROUBLE):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await closable.close()
