"""What the desk does with many jobs at once, on MongoDB."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct
from pymongo.errors import ExecutionTimeout

from homing.db import Database, Query
from homing.db.mongo import Columns, Document, Session
from homing.lanes.dispatch_jobs.mongo_desk import all_of
from homing.lanes.dispatch_jobs.mongo_documents import JOBS, Given, decoded, rows
from homing.lanes.dispatch_jobs.mongo_overview import error_classes
from homing.lanes.dispatch_jobs.tsid import number_of
from homing.messages.model import Wanted

Match = dict[str, Any]

_DEAD_INDEX = "homing_job_dead"


# ── dead letters ─────────────────────────────────────────────────────────────────────────────────


async def dead_codes(session: Session, given: Given) -> list[Columns]:
    """One jump per error class, and each counted up to a limit."""
    classes = [*await error_classes(session, given["codes"]), None]
    found = [await _cause(session, one, given["most"]) for one in classes]
    return rows(cause for cause in found if cause is not None)


async def dead_words(session: Session, given: Given) -> list[Columns]:
    classes = [*await error_classes(session, given["codes"]), None]
    found = [(one, job) for one in classes for job in await _dead(session, one, -1, given["most"])]
    return rows(
        {"code": one, "text": job.get("last_error"), "target": job.get("target", "")} for one, job in found
    )


async def _dead(session: Session, error_class: str | None, direction: int, limit: int) -> list[Document]:
    chosen = {"status": "ERROR", "error_class": error_class}
    columns = {"last_error": 1, "target": 1, "completed_at": 1, "updated_at": 1}
    return await session.find(JOBS, chosen, columns, sort={"_id": direction}, limit=limit, hint=_DEAD_INDEX)


async def _cause(session: Session, error_class: str | None, most: int) -> Match | None:
    newest = await _dead(session, error_class, -1, 1)
    if not newest:
        return None
    oldest = await _dead(session, error_class, 1, 1) or newest
    match = {"status": "ERROR", "error_class": error_class}
    return {
        "code": error_class,
        "count": await _counted(session, match, most, hint=_DEAD_INDEX),
        "newest": newest[0]["_id"],
        "text": newest[0].get("last_error"),
        "last_at": _ended(newest[0]),
        "first_at": _ended(oldest[0]),
    }


def _ended(job: Document) -> Any:
    return job.get("completed_at") or job.get("updated_at")


async def _counted(session: Session, match: Match, most: int, **options: Any) -> int:
    steps: list[Match] = [{"$match": match}, {"$limit": max(1, most)}, {"$count": "count"}]
    found = await session.aggregate(JOBS, steps, **options)
    return int(found[0]["count"]) if found else 0


async def count_states(session: Session, given: Given) -> list[Columns]:
    chosen = {"status": {"$in": decoded(given["states"])}}
    return rows([{"count": await _counted(session, chosen, given["most"], hint="idx_dispatch_status")}])


# ── walks ────────────────────────────────────────────────────────────────────────────────────────


class MongoWalk(Struct, frozen=True):
    """Through all jobs that are meant, in the order of their ids."""

    database: Database
    match: Match
    newest_first: bool

    async def numbers(self, after: int | None, limit: int) -> list[int]:
        beyond = {"_id": {"$lt" if self.newest_first else "$gt": after}}
        match = self.match if after is None else {"$and": [self.match, beyond]}
        direction = -1 if self.newest_first else 1
        rows_ = await self.database.fetch(_WALK, {"match": match, "limit": limit, "direction": direction})
        return [row["id"] for row in rows_]

    async def count(self, most: int, seconds: float) -> tuple[int, bool]:
        """At the end of its time, none were counted: the server tells nothing of what it has seen by then."""
        given = {"match": self.match, "most": most + 1, "longest": seconds}
        rows_ = await self.database.fetch(_COUNT, given)
        counted = int(rows_[0]["count"])
        return min(counted, most), counted > most or not rows_[0]["whole"]


def walk_of(database: Database, wanted: Wanted, *, newest_first: bool) -> MongoWalk:
    conditions = all_of(wanted)
    if wanted.id is not None:
        names: list[Match] = [{"external_id": wanted.id}, {"idempotency_key": wanted.id}]
        number = number_of(wanted.id)
        conditions.append({"$or": names if number is None else [*names, {"_id": number}]})
    return MongoWalk(database, {"$and": conditions} if conditions else {}, newest_first)


async def _numbers(session: Session, given: Given) -> list[Columns]:
    found = await session.find(
        JOBS, given["match"], {"_id": 1}, sort={"_id": given["direction"]}, limit=given["limit"]
    )
    return rows({"id": one["_id"]} for one in found)


async def _count(session: Session, given: Given) -> list[Columns]:
    longest = max(1, round(given["longest"] * 1000))
    try:
        counted = await _counted(session, given["match"], given["most"], maxTimeMS=longest)
    except ExecutionTimeout:
        return rows([{"count": 0, "whole": False}])
    return rows([{"count": counted, "whole": True}])


_WALK: Final = Query("desk_walk", "", (), False, _numbers)
_COUNT: Final = Query("desk_count", "", (), False, _count)
