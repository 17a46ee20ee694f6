"""A router with queues of its own and a mediator that does as a test says."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from prometheus_client import CollectorRegistry
from tests.outbox import LogLines

from homing.brokers.base import Broker, Publication
from homing.brokers.memory import MemoryBroker
from homing.brokers.pointer import MessagePointer, encode_pointer
from homing.brokers.router import Mediated, Router, queue_of
from homing.brokers.router_config import PoolConfig, QueueConfig, RouterConfig
from homing.telemetry import Telemetry, make_logger

OK = Mediated(200)
QUEUE = "jobs.fifo"
VISIBILITY = 30.0

Script = Callable[[MessagePointer, int], Mediated | Awaitable[Mediated]]


class Mediator:
    """Notes down who came when, and answers as scripted; `script` gets the pointer and how often it came."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or (lambda _pointer, _time: OK)
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.calls: Counter[str] = Counter()
        self.running: set[str] = set()
        self.peak = 0
        #: Groups of which two were under way at the same time.
        self.crowded: set[str | None] = set()
        self._groups: Counter[str | None] = Counter()

    async def __call__(self, pointer: MessagePointer) -> Mediated:
        self.begun.append(pointer.id)
        self.calls[pointer.id] += 1
        self.running.add(pointer.id)
        self.peak = max(self.peak, len(self.running))
        self._groups[pointer.message_group_id] += 1
        if self._groups[pointer.message_group_id] > 1:
            self.crowded.add(pointer.message_group_id)
        try:
            answer = self.script(pointer, self.calls[pointer.id])
            return answer if isinstance(answer, Mediated) else await answer
        finally:
            self._groups[pointer.message_group_id] -= 1
            self.running.discard(pointer.id)
            self.ended.append(pointer.id)


class Routing:
    """What a test of the router holds in its hands."""

    def __init__(self, broker: Broker, config: RouterConfig, mediator: Mediator, **options: Any) -> None:
        self.broker = broker
        self.config = config
        self.mediator = mediator
        #: What comes of asking for the configuration.
        self.trouble: Exception | None = None
        self.log = LogLines()
        self.telemetry = Telemetry(make_logger("json", 0, self.log.stream), CollectorRegistry())
        self.visibility = options.get("visibility", VISIBILITY)
        self.router = Router(broker, mediator, self._configure, self.telemetry, **{"wait": 1.0, **options})

    async def _configure(self) -> RouterConfig:
        if self.trouble is not None:
            raise self.trouble
        return self.config

    def reconfigure(self, config: RouterConfig) -> None:
        self.config = config
        self.router.wake()

    async def send(self, *messages: MessagePointer | bytes, queue: str = QUEUE) -> None:
        publications = [
            Publication(message, "raw", uuid4().hex)
            if isinstance(message, bytes)
            else Publication(encode_pointer(message), message.message_group_id or message.id, uuid4().hex)
            for message in messages
        ]
        # RabbitMQ refuses for a moment what comes to a quorum queue that was just made, and takes what comes
        # next: only after it has taken the first do the others keep their order.
        await self._publish(queue, publications[:1])
        await self._publish(queue, publications[1:])

    async def _publish(self, queue: str, publications: list[Publication]) -> None:
        async with asyncio.timeout(60):
            # A broker may refuse for a moment, and then it is for the sender to try again.
            while publications:
                failures = await self.broker.publish(queue_of(queue, self.visibility), publications)
                publications = [p for p, failure in zip(publications, failures, strict=True) if failure]
                await asyncio.sleep(0.1 if publications else 0)

    async def depth(self, queue: str = QUEUE) -> int:
        return await self.broker.depth(queue_of(queue, self.visibility)) or 0

    def counted(self, pool: str, outcome: str) -> float:
        labels = {"pool": pool, "outcome": outcome}
        return self.telemetry.registry.get_sample_value("homing_router_messages_total", labels) or 0.0


@asynccontextmanager
async def routing(
    mediator: Mediator | None = None,
    *,
    broker: Broker | None = None,
    config: RouterConfig | None = None,
    **options: Any,
) -> AsyncIterator[Routing]:
    bench = Routing(
        broker or MemoryBroker(f"memory://{uuid4().hex}"),
        config or pools(P=5),
        mediator or Mediator(),
        **options,
    )
    running = asyncio.create_task(bench.router.run())
    try:
        yield bench
    finally:
        bench.router.stop()
        await running
        await bench.router.drain(0.0)
        if broker is None:
            await bench.broker.close()


def pools(*, queues: tuple[str, ...] = (QUEUE,), **concurrency: int) -> RouterConfig:
    return RouterConfig(
        [QueueConfig(queue) for queue in queues],
        [PoolConfig(code, number) for code, number in concurrency.items()],
    )


def pointer(id: str, group: str | None = None, pool: str = "P") -> MessagePointer:
    return MessagePointer(
        id=id, pool_code=pool, mediation_target="http://127.0.0.1/x", message_group_id=group, auth_token="t"
    )


async def until(condition: Callable[[], Any], patience: float = 60.0) -> None:
    """Look again and again until it is so."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while True:
        found = condition()
        if found if isinstance(found, bool) or not hasattr(found, "__await__") else await found:
            return
        assert loop.time() < deadline, "it did not come about"
        await asyncio.sleep(0.01)


async def pass_time(seconds: float) -> None:
    """Real time, which a broker measures by its own clock."""
    deadline = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.05)
