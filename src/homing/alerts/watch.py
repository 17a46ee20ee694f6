"""The loop: of all processes one looks, judges what it sees, and tells."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from homing.alerts.deaths import Feed
from homing.alerts.eyes import Eye
from homing.alerts.post import Post
from homing.alerts.rules import Cause, Seen, Terms, Verdict, judge
from homing.alerts.store import AlertStore, Moment
from homing.engine.model import Monotonic, Rand
from homing.errors import DatabaseError
from homing.telemetry import Telemetry

#: Rounds that whoever looks may miss before another process does.
_MISSED = 3
_FIRST_ROUND_WITHIN = 1.0
_FORGET_EVERY = 3600.0


async def _none() -> frozenset[str]:
    return frozenset()


class Watch:
    def __init__(
        self,
        store: AlertStore,
        post: Post,
        terms: Terms,
        telemetry: Telemetry,
        *,
        owner: str,
        feeds: Sequence[Feed],
        eyes: Sequence[Eye],
        interval: float,
        idle: Callable[[], Awaitable[frozenset[str]]] = _none,
        rand: Rand = random.random,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self.store, self.post, self.terms = store, post, terms
        self._telemetry, self._owner = telemetry, owner
        self._feeds, self._eyes, self._interval = feeds, eyes, interval
        #: Lanes that nobody takes from.
        self._idle = idle
        self._rand, self._monotonic = rand, monotonic
        self._forget_at = 0.0

    async def run(self) -> None:
        await asyncio.sleep(self._rand() * min(self._interval, _FIRST_ROUND_WITHIN))
        while True:
            await self._guarded(self.once)
            await asyncio.sleep(self._interval)

    async def once(self) -> bool:
        """One round, unless another process looks after it; whether it was ours."""
        if not await self.store.take_watch(self._owner, self._interval * _MISSED):
            return False
        await self.round()
        return True

    async def round(self) -> None:
        # What was told before a crash goes out first.
        await self._guarded(self._hand_over)
        for feed in self._feeds:
            await self._guarded(feed.take_up)
        await self._judge()
        await self._guarded(self._hand_over)
        if self._monotonic() >= self._forget_at:
            self._forget_at = self._monotonic() + _FORGET_EVERY
            await self.store.forget()

    async def leave(self) -> None:
        """Another process need not wait until it is sure that this one is gone."""
        await self._guarded(self._leave)

    async def _leave(self) -> None:
        await self.store.leave_watch(self._owner)

    async def _hand_over(self) -> None:
        await self.post.hand_over()

    # ── judging ──────────────────────────────────────────────────────────────────────────────────

    async def _judge(self) -> None:
        open_causes = await self.store.causes()
        looked, seen = await self._look(list(open_causes.values()))
        # As they stood before the look: whoever died since then was not looked for, and has a round to come.
        causes = {
            **await self.store.causes([name for name in seen if name not in open_causes]),
            **open_causes,
        }
        moment = await self.store.moment()
        for name, one in seen.items():
            causes.setdefault(name, Cause(name, one.kind, moment.now))
        judged = [cause for cause in causes.values() if cause.kind == "dead" or _is_of(cause.cause, looked)]
        verdicts = [(cause, judge(cause, seen.get(cause.cause), self.terms, moment.now)) for cause in judged]
        await self._write(verdicts, moment)

    async def _look(self, open_causes: Sequence[Cause]) -> tuple[list[str], dict[str, Seen]]:
        """An eye that is shut says nothing: what it looks after stays as it is."""
        looked: list[str] = []
        seen: dict[str, Seen] = {}
        for eye in self._eyes:
            mine = [cause for cause in open_causes if cause.cause.startswith(eye.covers)]

            async def look(eye: Eye = eye, mine: Sequence[Cause] = mine) -> None:
                seen.update({one.cause: one for one in await eye.look(mine)})
                looked.append(eye.covers)

            await self._guarded(look)
        return looked, seen

    async def _write(self, verdicts: Sequence[tuple[Cause, Verdict]], moment: Moment) -> None:
        room = self.terms.most_per_hour - moment.told
        held_back = 0
        idle = await self._idle() if any(verdict.event for _, verdict in verdicts) else frozenset[str]()
        for before, proposed in verdicts:
            verdict = proposed
            if proposed.event is not None and room <= 0:
                verdict = proposed.without_alert()
                held_back += 1
            if verdict.cause != before:
                ways = self.post.ways.of(verdict.cause, idle)
                # One that cannot be written must not hold up the others.
                await self._guarded(partial(self.store.tell, verdict.cause, verdict.event, ways))
            room -= verdict.event is not None
        if held_back:
            self._telemetry.log.warning("alert.held_back", count=held_back, room=self.terms.most_per_hour)

    async def _guarded(self, step: Callable[[], Awaitable[object]]) -> None:
        try:
            await step()
        except DatabaseError as error:
            self._telemetry.log.warning("alert.failed", error=str(error))
        except Exception as bug:  # noqa: BLE001 - who watches over the others must not end with a bug of its own
            self._telemetry.crashed("alert.crashed", bug)


def _is_of(cause: str, looked: Sequence[str]) -> bool:
    return any(cause.startswith(covered) for covered in looked)
