"""What became of attempts, by lane and minute: counted in each process, kept in `homing_traffic`.

Nothing is done for a message: telemetry counts anyhow, and every few seconds the difference since the last
look is added to the minute that it is. A process writes its own rows, whole, so a write that may or may not
have been done is done again. Without a database it goes on counting, for a day at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import accumulate
from math import inf
from operator import add, sub
from typing import Final, TypeAlias
from uuid import uuid4

import msgspec
from msgspec import Struct

from homing.db import Database, Row, load_queries
from homing.errors import DatabaseError
from homing.messages.model import LaneName
from homing.telemetry import ATTEMPT_BOUNDS, WAIT_BOUNDS, Telemetry, Totals

Clock: TypeAlias = Callable[[], datetime]

MINUTES_ARE_KEPT: Final = timedelta(hours=48)
HOURS_ARE_KEPT: Final = timedelta(days=90)
#: Of the names under which lanes report, those whose attempts deliver something.
_LANES: Mapping[str, LaneName] = {
    "mail_outbox": "mail_outbox",
    "dispatch_jobs": "dispatch_jobs",
    "email_log:send": "email_log",
    "open_events": "open_events",
}
_MINUTE, _HOUR = 60, 3600
_FLUSH_EVERY = 5.0
#: Flushes between two rounds of rolling up.
_TIDY_EVERY = 120
#: Hours that one round rolls up: after a long pause there may be many.
_HOURS_AT_ONCE = 24
#: A day of every lane.
_MOST_UNWRITTEN = len(_LANES) * 24 * 60
#: A stop does not wait longer for a database that is silent.
_LAST_FLUSH = 2.0

NOTHING: Final = Totals(0, 0, 0, 0, (0,) * (len(ATTEMPT_BOUNDS) + 1), (0,) * (len(WAIT_BOUNDS) + 1))

_encode = msgspec.json.Encoder().encode
_counts = msgspec.json.Decoder(tuple[int, ...]).decode


class _Stored(Struct, frozen=True):
    """A row as it is written."""

    at: int
    lane: str
    span: int
    writer: str
    delivered: int
    retried: int
    dead: int
    stopped: int
    attempts: tuple[int, ...]
    waits: tuple[int, ...]


class Bar(Struct, frozen=True):
    """What became of attempts in a stretch of time."""

    delivered: int = 0
    retried: int = 0
    dead: int = 0


class TrafficTable:
    """The rows of all processes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = load_queries(__package__ or "", database.dialect, "traffic")

    async def write(self, rows: Sequence[_Stored]) -> None:
        await self._database.fetch(self._queries["write"], {"batch": _encode(rows).decode()})

    async def series(self, since: datetime, step: timedelta) -> dict[tuple[str, int], Bar]:
        """By lane and begin of each step, in seconds since 1970; a step without traffic is not there."""
        given = {"since": int(since.timestamp()), "step": int(step.total_seconds())}
        rows = await self._database.fetch(self._queries["series"], given)
        return {(row["lane"], row["at"]): Bar(row["delivered"], row["retried"], row["dead"]) for row in rows}

    async def totals(self, since: datetime, until: datetime) -> dict[str, Totals]:
        """By lane."""
        return _by_lane(await self._rows(int(since.timestamp()), int(until.timestamp())))

    async def _rows(self, since: int, until: int) -> Sequence[Row]:
        return await self._database.fetch(self._queries["rows"], {"since": since, "until": until})

    async def tidy(self, now: datetime) -> None:
        """Old minutes become hours, and old hours are forgotten."""
        for _ in range(_HOURS_AT_ONCE):
            if not await self._roll_up(int((now - MINUTES_ARE_KEPT).timestamp())):
                break
        until = int((now - HOURS_ARE_KEPT).timestamp())
        await self._database.fetch(self._queries["forget_hours"], {"until": until})

    async def _roll_up(self, until: int) -> bool:
        """One hour: its sum is written and its minutes deleted together. Two processes write the same."""
        (oldest,) = await self._database.fetch(
            self._queries["oldest_minute"], {"until": until // _HOUR * _HOUR}
        )
        if oldest["at"] is None:
            return False
        hour: int = oldest["at"] // _HOUR * _HOUR
        # With the hour's own row, where minutes came in after it was made.
        sums = _by_lane(await self._rows(hour, hour + _HOUR))
        rows = [_stored(lane, hour, _HOUR, "", totals) for lane, totals in sums.items()]
        steps = [self._queries["write"], self._queries["forget_minutes"]]
        await self._database.fetch_all(
            steps, {"batch": _encode(rows).decode(), "since": hour, "until": hour + _HOUR}
        )
        return True


class TrafficCount:
    """What this process did, by lane and minute, until it is written."""

    def __init__(self, table: TrafficTable, telemetry: Telemetry, clock: Clock) -> None:
        self._table = table
        self._telemetry = telemetry
        self._clock = clock
        #: Unlike a process's number, never used again.
        self._writer = uuid4().hex[:16]
        self._last: dict[str, Totals] = {}
        self._minutes: dict[tuple[LaneName, int], Totals] = {}
        self._unwritten: set[tuple[LaneName, int]] = set()

    async def run(self) -> None:
        flushes = 0
        while True:
            await self._guarded(self.flush)
            if flushes % _TIDY_EVERY == 0:
                await self._guarded(lambda: self._table.tidy(self._clock()))
            flushes += 1
            await asyncio.sleep(_FLUSH_EVERY)

    async def close(self) -> None:
        """The last words of a process; without a database they are lost."""
        with suppress(DatabaseError, TimeoutError):
            async with asyncio.timeout(_LAST_FLUSH):
                await self.flush()

    def look(self) -> None:
        """Add what happened since the last look to the minute that it is."""
        minute = int(self._clock().timestamp()) // _MINUTE * _MINUTE
        for name, totals in self._telemetry.totals().items():
            before, self._last[name] = self._last.get(name, NOTHING), totals
            if name in _LANES and totals != before:
                key = (_LANES[name], minute)
                self._minutes[key] = plus(self._minutes.get(key, NOTHING), _minus(totals, before))
                self._unwritten.add(key)
        if len(self._minutes) > _MOST_UNWRITTEN:
            for oldest in sorted(self._minutes, key=_age)[:-_MOST_UNWRITTEN]:
                self._forget(oldest)

    async def flush(self) -> None:
        self.look()
        if not self._unwritten:
            return
        keys = sorted(self._unwritten, key=_age)
        await self._table.write(
            [_stored(lane, at, _MINUTE, self._writer, self._minutes[lane, at]) for lane, at in keys]
        )
        self._unwritten.difference_update(keys)
        # What is over is written once; the minute that goes on is written again.
        for key in [key for key in self._minutes if key[1] < keys[-1][1] and key not in self._unwritten]:
            self._forget(key)

    def _forget(self, key: tuple[LaneName, int]) -> None:
        self._minutes.pop(key, None)
        self._unwritten.discard(key)

    async def _guarded(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except DatabaseError as error:
            self._telemetry.log.warning("traffic.delayed", error=str(error))
        except Exception as bug:  # noqa: BLE001 - a row that we cannot read must not end the counting
            self._telemetry.crashed("figures.crashed", bug)


def plus(one: Totals, other: Totals) -> Totals:
    return _combined(one, other, add)


def _minus(one: Totals, other: Totals) -> Totals:
    return _combined(one, other, sub)


def _combined(one: Totals, other: Totals, how: Callable[[int, int], int]) -> Totals:
    return Totals(
        how(one.delivered, other.delivered),
        how(one.retried, other.retried),
        how(one.dead, other.dead),
        how(one.stopped, other.stopped),
        tuple(map(how, one.attempts, other.attempts)),
        tuple(map(how, one.waits, other.waits)),
    )


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """How long the given share took at most: the bound of its bucket, infinite past the last one."""
    wanted = sum(counts) * share
    if not wanted:
        return None
    so_far = accumulate(counts)
    return next((bound for bound, reached in zip(bounds, so_far, strict=False) if reached >= wanted), inf)


def _age(key: tuple[LaneName, int]) -> int:
    return key[1]


def _stored(lane: str, at: int, span: int, writer: str, totals: Totals) -> _Stored:
    return _Stored(
        at,
        lane,
        span,
        writer,
        totals.delivered,
        totals.retried,
        totals.dead,
        totals.stopped,
        totals.attempts,
        totals.waits,
    )


def _by_lane(rows: Iterable[Row]) -> dict[str, Totals]:
    sums: dict[str, Totals] = {}
    for row in rows:
        sums[row["lane"]] = plus(sums.get(row["lane"], NOTHING), _totals(row))
    return sums


def _totals(row: Row) -> Totals:
    attempts, waits = _counts(row["attempts"]), _counts(row["waits"])
    return Totals(
        row["delivered"],
        row["retried"],
        row["dead"],
        row["stopped"],
        _fitted(attempts, len(ATTEMPT_BOUNDS) + 1),
        _fitted(waits, len(WAIT_BOUNDS) + 1),
    )


def _fitted(counts: tuple[int, ...], length: int) -> tuple[int, ...]:
    """Written by a version with other buckets they would be told wrongly, and are left out."""
    return counts if len(counts) == length else (0,) * length
