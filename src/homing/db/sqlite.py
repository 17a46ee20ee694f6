"""SQLite by the standard library: one writer thread, one reader thread, WAL, every commit on disk."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from threading import Timer
from typing import Any, TypeVar

from homing.db.instants import read_instant
from homing.db.queries import Dialect, Query
from homing.errors import Conflict, DatabaseError, MissingValue, NoDatabase, Refused, SchemaError, Unreachable
from homing.own_files import make_own

Result = TypeVar("Result")

_OLDEST = (3, 35, 0)  # UPDATE … RETURNING
#: Seconds.
_LONGEST_CHECK = 5.0
_WAL_HINT = "wal is needed; put the file on a local disk, where processes can share memory"


class SqliteDatabase:
    """Statements that write go through one thread, so they never wait for each other's locks.

    Other processes may use the file as well: against them stands `busy_timeout`.
    """

    dialect: Dialect = "sqlite"

    def __init__(self, path: str, *, busy_timeout: float = 10.0, makes_file: bool = True) -> None:
        if sqlite3.sqlite_version_info < _OLDEST:
            raise DatabaseError(f"SQLite {sqlite3.sqlite_version} is too old; 3.35 or newer is needed")
        self._path = path
        self._busy_timeout = busy_timeout
        self._writer = _Connection(path, busy_timeout, writes=True, makes_file=makes_file)
        self._reader = _Connection(path, busy_timeout, writes=False, makes_file=makes_file)
        self._listeners: dict[str, list[Callable[[], None]]] = defaultdict(list)

    async def fetch(self, query: Query, parameters: Mapping[str, Any]) -> Sequence[sqlite3.Row]:
        given = {name: parameters[name] for name in query.parameters}
        connection, work = (self._writer, _write) if query.writes else (self._reader, _read)
        if query.lock_timeout is None:
            return await connection.call(work, query.sql, given)
        return await connection.call_within(query.lock_timeout, work, query.sql, given)

    async def fetch_all(
        self, queries: Sequence[Query], parameters: Mapping[str, Any]
    ) -> Sequence[Sequence[sqlite3.Row]]:
        steps = [(query.sql, {name: parameters[name] for name in query.parameters}) for query in queries]
        return await self._writer.call(_write_all, steps)

    async def run_script(self, statements: str) -> None:
        await self._writer.call(_run_script, statements)

    def listen(self, channel: str, wake: Callable[[], None]) -> None:
        self._listeners[channel].append(wake)

    def announce(self, channel: str) -> None:
        """Wakes this process; others find the row when they poll."""
        for wake in self._listeners[channel]:
            wake()

    async def findings(self) -> Sequence[tuple[str, bool, str]]:
        return await self._writer.call(_check_durability)

    async def close(self) -> None:
        await self._reader.close()
        await self._writer.close()


class _Connection:
    """A connection and the one thread that may use it. Opened on first use."""

    def __init__(self, path: str, busy_timeout: float, *, writes: bool, makes_file: bool) -> None:
        self._makes_file = makes_file
        self._path, self._busy_timeout, self._writes = path, busy_timeout, writes
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="sqlite-writer" if writes else "sqlite-reader"
        )
        self._connection: sqlite3.Connection | None = None

    async def call(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._guarded, work, arguments)

    async def call_within(self, seconds: float, work: Callable[..., Result], *arguments: Any) -> Result:
        """Raise `Conflict` when the statements before it, or another process, take longer than that."""
        deadline = time.monotonic() + seconds
        turn: Future[Result] = self._thread.submit(self._guarded, self._until, (deadline, work, arguments))
        ended = asyncio.wrap_future(turn)
        await asyncio.wait({ended}, timeout=seconds)
        # What has not begun never will. What has begun gives up by itself.
        if turn.cancel():
            raise Conflict(f"{self._path} is locked by another process: it was not free in {seconds:g} s")
        return await ended

    def _until(
        self,
        connection: sqlite3.Connection,
        deadline: float,
        work: Callable[..., Result],
        arguments: tuple[Any, ...],
    ) -> Result:
        left = min(max(0.0, deadline - time.monotonic()), self._busy_timeout)
        connection.execute(f"PRAGMA busy_timeout = {round(left * 1000)}")
        try:
            return work(connection, *arguments)
        finally:
            connection.execute(f"PRAGMA busy_timeout = {round(self._busy_timeout * 1000)}")

    def _guarded(self, work: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
        try:
            if self._connection is None:
                self._connection = self._open()
            return self._leniently(self._connection, work, arguments)
        except sqlite3.Error as error:
            raise _translate(error, self._path) from error
        except (UnicodeEncodeError, OverflowError) as error:
            raise Refused(f"{self._path} cannot hold that value: {error}") from error

    def _open(self) -> sqlite3.Connection:
        if not self._makes_file and not Path(self._path).exists():
            raise NoDatabase(f"there is no database {self._path}; run `homing migrate` to make it")
        return _open(self._path, self._busy_timeout, writes=self._writes)

    def _leniently(
        self, connection: sqlite3.Connection, work: Callable[..., Result], arguments: tuple[Any, ...]
    ) -> Result:
        try:
            return work(connection, *arguments)
        except sqlite3.OperationalError as error:
            if "decode to UTF-8" not in str(error):
                raise
        # Another program has written bytes that are no text. Nothing was changed; from now on such bytes
        # are read as U+FFFD, which costs a little: one bad row must not hold up all others.
        connection.text_factory = _decode
        return work(connection, *arguments)

    async def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await asyncio.get_running_loop().run_in_executor(self._thread, connection.close)
        self._thread.shutdown(wait=False)


def _open(path: str, busy_timeout: float, *, writes: bool) -> sqlite3.Connection:
    if not Path(path).parent.is_dir():
        raise Unreachable(
            f"there is no folder {Path(path).parent} to keep {path} in; make it, or set another path"
        )
    # SQLite would make it for all to read. What it writes beside it, it gives the mode of the file.
    make_own(path)
    connection = sqlite3.connect(path, timeout=busy_timeout, isolation_level=None, check_same_thread=False)
    try:
        _set_up(connection, busy_timeout, writes=writes)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: sqlite3.Connection, busy_timeout: float, *, writes: bool) -> None:
    connection.row_factory = sqlite3.Row
    connection.create_function("instant_julianday", 1, _instant_julianday, deterministic=True)
    _use_wal(connection, time.monotonic() + busy_timeout)
    connection.execute("PRAGMA synchronous = FULL")
    # Measured on 40,000 mails: 16 MB of cache and a WAL of 16 MB make claim and settle a quarter cheaper.
    connection.execute("PRAGMA cache_size = -16384")
    connection.execute("PRAGMA wal_autocheckpoint = 4096")
    if not writes:
        connection.execute("PRAGMA query_only = ON")


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "replace")


#: What julianday() says of 1970-01-01T00:00Z.
_EPOCH = 2440587.5


def _instant_julianday(given: object) -> float | None:
    """For what julianday() does not read, such as 20261116T101500Z, or takes for something else."""
    moment = read_instant(given)
    return None if moment is None else _EPOCH + moment.timestamp() / 86400.0


def _use_wal(connection: sqlite3.Connection, deadline: float) -> None:
    """A new file gets WAL once. One that has something in it keeps what its owner gave it.

    SQLite itself does not wait when several ask.
    """
    while True:
        try:
            if not connection.execute("PRAGMA page_count").fetchone()[0]:
                connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _read(connection: sqlite3.Connection, sql: str, parameters: Mapping[str, Any]) -> list[sqlite3.Row]:
    return connection.execute(sql, parameters).fetchall()


def _write(connection: sqlite3.Connection, sql: str, parameters: Mapping[str, Any]) -> list[sqlite3.Row]:
    return _write_all(connection, [(sql, parameters)])[0]


def _execute(connection: sqlite3.Connection, sql: str, parameters: Mapping[str, Any]) -> list[sqlite3.Row]:
    """A query may be several statements, where PostgreSQL changes several tables in one: the last answers."""
    *before, last = _statements(sql)
    for statement in before:
        connection.execute(statement, parameters)
    return connection.execute(last, parameters).fetchall()


def _write_all(
    connection: sqlite3.Connection, steps: Sequence[tuple[str, Mapping[str, Any]]]
) -> list[list[sqlite3.Row]]:
    # IMMEDIATE takes the write lock before the statement reads, so two processes cannot choose the same rows.
    connection.execute("BEGIN IMMEDIATE")
    try:
        rows = [_execute(connection, sql, parameters) for sql, parameters in steps]
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return rows


def _run_script(connection: sqlite3.Connection, statements: str) -> None:
    # executescript would commit on its own: the statements are run one by one inside our transaction.
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in _split(statements):
            if (wanted := _still_wanted(connection, statement)) is not None:
                connection.execute(wanted)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


#: `ALTER TABLE IF EXISTS … ADD COLUMN IF NOT EXISTS`, which PostgreSQL knows and SQLite does not.
_ADD_COLUMN = re.compile(
    r"^ALTER TABLE(?P<if_table> IF EXISTS)? (?P<table>\w+) ADD COLUMN(?P<if> IF NOT EXISTS) (?P<column>\w+)",
    re.MULTILINE,
)
#: A comment of our own before a statement that is left out when this query finds something.
_UNLESS = re.compile(r"^-- unless: (.+)$", re.MULTILINE)


def _still_wanted(connection: sqlite3.Connection, statement: str) -> str | None:
    """A statement of a script as SQLite takes it; None when what it makes is there already."""
    if (unless := _UNLESS.search(statement)) and connection.execute(unless[1]).fetchone():
        return None
    if (adding := _ADD_COLUMN.search(statement)) is None:
        return statement
    columns = connection.execute("SELECT name FROM pragma_table_xinfo(?)", (adding["table"],))
    there = {name.lower() for (name,) in columns}
    if adding["column"].lower() in there or (adding["if_table"] and not there):
        return None
    return statement.replace(" IF EXISTS", "").replace(" IF NOT EXISTS", "")


@lru_cache(maxsize=1024)
def _statements(sql: str) -> tuple[str, ...]:
    return tuple(_split(sql)) if ";" in sql else (sql,)


def _split(statements: str) -> list[str]:
    """Statements of a script, found by asking SQLite itself where one ends (triggers hold semicolons)."""
    found, current = [], ""
    for piece in statements.split(";"):
        current += piece + ";"
        if sqlite3.complete_statement(current):
            found.append(current)
            current = ""
    return found


def _check_durability(connection: sqlite3.Connection) -> list[tuple[str, bool, str]]:
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    synchronous = connection.execute("PRAGMA synchronous").fetchone()[0]
    return [
        ("SQLite version", sqlite3.sqlite_version_info >= _OLDEST, sqlite3.sqlite_version),
        (
            "SQLite journal_mode",
            mode == "wal",
            mode
            if mode == "wal"
            else f"{mode}: readers and writers wait for each other; "
            "`PRAGMA journal_mode = WAL` in this file mends it for good",
        ),
        (
            "SQLite synchronous",
            synchronous >= 2,
            "full" if synchronous >= 2 else "a power cut can lose mails",
        ),
        ("SQLite integrity", *_integrity(connection)),
    ]


def _integrity(connection: sqlite3.Connection) -> tuple[bool, str]:
    """A file of gigabytes takes minutes; whoever asks for the whole state waits for so long and no longer."""
    timer = Timer(_LONGEST_CHECK, connection.interrupt)
    timer.start()
    try:
        found: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.OperationalError as error:
        if "interrupted" not in str(error):
            raise
        part = f"no damage in what {_LONGEST_CHECK:g} s were enough for"
        return True, f"{part}; `PRAGMA quick_check` looks at the whole file"
    finally:
        timer.cancel()
    return found == "ok", found


_NOT_NULL = "NOT NULL constraint failed: "
_MISSING = ("no such table", "no such column", "no such index", "has no column named")


def _translate(error: sqlite3.Error, path: str) -> DatabaseError:
    text = str(error)
    # First of all: the column that is missing may be called locked_at.
    if any(words in text for words in _MISSING):
        return SchemaError(f"{text}; run `homing migrate`")
    if "locked" in text or "busy" in text:
        return Conflict(f"{path} is locked by another process: {text}")
    if "unable to open" in text:
        return Unreachable(f"cannot open {path}: {text}; check that the folder exists and may be written")
    if "not a database" in text:
        return DatabaseError(f"{path} is no SQLite database: {text}")
    if text.startswith(_NOT_NULL):
        return MissingValue(text.removeprefix(_NOT_NULL))
    kind = Refused if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError) else DatabaseError
    return kind(f"{path}: {text}")
