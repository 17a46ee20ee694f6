"""What alerts ask of jobs on MongoDB: `alerts_postgres.sql` and `alerts/deaths_postgres.sql`, as functions.

There is no trigger that would note who dies, so whoever ends a job in ERROR notes it in the job's document:
`death` is empty until somebody takes it up, then the name of their batch, and gone when it was counted.
"""

from __future__ import annotations

from typing import Any, Final

from homing.db.mongo import Columns, Session
from homing.lanes.dispatch_jobs.dead_letters import ALERT_TYPE, SOURCE
from homing.lanes.dispatch_jobs.mongo_documents import GONE, JOBS, NOW, TARGETS, Given, decoded, rows

_INDEX = "homing_job_death"
_UNMARKED = ""
_IS_NOTED = {"death": {"$gte": _UNMARKED}}
_IS_MARKED = {"death": {"$gt": _UNMARKED}}
#: In one transaction, which is to be short: whoever requeues one of them waits for it.
_AT_ONCE = 1000
_IS_ALERT = {"$and": [{"$eq": ["$source", SOURCE]}, {"$eq": ["$type", ALERT_TYPE]}]}
#: To be set with the end of a job. Alerts leave none, or one that cannot be delivered would beget the next.
NOTED_DEATH: Final = {"$cond": [_IS_ALERT, GONE, _UNMARKED]}


async def has_deaths(session: Session, _given: Given) -> list[Columns]:
    found = await session.find(JOBS, _IS_NOTED, {"_id": 1}, limit=1, hint=_INDEX)
    return rows([{"some": bool(found)}])


async def mark_deaths(session: Session, given: Given) -> list[Columns]:
    """What somebody has marked and not yet counted comes first; only then is more marked."""
    if await session.find(JOBS, _IS_MARKED, {"_id": 1}, limit=1, hint=_INDEX):
        return []
    unmarked: dict[str, Any] = {"death": _UNMARKED}
    most = min(given["limit"], _AT_ONCE)
    found = await session.find(JOBS, unmarked, {"_id": 1}, sort={"_id": 1}, limit=most, hint=_INDEX)
    ids = [one["_id"] for one in found]
    await session.update_many(JOBS, {**unmarked, "_id": {"$in": ids}}, {"$set": {"death": given["batch"]}})
    return rows({"id": id} for id in ids)


async def marked_deaths(session: Session, _given: Given) -> list[Columns]:
    alike = {"batch": "$death", "error": "$error_class"}
    steps: list[dict[str, Any]] = [
        {"$match": _IS_MARKED},
        {"$group": {"_id": alike, "count": {"$sum": 1}, "example": {"$max": "$_id"}}},
        {"$sort": {"_id.batch": 1, "_id.error": 1}},
    ]
    found = await session.aggregate(JOBS, steps, hint=_INDEX)
    return rows(
        {
            "batch": one["_id"]["batch"],
            "error": one["_id"].get("error"),
            "count": one["count"],
            "example": one["example"],
        }
        for one in found
    )


async def drop_deaths(session: Session, given: Given) -> list[Columns]:
    await session.update_many(JOBS, {"death": given["batch"]}, {"$unset": {"death": ""}})
    return []


async def failing_targets(session: Session, given: Given) -> list[Columns]:
    """Those that fail enough, and those that have been told of."""
    fail = {"failures": {"$gte": max(1, given["least"])}}
    told = {"_id": {"$in": decoded(given["told"])}}
    found = await session.aggregate(
        TARGETS,
        [
            {"$match": {"$or": [fail, told], "_id": {"$ne": given["alert_target"]}}},
            {"$sort": {"failures": -1}},
            {"$limit": given["most"]},
            # What is missing counts as less than any time.
            {"$set": {"paused": {"$gt": ["$paused_until", NOW]}}},
        ],
    )
    return rows(
        {
            "target": one["_id"],
            "failures": one["failures"],
            "last_error": one.get("last_error"),
            "paused": one["paused"],
        }
        for one in found
    )
