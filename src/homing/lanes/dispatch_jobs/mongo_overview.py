"""Counts and the questions of a dashboard, on MongoDB: from indexes, at a price that does not grow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from homing.db.conditions import UNCLASSIFIED
from homing.db.mongo import Columns, Document, Session
from homing.lanes.dispatch_jobs.mongo_documents import JOBS, Given, rows, server_time

_WINDOW = timedelta(hours=24)
#: So many are counted; of more the server's own estimate is taken.
_COUNTED = 100_000
_BY_AGE = {"created_at": -1, "_id": -1}


async def counts(session: Session, _given: Given) -> list[Columns]:
    states = ["PENDING", "IN_PROGRESS", "FAILED", "ERROR", "CANCELLED"]
    steps: list[dict[str, Any]] = [
        {"$match": {"status": {"$in": states}}},
        {"$group": {"_id": "$status", "count": {"$sum": 1}}},
    ]
    found = await session.aggregate(JOBS, steps, hint="idx_dispatch_status")
    jobs = session.collection(JOBS)
    total = await jobs.estimated_document_count()
    if total <= _COUNTED:
        total = await jobs.count_documents({}, session=session.session)
    told = {one["_id"]: one["count"] for one in found}
    return rows({"status": status, "count": count} for status, count in (*told.items(), ("total", total)))


async def _names(session: Session, column: str, index: str, most: int) -> list[str]:
    """One jump in the index for each."""
    steps: list[dict[str, Any]] = [
        {"$sort": {column: 1}},
        {"$group": {"_id": f"${column}"}},
        {"$sort": {"_id": 1}},
        {"$limit": most},
    ]
    return [one["_id"] for one in await session.aggregate(JOBS, steps, hint=index)]


async def success_by_source(session: Session, given: Given) -> list[Columns]:
    since = await server_time(session) - _WINDOW
    found = []
    for source in await _names(session, "source", "idx_dispatch_source", given["most"]):
        wanted = {"source": source, "created_at": {"$gt": since}}
        total = await _count(session, wanted, "idx_dispatch_source")
        if total:
            done = await _count(session, {**wanted, "status": "COMPLETED"}, "homing_job_source_status")
            found.append({"source": source, "total": total, "successful": done})
    return rows(sorted(found, key=lambda one: (-int(one["total"]), one["source"])))


async def _count(session: Session, filter: Mapping[str, Any], index: str) -> int:
    return await session.collection(JOBS).count_documents(filter, hint=index, session=session.session)


async def duration_by_type(session: Session, given: Given) -> list[Columns]:
    """Of all that are completed: their index has nothing else, and is read without the documents."""
    steps: list[dict[str, Any]] = [
        {"$match": {"status": "COMPLETED"}},
        {
            "$group": {
                "_id": "$type",
                "count": {"$sum": 1},
                "mean": {"$avg": "$duration_millis"},
                "max": {"$max": "$duration_millis"},
            }
        },
        {"$sort": {"_id": 1}},
        {"$limit": given["most"]},
    ]
    found = await session.aggregate(JOBS, steps, hint="homing_job_completed")
    return rows(
        {"type": one["_id"], "count": one["count"], "mean": one["mean"], "max": one["max"]} for one in found
    )


_DEAD: Mapping[str, Any] = {"status": "ERROR"}
#: FAILED jobs near their end. Only by a column that is made here the index alone is read.
_NEAR_ITS_END: Sequence[Mapping[str, Any]] = (
    {"$match": {"status": "FAILED"}},
    {
        "$project": {
            "created_at": 1,
            "is_last": {"$gte": ["$attempt_count", {"$subtract": ["$max_retries", 1]}]},
        }
    },
    {"$match": {"is_last": True}},
)


async def needs_attention(session: Session, given: Given) -> list[Columns]:
    newest = [{"$sort": _BY_AGE}, {"$limit": given["limit"]}, {"$project": {"created_at": 1}}]
    dead = await session.aggregate(JOBS, [{"$match": _DEAD}, *newest], hint="idx_dispatch_status")
    last = await session.aggregate(JOBS, [*_NEAR_ITS_END, *newest], hint="homing_job_failed")
    both = sorted([*dead, *last], key=lambda one: (one["created_at"], one["_id"]), reverse=True)
    return rows({"id": one["_id"]} for one in both[: given["limit"]])


async def count_attention(session: Session, _given: Given) -> list[Columns]:
    dead = await _count(session, _DEAD, "idx_dispatch_status")
    last = await session.aggregate(JOBS, [*_NEAR_ITS_END, {"$count": "count"}], hint="homing_job_failed")
    return rows([{"count": dead + (last[0]["count"] if last else 0)}])


async def dead_groups(session: Session, given: Given) -> list[Columns]:
    """One jump per error class, then the newest jobs of each: a class with a million hides no other."""
    found: list[tuple[str, Document]] = []
    classes = await error_classes(session, given["classes"])
    for error_class in (*classes, None):
        name = UNCLASSIFIED if error_class is None else error_class
        found += [(name, one) for one in await _dead(session, error_class, given)]
    of_class = Counter(name for name, _ in found)
    groups: dict[tuple[str, str, str], list[int]] = {}
    for name, one in found:
        groups.setdefault((name, one["source"], one["type"]), []).append(one["_id"])
    largest = sorted(groups.items(), key=lambda group: (-len(group[1]), -max(group[1])))[: given["groups"]]
    newest = {one["_id"]: one for one in await _newest(session, [max(ids) for _, ids in largest])}
    return rows(
        _group(key, ids, of_class[key[0]], newest[max(ids)]) for key, ids in largest if max(ids) in newest
    )


async def error_classes(session: Session, most: int) -> list[str]:
    """One jump in the index for each. The empty text is a class like any other."""
    classes: list[str] = []
    while len(classes) < most:
        beyond: dict[str, Any] = {"$gt": classes[-1]} if classes else {"$gte": ""}
        following = {"status": "ERROR", "error_class": beyond}
        found = await session.find(
            JOBS, following, {"error_class": 1}, sort={"error_class": 1}, limit=1, hint="homing_job_dead"
        )
        if not found:
            break
        classes.append(found[0]["error_class"])
    return classes


async def _dead(session: Session, error_class: str | None, given: Given) -> list[Document]:
    wanted = {name: given[name] for name in ("source", "type") if given[name] is not None}
    return await session.find(
        JOBS,
        {"status": "ERROR", "error_class": error_class, **wanted},
        {"source": 1, "type": 1},
        sort={"_id": -1},
        limit=given["most"],
        hint="homing_job_dead",
    )


async def _newest(session: Session, ids: list[int]) -> list[Document]:
    columns = {"last_error": 1, "created_at": 1, "completed_at": 1}
    return await session.find(JOBS, {"_id": {"$in": ids}}, columns)


def _group(key: tuple[str, str, str], ids: list[int], of_class: int, newest: Document) -> dict[str, Any]:
    error_class, source, type_ = key
    return {
        "error_class": error_class,
        "source": source,
        "type": type_,
        "count": len(ids),
        "of_class": of_class,
        "id": newest["_id"],
        "last_error": newest.get("last_error"),
        "created_at": newest["created_at"],
        "completed_at": newest.get("completed_at"),
    }
