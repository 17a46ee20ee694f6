"""One side of a copy in MongoDB."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from bson.int64 import Int64
from pymongo.errors import BulkWriteError

from homing.db import Database, Query, instant
from homing.db.mongo import Document, Session
from homing.lanes.dispatch_jobs.copying import ATTEMPT, CREDENTIALS, JOB, TARGET, Whole, plain
from homing.lanes.dispatch_jobs.mongo_documents import (
    ATTEMPTS,
    JOBS,
    TARGETS,
    headers_of,
    job_columns,
    stored_headers,
    without_nothing,
)
from homing.lanes.dispatch_jobs.mongo_settles import MOST_EMBEDDED

_CURSORS = "homing_copy"
_KNOWN_KEY = 11000

Result = TypeVar("Result")
_encode = msgspec.json.Encoder().encode


class MongoSide:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def prepare(self) -> None:
        """The collection is made with its first document."""

    async def cursor(self, source: str) -> int | None:
        found = await self._run(lambda s: s.find(_CURSORS, {"_id": source}))
        return found[0]["last"] if found else None

    async def count(self) -> int:
        return await self._run(lambda s: s.collection(JOBS).count_documents({}))

    async def finish(self) -> None:
        """Ids are drawn behind the largest that is there; places in groups are ids."""
        largest = [
            *await self._run(lambda s: s.find(JOBS, {}, {"_id": 1}, sort={"_id": -1}, limit=1)),
            *await self._run(lambda s: s.find(ATTEMPTS, {}, {"_id": 1}, sort={"_id": -1}, limit=1)),
        ]
        last = Int64(max((one["_id"] for one in largest), default=0))
        await self._run(lambda s: s.update_one("homing_counter", {"_id": "tsid"}, {"$max": {"last": last}}))

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    async def jobs(self, after: int, limit: int, upto: int | None = None) -> list[Whole]:
        wanted = {"$gt": after} if upto is None else {"$gt": after, "$lte": upto}
        found = await self._run(lambda s: s.find(JOBS, {"_id": wanted}, sort={"_id": 1}, limit=limit))
        later = await self._later([one["_id"] for one in found if one["attempt_count"] > MOST_EMBEDDED])
        return [_whole(one, later[one["_id"]]) for one in found]

    async def _later(self, ids: Sequence[int]) -> Mapping[int, list[Document]]:
        rows: dict[int, list[Document]] = defaultdict(list)
        if ids:
            for one in await self._run(lambda s: s.find(ATTEMPTS, {"dispatch_job_id": {"$in": list(ids)}})):
                rows[one["dispatch_job_id"]].append({**one, "id": one["_id"]})
        return rows

    async def credentials(self, after: int, limit: int) -> list[Mapping[str, Any]]:
        found = await self._page("dispatch_credentials", after, limit)
        return [plain(_filled({**one, "id": one["_id"]}, CREDENTIALS), CREDENTIALS) for one in found]

    async def targets(self, after: str, limit: int) -> list[Mapping[str, Any]]:
        found = await self._page(TARGETS, after, limit)
        return [plain(_filled({**one, "target": one["_id"]}, TARGET), TARGET) for one in found]

    async def _page(self, collection: str, after: Any, limit: int) -> list[Document]:
        later = {"_id": {"$gt": after}}
        return await self._run(lambda s: s.find(collection, later, sort={"_id": 1}, limit=limit))

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    async def put_jobs(self, jobs: Sequence[Whole], source: str) -> None:
        """No transaction: a job is one document, and what is there already is left as it is."""
        await self.put_late_jobs(jobs)
        cursor = {"$set": {"last": jobs[-1].id}}
        await self._run(lambda s: s.update_one(_CURSORS, {"_id": source}, cursor, upsert=True))

    async def put_late_jobs(self, jobs: Sequence[Whole]) -> None:
        later = [
            {**_moments(one), "_id": one["id"], "dispatch_job_id": job.id}
            for job in jobs
            for one in job.attempts[MOST_EMBEDDED:]
        ]
        await self._insert(ATTEMPTS, later)
        await self._insert(JOBS, [_document(job) for job in jobs])

    async def put_credentials(self, rows: Sequence[Mapping[str, Any]]) -> None:
        await self._insert("dispatch_credentials", [{"_id": row["id"], **_moments(row)} for row in rows])

    async def put_targets(self, rows: Sequence[Mapping[str, Any]]) -> None:
        await self._insert(TARGETS, [{"_id": row["target"], **_moments(row)} for row in rows])

    async def _insert(self, collection: str, documents: Sequence[Document]) -> None:
        if documents:
            await self._run(lambda s: _insert_new(s, collection, documents))

    async def _run(self, work: Callable[[Session], Awaitable[Result]]) -> Result:
        found: list[Result] = []

        async def operation(session: Session, _given: Mapping[str, Any]) -> list[Any]:
            found.append(await work(session))
            return []

        await self._database.fetch(Query("copy", "", (), True, operation), {})
        return found[0]


async def _insert_new(session: Session, collection: str, documents: Sequence[Document]) -> None:
    for document in documents:
        document.pop("id", None)
        document.pop("target" if collection == TARGETS else "", None)
    try:
        await session.collection(collection).insert_many(documents, ordered=False)
    except BulkWriteError as error:
        if any(one["code"] != _KNOWN_KEY for one in error.details["writeErrors"]):
            raise


def _whole(document: Document, later: Sequence[Document]) -> Whole:
    attempts = [*document.get("attempts", ()), *later]
    rows = [plain(_filled({"unknown": False, **one}, ATTEMPT), ATTEMPT) for one in attempts]
    return Whole(
        plain(job_columns(document), JOB),
        [(pair["k"], pair["v"]) for pair in document.get("metadata", ())],
        headers_of(document),
        sorted(rows, key=lambda one: (one["attempt_number"], one["id"])),
    )


def _document(job: Whole) -> Document:
    columns = {name: value for name, value in job.columns.items() if name != "has_headers"}
    also = {
        "metadata": [{"k": key, "v": value} for key, value in job.metadata] or None,
        "headers": stored_headers(job.headers),
        "attempts": [_moments(one) for one in job.attempts[:MOST_EMBEDDED]] or None,
    }
    return {"_id": job.id, **_moments(columns), **without_nothing(also)}


def _moments(row: Mapping[str, Any]) -> Document:
    """Times as MongoDB has them, headers of answers as text, and nothing for what is not known."""
    return {name: _stored(name, value) for name, value in row.items() if value is not None}


def _stored(name: str, value: Any) -> Any:
    if name.endswith(("_at", "_until", "_for")):
        return instant(value)
    return _encode(value).decode() if name == "response_headers" else value


def _filled(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: row.get(name) for name in names}
