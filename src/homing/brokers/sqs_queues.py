"""Finding queues of SQS by name or URL, and making those that are missing."""

from __future__ import annotations

import asyncio
import json
import math
from urllib.parse import urlsplit

from msgspec import Struct

from homing.brokers.base import Queue
from homing.brokers.sqs_client import TROUBLE, Client, Connection, is_loopback, is_missing_queue
from homing.engine.model import Failure

_LONGEST_VISIBILITY = 43_200


def name_of(queue: str) -> str:
    """Of a queue that is named by its name or its URL."""
    return queue.rpartition("/")[2]


def is_fifo(name: str) -> bool:
    return name.endswith(".fifo")


def whole_seconds(seconds: float) -> int:
    """SQS counts in whole seconds, up to twelve hours."""
    return min(max(0, math.ceil(seconds)), _LONGEST_VISIBILITY)


#: What a text is that is no URL.
_NOWHERE = ("", 0)


class _Place(Struct, frozen=True):
    """Where a queue is, its name left out. All names of loopback are one."""

    endpoint: tuple[str, int]
    account: str

    @classmethod
    def of(cls, url: str) -> _Place:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)
        except ValueError:
            return cls(_NOWHERE, "")
        account = parts.path.strip("/").rpartition("/")[0]
        return cls(("localhost" if is_loopback(host) else host, port), account)


class Queues:
    """URLs by name. One that turns out to be wrong is forgotten, and then asked for again."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._urls: dict[str, str] = {}
        self._lock = asyncio.Lock()

    def forget(self, queue: Queue) -> None:
        self._urls.pop(queue.name, None)

    async def url(self, queue: Queue) -> str | Failure:
        async with self._lock:
            if queue.name in self._urls:
                return self._urls[queue.name]
            try:
                url = await self._find_or_make(await self._connection.client(), queue)
            except TROUBLE as error:
                return self._connection.failure_of(error)
            self._urls[queue.name] = url
            return url

    async def are_one(self, one: str, other: str) -> bool:
        """Two spellings with one name: whether endpoint and account are the same."""
        urls = [named for named in (one, other) if "://" in named]
        if len(urls) != 1:
            return bool(urls) and _Place.of(one) == _Place.of(other)
        found = await self._existing(name_of(one))
        # A URL may say the endpoint as we were told it, or as the service itself calls it.
        ours = {_Place.of(url).endpoint for url in (self._connection.endpoint.base_url, found or "")}
        given = _Place.of(urls[0])
        # Without an answer the account cannot be told: ours, most likely.
        return (
            given.endpoint != _NOWHERE
            and given.endpoint in ours
            and (found is None or given.account == _Place.of(found).account)
        )

    async def _existing(self, name: str) -> str | None:
        """Its URL, if it is there and the service tells."""
        if name not in self._urls:
            try:
                client = await self._connection.client()
                self._urls[name] = str((await client.get_queue_url(QueueName=name))["QueueUrl"])
            except TROUBLE:
                return None
        return self._urls[name]

    async def _find_or_make(self, client: Client, queue: Queue) -> str:
        name = name_of(queue.name)
        try:
            found = await client.get_queue_url(QueueName=name)
        except TROUBLE as error:
            if not is_missing_queue(error):
                raise
            return await self._make(client, queue, name)
        # A URL that was given may name another account's queue, and is the better address.
        return queue.name if "://" in queue.name else str(found["QueueUrl"])

    async def _make(self, client: Client, queue: Queue, name: str) -> str:
        attributes = {"VisibilityTimeout": str(whole_seconds(queue.visibility))}
        if is_fifo(name):
            attributes["FifoQueue"] = "true"
        if queue.dead_letters is not None:
            target = await self._dead_letters(client, queue.dead_letters)
            policy = {"deadLetterTargetArn": target, "maxReceiveCount": str(queue.delivery_limit)}
            attributes["RedrivePolicy"] = json.dumps(policy)
        made = await client.create_queue(QueueName=name, Attributes=attributes)
        return str(made["QueueUrl"])

    async def _dead_letters(self, client: Client, name: str) -> str:
        url = await self._find_or_make(client, Queue(name))
        found = await client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        return str(found["Attributes"]["QueueArn"])
