"""Another program on the tables of open seats, as the specification's producer is one: plain SQL.

    python notification_writer.py PLAN

It knows nothing of Homing, not even by import: sqlite3 or asyncpg is all that it has. Students subscribe,
sections open, and each in a transaction of its own; now and then one of these is held open for seconds.
Beside that it does what operators do by hand: it puts back what has failed or waits, and takes away locks
that are too old. All that it did, and how long it was kept waiting, it writes into its diary.

SIGUSR1 makes a large section open at once, SIGTERM ends it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import asyncpg

#: Much longer than anybody may hold a lock; who waits so long has found a fault.
_PATIENCE = 60.0
_TICK = 0.05
_BETWEEN_REQUEUES = 0.7
_BETWEEN_CLEARINGS = 3.0
#: Subscribers of a section.
_FEWEST, _MOST = 1, 120
#: Of those that wait for their next attempt, how many are put back at once.
_PUT_BACK = 5
_TERM, _CAMPUS = "20269", "NB"


@dataclass(frozen=True)
class WriterPlan:
    #: A file, or postgresql://….
    database: str
    diary: str
    seed: int
    #: So many notifications, evenly over so many seconds, after some at the beginning.
    notifications: int
    at_first: int
    seconds: float
    #: Subscribers of a section that opens by SIGUSR1.
    burst: int
    #: How many have unsubscribed by the time that their section opens, from 0 to 1.
    leaving: float
    #: How often a transaction is held open, and for how long.
    holds: int
    shortest_hold: float
    longest_hold: float
    lock_ttl: float


# ── the two databases ────────────────────────────────────────────────────────────────────────────


class Book(Protocol):
    """A connection. Both databases take parameters as $1, $2, …"""

    #: Seconds that the last transaction was kept waiting, for the lock of a file or the locks of rows.
    waited: float
    #: Appended to a SELECT, keeps others from changing what was read.
    keeping: str
    too_old: str

    async def begin(self) -> None: ...

    async def read(self, sql: str, *values: Any) -> list[tuple[Any, ...]]: ...

    async def write(self, sql: str, rows: Sequence[Sequence[Any]]) -> None: ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...

    def moment(self) -> Any:
        """Now, as this program writes times."""


class SqliteBook:
    """Its waits are for the one lock that a file has: to begin, and to commit."""

    keeping = ""
    too_old = "julianday(locked_at) < julianday('now') - $1 / 86400.0"

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)
        self.waited = 0.0

    async def begin(self) -> None:
        self.waited = 0.0
        self._timed("BEGIN IMMEDIATE")

    async def read(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, _named(values)).fetchall()

    async def write(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        self._connection.executemany(sql, [_named(row) for row in rows])

    async def commit(self) -> None:
        self._timed("COMMIT")

    async def rollback(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def moment(self) -> str:
        """As `datetime('now')` has it: ISO text, though not in the form that Homing writes."""
        return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")

    def _timed(self, statement: str) -> None:
        begun = time.perf_counter()
        self._connection.execute(statement)
        self.waited += time.perf_counter() - begun


def _named(values: Sequence[Any]) -> dict[str, Any]:
    return {str(number): value for number, value in enumerate(values, 1)}


class PostgresBook:
    """Its waits are for rows that others hold: the slowest statement tells."""

    keeping = " FOR UPDATE"
    too_old = "locked_at < now() - make_interval(secs => $1)"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.waited = 0.0

    async def begin(self) -> None:
        self.waited = 0.0
        await self._connection.execute("BEGIN")

    async def read(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self._timed(self._connection.fetch(sql, *values))]

    async def write(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        await self._timed(self._connection.executemany(sql, rows))

    async def commit(self) -> None:
        await self._connection.execute("COMMIT")

    async def rollback(self) -> None:
        await self._connection.execute("ROLLBACK")

    def moment(self) -> datetime:
        return datetime.now(UTC)

    async def _timed(self, statement: Awaitable[Any]) -> Any:
        begun = time.perf_counter()
        found = await statement
        self.waited = max(self.waited, time.perf_counter() - begun)
        return found


async def open_book(database: str) -> Book:
    if "://" not in database:
        return SqliteBook(database)
    settings = {"timezone": "UTC"}
    return PostgresBook(await asyncpg.connect(database, server_settings=settings, command_timeout=_PATIENCE))


# ── what it does ─────────────────────────────────────────────────────────────────────────────────

_SUBSCRIBE = """
INSERT INTO subscriptions (term_id, campus_code, index_number, contact_type, contact_value, contact_hash,
    locale, status, is_verified, created_at, updated_at)
VALUES ($1, $2, $3, 'email', $4, $5, $6, 'active', 1, $7, $7)
"""
_OPEN = """
INSERT INTO open_events (term_id, campus_code, index_number, status_before, status_after, event_at,
    detected_by, dedupe_key, trace_id, payload, created_at)
VALUES ($1, $2, $3, 'Closed', 'Open', $4, 'poller', $5, $6, $7, $4)
RETURNING open_event_id
"""
_FAN_OUT = """
INSERT INTO open_event_notifications (open_event_id, subscription_id, dedupe_key, fanout_status,
    fanout_attempts, created_at)
SELECT e.open_event_id, s.subscription_id, e.dedupe_key, 'pending', 0, e.created_at
FROM open_events AS e
JOIN subscriptions AS s
    ON s.term_id = e.term_id AND s.campus_code = e.campus_code AND s.index_number = e.index_number
WHERE e.open_event_id = $1 AND s.status = 'active'
ORDER BY s.subscription_id
"""
_LEAVE = "UPDATE subscriptions SET status = 'unsubscribed', updated_at = $1 WHERE contact_value = $2"
#: In the order in which everybody should lock rows.
_TOUCH = """
SELECT subscription_id FROM subscriptions
WHERE subscription_id IN (
    SELECT subscription_id FROM open_event_notifications WHERE fanout_status = 'pending')
ORDER BY subscription_id LIMIT 20
"""
_ENDED_BADLY = """
SELECT notification_id, fanout_attempts, fanout_status FROM open_event_notifications
WHERE fanout_status = 'failed' ORDER BY notification_id
"""
_WAITING = """
SELECT notification_id, fanout_attempts, fanout_status FROM open_event_notifications
WHERE fanout_status = 'pending' AND fanout_attempts > 0 ORDER BY notification_id LIMIT $1
"""
_REQUEUE = """
UPDATE open_event_notifications SET fanout_status = 'pending', fanout_attempts = 0, error = NULL
WHERE notification_id = $1
"""
_CLEAR = """
UPDATE open_event_notifications SET locked_by = NULL, locked_at = NULL
WHERE fanout_status = 'pending' AND locked_at IS NOT NULL AND {too_old}
RETURNING notification_id
"""


class Writer:
    def __init__(self, plan: WriterPlan, book: Book) -> None:
        self._plan, self._book = plan, book
        self._random = random.Random(plan.seed)  # noqa: S311 - a fault need not be unguessable
        self._diary = os.open(plan.diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._made = 0
        self._sections = 0
        self._holds = 0
        self._turn = asyncio.Lock()
        self.bursts = 0
        self.ending = False

    async def run(self) -> None:
        await self._open_sections(self._plan.at_first)
        self._note("begun")
        await asyncio.gather(
            self._produce(),
            self._every(_BETWEEN_REQUEUES, self._requeue),
            self._every(_BETWEEN_CLEARINGS, self._clear),
        )
        self._note("ended", knows_homing=any(name.partition(".")[0] == "homing" for name in sys.modules))

    async def _produce(self) -> None:
        begun, told = time.monotonic(), False
        while not self.ending:
            if self.bursts:
                self.bursts -= 1
                await self._open_section(self._plan.burst)
            elif self._made < self._due(time.monotonic() - begun):
                await self._open_sections(self._due(time.monotonic() - begun))
            elif self._made >= self._plan.notifications and not told:
                told = True
                self._note("all_made")
            await asyncio.sleep(_TICK)

    def _due(self, seconds: float) -> int:
        rest = self._plan.notifications - self._plan.at_first
        return self._plan.at_first + int(rest * min(1.0, seconds / self._plan.seconds))

    async def _open_sections(self, until: int) -> None:
        while self._made < until and not self.bursts:
            most = min(_MOST, self._plan.notifications - self._made)
            size = self._random.randint(min(_FEWEST, most), most)
            await self._open_section(size)
            self._made += size

    async def _open_section(self, size: int) -> None:
        self._sections += 1
        index = f"{self._sections:05}"
        students = [f"s{index}-{number}@chaos.example" for number in range(size)]
        await self._patiently(lambda: self._subscribe(index, students))
        hold = self._next_hold()
        await self._patiently(lambda: self._open(index, students, hold))

    def _next_hold(self) -> float:
        """Evenly over the run: one is due whenever its share of all was made."""
        if self._holds >= self._plan.holds:
            return 0.0
        if self._made < self._plan.notifications * (self._holds + 0.5) / self._plan.holds:
            return 0.0
        self._holds += 1
        return self._random.uniform(self._plan.shortest_hold, self._plan.longest_hold)

    async def _subscribe(self, index: str, students: Sequence[str]) -> None:
        now, locales = self._book.moment(), ("en-US", "zh-CN", None)
        rows = [
            (_TERM, _CAMPUS, index, student, _sha1(student), self._random.choice(locales), now)
            for student in students
        ]
        async with self._transaction():
            await self._book.write(_SUBSCRIBE, rows)

    async def _open(self, index: str, students: Sequence[str], hold: float) -> None:
        now, bucket = self._book.moment(), int(time.time()) // 180
        key = _sha1(f"{_TERM}|{_CAMPUS}|{index}|OPEN|{bucket}")
        payload = json.dumps(
            {"courseTitle": f"Chaos {index}", "sectionNumber": "01", "snapshotHash": key[:8]}
        )
        leaving = [student for student in students if self._random.random() < self._plan.leaving]
        async with self._transaction():
            rows = await self._book.read(_OPEN, _TERM, _CAMPUS, index, now, key, f"trace-{index}", payload)
            await self._book.write(_FAN_OUT, [rows[0]])
            await self._book.write(_LEAVE, [(now, student) for student in leaving])
            if hold:
                # In PostgreSQL only rows are locked: let it be some that a worker wants to write to.
                await self._book.read(_TOUCH + self._book.keeping)
                await asyncio.sleep(hold)
        self._note("opened", students=list(students), leaving=leaving, hold=hold)

    async def _requeue(self) -> None:
        """Not what was sent: that would be sent again, and rightly so."""
        async with self._transaction():
            keeping = self._book.keeping
            rows = await self._book.read(_ENDED_BADLY + keeping)
            rows += await self._book.read(_WAITING + keeping, _PUT_BACK)
            await self._book.write(_REQUEUE, [row[:1] for row in rows])
        for id, attempts, status in rows:
            self._note("requeued", id=id, attempts=attempts, status=status)

    async def _clear(self) -> None:
        async with self._transaction():
            rows = await self._book.read(_CLEAR.format(too_old=self._book.too_old), self._plan.lock_ttl)
        if rows:
            self._note("cleared", ids=[row[0] for row in rows])

    # ── how ──────────────────────────────────────────────────────────────────────────────────────

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while not self.ending:
            await asyncio.sleep(seconds)
            await self._patiently(work)

    async def _patiently(self, work: Callable[[], Awaitable[None]]) -> None:
        """It is written down, and done again: a trouble costs none of what is to be made."""
        while True:
            try:
                return await work()
            except Exception as trouble:  # noqa: BLE001 - of either driver; the diary says which
                self._note("trouble", error=f"{type(trouble).__name__}: {trouble}")
                await asyncio.sleep(_TICK)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        """One at a time: there is one connection."""
        async with self._turn:
            try:
                await self._book.begin()
                yield
                await self._book.commit()
            except BaseException:
                await self._book.rollback()
                raise
            self._note("committed", waited=self._book.waited)

    def _note(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind, **fields}, separators=(",", ":"))
        os.write(self._diary, line.encode() + b"\n")


def _sha1(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


async def _main(plan: WriterPlan) -> None:
    writer = Writer(plan, await open_book(plan.database))
    loop = asyncio.get_running_loop()

    def burst() -> None:
        writer.bursts += 1

    def end() -> None:
        writer.ending = True

    loop.add_signal_handler(signal.SIGUSR1, burst)
    loop.add_signal_handler(signal.SIGTERM, end)
    await writer.run()


if __name__ == "__main__":
    asyncio.run(_main(WriterPlan(**json.loads(Path(sys.argv[1]).read_text()))))
