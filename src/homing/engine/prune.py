"""Pruning: what ended long ago is deleted, in small batches, and only where somebody asked for it.

A retention says how old a row of a lane and state may become, counted from its end. `plan` turns it into
steps, one per table; `survey` counts what a step would delete, `prune` deletes it. Both walk through a table
in the order of its ids, a window at a time, and end where everything is too young.
"""

from __future__ import annotations

import asyncio
import difflib
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from homing.engine.model import Monotonic, Rand
from homing.errors import DatabaseError, SettingsError
from homing.telemetry import Telemetry

#: Seconds by state.
Ages = Mapping[str, float]

#: An idempotency key is known for as long as its row: an order repeated within a day is no second message.
SHORTEST_AGE = 24 * 3600.0
_LONGEST_AGE = 100 * 365 * 86400.0
_UNITS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_AGE = re.compile(r"(\d{1,6})([hdw])")

#: Rows that one look takes in.
WINDOW = 10_000
_FIRST_BATCH = 500
_SMALLEST_BATCH, _LARGEST_BATCH = 100, 2000
#: A batch is one transaction: when it takes longer the next is smaller, when it is quick the next is larger.
_LONG, _QUICK = 0.2, 0.05
#: A batch that met something slow must not put the next one off for minutes.
_LONGEST_PAUSE = 10.0

#: The share of the time that a worker prunes in, and the seconds between two rounds.
BACKGROUND_SHARE = 0.05
_BETWEEN_ROUNDS = 900.0
#: Processes that were started together do not all begin at once.
_FIRST_ROUND_WITHIN = 60.0


# ── what may go ──────────────────────────────────────────────────────────────────────────────────


class Retention(Struct, frozen=True):
    """Ages by `lane.state`, or by `lane` for all its states that have none of their own."""

    ages: Mapping[str, float] = {}

    def age_of(self, lane: str, state: str) -> float | None:
        return self.ages.get(f"{lane}.{state}", self.ages.get(lane))


def read_retention(text: str) -> Retention:
    """From `mail_outbox.sent=30d,dispatch_jobs=90d`; raises ValueError in words for whoever wrote it."""
    ages: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, age = (piece.strip() for piece in part.partition("="))
        if not (name and equals):
            raise ValueError(f"{part!r} is no retention; write lane.state=age, such as mail_outbox.sent=30d")
        if name in ages:
            raise ValueError(f"{name} has two ages; keep one")
        ages[name] = read_age(age)
    return Retention(ages)


def read_age(text: str) -> float:
    """Seconds, from `36h`, `30d` or `4w`; raises ValueError in words for whoever wrote it."""
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no age; write a number and h, d or w, such as 30d")
    age = float(match[1]) * _UNITS[match[2]]
    if age < SHORTEST_AGE:
        raise ValueError(f"{text!r} is no age; it is at least 24h, for so long idempotency keys are known")
    if age > _LONGEST_AGE:
        raise ValueError(f"{text!r} is no age; it is at most 100 years")
    return age


def age_in_words(seconds: float) -> str:
    return f"{seconds / 86400:g}d" if seconds % 86400 == 0 else f"{seconds / 3600:g}h"


# ── where it goes from ───────────────────────────────────────────────────────────────────────────


class Window(Struct, frozen=True):
    """How far one look goes: the last id in it, None when there is none; and whether any of it is old."""

    last: int | None
    old: bool


class Found(Struct, frozen=True):
    """What could be deleted of a state: how many, and since when the first of them has ended."""

    state: str
    count: int
    oldest: datetime | None


class Prunable(Protocol):
    """One table that can be pruned. Every statement takes the time from the database."""

    lane: str
    #: What its rows are called; several tables of a lane may share a word.
    states: Sequence[str]
    #: States of the lane which, when all of them have an age, give this table the longest.
    follows: Sequence[str]

    async def window(self, ages: Ages, after: int, size: int) -> Window:
        """The next rows, in the order of their ids."""

    async def survey(self, ages: Ages, after: int, until: int) -> Sequence[Found]:
        """What of these rows could be deleted."""

    async def candidates(self, ages: Ages, after: int, until: int, limit: int) -> Sequence[int]:
        """The first of them, by id."""

    async def prune(self, ages: Ages, ids: Sequence[int]) -> Mapping[str, int]:
        """Delete those that may still go, with all that is theirs, in one transaction; how many, by state."""


class Step(Struct, frozen=True):
    """One table, and the ages that its lane's states have."""

    table: Prunable
    ages: Ages


def plan(retention: Retention, tables: Iterable[Prunable]) -> list[Step]:
    """The tables that something may go from, in the order given; raises SettingsError for a wrong name."""
    tables = list(tables)
    _require_known(retention, tables)
    ages = {lane: _ages_of(retention, lane, tables) for lane in dict.fromkeys(t.lane for t in tables)}
    return [Step(t, ages[t.lane]) for t in tables if not ages[t.lane].keys().isdisjoint(t.states)]


def _ages_of(retention: Retention, lane: str, tables: Iterable[Prunable]) -> Ages:
    ages: dict[str, float] = {}
    for table in (table for table in tables if table.lane == lane):
        followed = [ages[state] for state in table.follows if state in ages]
        implied = max(followed) if followed and len(followed) == len(table.follows) else None
        for state in table.states:
            if (age := retention.age_of(lane, state) or implied) is not None:
                ages[state] = age
    return ages


def _require_known(retention: Retention, tables: Sequence[Prunable]) -> None:
    known = {t.lane for t in tables} | {f"{t.lane}.{state}" for t in tables for state in t.states}
    for name in retention.ages:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            there = ", ".join(sorted(known))
            raise SettingsError(
                f"HOMING_RETENTION: nothing called {name} can be pruned{hint}; there are {there}"
            )


# ── the walk ─────────────────────────────────────────────────────────────────────────────────────


class Pace:
    """How fast: batches that take a moment each, and after each a pause in proportion to it."""

    def __init__(
        self,
        share: float,
        *,
        monotonic: Monotonic = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._pauses = 1 / share - 1
        self._sleep = sleep
        self.monotonic = monotonic
        self.batch = _FIRST_BATCH

    async def rest(self, began: float) -> None:
        took = self.monotonic() - began
        if took > _LONG:
            self.batch = max(_SMALLEST_BATCH, self.batch // 2)
        elif took < _QUICK:
            self.batch = min(_LARGEST_BATCH, self.batch * 2)
        await self._sleep(min(took * self._pauses, _LONGEST_PAUSE))


async def survey(step: Step) -> AsyncIterator[Sequence[Found]]:
    """What each window holds that could be deleted."""
    async for after, until in _windows(step):
        yield await step.table.survey(step.ages, after, until)


async def prune(step: Step, pace: Pace) -> AsyncIterator[Mapping[str, int]]:
    """What each batch deleted, by state."""
    async for after, until in _windows(step):
        async for deleted in _prune_window(step, pace, after, until):
            yield deleted
            if not deleted:
                # Somebody else deletes the same rows just now, and one is enough.
                return


async def _prune_window(step: Step, pace: Pace, after: int, until: int) -> AsyncIterator[Mapping[str, int]]:
    while True:
        began, batch = pace.monotonic(), pace.batch
        ids = await step.table.candidates(step.ages, after, until, batch)
        if ids:
            yield await step.table.prune(step.ages, ids)
            after = ids[-1]
        await pace.rest(began)
        if len(ids) < batch:
            return


async def _windows(step: Step) -> AsyncIterator[tuple[int, int]]:
    """Ids rise with the time rows were made, so behind a window in which nothing is old nothing is."""
    after, old = 0, True
    while old:
        window = await step.table.window(step.ages, after, WINDOW)
        if window.last is None:
            return
        if window.old:
            yield after, window.last
        after, old = window.last, window.old


# ── by itself ────────────────────────────────────────────────────────────────────────────────────


class Pruner:
    """What a worker does about retention beside its work: a little at a time, now and then."""

    def __init__(
        self,
        steps: Sequence[Step],
        telemetry: Telemetry,
        *,
        share: float = BACKGROUND_SHARE,
        interval: float = _BETWEEN_ROUNDS,
        rand: Rand = random.random,
    ) -> None:
        self._steps = steps
        self._telemetry = telemetry
        self._share = share
        self._interval = interval
        self._rand = rand

    async def run(self) -> None:
        """Any number of processes may; those that meet leave it to the first."""
        await asyncio.sleep(self._rand() * min(self._interval, _FIRST_ROUND_WITHIN))
        while True:
            await self.once()
            await asyncio.sleep(self._interval * (0.5 + self._rand()))

    async def once(self) -> Mapping[tuple[str, str], int]:
        """One round; how many were deleted, by lane and state. A table in trouble holds up no other."""
        deleted: Counter[tuple[str, str]] = Counter()
        for step in self._steps:
            await self._guarded(step, deleted)
        for (lane, state), count in deleted.items():
            self._telemetry.pruned(lane, state, count)
        return deleted

    async def _guarded(self, step: Step, deleted: Counter[tuple[str, str]]) -> None:
        lane = step.table.lane
        try:
            async for counts in prune(step, Pace(self._share)):
                deleted.update({(lane, state): count for state, count in counts.items()})
        except DatabaseError as error:
            self._telemetry.log.warning("retention.failed", lane=lane, error=str(error))
        except Exception as bug:  # noqa: BLE001 - old rows are no reason to end a process that delivers new ones
            self._telemetry.crashed("retention.crashed", bug, lane=lane)
