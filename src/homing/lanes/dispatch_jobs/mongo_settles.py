"""How claims end on MongoDB: fenced, a flush is one bulk write, each attempt is in its job's document."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Struct
from pymongo.read_concern import ReadConcern

from homing.db.mongo import Columns, Document, Session
from homing.lanes.dispatch_jobs.mongo_alerts import NOTED_DEATH
from homing.lanes.dispatch_jobs.mongo_claims import AS_IT_WAS, FREE, FREE_LOSSES, lost_jobs, oldest_of
from homing.lanes.dispatch_jobs.mongo_documents import (
    ATTEMPTS,
    FIRST,
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
    one_more,
    rows,
)

#: Attempts that a job's own document holds. A document has at most 16 MB, an answer up to 5,000 characters
#: and a job up to a thousand attempts and more: those after these are documents of their own.
MOST_EMBEDDED: Final = 100
_BESIDE: Final = "; last error: "
_ENDED = frozenset({"COMPLETED", "ERROR"})
_HELD = "IN_PROGRESS"
_AT_ITS_START = {"$max": ["$created_at", "$scheduled_for", FIRST]}
#: From the later of creation and schedule.
DURATION = {"$max": [0, {"$subtract": [NOW, _AT_ITS_START]}]}

_encode = msgspec.json.Encoder().encode


class Change(Struct, frozen=True):
    """One write of one job and of the attempt that comes with it, where one does. Values are expressions."""

    id: int
    condition: Mapping[str, Any]
    sets: Mapping[str, Any]
    attempt: Mapping[str, Any] | None = None


async def apply(session: Session, changes: Sequence[Change]) -> list[int]:
    """Job and attempt are one write of one document, as long as it holds more; the ids that were changed."""
    token = new_token()
    count = await session.update_each(JOBS, [_in_one(change, token) for change in changes])
    ids = await changed(session, [change.id for change in changes], token, count)
    if len(ids) < len(changes):
        ids += await _apply_to_long_ones(session, changes, set(ids))
    return ids


def _in_one(change: Change, token: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    chosen, sets = {"_id": change.id, **change.condition}, {**change.sets, "settle_token": token}
    if change.attempt is not None:
        chosen["attempt_count"] = {"$lt": MOST_EMBEDDED}
        sets["attempts"] = {"$concatArrays": [{"$ifNull": ["$attempts", []]}, [change.attempt]]}
    return chosen, [{"$set": sets}]


async def settle(session: Session, given: Given) -> list[Columns]:
    batch = decoded(given["batch"])
    drawn = await draw(session, len(batch))
    changes = [
        Change(
            entry["id"],
            {"claim_seq": entry["fence"], "status": _HELD},
            _state(entry),
            _attempt(entry, drawn.first + n) if entry["counted"] else None,
        )
        for n, entry in enumerate(batch)
    ]
    return rows({"id": id} for id in await apply(session, changes))


def _state(entry: Mapping[str, Any]) -> dict[str, Any]:
    ended, counted = entry["status"] in _ENDED, entry["counted"]
    sets: dict[str, Any] = {
        "status": entry["status"],
        "defer_count": 0 if ended or counted else one_more("defer_count"),
        "completed_at": NOW if ended else GONE,
        "duration_millis": DURATION if ended else GONE,
        **(_told(entry) if counted else _told_beside(entry)),
        **FREE,
    }
    if not ended:
        sets["next_attempt_at"] = after(entry["delay"])
    if entry["status"] == "ERROR":
        sets["death"] = NOTED_DEATH
    if counted:
        sets["attempt_count"] = one_more("attempt_count")
        sets["last_attempt_at"] = {"$subtract": [NOW, entry["millis"]]}
    return sets


def _told(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"last_error": exactly(entry.get("error")), "error_class": exactly(entry.get("error_class"))}


def _told_beside(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What ends or puts off a job without an attempt does not hide what the last attempt met."""
    told = _told(entry)
    is_over = entry["status"] == "ERROR"
    error = beside(entry["error"]) if is_over else {"$ifNull": ["$last_error", told["last_error"]]}
    kept = {
        "$cond": [
            {"$ifNull": ["$last_error", False]},
            {"$ifNull": ["$error_class", GONE]},
            told["error_class"],
        ]
    }
    return {
        "last_error": {"$cond": [{"$gt": ["$attempt_count", 0]}, error, told["last_error"]]},
        "error_class": told["error_class"] if is_over else kept,
    }


def beside(error: str) -> dict[str, Any]:
    """With the last error before it, without the reason that stands before that where it ended so already."""
    real = {"$last": {"$split": [{"$ifNull": ["$last_error", ""]}, _BESIDE]}}
    is_known = {"$in": [real, ["", {"$literal": error}]]}
    return {"$concat": [{"$literal": error}, {"$cond": [is_known, "", {"$concat": [_BESIDE, real]}]}]}


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
        # A lost one was taken over to be charged, and is the attempt of the claim before.
        "claim_seq": _claim_of(entry),
    }
    return {
        **{name: {"$literal": value} for name, value in told.items() if value is not None},
        "attempt_number": one_more("attempt_count"),
        "attempted_at": "$updated_at" if entry.get("lost") else {"$subtract": [NOW, entry["millis"]]},
        "completed_at": NOW,
        "created_at": NOW,
        "worker": "$locked_by",
    }


def _claim_of(entry: Mapping[str, Any]) -> int:
    return int(entry["fence"] - entry.get("lost", 0))


# ── after the first hundred attempts ─────────────────────────────────────────────────────────────


async def _apply_to_long_ones(session: Session, changes: Sequence[Change], done: set[int]) -> list[int]:
    """Those whose documents hold no more attempts: job and attempt are two documents, so a transaction."""
    open_ = [change for change in changes if change.attempt is not None and change.id not in done]
    if not open_:
        return []
    long = {"_id": {"$in": [change.id for change in open_]}, "attempt_count": {"$gte": MOST_EMBEDDED}}
    found = {one["_id"] for one in await session.find(JOBS, long, {"_id": 1})}
    return [
        change.id
        for change in open_
        if change.id in found and await session.together(partial(_apply_to_long, change=change))
    ]


async def _apply_to_long(session: Session, change: Change) -> bool:
    mine = {"_id": change.id, **change.condition}
    told = await session.aggregate(JOBS, [{"$match": mine}, {"$project": {"attempt": change.attempt}}])
    if not told or not await session.update_one(JOBS, mine, [{"$set": change.sets}]):
        return False
    attempt = told[0]["attempt"]
    await session.insert(ATTEMPTS, [{**attempt, "_id": attempt.pop("id"), "dispatch_job_id": change.id}])
    return True


# ── what nobody knows the end of ─────────────────────────────────────────────────────────────────


async def rescue(session: Session, given: Given) -> list[Columns]:
    """The fence rises, so that a settlement that was never written cannot be taken for one that was.

    Due now, so behind everything that was due before: a job that kills its workers must not stand first. Each
    claim that ends here is an attempt, among `attempts_before`, which do not count.
    """
    condition = await lost_jobs(session, given, {"$lt": FREE_LOSSES})
    ids = await oldest_of(session, condition, given["limit"])
    if not ids:
        return []
    drawn = await draw(session, len(ids))
    sets = {
        "status": AS_IT_WAS,
        "claim_seq": one_more("claim_seq"),
        "rescue_count": one_more("rescue_count"),
        "last_attempt_at": "$updated_at",
        "next_attempt_at": NOW,
        **_UNCOUNTED,
        **FREE,
    }
    changes = [
        Change(id, condition, sets, _lost_attempt(given, drawn.first + n, "$updated_at"))
        for n, id in enumerate(ids)
    ]
    return rows({"id": id} for id in await apply(session, changes))


#: An attempt more, which does not count towards max_retries.
_UNCOUNTED: Final = {
    "attempt_count": one_more("attempt_count"),
    "attempts_before": one_more("attempts_before"),
}


def _lost_attempt(given: Given, id: int, began: Any) -> dict[str, Any]:
    return {
        "id": {"$literal": id},
        "claim_seq": "$claim_seq",
        "attempt_number": one_more("attempt_count"),
        "attempted_at": began,
        "completed_at": NOW,
        "created_at": NOW,
        "status": "FAILURE",
        "error_class": {"$literal": given["lost_class"]},
        "error_message": {"$literal": given["lost_error"]},
        "unknown": True,
        "worker": "$locked_by",
    }


async def lock_jobs(_session: Session, _given: Given) -> list[Columns]:
    """Two transactions that write the same document are in conflict, and the second begins again."""
    return []


async def record_late(session: Session, given: Given) -> list[Columns]:
    """Results of claims that are nobody's any more: each replaces what was written of a lost worker.

    Where nothing was, since somebody changed the job meanwhile, it is an attempt more.
    """
    batch = sorted(decoded(given["batch"]), key=lambda entry: (entry["id"], entry["fence"]))
    drawn = await draw(session, len(batch))
    for n, entry in enumerate(batch):
        attempt = {**_attempt(entry, drawn.first + n), "worker": {"$literal": given["owner"]}}
        await session.together(partial(_record_late, entry=entry, attempt=attempt, lost=given["lost_class"]))
    return []


async def _record_late(
    session: Session, entry: Mapping[str, Any], attempt: Mapping[str, Any], lost: str
) -> None:
    claim = {"claim_seq": _claim_of(entry)}
    told = [{"$match": {"_id": entry["id"]}}, {"$project": {"attempts": 1, "told": attempt}}]
    for job in await session.aggregate(JOBS, told):
        embedded = [one for one in job.get("attempts", ()) if one.get("claim_seq") == claim["claim_seq"]]
        later = await session.find(ATTEMPTS, {"dispatch_job_id": entry["id"], **claim})
        if not (embedded or later):
            await apply(session, [Change(entry["id"], {}, _more(entry), attempt)])
        elif (embedded or later)[0].get("error_class") == lost != entry.get("error_class"):
            await _replace(session, job, (embedded or later)[0], is_embedded=bool(embedded))


def _more(entry: Mapping[str, Any]) -> dict[str, Any]:
    began = {"$subtract": [NOW, entry["millis"]]}
    more = {"attempt_count": _UNCOUNTED["attempt_count"]} if entry["counted"] else _UNCOUNTED
    return {**more, "last_attempt_at": {"$max": ["$last_attempt_at", began]}}


async def _replace(session: Session, job: Document, known: Document, *, is_embedded: bool) -> None:
    """What it is of the job, and whose, stays."""
    kept = {name: known[name] for name in ("attempt_number", "worker") if name in known}
    if is_embedded:
        told = {**job["told"], "id": known["id"], **kept}
        attempts = [told if one["id"] == known["id"] else one for one in job["attempts"]]
        await session.update_one(JOBS, {"_id": job["_id"]}, {"$set": {"attempts": attempts}})
        return
    told = {name: value for name, value in job["told"].items() if name != "id"}
    document = {**told, "_id": known["_id"], "dispatch_job_id": job["_id"], **kept}
    await session.collection(ATTEMPTS).replace_one({"_id": known["_id"]}, document, session=session.session)


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
    """What was being sent, for so many milliseconds, is an attempt that does not count."""
    batch = decoded(given["batch"])
    sent = [entry for entry in batch if entry["millis"] is not None]
    pairs, token = _pairs_of([entry for entry in batch if entry["millis"] is None]), new_token()
    count = await _where_ours(session, pairs, {"status": AS_IT_WAS, "settle_token": token, **FREE})
    released = await changed(session, _ids(pairs), token, count)
    return rows({"id": id} for id in (*released, *await _release_sent(session, given, sent)))


async def _release_sent(session: Session, given: Given, batch: Sequence[Mapping[str, Any]]) -> list[int]:
    if not batch:
        return []
    drawn = await draw(session, len(batch))
    changes = []
    for n, entry in enumerate(batch):
        began = {"$subtract": [NOW, entry["millis"]]}
        attempt = {
            **_lost_attempt(given, drawn.first + n, began),
            "duration_millis": {"$literal": entry["millis"]},
        }
        mine = {"claim_seq": entry["fence"], "status": _HELD}
        sets = {"status": AS_IT_WAS, "last_attempt_at": began, **_UNCOUNTED, **FREE}
        changes.append(Change(entry["id"], mine, sets, attempt))
    return await apply(session, changes)


def _pairs(given: Given) -> _Pairs:
    return _pairs_of(decoded(given["batch"]))


def _pairs_of(batch: Sequence[Mapping[str, Any]]) -> _Pairs:
    return list(dict.fromkeys((entry["id"], entry["fence"]) for entry in batch))


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
