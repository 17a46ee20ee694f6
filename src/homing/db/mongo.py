"""MongoDB by pymongo's async API. It knows no collection of a lane: a named query is a function there.

Every write is on the journal of a majority when a call returns. Several steps that belong together run in a
transaction, which needs a replica set (of one member, where there is one machine). Two that meet do not wait
for each other as in SQL: the later one is undone by the server and begins again, after a random moment.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import unquote

from bson.codec_options import DatetimeConversion, TypeDecoder, TypeRegistry
from bson.errors import BSONError
from bson.int64 import Int64
from bson.json_util import object_hook
from pymongo import AsyncMongoClient, UpdateOne, timeout
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import ConnectionFailure, DocumentTooLarge, OperationFailure, PyMongoError

from homing.db.place import place_of
from homing.db.queries import Dialect, Query
from homing.errors import Conflict, DatabaseError, Refused, SchemaError, SettingsError, Unreachable

Document = dict[str, Any]
Result = TypeVar("Result")

OLDEST_VERSION = 6
_DEFAULT_NAME = "homing"
#: One wake-up per channel and interval, on the leading and on the trailing edge.
ANNOUNCE_INTERVAL = 0.05
#: No statement of ours takes a second; one that hangs this long is on a dead connection.
_STATEMENT_TIMEOUT = 20.0
_SCRIPT_TIMEOUT = 24 * 3600.0
_CONNECT_TIMEOUT = 5.0
_RECONNECT_PAUSE = 1.0
#: So long a transaction is begun again and again when others are in its way.
_CONTEST_TIMEOUT = 10.0
_LONGEST_PAUSE = 0.1
_WAKES = "homing_wake"
_LEDGER = "homing_migration"

_NAMESPACE_EXISTS = 48
_INDEX_NOT_FOUND = 27
_DUPLICATE_KEY = 11000
_LOST_CONTESTS = frozenset({24, 112, 251})
_NOT_TAKEN = Refused, "does not take a value: too long, not allowed or malformed"
_MISSING = SchemaError, "has no such collection or index; run `homing migrate`"
_NO_ENTRY = Unreachable, "does not let us in"
#: What the server's codes mean for whoever asked.
_MEANINGS: Mapping[int | None, tuple[type[DatabaseError], str]] = {
    _DUPLICATE_KEY: (Refused, "has one with that key already"),
    **dict.fromkeys((2, 121, 10334, 17280, 17419), _NOT_TAKEN),
    **dict.fromkeys((26, 27), _MISSING),
    **dict.fromkeys((13, 18), _NO_ENTRY),
    50: (Unreachable, "took too long"),
    20: (Refused, "is no replica set, so it has no transactions; start it with --replSet"),
}


#: What the driver says when no server can be used, and what that means.
_REASONS = {
    "connection refused": "connection refused",
    "name or service not known": "the host name is not known",
    "nodename nor servname": "the host name is not known",
    "temporary failure in name resolution": "the host name cannot be looked up",
    "replica set": "no member of the replica set that the URL names; check replicaSet=",
    "timed out": "no answer in time",
}


class Columns:
    """A document as a row of SQL would be: read by column name, or in the order of its columns."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def keys(self) -> Any:
        return self._values.keys()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values.values())

    def __getitem__(self, key: Any, /) -> Any:
        return self._values[key]


class Session:
    """What one call works with: the collections, inside of its transaction where there is one."""

    def __init__(self, owner: MongoDatabase, session: AsyncClientSession | None = None) -> None:
        self._owner = owner
        self.session = session

    @property
    def hints(self) -> dict[str, Any]:
        """What queries of this process remember from one call to the next; it may be lost at any time."""
        return self._owner.hints

    def collection(self, name: str) -> AsyncCollection[Document]:
        return self._owner.opened[name]

    async def find(
        self,
        collection: str,
        filter: Mapping[str, Any],
        columns: Mapping[str, Any] | None = None,
        *,
        sort: Mapping[str, int] | None = None,
        limit: int = 0,
        hint: str | None = None,
    ) -> list[Document]:
        found = self.collection(collection).find(
            filter, columns, sort=sort, limit=limit, hint=hint, session=self.session
        )
        return await found.to_list()

    async def aggregate(
        self, collection: str, pipeline: Sequence[Mapping[str, Any]], **options: Any
    ) -> list[Document]:
        found = await self.collection(collection).aggregate(list(pipeline), session=self.session, **options)
        return await found.to_list()

    async def first_of_each(
        self,
        collection: str,
        column: str,
        values: Sequence[Any],
        *,
        condition: Mapping[str, Any],
        sort: Mapping[str, int],
        limit: int,
        columns: Mapping[str, Any],
    ) -> dict[Any, list[Document]]:
        """For each value of a column the first documents, in one command.

        A union of as many searches would do, but not in a transaction, and it is three times as slow.
        """
        steps = [{"$match": condition}, {"$sort": sort}, {"$limit": limit}, {"$project": columns}]
        joined = {
            "from": collection,
            "localField": "v",
            "foreignField": column,
            "pipeline": steps,
            "as": "first",
        }
        found = await self._owner.opened.aggregate(
            [{"$documents": [{"v": {"$literal": value}} for value in values]}, {"$lookup": joined}],
            session=self.session,
        )
        return {one["v"]: one["first"] async for one in found}

    async def update_many(self, collection: str, filter: Mapping[str, Any], change: Any) -> int:
        """How many the filter chose."""
        done = await self.collection(collection).update_many(filter, change, session=self.session)
        return done.matched_count

    async def update_one(
        self, collection: str, filter: Mapping[str, Any], change: Any, *, upsert: bool = False
    ) -> int:
        done = await self.collection(collection).update_one(
            filter, change, upsert=upsert, session=self.session
        )
        return done.matched_count

    async def update_each(
        self, collection: str, changes: Sequence[tuple[Mapping[str, Any], Any]], *, upsert: bool = False
    ) -> int:
        """Pairs of filter and change, each for one document, in one go; how many were chosen."""
        if not changes:
            return 0
        writes = [UpdateOne(filter, change, upsert=upsert) for filter, change in changes]
        done = await self.collection(collection).bulk_write(writes, ordered=False, session=self.session)
        return done.matched_count

    async def insert(self, collection: str, documents: Sequence[Document]) -> None:
        if documents:
            await self.collection(collection).insert_many(documents, session=self.session)

    async def together(self, work: Callable[[Session], Awaitable[Result]]) -> Result:
        """In one transaction: the one that is under way, or one of its own."""
        return await (work(self) if self.session is not None else self._owner.transact(work))


class MongoDatabase:
    dialect: Dialect = "mongodb"

    def __init__(self, url: str, *, pool_size: int = 4) -> None:
        self._url = url
        self._pool_size = pool_size
        self._client: AsyncMongoClient[Document] | None = None
        self._name = _name_of(url)
        self.hints: dict[str, Any] = {}
        self._listeners: dict[str, list[Callable[[], None]]] = defaultdict(list)
        self._listening: asyncio.Task[None] | None = None
        self._announced: dict[str, float] = {}
        self._announcing: set[asyncio.Task[None]] = set()
        self._trailing: dict[str, asyncio.TimerHandle] = {}

    @property
    def opened(self) -> AsyncDatabase[Document]:
        """Nothing is opened before it is used; the driver connects with the first command."""
        if self._client is None:
            self._client = _client(self._url, self._pool_size)
        return self._client[self._name]

    # ── queries ──────────────────────────────────────────────────────────────────────────────────

    async def fetch(self, query: Query, parameters: Mapping[str, Any]) -> Sequence[Columns]:
        with _translated(self._url):
            return await _run(query, Session(self), parameters)

    async def fetch_all(
        self, queries: Sequence[Query], parameters: Mapping[str, Any]
    ) -> Sequence[Sequence[Columns]]:
        async def work(session: Session) -> list[Sequence[Columns]]:
            return [await _run(query, session, parameters) for query in queries]

        with _translated(self._url):
            return await self.transact(work)

    async def transact(self, work: Callable[[Session], Awaitable[Result]]) -> Result:
        """Begun again as a whole while others are in its way; what it did before is undone by then."""
        deadline = time.monotonic() + _CONTEST_TIMEOUT
        for pause in _pauses():
            try:
                return await self._try_to_transact(work)
            except PyMongoError as error:
                if not _lost_a_contest(error) or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(pause)
        raise AssertionError("pauses have no end")

    async def _try_to_transact(self, work: Callable[[Session], Awaitable[Result]]) -> Result:
        client = self.opened.client
        async with client.start_session() as session, await session.start_transaction():
            return await work(Session(self, session))

    async def run_script(self, statements: str) -> None:
        """The commands of a migration, which can be run twice, and then the record that they were."""
        script: Mapping[str, Any] = json.loads(statements)
        # An index of a large collection takes as long as it takes.
        with _translated(self._url), timeout(_SCRIPT_TIMEOUT):
            for command in script["commands"]:
                await self._command(command)
            await self.opened[_LEDGER].insert_one(_record(script["record"]))

    async def _command(self, command: Mapping[str, Any]) -> None:
        ready = json.loads(json.dumps(command), object_hook=object_hook)
        try:
            await self.opened.command(ready)
        except OperationFailure as error:
            # It was run before.
            if error.code not in {_NAMESPACE_EXISTS, _INDEX_NOT_FOUND}:
                raise

    # ── wake-ups ─────────────────────────────────────────────────────────────────────────────────

    def listen(self, channel: str, wake: Callable[[], None]) -> None:
        self._listeners[channel].append(wake)
        if self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(self._listen_for_ever())

    def announce(self, channel: str) -> None:
        self._wake(channel)
        if channel in self._trailing:
            return
        wait = self._announced.get(channel, 0.0) + ANNOUNCE_INTERVAL - time.monotonic()
        if wait <= 0:
            self._tell(channel)
        else:
            self._trailing[channel] = asyncio.get_running_loop().call_later(wait, self._tell, channel)

    def _wake(self, channel: str) -> None:
        for wake in self._listeners[channel]:
            wake()

    def _tell(self, channel: str) -> None:
        self._trailing.pop(channel, None)
        self._announced[channel] = time.monotonic()
        task = asyncio.get_running_loop().create_task(self._write_wake(channel))
        self._announcing.add(task)
        task.add_done_callback(self._announcing.discard)

    async def _write_wake(self, channel: str) -> None:
        # It is a hint: without it the pollers find the job within a second.
        with suppress(DatabaseError), _translated(self._url):
            await self.opened[_WAKES].update_one({"_id": channel}, {"$inc": {"wakes": 1}}, upsert=True)

    async def _listen_for_ever(self) -> None:
        while True:
            with suppress(DatabaseError), _translated(self._url):
                await self._listen_until_lost()
            await asyncio.sleep(_RECONNECT_PAUSE)

    async def _listen_until_lost(self) -> None:
        async with await self.opened[_WAKES].watch([{"$project": {"documentKey": 1}}]) as changes:
            for channel in list(self._listeners):
                # Something may have become due while nobody listened.
                self._wake(channel)
            async for change in changes:
                self._wake(str(change.get("documentKey", {}).get("_id")))

    # ── for the doctor ───────────────────────────────────────────────────────────────────────────

    async def findings(self) -> Sequence[tuple[str, bool, str]]:
        with _translated(self._url):
            server = await self.opened.client.server_info()
            hello = await self.opened.client.admin.command("hello")
        version = int(server["versionArray"][0])
        replicated = "setName" in hello or hello.get("msg") == "isdbgrid"
        mend = "the server is no replica set, so it has no transactions; start it with --replSet"
        return [
            (
                "MongoDB version",
                version >= OLDEST_VERSION,
                f"{version} ({OLDEST_VERSION} or newer is needed)",
            ),
            ("MongoDB replica set", replicated, "transactions and wake-ups work" if replicated else mend),
        ]

    async def close(self) -> None:
        for handle in self._trailing.values():
            handle.cancel()
        tasks = [*self._announcing, *([self._listening] if self._listening else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close()


async def _run(query: Query, session: Session, parameters: Mapping[str, Any]) -> Sequence[Columns]:
    if query.operation is None:
        raise DatabaseError(f"the query {query.name!r} is not written for MongoDB")
    rows: Sequence[Columns] = await query.operation(session, parameters)
    return rows


def _record(record: Mapping[str, Any]) -> Document:
    return {"_id": f"{record['component']} {record['version']:04d}", **record}


def _pauses() -> Iterator[float]:
    longest = 0.002
    while True:
        yield random.uniform(0, longest)  # noqa: S311 - it spreads, it hides nothing
        longest = min(longest * 2, _LONGEST_PAUSE)


# ── connecting ───────────────────────────────────────────────────────────────────────────────────


class _PlainNumbers(TypeDecoder):
    """The driver's own kind of large numbers is nothing that JSON knows."""

    bson_type = Int64

    def transform_bson(self, value: Any) -> int:
        return int(value)


def _client(url: str, pool_size: int) -> AsyncMongoClient[Document]:
    try:
        return _made_client(url, pool_size)
    except (PyMongoError, ValueError):
        raise SettingsError(
            f"{place_of(url)!r} is no URL of MongoDB; use mongodb://user:password@host:27017/name"
        ) from None


def _made_client(url: str, pool_size: int) -> AsyncMongoClient[Document]:
    return AsyncMongoClient(
        url,
        tz_aware=True,
        # Dates that Python cannot hold are the first or the last that it can: one document stops no others.
        datetime_conversion=DatetimeConversion.DATETIME_CLAMP,
        type_registry=TypeRegistry([_PlainNumbers()]),
        maxPoolSize=max(pool_size, 8),
        serverSelectionTimeoutMS=int(_CONNECT_TIMEOUT * 1000),
        connectTimeoutMS=int(_CONNECT_TIMEOUT * 1000),
        socketTimeoutMS=int(_STATEMENT_TIMEOUT * 1000),
        # What a failover could undo is not read, and nothing is called written that it could undo.
        w="majority",
        journal=True,
        readConcernLevel="majority",
        appname="homing",
        # A failed command has the server looked at anyway; the other way keeps two connections more.
        serverMonitoringMode="poll",
    )


def _name_of(url: str) -> str:
    """The database that the URL names, after all its hosts."""
    return unquote(url.partition("://")[2].partition("?")[0].partition("/")[2]) or _DEFAULT_NAME


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


class _translated:  # noqa: N801 - reads as a word of the sentence it is used in
    """Turns the driver's exceptions into ours."""

    __slots__ = ("_url",)

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, Exception) and (translated := _translate(error, self._url)):
            raise translated from error


def _translate(error: Exception, url: str) -> DatabaseError | None:
    if isinstance(error, BSONError | DocumentTooLarge | OverflowError | UnicodeEncodeError):
        return Refused(f"MongoDB does not take a value: {type(error).__name__}")
    if not isinstance(error, PyMongoError):
        return None
    if isinstance(error, OperationFailure) and not isinstance(error, ConnectionFailure):
        return _translate_code(error, url)
    return Unreachable(f"cannot reach MongoDB at {place_of(url)}: {_why(error)}")


def _why(error: PyMongoError) -> str:
    """The driver's message describes the whole topology; one line of it is for people."""
    said = str(error).lower()
    for sign, words in _REASONS.items():
        if sign in said:
            return words
    return type(error).__name__


def _translate_code(error: OperationFailure, url: str) -> DatabaseError:
    """By the code alone: the server's message quotes what was written."""
    code = _code_of(error)
    if code != _DUPLICATE_KEY and _lost_a_contest(error):
        return Conflict(f"another process was in the way and the transaction was undone (code {code})")
    kind, words = _MEANINGS.get(code, (DatabaseError, "refused"))
    return kind(f"MongoDB at {place_of(url)} {words} (code {code})")


def _code_of(error: Any) -> int | None:
    details: Mapping[str, Any] = getattr(error, "details", None) or {}
    for one in details.get("writeErrors", ()):
        return int(one["code"])
    code: int | None = getattr(error, "code", None)
    return code


def _lost_a_contest(error: Any) -> bool:
    """In a transaction also a key that somebody else has written meanwhile: looked at again, it is there."""
    code = _code_of(error)
    return bool(error.has_error_label("TransientTransactionError")) or code in {
        *_LOST_CONTESTS,
        _DUPLICATE_KEY,
    }
