"""The doctor for a page: run beside it, so that nobody waits; what it found last is shown with its age."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime

from msgspec import Struct

from homing.engine.calling_off import call_off
from homing.engine.model import Monotonic
from homing.errors import HomingError
from homing.telemetry import Telemetry

#: Seconds. A relay that does not answer must not keep a look from ending.
_LONGEST = 60.0
#: Seconds after which a visit to the page makes the doctor look again.
_FRESH = 300.0


class Finding(Struct, frozen=True):
    check: str
    well: bool
    #: What is so; when it is not well, also how to mend it.
    detail: str


class TimedFinding(Struct, frozen=True):
    finding: Finding
    seconds: float


class Report(Struct, frozen=True):
    """What one look found."""

    findings: Sequence[TimedFinding]
    at: datetime
    seconds: float
    #: Why it ended before its end.
    broken: str | None = None

    @property
    def wrong(self) -> int:
        return sum(not one.finding.well for one in self.findings)


Examine = Callable[[], AsyncIterator[Finding]]


class Checkup:
    """One look at a time, whoever asks."""

    def __init__(
        self,
        examine: Callable[[], Examine | None],
        telemetry: Telemetry,
        *,
        monotonic: Monotonic = time.monotonic,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._examine, self._telemetry = examine, telemetry
        self._monotonic, self._clock = monotonic, clock
        self._task: asyncio.Task[None] | None = None
        self._ended = float("-inf")
        self.last: Report | None = None

    @property
    def is_possible(self) -> bool:
        return self._examine() is not None

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def is_old(self) -> bool:
        return self._monotonic() - self._ended > _FRESH

    def start(self) -> bool:
        """Whether a look has begun; not while one is under way."""
        examine = self._examine()
        if self.is_running or examine is None:
            return False
        self._task = asyncio.get_running_loop().create_task(self._look(examine))
        return True

    async def ended(self) -> None:
        """The look that is under way has come to its end."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def close(self) -> None:
        if self._task is not None:
            await call_off(self._task)

    async def _look(self, examine: Examine) -> None:
        began, found = self._monotonic(), list[TimedFinding]()
        broken: str | None = None
        try:
            async with asyncio.timeout(_LONGEST):
                await self._collect(examine, found)
        except TimeoutError:
            broken = f"it was stopped after {_LONGEST:g} seconds: what comes next does not answer"
        except HomingError as error:
            broken = str(error)
        except Exception as bug:  # noqa: BLE001 - a bug of a check is told on the page, and no reason to end
            self._telemetry.crashed("doctor.crashed", bug)
            broken = f"{type(bug).__name__} in the doctor itself; the log has more"
        self._ended = self._monotonic()
        self.last = Report(found, self._clock(), self._ended - began, broken)

    async def _collect(self, examine: Examine, found: list[TimedFinding]) -> None:
        since = self._monotonic()
        async for finding in examine():
            now = self._monotonic()
            found.append(TimedFinding(finding, now - since))
            since = now
