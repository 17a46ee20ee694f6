"""Settlements on MongoDB: fenced, all of a flush in one bulk write, each with its attempt in the document."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from pymongo.read_concern import ReadConcern

from homing.db.mongo import Columns, Document, Session
from homing.lanes.dispatch_jobs.mongo_alerts import NOTED_DEATH
from homing.lanes.dispatch_jobs.mongo_claims import AS_IT_WAS, FREE
from homing.lanes.dispatch_jobs.mongo_documents import (
    ATTEMPTS,
    GONE,
    JOBS,
    NOW,
    Given,
    after,
    changed,
    decoded,
    draw,
    exactly,
    new_token,
    rows,
)

#: Attempts that a job's own document holds. A document has at most 16 MB, an answer up to 5,000 characters
#: and a job up to a thousand attempts and more: those after these are documents of their own.
MOST_EMBEDDED: Final = 100
_ENDED = frozenset({"COMPLETED", "ERROR"})
_HELD = "IN_PROGRESS"
_AT_ITS_START = {"$max": ["$created_at", "$scheduled_for"]}
#: From the later of creation and schedule.
DURATION = {"$max": [0, {"$subtract": [NOW, _AT_ITS_START]}]}

_encode = msgspec.json.Encoder().encode


async def settle(session: Session, given: Given) -> list[Columns]:
    """The new state and the attempt are one write of one document."""
    batch = decoded(given["batch"])
    drawn = await draw(session, len(batch))
    token = new_token()
    numbered = {drawn.first + n: entry for n, entry in enumerate(batch)}
    changes = [(_ours(entry), _settled(entry, id, token)) for id, entry in numbered.items()]
    count = await session.update_each(JOBS, changes)
    ids = await changed(session, [entry["id"] for entry in batch], token, count)
    if len(ids) < len(batch):
        ids += await _settle_long_ones(session, numbered, set(ids))
    return rows({"id": id} for id in ids)


def _ours(entry: Mapping[str, Any]) -> dict[str, Any]:
    mine = {"_id": entry["id"], "claim_seq": entry["fence"], "status": _HELD}
    return {**mine, "attempt_count": {"$lt": MOST_EMBEDDED}} if entry["counted"] else mine


def _settled(entry: Mapping[str, Any], attempt_id: int, token: str) -> list[dict[str, Any]]:
    sets = _state(entry, token)
    if entry["counted"]:
        attempts = {"$ifNull": ["$attempts", []]}
        sets["attempts"] = {"$concatArrays": [attempts, [_attempt(entry, attempt_id)]]}
    return [{"$set": sets}]


def _state(entry: Mapping[str, Any], token: str) -> dict[str, Any]:
    ended, counted = entry["status"] in _ENDED, entry["counted"]
    sets: dict[str, Any] = {
        "status": entry["status"],
        "defer_count": 0 if ended or counted else {"$add": ["$defer_count", 1]},
        "completed_at": NOW if ended else GONE,
        "duration_millis": DURATION if ended else GONE,
        "last_error": exactly(entry.get("error")),
        "error_class": exactly(entry.get("error_class")),
        "settle_token": token,
        **FREE,
    }
    if not ended:
        sets["next_attempt_at"] = after(entry["delay"])
    if entry["status"] == "ERROR":
        sets["death"] = NOTED_DEATH
    if counted:
        sets["attempt_count"] = {"$add": ["$attempt_count", 1]}
        sets["last_attempt_at"] = {"$subtract": [NOW, entry["millis"]]}
    return sets


def _attempt(entry: Mapping[str, Any], id: int) -> dict[str, Any]:
    headers = entry.get("response_headers")
    told = {
        "id": id,
        "duration_millis": entry["millis"],
        "status": entry["attempt"],
        "response_code": entry.get("response_code"),
        "response_body": entry.get("response_body"),
        # As text: a header may be named as no field of a document should be.
        "response_headers": None if headers is None else _encode(headers).decode(),
        "error_message": entry.get("error"),
        "error_stack_trace": entry.get("stack_trace"),
        "error_class": entry.get("error_class"),
        "unknown": bool(entry.get("unknown")),
    }
    return {
        **{name: {"$literal": value} for name, value in told.items() if value is not None},
        "attempt_number": {"$add": ["$attempt_count", 1]},
        "attempted_at": {"$subtract": [NOW, entry["millis"]]},
        "completed_at": NOW,
        "created_at": NOW,
        "worker": "$locked_by",
    }


# ── after the first hundred attempts ─────────────────────────────────────────────────────────────


async def _settle_long_ones(
    session: Session, numbered: Mapping[int, Mapping[str, Any]], done: set[int]
) -> list[int]:
    """Those whose documents hold no more attempts: job and attempt are two documents, so a transaction."""
    open_ = {id: entry for id, entry in numbered.items() if entry["counted"] and entry["id"] not in done}
    if not open_:
        return []
    wanted = [entry["id"] for entry in open_.values()]
    long = {"_id": {"$in": wanted}, "attempt_count": {"$gte": MOST_EMBEDDED}}
    found = {one["_id"] for one in await session.find(JOBS, long, {"_id": 1})}
    settled = []
    for id, entry in open_.items():
        if entry["id"] in found and await session.together(partial(_settle_long, attempt_id=id, entry=entry)):
            settled.append(entry["id"])
    return settled


async def _settle_long(session: Session, attempt_id: int, entry: Mapping[str, Any]) -> bool:
    mine = {"_id": entry["id"], "claim_seq": entry["fence"], "status": _HELD}
    if not await session.update_one(JOBS, mine, [{"$set": _state(entry, new_token())}]):
        return False
    (told,) = await session.aggregate(
        JOBS,
        [
            {"$match": {"_id": entry["id"]}},
            # The job counts the attempt by now.
            {"$set": {"attempt_count": {"$subtract": ["$attempt_count", 1]}}},
            {"$project": {"attempt": _attempt(entry, attempt_id)}},
        ],
    )
    attempt = told["attempt"]
    await session.insert(ATTEMPTS, [{**attempt, "_id": attempt.pop("id"), "dispatch_job_id": entry["id"]}])
    return True


# ── confirm, renew, release ──────────────────────────────────────────────────────────────────────


# A batch may hold a job twice, under an old fence and under the new one: a late claim of our own.
_Pairs = Sequence[tuple[int, int]]


async def confirm(session: Session, given: Given) -> list[Columns]:
    pairs = _pairs(given)
    wanted = set(pairs)
    found = await _majority(session, {"_id": {"$in": _ids(pairs)}, "status": {"$ne": _HELD}})
    return rows({"id": one["_id"]} for one in found if (one["_id"], one["claim_seq"]) in wanted)


async def _majority(session: Session, filter: Mapping[str, Any]) -> list[Document]:
    """What a failover cannot undo: it is asked because an answer was lost."""
    jobs = session.collection(JOBS).with_options(read_concern=ReadConcern("majority"))
    return await jobs.find(filter, {"claim_seq": 1}, session=session.session).to_list()


async def renew(session: Session, given: Given) -> list[Columns]:
    pairs = _pairs(given)
    count = await _where_ours(session, pairs, {"lease_expires_at": after(given["lease_seconds"])})
    if count == len(pairs):
        return rows({"id": id} for id in _ids(pairs))
    wanted = set(pairs)
    held = await session.find(JOBS, {"_id": {"$in": _ids(pairs)}, "status": _HELD}, {"claim_seq": 1})
    return rows({"id": one["_id"]} for one in held if (one["_id"], one["claim_seq"]) in wanted)


async def release(session: Session, given: Given) -> list[Columns]:
    pairs, token = _pairs(given), new_token()
    count = await _where_ours(session, pairs, {"status": AS_IT_WAS, "settle_token": token, **FREE})
    return rows({"id": id} for id in await changed(session, _ids(pairs), token, count))


def _pairs(given: Given) -> _Pairs:
    return list(dict.fromkeys((entry["id"], entry["fence"]) for entry in decoded(given["batch"])))


def _ids(pairs: _Pairs) -> list[int]:
    return [id for id, _ in pairs]


async def _where_ours(session: Session, pairs: _Pairs, sets: Mapping[str, Any]) -> int:
    """One update for all that have the same fence: most of a batch were claimed as often as each other."""
    by_fence: dict[int, list[int]] = defaultdict(list)
    for id, fence in pairs:
        by_fence[fence].append(id)
    count = 0
    for fence, ids in by_fence.items():
        mine = {"_id": {"$in": ids}, "claim_seq": fence, "status": _HELD}
        count += await session.update_many(JOBS, mine, [{"$set": sets}])
    return count
