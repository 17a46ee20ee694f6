"""What the doctor asks of a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from homing.brokers.base import Broker, Queue

_PATIENCE = 10.0


async def broker_findings(
    broker: Broker, setting: str, queues: Iterable[Queue]
) -> list[tuple[str, bool, str]]:
    """(what was checked, whether it is well, what is so or how to mend it); `setting` names its URL."""
    try:
        async with asyncio.timeout(_PATIENCE):
            failure = await broker.check()
            if failure is not None:
                return [(f"broker {broker.name}", False, f"{failure.message}; check {setting}")]
            return [
                (f"broker {broker.name}", True, "answers"),
                *[await _depth(broker, queue) for queue in queues],
            ]
    except TimeoutError:
        return [(f"broker {broker.name}", False, f"did not answer in {_PATIENCE:g} s; check {setting}")]


async def _depth(broker: Broker, queue: Queue) -> tuple[str, bool, str]:
    depth = await broker.depth(queue)
    waiting = "does not tell how much waits" if depth is None else f"{depth:,} messages wait"
    return f"queue {queue.name.rstrip('/').rpartition('/')[2]}", True, waiting
