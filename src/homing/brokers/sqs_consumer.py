"""Reading a queue of SQS: long polls, several at once while they come back full."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from homing.brokers.base import Message, Publication, Queue
from homing.brokers.sqs_client import TROUBLE, Connection, is_missing_queue, is_stale
from homing.brokers.sqs_letters import OVER_LIMIT, entry_of, message_of
from homing.brokers.sqs_queues import Queues, is_fifo, whole_seconds
from homing.engine.model import Failure, Monotonic
from homing.telemetry import Telemetry

BATCH = 10
#: Polls at one time, while there is much to fetch.
_MOST_POLLS = 5
_LONGEST_POLL = 20
_SHORTEST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0
_SYSTEM_ATTRIBUTES = ["ApproximateReceiveCount", "MessageGroupId", "DeadLetterQueueSourceArn"]


class _Held:
    """A message that is hidden from others because we have it."""

    __slots__ = ("handle", "until")

    def __init__(self, handle: str, until: float) -> None:
        self.handle = handle
        #: When others may see it again, by our clock.
        self.until = until


class SqsConsumer:
    """Polls in the background while `receive` waits, so that no answer is lost when its caller gives up."""

    def __init__(
        self,
        connection: Connection,
        queues: Queues,
        queue: Queue,
        prefetch: int,
        telemetry: Telemetry,
        *,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._connection = connection
        self._queues = queues
        self._queue = queue
        self._prefetch = prefetch
        self._telemetry = telemetry
        self._monotonic = monotonic
        self._held: dict[str, _Held] = {}
        self._arrived: deque[Message] = deque()
        self._polls: dict[asyncio.Task[None], int] = {}
        self._width = 1
        self._losses = 0
        self._news = asyncio.Event()
        self.is_closed = False

    # ── receiving ────────────────────────────────────────────────────────────────────────────────

    async def receive(self, limit: int, wait: float) -> list[Message]:
        try:
            async with asyncio.timeout(wait):
                while not (ready := self._take(limit)):
                    self._poll(wait)
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return []
        # Read on only while there is much: what lies here unasked for is hidden from those who are free.
        if self._width > 1:
            self._poll(wait)
        return ready

    def _take(self, limit: int) -> list[Message]:
        now = self._monotonic()
        taken: list[Message] = []
        while self._arrived and len(taken) < limit:
            message = self._arrived.popleft()
            held: _Held = message.receipt
            # One that lay here for half of its time is left to whoever sees it next.
            if held.until - now > self._queue.visibility / 2:
                taken.append(message)
            else:
                self._held.pop(held.handle, None)
        return taken

    def _poll(self, wait: float) -> None:
        """As many polls as there is room for, and as the last ones were worth."""
        self._let_go_of_expired()
        while not self.is_closed and len(self._polls) < self._width:
            room = min(BATCH, self._prefetch - len(self._held) - sum(self._polls.values()))
            # Fetching ahead pays when a whole batch fits; a poll for one or two would cost as much.
            if room <= 0 or (self._polls and room < BATCH):
                return
            task = asyncio.get_running_loop().create_task(self._fetch(room, wait))
            self._polls[task] = room
            task.add_done_callback(self._polled)

    def _polled(self, task: asyncio.Task[None]) -> None:
        del self._polls[task]
        self._news.set()

    def _let_go_of_expired(self) -> None:
        now = self._monotonic()
        for handle in [handle for handle, held in self._held.items() if held.until <= now]:
            del self._held[handle]

    async def _fetch(self, room: int, wait: float) -> None:
        try:
            messages = await self._ask(room, max(1, min(math.ceil(wait), _LONGEST_POLL)))
        except TROUBLE as error:
            await self._lost(error)
        except Exception as bug:  # noqa: BLE001 - it must not end the polling, and nobody awaits this task
            self._telemetry.crashed("broker.receive_crashed", bug, queue=self._queue.name)
            await asyncio.sleep(_LONGEST_PAUSE)
        else:
            self._losses = 0
            self._width = min(self._width * 2, _MOST_POLLS) if len(messages) == BATCH else 1
            self._arrived.extend(messages)

    async def _ask(self, room: int, seconds: int) -> list[Message]:
        url = await self._queues.url(self._queue)
        if isinstance(url, Failure):
            raise OSError(url.message)
        client = await self._connection.client()
        answer = await client.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=room,
            WaitTimeSeconds=seconds,
            VisibilityTimeout=whole_seconds(self._queue.visibility),
            MessageSystemAttributeNames=_SYSTEM_ATTRIBUTES,
            MessageAttributeNames=["All"],
        )
        # A long poll ends when it has found something: from then on it is hidden.
        until = self._monotonic() + self._queue.visibility
        return [self._hold(raw, until) for raw in answer.get("Messages", [])]

    def _hold(self, raw: Mapping[str, Any], until: float) -> Message:
        held = _Held(raw["ReceiptHandle"], until)
        self._held[held.handle] = held
        return message_of(raw, held)

    async def _lost(self, error: BaseException) -> None:
        self._losses += 1
        self._width = 1
        if is_missing_queue(error):
            self._queues.forget(self._queue)
        else:
            failure = self._connection.failure_of(error)
            self._telemetry.log.warning(
                "broker.unreachable", queue=self._queue.name, error=failure.message, losses=self._losses
            )
        longest = min(_SHORTEST_PAUSE * 2.0 ** min(self._losses - 1, 10), _LONGEST_PAUSE)
        await asyncio.sleep(longest * random.uniform(0.5, 1.0))  # noqa: S311 - to spread a fleet, not to hide

    # ── telling ──────────────────────────────────────────────────────────────────────────────────

    async def acknowledge(self, messages: Sequence[Message]) -> None:
        mine = self._mine(messages)
        for held in mine:
            self._release(held)
        await self._in_batches(mine, self._delete)

    async def give_back(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        spent = [message for message in messages if self._is_spent(message)]
        for message in spent:
            await self.bury(message, OVER_LIMIT)
        mine = self._mine(messages)
        for held in mine:
            self._release(held)
        await self._in_batches(mine, self._hiding(delay))

    def _is_spent(self, message: Message) -> bool:
        """The service would move it too, when it is next asked for, but would not say why."""
        return self._queue.dead_letters is not None and message.deliveries >= self._queue.delivery_limit

    async def extend(self, messages: Sequence[Message], seconds: float) -> None:
        mine, now = self._mine(messages), self._monotonic()
        heard = await self._in_batches(mine, self._hiding(seconds))
        for held in mine:
            if held.handle in heard:
                held.until = now + seconds

    async def bury(self, message: Message, reason: str) -> None:
        if not self._mine([message]):
            return
        if self._queue.dead_letters is None or await self._send_to_dead_letters(message, reason):
            await self.acknowledge([message])
        else:
            # It comes again when its time is over.
            for held in self._mine([message]):
                self._release(held)

    async def _send_to_dead_letters(self, message: Message, reason: str) -> bool:
        assert self._queue.dead_letters is not None, "asked for by the caller"
        to = Queue(self._queue.dead_letters)
        url = await self._queues.url(to)
        if isinstance(url, Failure):
            return False
        # The same message buried twice is one dead letter, where the queue can do that.
        letter = Publication(message.body, message.group, f"{message.id}:buried", message.trace)
        try:
            client = await self._connection.client()
            await client.send_message(QueueUrl=url, **entry_of(letter, fifo=is_fifo(to.name), reason=reason))
        except TROUBLE as error:
            if is_missing_queue(error):
                self._queues.forget(to)
            return False
        return True

    def _mine(self, messages: Iterable[Message]) -> list[_Held]:
        """Those that nobody else can have seen since. SQS itself would often take an old handle."""
        now = self._monotonic()
        held: Iterable[_Held] = (message.receipt for message in messages)
        return [one for one in held if self._held.get(one.handle) is one and one.until > now]

    def _release(self, held: _Held) -> None:
        self._held.pop(held.handle, None)
        self._news.set()

    def _hiding(self, seconds: float) -> Callable[[str, list[str]], Awaitable[Any]]:
        async def hide(url: str, handles: list[str]) -> Any:
            timeout = whole_seconds(seconds)
            entries = [{**entry, "VisibilityTimeout": timeout} for entry in _entries(handles)]
            client = await self._connection.client()
            return await client.change_message_visibility_batch(QueueUrl=url, Entries=entries)

        return hide

    async def _delete(self, url: str, handles: list[str]) -> Any:
        client = await self._connection.client()
        return await client.delete_message_batch(QueueUrl=url, Entries=_entries(handles))

    async def _in_batches(
        self, held: Sequence[_Held], call: Callable[[str, list[str]], Awaitable[Any]]
    ) -> set[str]:
        """The handles that the service took."""
        handles = [one.handle for one in held]
        batches = [handles[start : start + BATCH] for start in range(0, len(handles), BATCH)]
        return set().union(*await asyncio.gather(*(self._one_batch(batch, call) for batch in batches)))

    async def _one_batch(
        self, handles: list[str], call: Callable[[str, list[str]], Awaitable[Any]]
    ) -> set[str]:
        url = await self._queues.url(self._queue)
        if isinstance(url, Failure):
            return set()
        try:
            answer = await call(url, handles)
        except TROUBLE as error:
            # They come again, and then the database says what is still to be done.
            failure = self._connection.failure_of(error)
            self._telemetry.log.warning("broker.untold", queue=self._queue.name, error=failure.message)
            return set()
        failed = answer.get("Failed", [])
        codes = {str(entry.get("Code", "")) for entry in failed}
        if unexpected := sorted(code for code in codes if not is_stale(code)):
            self._telemetry.log.warning("broker.untold", queue=self._queue.name, error=", ".join(unexpected))
        return set(handles) - {handles[int(entry["Id"])] for entry in failed}

    async def rest(self) -> None:
        # What is under way may bring something yet, which nobody would see for a while if it were cut off.
        if self._polls:
            await asyncio.wait(set(self._polls), timeout=_LONGEST_POLL)
        unasked = list(self._arrived)
        self._arrived.clear()
        await self.give_back(unasked)

    async def close(self) -> None:
        self.is_closed = True
        # A poll that is cut off may still be handed messages over there, which nobody would see for a while.
        if self._polls:
            await asyncio.wait(set(self._polls), timeout=_LONGEST_POLL)
        for poll in list(self._polls):
            poll.cancel()
        now = self._monotonic()
        held = [one for one in self._held.values() if one.until > now]
        self._held.clear()
        self._arrived.clear()
        await self._in_batches(held, self._hiding(0))


def _entries(handles: Sequence[str]) -> list[dict[str, Any]]:
    return [{"Id": str(index), "ReceiptHandle": handle} for index, handle in enumerate(handles)]
