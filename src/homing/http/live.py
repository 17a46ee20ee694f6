"""Live pages: what they show is looked at again and again, once for all, and what has changed is sent.

A topic is looked at while somebody follows it, and not otherwise. Ten tabs on one page cost what one costs.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from homing.engine.model import Monotonic
from homing.errors import DatabaseError, HomingError, RateLimited
from homing.telemetry import Telemetry

#: Seconds between two signs of life, and until a log-out is noticed where nothing else happens.
HEARTBEAT = 4.0
#: Of a process; a browser has six at most, so this is many people.
MOST_STREAMS = 500
MOST_OF_ONE = 30
#: Whoever reads slower than this many events is sent away, and comes back to the newest state.
_LONGEST_QUEUE = 16
#: A look that takes long is taken less often: looking costs at most this part of one connection.
_SHARE = 0.1
_RETRY = 3.0
_ALIVE = b": alive\n\n"

_encode = msgspec.json.Encoder().encode


class Piece(Struct, frozen=True):
    """An element of a page. It is sent again when its values are others than before."""

    #: The id of the element.
    key: str
    template: str
    values: Mapping[str, Any]


Look = Callable[[], Awaitable[Sequence[Piece]]]
Write = Callable[[Piece], str]


class Streams:
    """All streams of a process."""

    def __init__(self, telemetry: Telemetry, write: Write, *, monotonic: Monotonic = time.monotonic) -> None:
        self.telemetry, self.write, self.monotonic = telemetry, write, monotonic
        self.is_closed = False
        self._topics: dict[Hashable, Topic] = {}
        self._of_each: Counter[str] = Counter()

    @property
    def followers(self) -> int:
        return self._of_each.total()

    @property
    def topics(self) -> int:
        return len(self._topics)

    async def follow(
        self, who: str, key: Hashable, look: Look, *, every: float, counts: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes, None]:
        """What is sent to one who looks, for as long as that `counts`: is logged in, and may.

        Whoever gets it has a place already, and gives it back also when nobody ever reads: a generator that
        has begun is closed when it is let go.
        """
        following = self._follow(who, key, look, every, counts)
        await anext(following)
        return following

    async def _follow(
        self, who: str, key: Hashable, look: Look, every: float, counts: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes, None]:
        self._require_room(who)
        topic = self._topics.get(key)
        if topic is None:
            topic = self._topics[key] = Topic(self, key, look, every)
        follower = topic.add()
        self._of_each[who] += 1
        try:
            yield b""
            # When to come back, should it break.
            yield f"retry: {round(_RETRY * 1000)}\n\n".encode()
            while (event := await follower.next()) is not None:
                if not await counts():
                    yield _event("over", {})
                    return
                yield event
        finally:
            self._of_each[who] -= 1
            self._of_each += Counter()
            topic.remove(follower)

    def _require_room(self, who: str) -> None:
        if self.is_closed:
            raise RateLimited("the server is stopping", _RETRY)
        if self._of_each[who] >= MOST_OF_ONE or self.followers >= MOST_STREAMS:
            raise RateLimited("too many live pages are open; close some", HEARTBEAT)

    def drop(self, key: Hashable, topic: Topic) -> None:
        """One that ended before may be let go later, when another has its place."""
        if self._topics.get(key) is topic:
            del self._topics[key]

    async def close(self) -> None:
        """Every stream ends now: a server that stops waits for the requests that are open."""
        self.is_closed = True
        for topic in list(self._topics.values()):
            topic.end()


class Follower:
    """One who looks: the events that were not sent yet."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def next(self) -> bytes | None:
        """The next event, or a sign of life when there is none for a while; None at the end."""
        try:
            async with asyncio.timeout(HEARTBEAT):
                return await self._events.get()
        except TimeoutError:
            return _ALIVE

    def put(self, event: bytes) -> None:
        if self._events.qsize() < _LONGEST_QUEUE:
            self._events.put_nowait(event)
        else:
            self.end()

    def end(self) -> None:
        """What waits is of no use any more: whoever comes back is sent everything."""
        while not self._events.empty():
            self._events.get_nowait()
        self._events.put_nowait(None)


class Topic:
    """Something that is looked at for all its followers."""

    def __init__(self, streams: Streams, key: Hashable, look: Look, every: float) -> None:
        self._streams, self._key, self._look, self._every = streams, key, look, every
        self._followers: set[Follower] = set()
        self._pieces: dict[str, Piece] | None = None
        self._task = asyncio.create_task(self._watch())

    def add(self) -> Follower:
        follower = Follower()
        if self._pieces is not None:
            follower.put(self._told(self._pieces.values(), (), is_all=True))
        self._followers.add(follower)
        return follower

    def remove(self, follower: Follower) -> None:
        self._followers.discard(follower)
        if not self._followers:
            self._task.cancel()
            self._streams.drop(self._key, self)

    def end(self) -> None:
        self._streams.drop(self._key, self)
        for follower in self._followers:
            follower.end()

    async def _watch(self) -> None:
        try:
            while True:
                began = self._streams.monotonic()
                await self._look_once()
                took = self._streams.monotonic() - began
                await asyncio.sleep(max(self._every, took / _SHARE))
        except Exception as bug:  # noqa: BLE001 (the task is nobody's to await: what is wrong is told here)
            self._streams.telemetry.crashed("live.failed", bug)
            self.end()

    async def _look_once(self) -> None:
        try:
            found = await self._look()
        except DatabaseError:
            self._tell(_event("away", {"why": "the database cannot be reached"}))
        except HomingError as error:
            self._tell(_event("away", {"why": str(error)}))
        else:
            self._compare({piece.key: piece for piece in found})

    def _compare(self, now: dict[str, Piece]) -> None:
        before, self._pieces = self._pieces, now
        known = before or {}
        changed = [piece for key, piece in now.items() if known.get(key) != piece]
        gone = [key for key in known if key not in now]
        if changed or gone or before is None:
            self._tell(self._told(changed, gone, is_all=before is None))

    def _told(self, changed: Iterable[Piece], gone: Sequence[str], *, is_all: bool) -> bytes:
        """`all`: what is not among these is not there any more."""
        put = [[piece.key, self._streams.write(piece)] for piece in changed]
        return _event("pieces", {"put": put, "gone": gone, "all": is_all})

    def _tell(self, event: bytes) -> None:
        for follower in self._followers:
            follower.put(event)


def _event(name: str, told: Mapping[str, Any]) -> bytes:
    """JSON has no line break in it, so it is one line of data."""
    return b"event: " + name.encode() + b"\ndata: " + _encode(told) + b"\n\n"
