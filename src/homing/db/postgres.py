"""PostgreSQL by asyncpg: a small pool for statements, one connection of its own for LISTEN."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from homing.db.place import place_of
from homing.db.queries import Dialect, Query
from homing.errors import Conflict, DatabaseError, Locked, MissingValue, Refused, SchemaError, Unreachable

#: One NOTIFY per channel and interval, on the leading and on the trailing edge: a NOTIFY in every
#: transaction takes a lock that all commits of the server queue up behind.
NOTIFY_INTERVAL = 0.05
#: No statement of ours takes a second; one that hangs this long is on a dead connection.
_STATEMENT_TIMEOUT = 20.0
_SCRIPT_TIMEOUT = 24 * 3600.0
_CONNECT_TIMEOUT = 10.0
_RECONNECT_PAUSE = 1.0


class PostgresDatabase:
    dialect: Dialect = "postgres"

    def __init__(self, url: str, *, pool_size: int = 4) -> None:
        self._url = url
        self._pool_size = pool_size
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._opening = asyncio.Lock()
        self._listeners: dict[str, list[Callable[[], None]]] = defaultdict(list)
        self._listening: asyncio.Task[None] | None = None
        self._announced: dict[str, float] = {}
        self._announcing: set[asyncio.Task[None]] = set()
        self._trailing: dict[str, asyncio.TimerHandle] = {}

    async def fetch(self, query: Query, parameters: Mapping[str, Any]) -> Sequence[asyncpg.Record]:
        async with self._connection() as connection:
            return await _fetch(connection, query, parameters)

    async def fetch_all(
        self, queries: Sequence[Query], parameters: Mapping[str, Any]
    ) -> Sequence[Sequence[asyncpg.Record]]:
        async with self._connection() as connection, connection.transaction():
            return [await _fetch(connection, query, parameters) for query in queries]

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy[asyncpg.Record]]:
        with _translated(self._url):
            pool = self._pool or await self._open()
            async with pool.acquire(timeout=_CONNECT_TIMEOUT) as connection:
                try:
                    yield connection
                except (asyncio.CancelledError, TimeoutError):
                    # The pool would wait for the answer before it lets go, and perhaps there comes none.
                    connection.terminate()
                    raise

    async def run_script(self, statements: str) -> None:
        with _translated(self._url):
            pool = self._pool or await self._open()
            async with pool.acquire(timeout=_CONNECT_TIMEOUT) as connection, connection.transaction():
                # An index of a large table takes as long as it takes.
                await connection.execute(statements, timeout=_SCRIPT_TIMEOUT)

    async def _open(self) -> asyncpg.Pool[asyncpg.Record]:
        async with self._opening:
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    self._url,
                    # None kept open for its own sake: asyncpg would reopen it during an outage, and complain.
                    min_size=0,
                    max_size=self._pool_size,
                    command_timeout=_STATEMENT_TIMEOUT,
                    timeout=_CONNECT_TIMEOUT,
                    init=_read_every_time,
                    reset=_keep_session,
                    server_settings=_SESSION,
                )
            return self._pool

    # ── wake-ups ─────────────────────────────────────────────────────────────────────────────────

    def listen(self, channel: str, wake: Callable[[], None]) -> None:
        self._listeners[channel].append(wake)
        if self._listening is not None:
            self._listening.cancel()
        self._listening = asyncio.get_running_loop().create_task(self._listen_for_ever())

    def announce(self, channel: str) -> None:
        self._wake(channel)
        if channel in self._trailing:
            return
        wait = self._announced.get(channel, 0.0) + NOTIFY_INTERVAL - time.monotonic()
        if wait <= 0:
            self._notify(channel)
        else:
            loop = asyncio.get_running_loop()
            self._trailing[channel] = loop.call_later(wait, self._notify, channel)

    def _wake(self, channel: str) -> None:
        for wake in self._listeners[channel]:
            wake()

    def _notify(self, channel: str) -> None:
        self._trailing.pop(channel, None)
        self._announced[channel] = time.monotonic()
        task = asyncio.get_running_loop().create_task(self._send_notify(channel))
        self._announcing.add(task)
        task.add_done_callback(self._announcing.discard)

    async def _send_notify(self, channel: str) -> None:
        # It is a hint: without it the pollers find the row within a second.
        with suppress(DatabaseError):
            await self.fetch(
                Query("notify", "SELECT pg_notify($1, '')", ("channel",), True), {"channel": channel}
            )

    async def _listen_for_ever(self) -> None:
        while True:
            with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await self._listen_until_lost()
            await asyncio.sleep(_RECONNECT_PAUSE)

    async def _listen_until_lost(self) -> None:
        connection = await asyncpg.connect(self._url, timeout=_CONNECT_TIMEOUT, server_settings=_SESSION)
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _connection: lost.set())
        try:
            for channel in list(self._listeners):
                await connection.add_listener(channel, lambda *event: self._wake(event[2]))
            for channel in list(self._listeners):
                # Something may have become due while nobody listened.
                self._wake(channel)
            await lost.wait()
        finally:
            connection.terminate()

    # ── for the doctor ───────────────────────────────────────────────────────────────────────────

    async def findings(self) -> Sequence[tuple[str, bool, str]]:
        query = Query("settings", _DURABILITY, (), writes=False)
        rows = await self.fetch(query, {})
        values = {row["name"]: row["setting"] for row in rows}
        version = int(values.pop("server_version_num")) // 10000
        findings = [("PostgreSQL version", version >= 13, f"{version} (13 or newer is needed)")]
        for name, value in values.items():
            well = value != "off"
            mend = value if well else f"{value}: a crash of the server can lose mails; set {name} = on"
            findings.append((f"PostgreSQL {name}", well, mend))
        return findings

    async def close(self) -> None:
        for handle in self._trailing.values():
            handle.cancel()
        tasks = [*self._announcing, *([self._listening] if self._listening else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._pool is not None:
            try:
                await asyncio.wait_for(self._pool.close(), 5)
            except TimeoutError:
                self._pool.terminate()


_SESSION = {
    "application_name": "homing",
    "timezone": "UTC",
    # The contract asks for at least READ COMMITTED; a stricter default of the server would only make
    # workers undo each other's claims.
    "default_transaction_isolation": "read committed",
    "lock_timeout": "2000",
    "idle_in_transaction_session_timeout": "60000",
    # JIT compiles for longer than any of our statements runs.
    "jit": "off",
}

#: From when PostgreSQL counts microseconds; the first and the last day that every time zone has.
_MOMENTS = datetime(2000, 1, 1), datetime(1, 1, 2), datetime(9999, 12, 30)  # noqa: DTZ001 - the zone is given later

_DURABILITY = """
SELECT name, setting FROM pg_settings
WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes', 'server_version_num')
"""


async def _keep_session(_connection: Any) -> None:
    """Our statements leave nothing behind, so a connection needs no RESET round trip on its return."""


async def _read_every_time(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """What Python cannot hold, or is infinite, as the first or the last: one row stops no others."""
    for type, zone in (("timestamptz", UTC), ("timestamp", None)):
        epoch, first, last = (moment.replace(tzinfo=zone) for moment in _MOMENTS)
        await connection.set_type_codec(
            type,
            schema="pg_catalog",
            format="tuple",
            encoder=partial(_sent_time, epoch),
            decoder=partial(_read_time, epoch, first, last),
        )


def _sent_time(epoch: datetime, moment: datetime) -> tuple[int]:
    return ((moment - epoch) // timedelta(microseconds=1),)


def _read_time(epoch: datetime, first: datetime, last: datetime, found: tuple[int]) -> datetime:
    try:
        return epoch + timedelta(microseconds=found[0])
    except OverflowError:
        return first if found[0] < 0 else last


async def _fetch(
    connection: asyncpg.pool.PoolConnectionProxy[asyncpg.Record], query: Query, parameters: Mapping[str, Any]
) -> Sequence[asyncpg.Record]:
    return await connection.fetch(query.sql, *[parameters[name] for name in query.parameters])


class _translated:  # noqa: N801 - reads as a word of the sentence it is used in
    """Turns the driver's exceptions into ours. A class, because it is passed through for every statement."""

    __slots__ = ("_url",)

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, Exception) and (translated := _translate(error, self._url)):
            raise translated from error


def _translate(error: Exception, url: str) -> DatabaseError | None:
    if isinstance(error, DatabaseError):
        return None
    if isinstance(error, asyncpg.PostgresError):
        return _translate_state(error, url)
    if isinstance(error, OSError | TimeoutError | asyncpg.InterfaceError | asyncpg.InternalClientError):
        return Unreachable(f"cannot reach PostgreSQL at {redact(url)}: {str(error) or type(error).__name__}")
    return None


def _translate_state(error: asyncpg.PostgresError, url: str) -> DatabaseError:
    state: str = error.sqlstate or ""
    # The first argument is the server's message; str() would add its DETAIL, which quotes whole rows.
    message = str(error.args[0]) if error.args else type(error).__name__
    if state.startswith("40") or state == "55P03":
        kind = Locked if state == "55P03" else Conflict
        return kind(f"another process holds the lock or the transaction was undone: {message}")
    if state in {"42P01", "42703"}:
        return SchemaError(f"{message}; run `homing migrate`")
    if isinstance(error, asyncpg.NotNullViolationError):
        return MissingValue(f"{error.table_name}.{error.column_name}")
    if state[:2] in {"08", "28", "53", "57"} or state == "3D000":
        return Unreachable(f"cannot use PostgreSQL at {redact(url)}: {message}")
    if state[:2] in {"22", "23", "54"}:
        return Refused(f"{message} (SQLSTATE {state})")
    return DatabaseError(f"{message} (SQLSTATE {state})")


def redact(url: str) -> str:
    """A URL without its password, wherever it stands."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "***"
    # Then something in the password has ended the host for a parser, and what it takes for a path is secret.
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        return place_of(url)
    user = f"{parts.username}:***@" if parts.password else f"{parts.username}@" if parts.username else ""
    query = "?***" if "password" in parts.query else f"?{parts.query}" if parts.query else ""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else (parts.hostname or "")
    scheme = f"{parts.scheme}://" if parts.scheme or parts.netloc else ""
    return f"{scheme}{user}{host}{port}{parts.path}{query}"
