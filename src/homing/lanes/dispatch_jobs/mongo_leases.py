"""Who holds what on MongoDB, and its release when the holder is gone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from homing.db.mongo import Columns, Session
from homing.lanes.dispatch_jobs.mongo_documents import JOBS, Given, rows, server_time

_INDEX = "homing_job_in_progress"


async def leases(session: Session, given: Given) -> list[Columns]:
    """The number of jobs that are looked through is bounded."""
    steps: list[dict[str, Any]] = [
        {"$match": {"status": "IN_PROGRESS"}},
        {"$limit": given["limit"]},
        {"$match": {"locked_by": {"$type": "string"}}},
        {"$group": {"_id": "$locked_by", "held": {"$sum": 1}, "ends_first": {"$min": "$lease_expires_at"}}},
    ]
    found = await session.aggregate(JOBS, steps, hint=_INDEX)
    return rows({"owner": one["_id"], "held": one["held"], "ends_first": one["ends_first"]} for one in found)


async def end_leases(session: Session, given: Given) -> list[Columns]:
    """Only their time is over then: the next rescue takes them; the fence keeps out whoever was not gone."""
    now = await server_time(session)
    mine = {"status": "IN_PROGRESS", "locked_by": given["owner"], "lease_expires_at": {"$gte": now}}
    found = await session.find(JOBS, mine, {"_id": 1}, sort={"_id": 1}, limit=given["limit"], hint=_INDEX)
    ids = [one["_id"] for one in found]
    over = {"$set": {"lease_expires_at": now - timedelta(seconds=1)}}
    count = await session.update_many(JOBS, {**mine, "_id": {"$in": ids}}, over) if ids else 0
    return rows({"id": id} for id in ids[:count])
