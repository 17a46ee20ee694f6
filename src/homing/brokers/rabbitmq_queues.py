"""How queues are declared at RabbitMQ.

They are quorum queues, unless it is said otherwise: only these count how often a message was handed out, end
it at a limit, and keep it when a machine of a cluster is lost. On one node they are about as fast as classic
ones; see docs/brokers.md.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from aiormq.exceptions import ChannelPreconditionFailed
from msgspec import Struct

from homing.brokers.base import Queue
from homing.brokers.rabbitmq_link import TROUBLE, Link, close_quietly, raw
from homing.engine.model import Failure, Monotonic
from homing.telemetry import Telemetry

#: In bytes.
LONGEST_NAME = 255
_SHORTEST_STEP = 0.1
_STEP_FACTOR = 1.25
_LONGEST_STEP = 3600.0
#: A queue of delayed messages goes away by itself when nobody has declared it for a while.
_SLACK_SECONDS = 60.0


class Declaration(Struct, frozen=True):
    name: str
    arguments: Mapping[str, Any]
    #: After so many seconds it has to be declared again, or the broker may delete it.
    keeps: float = math.inf


def declarations_of(queue: Queue) -> list[Declaration]:
    """The dead letters first: what points to them must not exist before them."""
    if queue.kind == "classic":
        names = [name for name in (queue.dead_letters, queue.name) if name is not None]
        return [Declaration(name, {}) for name in names]
    if queue.dead_letters is None:
        return [Declaration(queue.name, {"x-queue-type": "quorum"})]
    arguments = {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue.dead_letters,
        # The broker counts how often a message came back, and we count how often it was handed out.
        "x-delivery-limit": max(0, queue.delivery_limit - 1),
    }
    return [Declaration(queue.dead_letters, {"x-queue-type": "quorum"}), Declaration(queue.name, arguments)]


def delay_of(queue: Queue, delay: float) -> Declaration:
    """Where a message waits: all in one such queue wait equally long, so that none waits behind a longer one.

    Steps grow by a quarter. A delay is rounded up to the next, and one beyond an hour is an hour.
    """
    steps = math.ceil(math.log(max(delay, _SHORTEST_STEP) / _SHORTEST_STEP, _STEP_FACTOR) - 1e-9)
    seconds = min(_SHORTEST_STEP * _STEP_FACTOR**steps, _LONGEST_STEP)
    milliseconds = math.ceil(seconds * 1000)
    arguments = {
        "x-message-ttl": milliseconds,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue.name,
        "x-expires": milliseconds + int(2000 * _SLACK_SECONDS),
    }
    return Declaration(_delay_name(queue.name, milliseconds), arguments, _SLACK_SECONDS)


def _delay_name(queue: str, milliseconds: int) -> str:
    name = f"{queue}.delay.{milliseconds}"
    if len(name.encode()) <= LONGEST_NAME:
        return name
    return f"{sha256(queue.encode()).hexdigest()}.delay.{milliseconds}"


class Declarer:
    """Declares what was not yet declared on this connection."""

    def __init__(self, link: Link, telemetry: Telemetry, monotonic: Monotonic = time.monotonic) -> None:
        self._link = link
        self._telemetry = telemetry
        self._monotonic = monotonic
        self._generation = 0
        self._declared: dict[str, float] = {}
        self._warned: set[str] = set()

    def forget(self, name: str) -> None:
        """Somebody has deleted it."""
        self._declared.pop(name, None)

    async def declare(self, declaration: Declaration) -> Failure | None:
        if self._is_known(declaration):
            return None
        failure = await self._declare(declaration, passive=False)
        if failure is None:
            if self._generation != self._link.generation:
                self._generation, self._declared = self._link.generation, {}
            self._declared[declaration.name] = self._monotonic()
        return failure

    def _is_known(self, declaration: Declaration) -> bool:
        if self._generation != self._link.generation:
            return False
        declared = self._declared.get(declaration.name, -math.inf)
        return self._monotonic() < declared + declaration.keeps

    async def _declare(self, declaration: Declaration, *, passive: bool) -> Failure | None:
        if len(declaration.name.encode()) > LONGEST_NAME:
            # The client could not even write it down.
            return Failure("broker_refused", f"a queue's name has at most {LONGEST_NAME} bytes")
        channel = await self._link.channel()
        if isinstance(channel, Failure):
            return channel
        try:
            await (await raw(channel)).queue_declare(
                declaration.name,
                durable=True,
                passive=passive,
                arguments=dict(declaration.arguments),
                timeout=5.0,
            )
        except ChannelPreconditionFailed:
            return await self._take_as_it_is(declaration)
        except TROUBLE as error:
            return self._link.failure_of(error)
        finally:
            await close_quietly(channel)
        return None

    async def _take_as_it_is(self, declaration: Declaration) -> Failure | None:
        """It is there, and somebody wanted it otherwise than we do: theirs holds."""
        if declaration.name not in self._warned:
            self._warned.add(declaration.name)
            self._telemetry.log.warning(
                "broker.queue_differs",
                queue=declaration.name,
                broker=self._link.address,
                hint="it was declared with other arguments and is used as it is; delete it to have ours",
            )
        return await self._declare(declaration, passive=True)
