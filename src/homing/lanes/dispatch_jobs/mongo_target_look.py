"""Targets for people who look, on MongoDB: found by jumps in the index, counted up to a bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homing.db.mongo import Columns, Session
from homing.lanes.dispatch_jobs.mongo_documents import JOBS, OPEN, TARGETS, Given, decoded, rows, server_time

_COUNTED = 1000
_COLUMNS = (
    "max_concurrency", "rate_per_second", "paused_until", "pause_reason", "open_until", "endpoint_until",
    "last_error", "updated_at",
)  # fmt: skip


async def seen_targets(session: Session, given: Given) -> list[Columns]:
    following, limit = {"$gt": given["after"]}, given["limit"]
    held = await session.find(TARGETS, {"_id": following}, sort={"_id": 1}, limit=limit)
    known = {one["_id"]: one for one in held}
    flying = {target for target in await _flying(session) if target > given["after"]}
    names = sorted({*known, *flying, *await _with_open_jobs(session, following, limit)})[:limit]
    now = await server_time(session)
    return rows(_seen(name, known.get(name, {}), now) for name in names)


def _seen(name: str, known: Mapping[str, Any], now: Any) -> dict[str, Any]:
    told = {column: known.get(column) for column in _COLUMNS}
    return {"target": name, **told, "failures": known.get("failures", 0), "now": now}


async def _with_open_jobs(session: Session, following: Mapping[str, Any], limit: int) -> set[str]:
    """By status, which stands before the target in the index."""
    found: set[str] = set()
    for status in ("FAILED", "PENDING"):
        steps: list[dict[str, Any]] = [
            {"$match": {"ready": True, "status": status, "target": following}},
            {"$sort": {"target": 1, "next_attempt_at": 1}},
            {"$group": {"_id": "$target", "at": {"$first": "$next_attempt_at"}}},
            {"$sort": {"_id": 1}},
            {"$limit": limit},
        ]
        found |= {one["_id"] for one in await session.aggregate(JOBS, steps, hint="homing_job_due")}
    return found


async def _flying(session: Session) -> dict[str, int]:
    steps: list[dict[str, Any]] = [
        {"$match": {"status": "IN_PROGRESS"}},
        {"$group": {"_id": "$target", "count": {"$sum": 1}}},
    ]
    found = await session.aggregate(JOBS, steps, hint="homing_job_in_progress")
    return {one["_id"]: one["count"] for one in found}


async def target_loads(session: Session, given: Given) -> list[Columns]:
    flying, loads = await _flying(session), []
    for target in decoded(given["targets"]):
        waiting = await session.collection(JOBS).count_documents(
            {"ready": True, "status": OPEN, "target": target},
            limit=_COUNTED,
            hint="homing_job_due",
            session=session.session,
        )
        loads.append({"target": target, "waiting": waiting, "in_flight": flying.get(target, 0)})
    return rows(loads)


async def target_results(_session: Session, _given: Given) -> list[Columns]:
    """Attempts stand in their jobs, and no index knows when they were."""
    return []


async def target_last_job(session: Session, given: Given) -> list[Columns]:
    columns = {"source": 1, "target_url": 1}
    steps: list[dict[str, Any]] = [
        {"$sort": {"_id": -1}},
        {"$limit": given["window"]},
        {"$match": {"target": given["target"]}},
        {"$limit": 1},
        {"$project": columns},
    ]
    waits = {"ready": True, "status": OPEN, "target": given["target"]}
    found = await session.aggregate(JOBS, steps)
    return rows(found or await session.find(JOBS, waits, columns, limit=1, hint="homing_job_due"))
