"""A job as one document of MongoDB: its columns, its ids, and how rows are made of it.

What is not known is left out of a document, not null. Times are the server's: `$$NOW` in pipelines, or what
came back with a draw of ids.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from typing import Any

import msgspec
from bson.int64 import Int64
from msgspec import Struct
from pymongo import ReturnDocument

from homing.db.mongo import Columns, Document, Session
from homing.errors import SchemaError
from homing.lanes.dispatch_jobs.tsid import EPOCH

Given = Mapping[str, Any]
Operation = Callable[[Session, Given], Awaitable[Sequence[Columns]]]

JOBS = "dispatch_job"
ATTEMPTS = "dispatch_attempt"
TARGETS = "homing_target"
_COUNTERS = "homing_counter"

OPEN = {"$in": ["PENDING", "FAILED"]}
LIVE = {"$in": ["PENDING", "FAILED", "IN_PROGRESS"]}
NOW = "$$NOW"
GONE = "$$REMOVE"

#: All that a row of `dispatch_job` has, in the order of the SQL tables.
JOB_COLUMNS = (
    "id", "external_id", "created_at", "updated_at", "source", "type", "group_id", "target_url", "protocol",
    "payload", "payload_content_type", "credentials_id", "status", "max_retries", "retry_strategy",
    "scheduled_for", "expires_at", "attempt_count", "last_attempt_at", "completed_at", "duration_millis",
    "last_error", "idempotency_key", "queue_url", "ordering", "timeout_seconds", "error_class", "fingerprint",
    "has_headers", "target", "next_attempt_at", "ready", "position", "queue_at", "queued", "send_number",
    "attempts_before", "dead_letter_sent", "claim_seq", "locked_by", "lease_expires_at", "rescue_count",
    "defer_count", "traceparent", "tracestate",
)  # fmt: skip
ATTEMPT_COLUMNS = (
    "id", "dispatch_job_id", "attempt_number", "attempted_at", "completed_at", "duration_millis", "status",
    "response_code", "response_body", "error_message", "error_stack_trace", "error_class", "response_headers",
    "unknown", "created_at", "worker", "claim_seq",
)  # fmt: skip
#: Without what grows, for whoever does not ask for it.
WITHOUT_ATTEMPTS = {"attempts": 0}

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

_TAIL = 1 << 22
_MILLISECONDS = {"$subtract": [NOW, EPOCH]}
_NEXT_ID = {"$max": [{"$add": ["$last", 1]}, {"$multiply": [_MILLISECONDS, Int64(_TAIL)]}]}


class Drawn(Struct, frozen=True):
    """Ids of our own, from `first` on, and the server's time."""

    first: int
    now: datetime


async def draw(session: Session, count: int) -> Drawn:
    """Ids that rise, whoever draws them: 42 bits of milliseconds since 2020, or one more than the last.

    Outside of any transaction: two that draw would be in each other's way, and an id that is not used is no
    loss.
    """
    step: list[dict[str, Any]] = [
        {"$set": {"first": _NEXT_ID, "now": NOW}},
        {"$set": {"last": {"$add": ["$first", count - 1]}}},
    ]
    found = await session.collection(_COUNTERS).find_one_and_update(
        {"_id": "tsid"}, step, return_document=ReturnDocument.AFTER
    )
    if found is None:
        raise SchemaError("the collection homing_counter is empty; run `homing migrate`")
    return Drawn(int(found["first"]), found["now"])


async def server_time(session: Session) -> datetime:
    told = await session.collection(_COUNTERS).database.command("hello")
    moment: datetime = told["localTime"]
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def after(seconds: float) -> dict[str, Any]:
    """The server's time, and so many seconds."""
    return {"$add": [NOW, round(seconds * 1000)]}


#: Another program may write any number and any date. What is counted up and what is added to stays far within
#: its type: the validator refuses what does not, and with it everybody's claim.
_MOST = Int64(1_000_000)
_MOST_CLAIMS = Int64(1 << 53)
FIRST, LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)


def one_more(column: str) -> dict[str, Any]:
    """Counted up; next to the end it begins anew."""
    most = _MOST_CLAIMS if column == "claim_seq" else _MOST
    return {"$add": [{"$mod": [f"${column}", most]}, 1]}


def due(column: str) -> dict[str, Any]:
    """A condition that an index serves: the time is a constant by then."""
    return {"$expr": {"$lte": [f"${column}", NOW]}}


def exactly(value: Any) -> Any:
    """A value for a pipeline: text that begins with a dollar is text; nothing is left out."""
    return GONE if value is None else {"$literal": value}


def new_token() -> str:
    return token_hex(8)


def decoded(text: str) -> Any:
    return _decode(text)


def without_nothing(document: Mapping[str, Any]) -> Document:
    return {name: value for name, value in document.items() if value is not None}


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────


def rows(found: Iterable[Mapping[str, Any]]) -> list[Columns]:
    return [Columns(one) for one in found]


def job_columns(document: Mapping[str, Any], names: Iterable[str] = JOB_COLUMNS) -> dict[str, Any]:
    given = {**document, "id": document["_id"], "has_headers": "headers" in document}
    return {name: given.get(name) for name in names}


def metadata_text(document: Mapping[str, Any]) -> str | None:
    pairs = document.get("metadata")
    return _encode({pair["k"]: pair["v"] for pair in pairs}).decode() if pairs else None


def headers_text(document: Mapping[str, Any]) -> str | None:
    pairs = headers_of(document)
    return _encode(dict(pairs)).decode() if pairs else None


def header_pairs(document: Mapping[str, Any]) -> str | None:
    pairs = headers_of(document)
    return _encode(pairs).decode() if pairs else None


def headers_of(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """As `stored_headers` has them; documents of the version before have a list of pairs."""
    headers = document.get("headers") or ()
    return (
        list(headers.items()) if isinstance(headers, Mapping) else [(name, value) for name, value in headers]
    )


def stored_headers(pairs: Sequence[tuple[str, str]]) -> Mapping[str, str] | list[list[str]] | None:
    """An object; a list of pairs where another program gave a name twice."""
    headers = dict(pairs)
    return (headers if len(headers) == len(pairs) else [list(pair) for pair in pairs]) or None


def attempt_columns(job_id: int, attempt: Mapping[str, Any]) -> dict[str, Any]:
    given = {"unknown": False, **attempt, "dispatch_job_id": job_id}
    return {name: given.get(name) for name in ATTEMPT_COLUMNS}


def ordered_group(document: Mapping[str, Any]) -> str | None:
    return document.get("group_id") if document["ordering"] == "group" else None


def seconds_between(later: datetime | None, earlier: datetime) -> float | None:
    return None if later is None else max(0.0, (later - earlier) / timedelta(seconds=1))


# ── changing several ─────────────────────────────────────────────────────────────────────────────


async def change(
    session: Session, ids: Sequence[int], condition: Mapping[str, Any], sets: Mapping[str, Any]
) -> list[int]:
    """Change those of the jobs that are as the condition says; which they were.

    The server only says how many; where some were not, a token that each was given tells them apart.
    """
    if not ids:
        return []
    token = new_token()
    chosen = {**condition, "_id": {"$in": list(ids)}}
    count = await session.update_many(JOBS, chosen, [{"$set": {**sets, "settle_token": token}}])
    return await changed(session, ids, token, count)


async def changed(session: Session, ids: Sequence[int], token: str, count: int) -> list[int]:
    if count in {0, len(ids)}:
        return list(ids) if count else []
    found = await session.find(JOBS, {"_id": {"$in": list(ids)}, "settle_token": token}, {"_id": 1})
    return [one["_id"] for one in found]
