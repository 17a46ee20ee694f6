"""The SQS emulator alone: how many messages can be taken from it and deleted, with nothing done to them.

A bare client that receives ten at a time, deletes them in one call and does nothing in between. When the
router comes near to this, it is the emulator that is measured, and not the router.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from homing.proof.bench.webhook_contender import WebhookJob

# It has no types.
_session: Any = import_module("aiobotocore.session")

_BATCH = 10
#: More at once than this did not help: the emulator runs on one core.
_READERS = 8


class SqsCeiling:
    def __init__(self, job: WebhookJob) -> None:
        assert job.broker_url is not None, "there is nothing to measure without a broker"
        self._jobs = job.jobs
        self._endpoint = f"http://{urlsplit(job.broker_url).netloc}"
        self._stack = AsyncExitStack()
        self._taken = 0

    async def prepare(self) -> None:
        client = _session.get_session().create_client(
            "sqs", region_name="us-east-1", endpoint_url=self._endpoint,
            aws_access_key_id="bench", aws_secret_access_key="bench",  # noqa: S106 - loopback wants none
        )  # fmt: skip
        self._client: Any = await self._stack.enter_async_context(client)
        made = await self._client.create_queue(
            QueueName=f"bench-{uuid4().hex}.fifo", Attributes={"FifoQueue": "true"}
        )
        self._queue = {"QueueUrl": made["QueueUrl"]}
        for first in range(0, self._jobs, _BATCH):
            numbers = range(first, min(first + _BATCH, self._jobs))
            await self._client.send_message_batch(**self._queue, Entries=[_entry(n) for n in numbers])

    async def deliver(self) -> int:
        await asyncio.gather(*(self._read() for _ in range(_READERS)))
        return self._taken

    async def _read(self) -> None:
        while self._taken < self._jobs:
            received = await self._client.receive_message(**self._queue, MaxNumberOfMessages=_BATCH)
            if messages := received.get("Messages"):
                handles = [
                    {"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(messages)
                ]
                await self._client.delete_message_batch(**self._queue, Entries=handles)
                self._taken += len(messages)

    async def close(self) -> None:
        await self._client.delete_queue(**self._queue)
        await self._stack.aclose()


def _entry(number: int) -> dict[str, str]:
    """As large as a pointer, and in a group of its own."""
    name = f"job-{number:08}"
    return {"Id": name, "MessageBody": "x" * 250, "MessageGroupId": name, "MessageDeduplicationId": name}
