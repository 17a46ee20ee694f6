"""The one seam to brokers.

A broker carries hints: a message names a row, and the row is the truth. So a message may come twice, late or
never, and nothing is lost: whoever reads it asks the database what is still to be done, and a sweep
publishes again what was forgotten.

Whatever goes wrong at the broker comes back as a value. Connections heal by themselves, and a queue that was
deleted is made again by whoever uses it next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from homing.engine.model import Failure
from homing.tracing import Trace


class Queue(Struct, frozen=True):
    """A queue and what it is like; it is made when it is first used."""

    #: For SQS its URL or its name.
    name: str
    #: Where messages go that nobody can read, or that came back too often.
    dead_letters: str | None = None
    #: A message is handed out at most so often, and then goes to the dead letters. Where there are none it is
    #: handed out again and again: nothing is thrown away unseen.
    delivery_limit: int = 20
    #: A message that was handed out is hidden for so many seconds, where the broker hides by time.
    #: RabbitMQ does not: there it is hidden as long as the connection of whoever has it lives.
    visibility: float = 30.0


class Depth(Struct, frozen=True):
    """How many messages are in a queue, about; None for what the broker does not tell."""

    #: To be handed out.
    waiting: int
    #: Handed out and not yet acknowledged.
    held: int | None = None
    #: To be handed out later.
    delayed: int | None = None
    consumers: int | None = None


class Publication(Struct, frozen=True, gc=False):
    """A message that is to be sent."""

    body: bytes
    #: Messages of one group stay in order, where the broker can do that.
    group: str | None = None
    #: Twice the same is one message, where the broker can do that.
    dedup: str | None = None
    #: Goes along as `traceparent` and `tracestate`.
    trace: Trace | None = None


class Message(Struct, frozen=True, gc=False):
    """A message that was received, and is ours until it is acknowledged or given back."""

    #: The broker's own name for it.
    id: str
    body: bytes
    group: str | None = None
    #: How often it was handed out, this time included, as far as the broker tells.
    deliveries: int = 1
    #: Why it was buried, when it is read from the dead letters.
    reason: str | None = None
    #: What the broker wants to see when it is told of this message.
    receipt: Any = None
    #: Where whoever sent it says that it came from.
    trace: Trace | None = None


class Consumer(Protocol):
    """Reads one queue. What it was told of a message that is no longer ours has no effect."""

    async def receive(self, limit: int, wait: float) -> list[Message]:
        """Up to `limit` messages; none when none came in `wait` seconds, or the broker is away."""

    async def acknowledge(self, messages: Sequence[Message]) -> None:
        """They are done with, for ever."""

    async def give_back(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """To be handed out again, to anybody, after `delay` seconds."""

    async def extend(self, messages: Sequence[Message], seconds: float) -> None:
        """They are still being worked on: nobody else is to see them for so long."""

    async def bury(self, message: Message, reason: str) -> None:
        """To the dead letters, with the reason beside it; or nowhere, when the queue has none."""

    async def rest(self) -> None:
        """Until `receive` is called again: fetch nothing, and give back what nobody has asked for yet."""

    async def close(self) -> None:
        """Give back what was received and not yet acknowledged."""


class Broker(Protocol):
    """A connection to one broker, made when it is first needed."""

    @property
    def name(self) -> str:
        """`memory`, `rabbitmq` or `sqs`."""

    async def publish(self, queue: Queue, publications: Sequence[Publication]) -> Sequence[Failure | None]:
        """Send; for each, None when the broker has confirmed that it keeps it, or why it did not."""

    async def consume(self, queue: Queue, prefetch: int) -> Consumer:
        """Begin to read a queue, with at most `prefetch` messages received and not yet acknowledged."""

    async def find(self, named: str, among: Sequence[str]) -> str | None:
        """Which of these queues that is, as it is called there: a queue of SQS has a name and a URL."""

    async def depth(self, queue: Queue) -> int | None:
        """How many messages wait, about; None when the broker does not tell."""

    async def measure(self, queue: Queue) -> Depth | None:
        """What is in a queue; None when the broker does not tell, or is away."""

    async def check(self) -> Failure | None:
        """What is wrong with the connection, for the doctor; None when nothing is."""

    async def close(self) -> None: ...
