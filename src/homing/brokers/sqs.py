"""`sqs://`: Amazon's queues, or whatever speaks their API, by aiobotocore."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from homing.brokers.base import Depth, Publication, Queue
from homing.brokers.sqs_client import TROUBLE, Connection, Endpoint, is_missing_queue
from homing.brokers.sqs_consumer import BATCH, SqsConsumer
from homing.brokers.sqs_letters import entry_of, size_of
from homing.brokers.sqs_queues import Queues, is_fifo, name_of
from homing.engine.model import Failure
from homing.telemetry import Telemetry

#: Batches on their way at one time. Those of one group follow each other.
_LANES = 8
#: All bodies of one batch together.
_BATCH_BYTES = 256 * 1024

#: In the order of `Depth`.
_MEASURED = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)

_NOT_SENT = Failure("broker_unavailable", "not sent, because an earlier one of the same batch was not")

#: The place of a publication in what was asked for, and its entry.
_Numbered: TypeAlias = tuple[int, dict[str, Any]]


def from_url(url: str, telemetry: Telemetry) -> SqsBroker:
    return SqsBroker(Endpoint.from_url(url), telemetry)


class SqsBroker:
    def __init__(self, endpoint: Endpoint, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._connection = Connection(endpoint)
        self._queues = Queues(self._connection)
        self._consumers: list[SqsConsumer] = []

    @property
    def name(self) -> str:
        return "sqs"

    async def publish(self, queue: Queue, publications: Sequence[Publication]) -> Sequence[Failure | None]:
        fifo = is_fifo(queue.name)
        lanes: list[list[_Numbered]] = [[] for _ in range(_LANES)]
        for index, publication in enumerate(publications):
            lane = hash(publication.group) if fifo and publication.group else index // BATCH
            lanes[lane % _LANES].append((index, entry_of(publication, fifo=fifo)))
        results: list[Failure | None] = [_NOT_SENT] * len(publications)
        await asyncio.gather(*(self._send_lane(queue, lane, results) for lane in lanes if lane))
        return results

    async def _send_lane(
        self, queue: Queue, lane: Sequence[_Numbered], results: list[Failure | None]
    ) -> None:
        for batch in _batches(lane):
            sent = await self._send(queue, [entry for _, entry in batch])
            for (index, _), result in zip(batch, sent, strict=True):
                results[index] = result
            # What follows in its group must not overtake what was not taken.
            if is_fifo(queue.name) and any(sent):
                return

    async def _send(
        self, queue: Queue, entries: Sequence[dict[str, Any]], *, again: bool = True
    ) -> Sequence[Failure | None]:
        url = await self._queues.url(queue)
        if isinstance(url, Failure):
            return [url] * len(entries)
        numbered = [{"Id": str(index), **entry} for index, entry in enumerate(entries)]
        try:
            client = await self._connection.client()
            answer = await client.send_message_batch(QueueUrl=url, Entries=numbered)
        except TROUBLE as error:
            if again and is_missing_queue(error):
                self._queues.forget(queue)
                return await self._send(queue, entries, again=False)
            return [self._connection.failure_of(error)] * len(entries)
        return _results(answer, len(entries))

    async def consume(self, queue: Queue, prefetch: int) -> SqsConsumer:
        consumer = SqsConsumer(self._connection, self._queues, queue, prefetch, self._telemetry)
        self._consumers = [*(one for one in self._consumers if not one.is_closed), consumer]
        return consumer

    async def find(self, named: str, among: Sequence[str]) -> str | None:
        if named in among:
            return named
        for other in among:
            if name_of(other) == name_of(named) and await self._queues.are_one(named, other):
                return other
        return None

    async def depth(self, queue: Queue) -> int | None:
        found = await self.measure(queue)
        return None if found is None else found.waiting

    async def measure(self, queue: Queue) -> Depth | None:
        url = await self._queues.url(queue)
        if isinstance(url, Failure):
            return None
        try:
            client = await self._connection.client()
            found = await client.get_queue_attributes(QueueUrl=url, AttributeNames=list(_MEASURED))
        except TROUBLE as error:
            if is_missing_queue(error):
                self._queues.forget(queue)
            return None
        return Depth(*(int(found["Attributes"].get(name, 0)) for name in _MEASURED))

    async def check(self) -> Failure | None:
        try:
            client = await self._connection.client()
            await client.list_queues(MaxResults=1)
        except TROUBLE as error:
            return self._connection.failure_of(error)
        return None

    async def close(self) -> None:
        await asyncio.gather(*(consumer.close() for consumer in self._consumers))
        await self._connection.close()


def _batches(lane: Sequence[_Numbered]) -> Iterator[list[_Numbered]]:
    """Ten at the most, and together no larger than the service takes."""
    batch: list[_Numbered] = []
    size = 0
    for numbered in lane:
        more = size_of(numbered[1])
        if batch and (len(batch) == BATCH or size + more > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(numbered)
        size += more
    yield batch


def _results(answer: dict[str, Any], count: int) -> list[Failure | None]:
    results: list[Failure | None] = [None] * count
    for entry in answer.get("Failed", []):
        code = "broker_refused" if entry.get("SenderFault") else "broker_unavailable"
        results[int(entry["Id"])] = Failure(code, f"SQS says {entry.get('Code', 'no')}")
    return results
