"""Ordered groups on MongoDB: of each group the first open job is ready, and no other.

Whatever may change which job is the first runs between `lock_groups` and `promote`, in one transaction.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from homing.db.mongo import Columns, Document, Session
from homing.lanes.dispatch_jobs.mongo_documents import JOBS, LIVE, NOW, Given, decoded, rows

_LOCKS = "homing_group_lock"
#: Locks are few, however many groups there are; two groups with one lock only wait for each other.
_MOST_LOCKS = 1 << 16
_GROUP_INDEX = "homing_job_group"


async def lock_groups(session: Session, given: Given) -> list[Columns]:
    """Who locks the same group later is undone and begins again, and then sees what we have written."""
    keys = sorted({zlib.crc32(str(group).encode()) % _MOST_LOCKS for group in decoded(given["groups"])})
    changes = [({"_id": key}, {"$inc": {"locks": 1}}) for key in keys]
    await session.update_each(_LOCKS, changes, upsert=True)
    return []


async def promote(session: Session, given: Given) -> list[Columns]:
    """In each group that has no job ready or under way, the first becomes ready."""
    groups = sorted({str(group) for group in decoded(given["groups"])})
    if not groups:
        return []
    ready = {"group_id": {"$in": groups}, "ordering": "group", "ready": True, "status": LIVE}
    found = await session.find(JOBS, ready, {"_id": 0, "group_id": 1}, hint="homing_job_one_per_group")
    busy = {one["group_id"] for one in found}
    heads = await _heads(session, [group for group in groups if group not in busy])
    if heads:
        ids = [head["_id"] for head in heads]
        await session.update_many(JOBS, {"_id": {"$in": ids}}, {"$set": {"ready": True}})
    return rows({"id": head["_id"], "due": head["due"]} for head in heads)


async def _heads(session: Session, groups: Sequence[str]) -> list[Document]:
    if not groups:
        return []
    open_ = {"ordering": "group", "status": LIVE}
    due = {"due": {"$lte": ["$next_attempt_at", NOW]}}
    found = await session.first_of_each(
        JOBS, "group_id", groups, condition=open_, sort={"position": 1}, limit=1, columns=due
    )
    return [head for heads in found.values() for head in heads]


async def ordered_groups(session: Session, given: Given) -> list[Columns]:
    chosen = {"_id": {"$in": decoded(given["ids"])}, "ordering": "group"}
    found = await session.find(JOBS, chosen, {"_id": 0, "group_id": 1})
    return rows({"group_id": group} for group in sorted({one["group_id"] for one in found}))


async def group_head(session: Session, given: Given) -> list[Columns]:
    found = await _next_head(session, given["group_id"])
    return rows({"id": one["_id"], "status": one["status"]} for one in found)


async def stuck_groups(session: Session, given: Given) -> list[Columns]:
    """Groups, and whether their first job is ready: one jump in the index for each."""
    heads: list[Document] = []
    last = {"$gt": given["after"]}
    while len(heads) < given["limit"] and (found := await _next_head(session, last)):
        heads += found
        last = {"$gt": found[0]["group_id"]}
    return rows({"group_id": head["group_id"], "ready": head["ready"]} for head in heads)


async def _next_head(session: Session, group: Any) -> list[Document]:
    return await session.find(
        JOBS,
        {"group_id": group, "ordering": "group", "status": LIVE},
        {"group_id": 1, "ready": 1, "status": 1},
        sort={"group_id": 1, "position": 1},
        limit=1,
        hint=_GROUP_INDEX,
    )
