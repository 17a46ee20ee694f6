"""Targets on MongoDB: what attempts said of them, and what people did with them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from homing.db import instant
from homing.db.mongo import Columns, Document, Session
from homing.lanes.dispatch_jobs.mongo_documents import (
    GONE,
    NOW,
    TARGETS,
    Given,
    decoded,
    exactly,
    rows,
    seconds_between,
    server_time,
)
from homing.lanes.dispatch_jobs.target import SEVERAL

_COLUMNS = (
    "target", "max_concurrency", "rate_per_second", "tokens", "tokens_at", "paused_until", "pause_reason",
    "failures", "open_until", "cooldown", "last_error", "updated_at", "endpoint", "endpoint_until", "well_at",
    "now",
)  # fmt: skip
#: What one has of whom nothing is known.
_AT_FIRST: Mapping[str, Any] = {
    "tokens": {"$ifNull": ["$tokens", 1]},
    "tokens_at": {"$ifNull": ["$tokens_at", NOW]},
    "failures": {"$ifNull": ["$failures", 0]},
    "cooldown": {"$ifNull": ["$cooldown", 0]},
    "updated_at": {"$ifNull": ["$updated_at", NOW]},
}


async def note_targets(session: Session, given: Given) -> list[Columns]:
    names = [one["target"] for one in decoded(given["verdicts"]) if one["failures"] > 0 or one["pause"] > 0]
    changes = [({"_id": name}, [{"$set": _AT_FIRST}]) for name in names]
    await session.update_each(TARGETS, changes, upsert=True)
    return []


async def judge_targets(session: Session, given: Given) -> list[Columns]:
    """What attempts said of their targets, all of a flush at once; see `judge_targets` of PostgreSQL."""
    said = {one["target"]: one for one in decoded(given["verdicts"])}
    held = await session.find(TARGETS, {"_id": {"$in": list(said)}})
    now = await server_time(session)
    judged = {one["_id"]: _judged(one, said[one["_id"]], given, now) for one in held}
    changes = [({"_id": target}, [{"$set": _written(sets)}]) for target, sets in judged.items()]
    await session.update_each(TARGETS, changes)
    return rows(
        {
            "target": target,
            "open": sets["open_until"] is not None and sets["open_until"] > now,
            "endpoint": sets["endpoint"],
            "endpoint_closed_for": seconds_between(sets["endpoint_until"], now),
            "closed_for": seconds_between(
                max((at for name in ("paused_until", "open_until") if (at := sets[name])), default=None), now
            ),
        }
        for target, sets in judged.items()
    )


def _judged(held: Document, said: Mapping[str, Any], given: Given, now: datetime) -> dict[str, Any]:
    closes = said["succeeded"]
    in_a_row = (0 if closes else held["failures"]) + said["failures"]
    open_before = None if closes else held.get("open_until")
    cooldown_before = 0 if closes else held["cooldown"]
    cooldown = min(max(cooldown_before * 2, given["cooldown"]), given["longest_cooldown"])
    failing, endpoint, kept_until = _endpoints(held, said)
    before = open_before if failing == SEVERAL else kept_until if cooldown_before > 0 else None
    opens = said["failures"] > 0 and (in_a_row >= given["threshold"] if before is None else before <= now)
    until = now + timedelta(seconds=cooldown) if opens else None
    well_at = _latest(held.get("well_at"), _ago(said["well_age"], now))
    return {
        "failures": in_a_row,
        "open_until": until if until and failing == SEVERAL else open_before,
        "cooldown": cooldown if opens else cooldown_before,
        "last_error": said["error"] or held.get("last_error"),
        "updated_at": now,
        "endpoint": endpoint,
        "endpoint_until": None
        if failing == SEVERAL
        else _latest(kept_until, until, now + timedelta(seconds=said["pause"]) if said["pause"] else None),
        "well_at": well_at,
        **_paused(held, said, given, now, by_several=failing == SEVERAL, well_at=well_at),
    }


def _endpoints(held: Document, said: Mapping[str, Any]) -> tuple[str | None, str | None, datetime | None]:
    """Of which the failures are; which is remembered; until when that one is left alone already."""
    before, failing = held.get("endpoint"), said["endpoint"]
    if failing and before and failing != before and held["failures"] and not said["succeeded"]:
        failing = SEVERAL
    is_well = before in said["well"]
    kept = None if before == SEVERAL or is_well else before
    kept_until = held.get("endpoint_until") if not is_well and (failing or before) == before else None
    return failing, failing or kept, kept_until


def _latest(*times: datetime | None) -> datetime | None:
    return max((time for time in times if time is not None), default=None)


def _ago(seconds: float | None, now: datetime) -> datetime | None:
    return None if seconds is None else now - timedelta(seconds=seconds)


def _paused(
    held: Document,
    said: Mapping[str, Any],
    given: Given,
    now: datetime,
    *,
    by_several: bool,
    well_at: datetime | None,
) -> dict[str, Any]:
    until, reason = held.get("paused_until"), held.get("pause_reason")
    if said["pause"] > 0 and by_several:
        others_are_well = well_at is not None and well_at > now - timedelta(minutes=5)
        seconds = min(said["pause"], given["shorter_pause"]) if others_are_well else said["pause"]
        until, reason = _latest(until, now + timedelta(seconds=seconds)), said["error"]
    return {"paused_until": until, "pause_reason": reason}


def _written(sets: Mapping[str, Any]) -> dict[str, Any]:
    return {name: exactly(value) for name, value in sets.items()}


# ── for people ───────────────────────────────────────────────────────────────────────────────────


async def limit_target(session: Session, given: Given) -> list[Columns]:
    return await _change(session, given["target"], _limits(given))


async def replace_limits(session: Session, given: Given) -> list[Columns]:
    """Only those that somebody has seen: of a target that is not there none."""
    target, seen = given["target"], (given["seen_concurrency"], given["seen_rate"])
    if seen == (None, None):
        await _change(session, target, {})
    # None is also what is not there.
    unchanged = {"_id": target, "max_concurrency": seen[0], "rate_per_second": seen[1]}
    found = await session.update_one(TARGETS, unchanged, [{"$set": _limits(given)}])
    return rows([{"target": target}] if found else [])


def _limits(given: Given) -> dict[str, Any]:
    rate = given["rate_per_second"]
    return {
        "max_concurrency": exactly(given["max_concurrency"]),
        "rate_per_second": exactly(rate),
        "tokens": max(rate or 1.0, 1.0),
        "tokens_at": NOW,
        "updated_at": NOW,
    }


async def pause_target(session: Session, given: Given) -> list[Columns]:
    sets = {
        "paused_until": exactly(instant(given["until"])),
        "pause_reason": exactly(given["reason"]),
        "updated_at": NOW,
    }
    return await _change(session, given["target"], sets)


async def _change(session: Session, target: str, sets: Mapping[str, Any]) -> list[Columns]:
    await session.update_one(TARGETS, {"_id": target}, [{"$set": {**_AT_FIRST, **sets}}], upsert=True)
    return rows([{"target": target}])


async def resume_target(session: Session, given: Given) -> list[Columns]:
    """Also closes the breaker: whoever resumes a target says that it is well."""
    gone = dict.fromkeys(("paused_until", "pause_reason", "open_until", "endpoint_until"), GONE)
    sets = {**gone, "cooldown": 0, "failures": 0, "updated_at": NOW}
    found = await session.update_one(TARGETS, {"_id": given["target"]}, [{"$set": sets}])
    return rows([{"target": given["target"]}] if found else [])


async def targets(session: Session, given: Given) -> list[Columns]:
    return await _shown(session, {"_id": {"$gt": given["after"]}}, given["limit"])


async def target(session: Session, given: Given) -> list[Columns]:
    return await _shown(session, {"_id": given["target"]}, 1)


async def held_targets(session: Session, given: Given) -> list[Columns]:
    is_paused = {"$expr": {"$gt": ["$paused_until", NOW]}}
    keeps_failing = {"endpoint_until": {"$exists": True}, "cooldown": {"$gt": 0}}
    held = [is_paused, {"open_until": {"$exists": True}}, keeps_failing]
    return await _shown(session, {"$or": held}, given["most"])


async def _shown(session: Session, filter: Mapping[str, Any], limit: int) -> list[Columns]:
    steps: list[dict[str, Any]] = [
        {"$match": filter},
        {"$sort": {"_id": 1}},
        {"$limit": limit},
        {"$set": {"now": NOW}},
    ]
    found = await session.aggregate(TARGETS, steps)
    return rows({name: {**one, "target": one["_id"]}.get(name) for name in _COLUMNS} for one in found)
