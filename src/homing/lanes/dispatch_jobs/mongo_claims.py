"""Claims on MongoDB: standings by jumps in the index, candidates by target, then one fenced update for all.

The update asks again what the candidates were chosen by, document by document: of two that chose the same job
one takes it. Which they are is read back by a token.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from homing.db.mongo import Columns, Document, Session
from homing.lanes.dispatch_jobs.mongo_documents import (
    JOBS,
    NOW,
    OPEN,
    TARGETS,
    Given,
    after,
    decoded,
    due,
    header_pairs,
    new_token,
    one_more,
    ordered_group,
    rows,
    seconds_between,
    server_time,
)

_DUE_INDEX = "homing_job_due"
_HELD_INDEX = "homing_job_in_progress"
_CLAIMABLE: Mapping[str, Any] = {"ready": True, "status": OPEN, **due("next_attempt_at")}
#: How many seem to claim at once, remembered from claim to claim.
_CROWD = "crowd"
_LARGEST_CROWD = 8
_IN_TURN = {"next_attempt_at": 1, "_id": 1}
#: Losses of a worker that cost a job nothing.
FREE_LOSSES = 3
_AS_CLAIMED = (
    "target", "target_url", "payload", "payload_content_type", "credentials_id", "max_retries",
    "retry_strategy", "timeout_seconds",
)  # fmt: skip
_ALSO_READ = (
    "claim_seq", "attempt_count", "attempts_before", "defer_count", "next_attempt_at", "expires_at",
    "updated_at", "ordering", "group_id", "type", "source", "headers", "created_at", "scheduled_for",
    "traceparent", "tracestate", "protocol",
)  # fmt: skip
_BYTES = {"$strLenBytes": "$payload"}
_HAS_TRACE = {"$lte": [{"$bsonSize": {"of": "$traceparent", "more": "$tracestate"}}, 1024]}
_READ_FOR_CLAIM: Mapping[str, Any] = {
    **dict.fromkeys((*_AS_CLAIMED, *_ALSO_READ), 1),
    # What is large is read for the attempt.
    "payload": {"$cond": [{"$lte": [_BYTES, 16384]}, "$payload", None]},
    "size": {"$cond": [{"$lte": [_BYTES, 16384]}, 0, _BYTES]},
    # A text, and an empty one, is for more than any server takes.
    "headers": {"$cond": [{"$lte": [{"$bsonSize": {"all": "$headers"}}, 65536]}, "$headers", ""]},
    "traceparent": {"$cond": [_HAS_TRACE, "$traceparent", None]},
    "tracestate": {"$cond": [_HAS_TRACE, "$tracestate", None]},
}


# ── standings ────────────────────────────────────────────────────────────────────────────────────


async def due_targets(session: Session, given: Given) -> list[Columns]:
    heads = await _heads(session, given["after"], given["most"])
    if not heads:
        return []
    known = await _targets(session, heads)
    flying = await _flying(session) if any(_room(t) is not None for t in known.values()) else Counter()
    now = max(head["now"] for head in heads.values())
    return rows(_standing(target, heads[target], known.get(target, {}), flying, now) for target in heads)


async def _heads(session: Session, after_target: str, most: int) -> dict[str, Document]:
    """The first open job of each target, one jump in the index for each; by status, which stands first."""
    found: dict[str, Document] = {}
    for status in ("FAILED", "PENDING"):
        for head in await session.aggregate(JOBS, _jumps(status, after_target, most), hint=_DUE_INDEX):
            other = found.get(head["_id"])
            if other is None or head["at"] < other["at"]:
                found[head["_id"]] = head
    return {target: found[target] for target in sorted(found)[:most]}


def _jumps(status: str, after_target: str, most: int) -> list[dict[str, Any]]:
    return [
        {"$match": {"ready": True, "status": status, "target": {"$gt": after_target}}},
        {"$sort": {"target": 1, "next_attempt_at": 1}},
        {"$group": {"_id": "$target", "at": {"$first": "$next_attempt_at"}}},
        {"$sort": {"_id": 1}},
        {"$limit": most},
        {"$set": {"now": NOW}},
    ]


def _standing(
    target: str, head: Document, known: Document, flying: Counter[str], now: datetime
) -> dict[str, Any]:
    closed = [until for name in ("paused_until", "open_until") if (until := known.get(name)) is not None]
    room = _room(known)
    return {
        "target": target,
        "due": head["at"] <= now and all(until <= now for until in closed),
        "in_flight": None if room is None else flying[target],
        "most_in_flight": room,
        "rate_per_second": known.get("rate_per_second"),
        "failures": known.get("failures", 0),
        "closed_for": seconds_between(max(closed, default=None), now),
        "endpoint": known.get("endpoint"),
        "endpoint_closed_for": seconds_between(known.get("endpoint_until"), now),
        "broken": known.get("open_until") is not None,
    }


def _room(known: Mapping[str, Any]) -> int | None:
    """How many may be under way at once; while a breaker is not closed, one."""
    return 1 if known.get("open_until") is not None else known.get("max_concurrency")


async def _targets(session: Session, names: Iterable[str]) -> dict[str, Document]:
    return {one["_id"]: one for one in await session.find(TARGETS, {"_id": {"$in": list(names)}})}


async def _flying(session: Session) -> Counter[str]:
    steps: list[dict[str, Any]] = [
        {"$match": {"status": "IN_PROGRESS"}},
        {"$group": {"_id": "$target", "count": {"$sum": 1}}},
    ]
    found = await session.aggregate(JOBS, steps, hint=_HELD_INDEX)
    return Counter({one["_id"]: one["count"] for one in found})


async def oldest_due(session: Session, given: Given) -> list[Columns]:
    heads = await _heads(session, given["after"], given["most"])
    if not heads:
        return []
    heads.pop(given["but_for"], None)
    return _age_of(heads.values())


def _age_of(heads: Collection[Document]) -> list[Columns]:
    if not heads:
        return []
    now, first = max(head["now"] for head in heads), min(head["at"] for head in heads)
    return rows([{"age": (now - first).total_seconds()}])


async def held_back(session: Session, given: Given) -> list[Columns]:
    """Of targets that are paused or whose breaker is open: since when something is due, and how much."""
    heads = await _heads(session, given["after"], given["most"])
    closed = await _closed(session, heads)
    held = sorted((head for head in closed if head["at"] <= head["now"]), key=lambda head: head["at"])
    return rows(
        [
            {
                "target": head["_id"],
                "since": head["at"],
                "age": (head["now"] - head["at"]).total_seconds(),
                "count": await _due_for(session, head["_id"], given["counted"]),
            }
            for head in held[: given["most_held"]]
        ]
    )


async def _closed(session: Session, heads: Mapping[str, Document]) -> list[Document]:
    """Of targets that are asked for nothing now."""
    known = await _targets(session, heads)
    return [
        head
        for target, head in heads.items()
        if "open_until" in known.get(target, {})
        or known.get(target, {}).get("paused_until", head["now"]) > head["now"]
    ]


async def _due_for(session: Session, target: str, limit: int) -> int:
    steps: list[dict[str, Any]] = [
        {"$match": {**_CLAIMABLE, "target": target}},
        {"$limit": limit},
        {"$count": "count"},
    ]
    found = await session.aggregate(JOBS, steps, hint=_DUE_INDEX)
    return found[0]["count"] if found else 0


async def oldest_claimable(session: Session, given: Given) -> list[Columns]:
    """For pages: of what could be sent now and is not."""
    heads = await _heads(session, given["after"], given["most"])
    closed = {head["_id"] for head in await _closed(session, heads)}
    return _age_of([head for target, head in heads.items() if target not in closed])


# ── claims ───────────────────────────────────────────────────────────────────────────────────────


async def lock_targets(session: Session, given: Given) -> list[Columns]:
    """Who locks the same target later is undone and begins again, and then sees what we have claimed."""
    names = [share["target"] for share in decoded(given["shares"])]
    await session.update_many(TARGETS, {"_id": {"$in": names}}, {"$inc": {"locks": 1}})
    return []


async def claim(session: Session, given: Given) -> list[Columns]:
    """From each target its share, and never more than its limits leave."""
    shares = {share["target"]: share["slots"] for share in decoded(given["shares"])}
    known = await _targets(session, shares)
    if known:
        shares = await _within_limits(session, shares, known)
    ids = await _candidates(session, shares)
    claimed = await _take(session, ids, given)
    _note_contest(session, len(ids), len(claimed))
    await _spend(session, Counter(one["target"] for one in claimed), known)
    return rows(_claimed(one) for one in claimed)


async def _within_limits(
    session: Session, shares: Mapping[str, int], known: Mapping[str, Document]
) -> dict[str, int]:
    now = await server_time(session)
    counts = any(_room(one) is not None for one in known.values())
    flying = await _flying(session) if counts else Counter[str]()
    return {
        target: min(slots, _left(known[target], flying[target], now)) if target in known else slots
        for target, slots in shares.items()
    }


def _left(known: Document, flying: int, now: datetime) -> int:
    room = _room(known)
    left = math.inf if room is None else room - flying
    rate = known.get("rate_per_second")
    if rate is not None:
        left = min(left, math.floor(_tokens(known, rate, now)))
    return int(min(left, 1_000_000))


def _tokens(known: Document, rate: float, now: datetime) -> float:
    filled = known["tokens"] + rate * (now - known["tokens_at"]).total_seconds()
    return float(min(max(rate, 1.0), filled))


async def _candidates(session: Session, shares: Mapping[str, int]) -> list[int]:
    """One command for all shares of about the same size: how many are read of each is the same for all."""
    found: list[int] = []
    crowd = session.hints.get(_CROWD, 1)
    for most, targets in _by_size(shares).items():
        first = await session.first_of_each(
            JOBS,
            "target",
            targets,
            condition=_CLAIMABLE,
            sort=_IN_TURN,
            limit=most * crowd,
            columns={"_id": 1},
        )
        for target, jobs in first.items():
            found += _aside([one["_id"] for one in jobs], shares[target], crowd)
    return found


def _aside(ids: Sequence[int], slots: int, crowd: int) -> Sequence[int]:
    """The first ones, or some behind them where others want the same: nothing skips what is locked."""
    start = random.randrange(crowd) * slots  # noqa: S311 - it spreads, it hides nothing
    return ids[start : start + slots] if start < len(ids) else ids[:slots]


async def probes(session: Session, given: Given) -> list[Columns]:
    """Of a target whose breaker is half open: what is due first and what is due last."""
    found: list[Document] = []
    for order in (1, -1):
        for status in ("FAILED", "PENDING"):
            wanted = {**_CLAIMABLE, "status": status, "target": given["target"]}
            sort = dict.fromkeys(_IN_TURN, order)
            found += await session.find(
                JOBS, wanted, {"target_url": 1}, sort=sort, limit=given["most"], hint=_DUE_INDEX
            )
    return rows({"id": one["_id"], "target_url": one["target_url"]} for one in found)


def _note_contest(session: Session, wanted: int, taken: int) -> None:
    """Whether others were quicker. Who is alone claims in the order of time."""
    crowd = session.hints.get(_CROWD, 1)
    lost = wanted - taken
    if lost * 4 > wanted:
        session.hints[_CROWD] = min(crowd * 2, _LARGEST_CROWD)
    elif lost == 0 and crowd > 1:
        session.hints[_CROWD] = crowd // 2


def _by_size(shares: Mapping[str, int]) -> dict[int, list[str]]:
    """Rounded up to a power of two."""
    found: dict[int, list[str]] = defaultdict(list)
    for target, slots in shares.items():
        if slots > 0:
            found[1 << (slots - 1).bit_length()].append(target)
    return found


async def _take(
    session: Session, ids: Sequence[int], given: Given, condition: Mapping[str, Any] | None = None
) -> list[Document]:
    if not ids:
        return []
    token = new_token()
    wanted = condition or _CLAIMABLE
    sets = {**(_marks(given) if condition is None else _taken_over(given)), "claim_token": token}
    chosen = {**wanted, "_id": {"$in": list(ids)}}
    if not await session.update_many(JOBS, chosen, [{"$set": sets}]):
        return []
    return await session.find(JOBS, {"_id": {"$in": list(ids)}, "claim_token": token}, _READ_FOR_CLAIM)


def _marks(given: Given) -> dict[str, Any]:
    return {
        "status": "IN_PROGRESS",
        "claim_seq": one_more("claim_seq"),
        # Of a job that was put back with fewer attempts, without Homing: it has all of them again.
        "attempts_before": {"$min": ["$attempts_before", "$attempt_count"]},
        "locked_by": {"$literal": given["owner"]},
        "lease_expires_at": after(given["lease_seconds"]),
        "updated_at": NOW,
    }


def _taken_over(given: Given) -> dict[str, Any]:
    """Whose it was and since when stays, for the attempt that says so."""
    return {
        "claim_seq": one_more("claim_seq"),
        "lease_expires_at": after(given["lease_seconds"]),
        "rescue_count": one_more("rescue_count"),
    }


async def _spend(session: Session, taken: Counter[str], known: Mapping[str, Document]) -> None:
    rates = {t: one["rate_per_second"] for t, one in known.items() if one.get("rate_per_second") is not None}
    changes = [({"_id": t}, _spent(taken[t], rate)) for t, rate in rates.items() if taken[t]]
    await session.update_each(TARGETS, changes)


def _spent(count: int, rate: float) -> list[dict[str, Any]]:
    seconds = {"$divide": [{"$subtract": [NOW, "$tokens_at"]}, 1000]}
    filled = {"$min": [max(rate, 1.0), {"$add": ["$tokens", {"$multiply": [rate, seconds]}]}]}
    return [{"$set": {"tokens": {"$subtract": [filled, count]}, "tokens_at": NOW}}]


def _claimed(document: Document) -> dict[str, Any]:
    """In the order of the item; `updated_at` is the time of the claim."""
    expires_at = document.get("expires_at")
    return {
        "id": document["_id"],
        "fence": document["claim_seq"],
        "attempts": document["attempt_count"] - document["attempts_before"],
        "deferrals": document["defer_count"],
        "age": _age(document),
        "traceparent": document.get("traceparent"),
        "due_at": document["next_attempt_at"],
        "expired": None if expires_at is None else expires_at <= document["updated_at"],
        **{name: document.get(name) for name in _AS_CLAIMED},
        "ordered_group": ordered_group(document),
        "type": document["type"],
        "source": document["source"],
        "headers": "" if document.get("headers") == "" else header_pairs(document),
        "tracestate": document.get("tracestate"),
        "protocol": document["protocol"],
        "size": document["size"],
    }


async def payload(session: Session, given: Given) -> list[Columns]:
    return rows(await session.find(JOBS, {"_id": given["id"]}, {"payload": 1}))


def _age(document: Document) -> float:
    wanted_at = max(document["created_at"], document.get("scheduled_for", document["created_at"]))
    return float((document["updated_at"] - wanted_at).total_seconds())


# ── one, for a broker's message ──────────────────────────────────────────────────────────────────


async def claim_one(session: Session, given: Given) -> list[Columns]:
    """That job, if it is due, its turn, and nobody's; with limits only `claim_one_limited` claims it."""
    target = await _target_of(session, given["id"])
    if any(target.get(name) is not None for name in ("open_until", "max_concurrency", "rate_per_second")):
        return []
    return await _claim_one(session, given, target)


async def claim_these(session: Session, given: Given) -> list[Columns]:
    """Each of them as `claim_one` does it."""
    ids = dict.fromkeys(decoded(given["ids"]))
    claimed = [await claim_one(session, {**given, "id": id}) for id in ids]
    return [row for rows_of_one in claimed for row in rows_of_one]


async def lock_target_of(session: Session, given: Given) -> list[Columns]:
    target = await _target_of(session, given["id"])
    if target:
        await session.update_one(TARGETS, {"_id": target["_id"]}, {"$inc": {"locks": 1}})
    return []


async def claim_one_limited(session: Session, given: Given) -> list[Columns]:
    target = await _target_of(session, given["id"])
    if not target:
        return []
    now = await server_time(session)
    flying = await _flying(session) if _room(target) is not None else Counter[str]()
    if _left(target, flying[target["_id"]], now) < 1:
        return []
    claimed = await _claim_one(session, given, target)
    await _spend(session, Counter({target["_id"]: len(claimed)}), {target["_id"]: target})
    return claimed


async def _target_of(session: Session, id: int) -> Document:
    jobs = await session.find(JOBS, {"_id": id}, {"target": 1})
    known = await _targets(session, [jobs[0]["target"]]) if jobs else {}
    return next(iter(known.values()), {})


async def _claim_one(session: Session, given: Given, target: Document) -> list[Columns]:
    closed = [until for name in ("paused_until", "open_until") if (until := target.get(name)) is not None]
    if closed and max(closed) > await server_time(session):
        return []
    return rows(_claimed(one) for one in await _take(session, [given["id"]], given))


async def hold_up(session: Session, given: Given) -> list[Columns]:
    """Why a job could not be claimed by its id, and for how many seconds."""
    jobs = await session.find(
        JOBS, {"_id": given["id"]},
        {"status": 1, "ready": 1, "group_id": 1, "next_attempt_at": 1, "lease_expires_at": 1, "target": 1},
    )  # fmt: skip
    if not jobs:
        return []
    job, now = jobs[0], await server_time(session)
    target = (await _targets(session, [job["target"]])).get(job["target"], {})
    closed = [until for name in ("paused_until", "open_until") if (until := target.get(name)) is not None]
    limits = (_room(target), target.get("rate_per_second"))
    told = {
        **{name: job.get(name) for name in ("status", "ready", "group_id")},
        "due_in": seconds_between(job["next_attempt_at"], now),
        "leased_for": seconds_between(job.get("lease_expires_at"), now),
        "closed_for": seconds_between(max(closed, default=None), now),
        "limited": any(limit is not None for limit in limits),
    }
    return rows([told])


# ── whose worker died ────────────────────────────────────────────────────────────────────────────


async def claim_lost(session: Session, given: Given) -> list[Columns]:
    """Jobs that lost their worker for the fourth time and more: taken over, to be charged by the policy."""
    condition = await lost_jobs(session, given, {"$gte": FREE_LOSSES})
    ids = await oldest_of(session, condition, given["limit"])
    return rows(_claimed(one) for one in await _take(session, ids, given, condition))


async def lost_jobs(session: Session, given: Given, losses: Mapping[str, int]) -> dict[str, Any]:
    """Another program may have claimed a job without a lease; then its last change counts."""
    now = await server_time(session)
    untouched_since = now.timestamp() - given["lease_seconds"]
    without = {
        "lease_expires_at": None,
        "updated_at": {"$lt": datetime.fromtimestamp(untouched_since, now.tzinfo)},
    }
    return {
        "status": "IN_PROGRESS",
        "rescue_count": losses,
        "$or": [{"lease_expires_at": {"$lt": now}}, without],
    }


async def oldest_of(session: Session, condition: Mapping[str, Any], limit: int) -> list[int]:
    found = await session.find(JOBS, condition, {"_id": 1}, sort={"_id": 1}, limit=limit, hint=_HELD_INDEX)
    return [one["_id"] for one in found]


#: What a job was before it was claimed.
AS_IT_WAS = {"$cond": [{"$lte": ["$attempt_count", "$attempts_before"]}, "PENDING", "FAILED"]}
FREE = {"locked_by": "$$REMOVE", "lease_expires_at": "$$REMOVE", "updated_at": NOW}
