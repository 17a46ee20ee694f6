"""How many messages a second each broker takes and gives, by the seam alone: `python -m` this module.

Bodies are those of the email lane. One process publishes and then consumes, so that neither slows the other.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack, ExitStack
from uuid import uuid4

import uvloop
from msgspec import Struct

from homing.brokers.base import Broker, Message, Publication, Queue
from homing.brokers.open import open_broker
from homing.brokers.pump import Done, Pump, Verdict
from homing.telemetry import Telemetry
from homing.testing.components.obtain import Missing
from homing.testing.components.rabbitmq import start_rabbitmq
from homing.testing.components.sqs import start_sqs

_BATCH = 500
_PREFETCH = 200
_MESSAGES = {"memory": 100_000, "rabbitmq": 20_000, "sqs": 5_000, "sqs.fifo": 5_000}


class Rate(Struct, frozen=True):
    """Messages a second."""

    publish: float
    consume: float


async def measure(broker: Broker, queue: Queue, count: int) -> Rate:
    """Publish all in batches, then take and acknowledge them through the pump."""
    began = time.perf_counter()
    for start in range(0, count, _BATCH):
        failures = await broker.publish(queue, [_publication(start + n) for n in range(_BATCH)])
        if failed := next((failure for failure in failures if failure), None):
            raise RuntimeError(f"not published: {failed.message}")
    published = time.perf_counter()
    await _consume(broker, queue, count)
    return Rate(count / (published - began), count / (time.perf_counter() - published))


def _publication(number: int) -> Publication:
    return Publication(b'{"EmailId": %d, "MessageKey": "order-%d"}' % (number, number), f"{number % 100}")


async def _consume(broker: Broker, queue: Queue, count: int) -> None:
    seen, all_seen = 0, asyncio.Event()

    async def handle(_: Message) -> Verdict:
        nonlocal seen
        seen += 1
        if seen == count:
            all_seen.set()
        return Done()

    pump = Pump(broker, queue, handle, Telemetry(), prefetch=_PREFETCH, wait=1)
    running = asyncio.create_task(pump.run())
    await all_seen.wait()
    pump.stop()
    await running
    await pump.drain(5)


async def main() -> None:
    with ExitStack() as servers:
        rabbitmq, sqs = start_rabbitmq(), start_sqs()
        urls = {"memory": "memory://"}
        for name, server in (("rabbitmq", rabbitmq), ("sqs", sqs), ("sqs.fifo", sqs)):
            if not isinstance(server, Missing):
                urls[name] = server.url
                servers.callback(server.close)
        for name, url in urls.items():
            async with AsyncExitStack() as stack:
                broker = open_broker(url, Telemetry())
                stack.push_async_callback(broker.close)
                rate = await measure(broker, _queue(name), _MESSAGES[name])
            sys.stdout.write(f"{name:10} publish {rate.publish:8,.0f}/s   consume {rate.consume:8,.0f}/s\n")


def _queue(name: str) -> Queue:
    unique = f"bench-{uuid4().hex}"
    end = ".fifo" if name.endswith(".fifo") else ""
    return Queue(unique + end, dead_letters=f"{unique}-dead{end}")


if __name__ == "__main__":
    uvloop.run(main())
