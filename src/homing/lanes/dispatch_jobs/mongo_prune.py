"""Pruning on MongoDB: a job is one document, and only attempts after its first hundred are elsewhere."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from homing.db.mongo import Columns, Session
from homing.lanes.dispatch_jobs.mongo_documents import ATTEMPTS, JOBS, Given, decoded, rows, server_time

#: What its end is told from; `updated_at` is written with every change.
_DATES = {"status": 1, "created_at": 1, "updated_at": 1}


async def prune_window(session: Session, given: Given) -> list[Columns]:
    ahead = {"_id": {"$gt": given["after"]}}
    found = await session.find(
        JOBS, ahead, {"created_at": 1}, sort={"_id": 1}, limit=given["window"], hint="_id_"
    )
    before = await server_time(session) - timedelta(seconds=given["youngest"])
    old = any(one["created_at"] < before for one in found)
    return rows([{"last": found[-1]["_id"] if found else None, "old": old}])


async def prune_survey(session: Session, given: Given) -> list[Columns]:
    found = await session.find(JOBS, await _prunable(session, given), _DATES, hint="_id_")
    counts = Counter(one["status"] for one in found)
    return rows(
        {"state": state, "count": count, "oldest": _first_end(found, state)}
        for state, count in counts.items()
    )


def _first_end(found: list[dict[str, Any]], state: str) -> datetime:
    first: datetime = min(one["updated_at"] for one in found if one["status"] == state)
    return first


async def prune_candidates(session: Session, given: Given) -> list[Columns]:
    chosen = await _prunable(session, given)
    found = await session.find(JOBS, chosen, {"_id": 1}, sort={"_id": 1}, limit=given["limit"], hint="_id_")
    return rows({"id": one["_id"]} for one in found)


async def prune(session: Session, given: Given) -> list[Columns]:
    """Read and deleted in one transaction: where somebody requeues one in between, it begins again."""
    ids = decoded(given["ids"])
    condition = await _ended(session, given)

    async def work(inside: Session) -> list[Columns]:
        chosen = {"_id": {"$in": ids}, "$or": condition}
        found = await inside.find(JOBS, chosen, {"status": 1})
        gone = [one["_id"] for one in found]
        await inside.collection(ATTEMPTS).delete_many(
            {"dispatch_job_id": {"$in": gone}}, session=inside.session
        )
        await inside.collection(JOBS).delete_many({"_id": {"$in": gone}}, session=inside.session)
        return rows({"state": one["status"]} for one in found)

    return await session.together(work)


async def _prunable(session: Session, given: Given) -> dict[str, Any]:
    between = {"$gt": given["after"], "$lte": given["until"]}
    return {"_id": between, "$or": await _ended(session, given)}


async def _ended(session: Session, given: Given) -> list[dict[str, Any]]:
    """For each state: ended, and not changed for so long."""
    now = await server_time(session)
    return [
        {"status": age["state"], "updated_at": {"$lt": now - timedelta(seconds=age["seconds"])}}
        for age in decoded(given["ages"])
    ]
