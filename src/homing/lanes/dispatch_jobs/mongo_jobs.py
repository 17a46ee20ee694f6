"""Jobs on MongoDB: put in, looked at, acted on, and what waits for a broker's queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from pymongo.errors import DuplicateKeyError

from homing.db import instant
from homing.db.mongo import Columns, Document, Session
from homing.errors import Refused
from homing.lanes.dispatch_jobs.mongo_alerts import NOTED_DEATH
from homing.lanes.dispatch_jobs.mongo_documents import (
    ATTEMPTS,
    GONE,
    JOB_COLUMNS,
    JOBS,
    LAST,
    NOW,
    OPEN,
    TARGETS,
    Given,
    after,
    attempt_columns,
    change,
    changed,
    decoded,
    draw,
    due,
    headers_text,
    job_columns,
    metadata_text,
    new_token,
    one_more,
    ordered_group,
    rows,
    server_time,
    without_nothing,
)
from homing.lanes.dispatch_jobs.mongo_settles import DURATION, MOST_EMBEDDED, beside
from homing.lanes.dispatch_jobs.tsid import first_at, time_of

#: A day, for clocks that were set back, and what was written within the hour may be waiting for its job.
_DEAD_LETTERS_OF = timedelta(days=1)
_ORPHANS_OLDER_THAN = timedelta(hours=1)
_LONGEST_DOUBLING = 6
_KEY = ("idempotency_key", "source", "type", "target_url", "credentials_id")
#: As they are ordered; whatever else a document has follows from them.
_ORDERED = (
    "external_id", "source", "type", "group_id", "target_url", "target", "protocol", "payload",
    "payload_content_type", "credentials_id", "max_retries", "retry_strategy", "idempotency_key",
    "fingerprint", "queue_url", "ordering", "timeout_seconds",
)  # fmt: skip
_LISTED = tuple(
    name
    for name in JOB_COLUMNS
    if name
    not in {
        "payload", "fingerprint", "has_headers", "target", "ready", "position", "queue_at", "queued",
        "send_number", "attempts_before", "dead_letter_sent", "claim_seq", "locked_by", "lease_expires_at",
        "rescue_count", "defer_count",
    }
)  # fmt: skip


# ── put in ───────────────────────────────────────────────────────────────────────────────────────


async def insert_jobs(session: Session, given: Given) -> list[Columns]:
    """Ids in the order of the request. A key that is known makes no job. All of them or none."""
    batch = decoded(given["batch"])
    if not batch:
        return []
    drawn = await draw(session, len(batch))
    documents = {order["number"]: _document(order, drawn.first + n) for n, order in enumerate(batch)}
    made = await _insert(session, documents)
    return rows(
        {"number": n, "id": d["_id"], "status": d["status"], "created_at": d["created_at"]}
        for n, d in documents.items()
        if n in made
    )


def _document(order: Mapping[str, Any], id: int) -> Document:
    scheduled_for, created_at = instant(order["scheduled_for"]), time_of(id)
    starts = max(scheduled_for, created_at) if scheduled_for else created_at
    is_grouped = order["ordering"] == "group"
    given = {
        "_id": id,
        **{name: order[name] for name in _ORDERED},
        "created_at": created_at,
        "updated_at": created_at,
        "scheduled_for": scheduled_for,
        "expires_at": instant(order["expires_at"]),
        "next_attempt_at": starts,
        "queue_at": starts,
        "ready": not is_grouped,
        # Ids only rise, so they are the order within a group, too.
        "position": id if is_grouped else None,
        "metadata": [{"k": key, "v": value} for key, value in (order["metadata"] or {}).items()] or None,
        "headers": order["headers"] or None,
        "traceparent": order.get("traceparent"),
        "tracestate": order.get("tracestate"),
    }
    return {**without_nothing(given), **_FRESH}


_FRESH: Mapping[str, Any] = {
    "status": "PENDING",
    "attempt_count": 0,
    "queued": False,
    "send_number": 0,
    "attempts_before": 0,
    "dead_letter_sent": False,
    "claim_seq": 0,
    "rescue_count": 0,
    "defer_count": 0,
}


async def _insert(session: Session, documents: Mapping[int, Document]) -> set[int]:
    if len(documents) > 1 or session.session is not None:
        return await session.together(lambda inner: _insert_new(inner, documents))
    ((number, document),) = documents.items()
    try:
        # One document needs no transaction.
        await session.collection(JOBS).insert_one(document)
    except DuplicateKeyError:
        return set()
    return {number}


async def _insert_new(session: Session, documents: Mapping[int, Document]) -> set[int]:
    """An error would undo the transaction, so what is known is left out before."""
    known = await _known_keys(session, [d for d in documents.values() if "idempotency_key" in d])
    fresh: dict[int, Document] = {}
    for number, document in documents.items():
        if (key := _key(document)) is None or key not in known:
            fresh[number] = document
            known.add(key)
    await session.insert(JOBS, list(fresh.values()))
    return set(fresh)


async def _known_keys(session: Session, documents: Sequence[Document]) -> set[tuple[Any, ...] | None]:
    if not documents:
        return set()
    found = await _with_keys(session, documents)
    return {_key(one) for one in found}


async def _with_keys(session: Session, wanted: Sequence[Mapping[str, Any]]) -> list[Document]:
    keys = sorted({one["idempotency_key"] for one in wanted})
    columns = dict.fromkeys((*_KEY, "fingerprint", "status", "created_at"), 1)
    return await session.find(
        JOBS, {"idempotency_key": {"$in": keys}}, columns, hint="homing_job_idempotency"
    )


def _key(document: Mapping[str, Any]) -> tuple[Any, ...] | None:
    return tuple(map(document.get, _KEY)) if document.get("idempotency_key") is not None else None


async def by_idempotency_key(session: Session, given: Given) -> list[Columns]:
    keys = decoded(given["keys"])
    numbers = [(_key(one), one["number"]) for one in keys]
    found = {_key(one): one for one in await _with_keys(session, keys)} if keys else {}
    return rows(
        {
            "number": number,
            "id": found[key]["_id"],
            "credentials_id": found[key].get("credentials_id"),
            "fingerprint": found[key].get("fingerprint"),
            "status": found[key]["status"],
            "created_at": found[key]["created_at"],
        }
        for key, number in numbers
        if key in found
    )


async def refuse_conflicts(session: Session, given: Given) -> list[Columns]:
    """Undoes the transaction where a key of the batch was first used for something else."""
    keys = decoded(given["keys"])
    found = {_key(one): one.get("fingerprint") for one in await _with_keys(session, keys)} if keys else {}
    for one in keys:
        first = found.get(_key(one))
        if first is not None and first != one["fingerprint"]:
            raise Refused("an idempotency key was used for another job")
    return []


# ── look at ──────────────────────────────────────────────────────────────────────────────────────


async def get(session: Session, given: Given) -> list[Columns]:
    found = await session.aggregate(
        JOBS,
        [
            {"$match": {"_id": given["id"]}},
            {"$project": {"attempts": 0}},
            {"$lookup": {"from": TARGETS, "localField": "target", "foreignField": "_id", "as": "about"}},
            {"$set": {"now": NOW}},
        ],
    )
    return rows(_shown(one) for one in found)


def _shown(document: Document) -> dict[str, Any]:
    target: Document = next(iter(document["about"]), {})
    return {
        **job_columns(document),
        "metadata": metadata_text(document),
        "headers": headers_text(document),
        **{name: target.get(name) for name in ("paused_until", "pause_reason", "open_until")},
        "target_error": target.get("last_error"),
        "now": document["now"],
    }


async def attempts(session: Session, given: Given) -> list[Columns]:
    id = given["id"]
    jobs = await session.find(JOBS, {"_id": id}, {"attempts": 1, "attempt_count": 1})
    embedded = [one for job in jobs for one in job.get("attempts", ())]
    later: list[Document] = []
    if jobs and jobs[0]["attempt_count"] > MOST_EMBEDDED:
        found = await session.find(ATTEMPTS, {"dispatch_job_id": id}, sort={"attempt_number": 1})
        later = [{**one, "id": one["_id"]} for one in found]
    return rows(attempt_columns(id, one) for one in (*embedded, *later))


async def listed_jobs(session: Session, given: Given) -> list[Columns]:
    """Without the payload, which may be a megabyte."""
    columns = {"payload": 0, "attempts": 0, "headers": 0}
    found = await session.find(JOBS, {"_id": {"$in": decoded(given["ids"])}}, columns)
    return rows({**job_columns(one, _LISTED), "metadata": metadata_text(one)} for one in found)


# ── act ──────────────────────────────────────────────────────────────────────────────────────────


async def cancel(session: Session, given: Given) -> list[Columns]:
    sets = {"status": "CANCELLED", "updated_at": NOW}
    ids = await change(session, decoded(given["ids"]), {"status": OPEN}, sets)
    return rows({"id": id} for id in ids)


async def requeue(session: Session, given: Given) -> list[Columns]:
    """With all attempts again, counted on from those it had. A job of an ordered group goes to the back."""
    ids = sorted(decoded(given["ids"]))
    if not ids:
        return []
    drawn, token = await draw(session, len(ids)), new_token()
    ended = {"status": {"$in": ["ERROR", "CANCELLED"]}}
    changes = [({"_id": id, **ended}, _requeued(drawn.first + n, token)) for n, id in enumerate(ids)]
    count = await session.update_each(JOBS, changes)
    return rows({"id": id} for id in await changed(session, ids, token, count))


async def send_now(session: Session, given: Given) -> list[Columns]:
    """Those that wait become due. What holds back a target, and the order of a group, stay as they are."""
    is_later = {"$gt": ["$next_attempt_at", NOW]}
    is_scheduled = {"$gt": ["$scheduled_for", NOW]}
    sets = {
        "queue_at": {"$cond": [is_later, NOW, "$queue_at"]},
        "queued": {"$and": ["$queued", {"$not": [is_later]}]},
        "next_attempt_at": {"$min": ["$next_attempt_at", NOW]},
        "scheduled_for": {"$cond": [is_scheduled, NOW, {"$ifNull": ["$scheduled_for", GONE]}]},
        "updated_at": NOW,
    }
    ids = await change(session, decoded(given["ids"]), {"status": OPEN}, sets)
    return rows({"id": id} for id in ids)


def _requeued(position: int, token: str) -> list[dict[str, Any]]:
    starts = {"$max": ["$scheduled_for", NOW]}
    is_grouped = {"$eq": ["$ordering", "group"]}
    sets = {
        "status": "PENDING",
        "attempts_before": "$attempt_count",
        "next_attempt_at": starts,
        "queue_at": starts,
        "queued": False,
        # What is missing counts as less than any time.
        "expires_at": {"$cond": [{"$gt": ["$expires_at", NOW]}, "$expires_at", GONE]},
        "completed_at": GONE,
        "duration_millis": GONE,
        "rescue_count": 0,
        "defer_count": 0,
        "dead_letter_sent": False,
        "ready": {"$not": [is_grouped]},
        "position": {"$cond": [is_grouped, position, GONE]},
        "updated_at": NOW,
        "settle_token": token,
    }
    return [{"$set": sets}]


# ── what ends by itself ──────────────────────────────────────────────────────────────────────────


async def expired(session: Session, given: Given) -> list[Columns]:
    over = {"status": OPEN, "expires_at": {"$exists": True, "$lte": await server_time(session)}}
    found = await session.find(
        JOBS, over, {"ordering": 1, "group_id": 1}, sort={"expires_at": 1}, limit=given["limit"],
        hint="homing_job_expiring",
    )  # fmt: skip
    return rows({"id": one["_id"], "ordered_group": ordered_group(one)} for one in found)


async def expire(session: Session, given: Given) -> list[Columns]:
    sets = {
        "status": "ERROR",
        "last_error": beside("expired before it could be delivered"),
        "error_class": "expired",
        "death": NOTED_DEATH,
        "completed_at": NOW,
        "duration_millis": DURATION,
        "updated_at": NOW,
    }
    condition = {"status": OPEN, "expires_at": {"$exists": True}, **due("expires_at")}
    ids = await change(session, decoded(given["ids"]), condition, sets)
    return rows({"id": id, "status": "ERROR"} for id in ids)


async def dead_letters(session: Session, given: Given) -> list[Columns]:
    """Of the last day: whoever names a dead-letter target today does not want the past of years."""
    since = await server_time(session) - _DEAD_LETTERS_OF
    dead = {"status": "ERROR", "dead_letter_sent": False, "updated_at": {"$gt": since}}
    found = await session.find(
        JOBS,
        dead,
        {"attempts": 0, "payload": 0},
        sort={"updated_at": 1},
        limit=given["limit"],
        hint="homing_job_dead_letter",
    )
    return rows(job_columns(one) for one in found)


async def dead_letters_sent(session: Session, given: Given) -> list[Columns]:
    told = {"_id": {"$in": decoded(given["ids"])}, "status": "ERROR"}
    await session.update_many(JOBS, told, {"$set": {"dead_letter_sent": True}})
    return []


async def nothing_to_make(_session: Session, _given: Given) -> list[Columns]:
    """Attempts are with their jobs: there are no weeks to make."""
    return []


async def nothing_to_sweep(_session: Session, _given: Given) -> list[Columns]:
    """Metadata and headers are within their jobs, so none of them can be left over."""
    return rows([{"last": None, "swept": 0}])


async def sweep_attempts(session: Session, given: Given) -> list[Columns]:
    before = first_at(await server_time(session) - _ORPHANS_OLDER_THAN)
    window = {"_id": {"$gt": given["after"], "$lt": before}}
    seen = await session.find(ATTEMPTS, window, {"dispatch_job_id": 1}, sort={"_id": 1}, limit=given["limit"])
    wanted = sorted({one["dispatch_job_id"] for one in seen})
    there = {one["_id"] for one in await session.find(JOBS, {"_id": {"$in": wanted}}, {"_id": 1})}
    orphans = [one["_id"] for one in seen if one["dispatch_job_id"] not in there]
    if orphans:
        await session.collection(ATTEMPTS).delete_many({"_id": {"$in": orphans}}, session=session.session)
    return rows([{"last": seen[-1]["_id"] if seen else None, "swept": len(orphans)}])


# ── what waits for its queue ─────────────────────────────────────────────────────────────────────


async def postpone_unsent(session: Session, given: Given) -> list[Columns]:
    """What is to be looked at and not to be sent yet: before its time, or sent and perhaps on its way."""
    found = await _unsent(session, given, early=True)
    ids = await change(session, found, {"status": OPEN}, {"queue_at": _send_at(given["window"])})
    return rows({"id": id} for id in ids)


async def claim_unsent(session: Session, given: Given) -> list[Columns]:
    """What was never sent to its queue and is due, and what was sent and has not been heard of since.

    The window in which nobody sends it again doubles: a long queue is no loss.
    """
    window = round(given["window"] * 1000)
    doubled = {"$multiply": [window, {"$pow": [2, {"$min": ["$send_number", _LONGEST_DOUBLING]}]}]}
    sets = {
        "queue_at": {"$add": [NOW, doubled]},
        "queued": True,
        "send_number": one_more("send_number"),
    }
    found = await _unsent(session, given, early=False)
    ids = await change(session, found, {"status": OPEN, **due("queue_at")}, sets)
    columns = {"send_number": 1, "queue_url": 1, "ordering": 1, "group_id": 1, "traceparent": 1}
    return rows(
        {
            "id": one["_id"],
            "fence": one["send_number"],
            "queue_url": one.get("queue_url"),
            "ordered_group": ordered_group(one),
            "traceparent": one.get("traceparent"),
        }
        for one in await session.find(JOBS, {"_id": {"$in": ids}}, columns)
    )


async def _unsent(session: Session, given: Given, *, early: bool) -> list[int]:
    compared = {"$gt" if early else "$lte": [_send_at(given["window"]), NOW]}
    steps: list[dict[str, Any]] = [
        {"$match": {"status": OPEN, "$and": [due("queue_at"), {"$expr": compared}]}},
        {"$sort": {"queue_at": 1, "_id": 1}},
        {"$limit": given["limit"]},
        {"$project": {"_id": 1}},
    ]
    return [one["_id"] for one in await session.aggregate(JOBS, steps, hint="homing_job_unsent")]


def _send_at(window: float) -> dict[str, Any]:
    return {"$add": [{"$min": ["$next_attempt_at", LAST]}, {"$cond": ["$queued", round(window * 1000), 0]}]}


async def settle_unsent(session: Session, given: Given) -> list[Columns]:
    """Those that the broker did not take: due for it again after a while."""
    batch, token = decoded(given["batch"]), new_token()
    changes = [
        (
            {"_id": one["id"], "send_number": one["fence"]},
            [{"$set": {"queue_at": after(one["delay"]), "queued": False, "settle_token": token}}],
        )
        for one in batch
    ]
    count = await session.update_each(JOBS, changes)
    return rows({"id": id} for id in await changed(session, [one["id"] for one in batch], token, count))


async def seen_in_queue(session: Session, given: Given) -> list[Columns]:
    """A message of this job was there and goes on waiting: not lost."""
    sets = {"queue_at": after(given["delay"] + given["window"]), "queued": True}
    return rows({"id": id} for id in await change(session, [given["id"]], {"status": OPEN}, sets))


async def unsent(session: Session, given: Given) -> list[Columns]:
    """Counted up to a limit: that there are many is what somebody wants to know."""
    steps: list[dict[str, Any]] = [
        {"$match": {"status": OPEN, **due("queue_at")}},
        {"$sort": {"queue_at": 1}},
        {"$limit": given["limit"]},
        {"$group": {"_id": None, "count": {"$sum": 1}, "first": {"$min": "$queue_at"}}},
        {"$set": {"age": {"$divide": [{"$subtract": [NOW, "$first"]}, 1000]}}},
    ]
    found = await session.aggregate(JOBS, steps, hint="homing_job_unsent")
    return rows(
        [{"count": found[0]["count"], "age": found[0]["age"]}] if found else [{"count": 0, "age": None}]
    )
