"""How many bytes of large messages one process has in hand at once, those of all its lanes together.

What is small comes with its claim, and is bounded by how many are claimed. What is large is read when its
attempt begins, and only when there is room for it; until then its claim holds a slot, so fewer are claimed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

#: Nobody, a target or a lane, gets more than one part of so many, as long as another could want some.
_PARTS = 2


class Room:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._held_by: Counter[str] = Counter()
        self._line: deque[tuple[str, int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def take(self, party: str, size: int) -> AsyncIterator[None]:
        """Wait until so many bytes fit. What is larger than all the room is let in when it is alone."""
        size = min(size, self.limit)
        if not self._line and self._fits(party, size):
            self._enter(party, size)
        else:
            await self._turn(party, size)
        try:
            yield
        finally:
            self._leave(party, size)

    def _fits(self, party: str, size: int) -> bool:
        return self.held + size <= self.limit and not self._has_its_part(party, size)

    def _has_its_part(self, party: str, size: int) -> bool:
        own = self._held_by[party]
        return own > 0 and own + size > self.limit // _PARTS

    def _enter(self, party: str, size: int) -> None:
        self.held += size
        self._held_by[party] += size

    def _leave(self, party: str, size: int) -> None:
        self.held -= size
        self._held_by[party] -= size
        if not self._held_by[party]:
            del self._held_by[party]
        self._let_in()

    async def _turn(self, party: str, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((party, size, turn))
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(party, size)
            raise

    def _let_in(self) -> None:
        """In turn; who has its part already is passed by, for who needs more room all others wait."""
        waiting, self._line = self._line, deque()
        while waiting:
            party, size, turn = waiting.popleft()
            if turn.done():
                continue
            if self._fits(party, size):
                self._enter(party, size)
                turn.set_result(None)
                continue
            self._line.append((party, size, turn))
            if not self._has_its_part(party, size):
                break
        self._line.extend(waiting)
