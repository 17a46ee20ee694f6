"""What a process does for the fleet: it says that it lives, and looks what it is to leave alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from homing.engine.model import Monotonic
from homing.errors import DatabaseError
from homing.telemetry import Telemetry
from homing.workers.fleet import CHANNEL, Fleet
from homing.workers.model import Identity, Own, Report, is_paused

#: Seconds between two looks at the pauses, also where nobody announces them: within five they are honoured.
_LOOK_EVERY = 2.0
#: Looks between two beats, and between two rounds of forgetting.
_BEAT_EVERY, _FORGET_EVERY = 2, 300
#: A stop does not wait longer for a database that is silent.
_LAST_BEAT = 2.0


class Pausable(Protocol):
    """A line of a lane, or the router."""

    async def pause(self) -> None:
        """Claim nothing more until `resume`; what has begun comes to its end."""

    async def resume(self) -> None: ...


class Heartbeat:
    """Never fails the process: without a database the last pauses hold, and one line is logged.

    `works` is what can be paused, by its lane or stage.
    """

    def __init__(
        self,
        fleet: Fleet,
        who: Identity,
        telemetry: Telemetry,
        *,
        works: Mapping[str, Sequence[Pausable]],
        report: Callable[[], Report],
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._who = who
        self._works = works
        self._report = report
        self._telemetry = telemetry
        self._monotonic = monotonic
        self._began = monotonic()
        self._looks = 0
        self._pauses: frozenset[tuple[str, str]] = frozenset()
        self._is_heard = True
        self._is_stopping = False
        self._woken = asyncio.Event()

    async def begin(self) -> None:
        """Before anything is claimed: a pause outlives a restart."""
        self._fleet.database.listen(CHANNEL, self._woken.set)
        for lane in self._works:
            self._telemetry.lane_paused(lane, is_on=False)
        await self._turn()

    async def run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._woken.wait()
            self._woken.clear()
            await self._turn()

    async def stopping(self) -> None:
        """It claims no more, and finishes what it holds."""
        self._is_stopping = True
        await self._last_words("stopping")

    async def stopped(self) -> None:
        await self._last_words("stopped")

    # ── one look ─────────────────────────────────────────────────────────────────────────────────

    async def _turn(self) -> None:
        await self._guarded(self._look)
        if self._looks % _BEAT_EVERY == 0:
            await self._guarded(self._beat)
        if self._looks % _FORGET_EVERY == 0:
            await self._guarded(self._fleet.forget_the_old)
        self._looks += 1

    async def _look(self) -> None:
        pauses = frozenset((pause.scope, pause.name) for pause in await self._fleet.pauses())
        self._note(heard=True)
        if pauses == self._pauses:
            return
        before, self._pauses = self._pauses, pauses
        for lane in self._works:
            was, now = (is_paused(self._who.name, lane, some) for some in (before, pauses))
            if was != now:
                await self._guarded(partial(self._change, lane, now=now))
        # Whoever asked for it wants to see that it was heard.
        await self._beat()

    async def _change(self, lane: str, *, now: bool) -> None:
        for work in self._works[lane]:
            await (work.pause() if now else work.resume())
        self._telemetry.lane_paused(lane, is_on=now)
        if now:
            self._telemetry.log.info("worker.paused", lane=lane)
        else:
            self._telemetry.log.info("worker.resumed", lane=lane)

    async def _beat(self) -> None:
        is_paused_here = ("worker", self._who.name) in self._pauses
        await self._say("stopping" if self._is_stopping else "paused" if is_paused_here else "running")

    async def _say(self, state: Own) -> None:
        await self._fleet.beat(self._who, state, self._report(), up_seconds=self._monotonic() - self._began)

    async def _last_words(self, state: Own) -> None:
        async def say() -> None:
            async with asyncio.timeout(_LAST_BEAT):
                await self._say(state)

        await self._guarded(say)

    async def _guarded(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except (DatabaseError, TimeoutError) as error:
            self._note(heard=False, error=str(error) or "no answer")
        except Exception as bug:  # noqa: BLE001 - who delivers must not end because it cannot tell of it
            self._telemetry.crashed("worker.crashed", bug)

    def _note(self, *, heard: bool, error: str = "") -> None:
        """Once, however long it lasts."""
        if not heard and self._is_heard:
            self._telemetry.log.warning("worker.unheard", error=error)
        self._is_heard = heard
