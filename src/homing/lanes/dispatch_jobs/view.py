"""Rows of `dispatch_job` and its neighbours as the API and the command line show them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from homing.db import Row, instant, iso
from homing.errors import NotFound
from homing.lanes.dispatch_jobs.job import OPEN, NewJob
from homing.lanes.dispatch_jobs.jobs import Ordered
from homing.lanes.dispatch_jobs.tsid import number_of, text_of

Status = Literal["PENDING", "IN_PROGRESS", "COMPLETED", "FAILED", "ERROR", "CANCELLED"]
Reason = Literal["scheduled", "retry", "target_paused", "breaker_open", "group"]

#: A pause without an end is written as one until then.
ENDLESS_YEAR = 9000


class Waiting(Struct, frozen=True, rename="camel"):
    """What holds an open job back."""

    reason: Reason
    #: null where nobody knows.
    until: str | None
    message: str
    #: The job of its group that comes first.
    job_id: str | UnsetType = UNSET


class JobSummary(Struct, frozen=True, kw_only=True, rename="camel"):
    """A job as a list shows it: without payload and headers."""

    id: str
    external_id: str | None
    source: str
    type: str
    group_id: str | None
    status: Status
    target_url: str
    protocol: str
    payload_content_type: str
    credentials_id: str | None
    max_retries: int
    retry_strategy: str
    ordering: str
    timeout_seconds: float | None
    idempotency_key: str | None
    queue_url: str | None
    metadata: dict[str, str]
    scheduled_for: str | None
    expires_at: str | None
    attempt_count: int
    #: null unless it waits for one.
    next_attempt_at: str | None
    last_attempt_at: str | None
    completed_at: str | None
    #: From the later of createdAt and scheduledFor to its end.
    duration_millis: int | None
    last_error: str | None
    error_class: str | None
    created_at: str
    updated_at: str


class JobView(JobSummary, frozen=True, kw_only=True, rename="camel"):
    """A job with all there is, secrets left out."""

    headers: dict[str, str]
    payload: str
    waiting_for: Waiting | None


class Attempt(Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    attempt_number: int
    status: Literal["SUCCESS", "FAILURE"]
    response_code: int | None
    #: The first 5,000 characters.
    response_body: str | None
    response_headers: dict[str, str]
    error_message: str | None
    error_class: str | None
    #: The request had gone out and no answer came: it may have been processed.
    unknown: bool
    duration_millis: int | None
    attempted_at: str
    completed_at: str | None
    #: The process that made it; None of attempts from before this was kept.
    worker: str | None = None
    #: Where an error of our own struck, for administrators; of a receiver's failure there is none.
    error_stack_trace: str | None = None


def job_number(text: str) -> int:
    number = number_of(text)
    if number is None:
        raise NotFound(f"there is no job {text[:40]!r}; ids look like 0ARYZVZXW372S")
    return number


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────


def listed(row: Row) -> JobSummary:
    return JobSummary(**_summary(row))


def shown(row: Row, head: Row | None = None) -> JobView:
    """`head` is the first open job of its group."""
    return JobView(
        **_summary(row),
        headers=pairs_of(row["headers"]),
        payload=row["payload"],
        waiting_for=waiting_for(row, head),
    )


def echoed(order: NewJob, ordered: Ordered) -> JobView:
    """A job that was just created, without another look at the database."""
    created_at = iso(ordered.created_at) or ""
    scheduled = order.scheduled_for is not None and order.scheduled_for > created_at
    columns = {name: getattr(order, name) for name in _AS_ORDERED}
    return JobView(
        **columns,
        id=text_of(ordered.id),
        status="PENDING",
        credentials_id=None if order.credentials_id is None else text_of(order.credentials_id),
        metadata=dict(order.metadata or {}),
        headers=dict(order.headers or {}),
        attempt_count=0,
        next_attempt_at=order.scheduled_for if scheduled else created_at,
        last_attempt_at=None,
        completed_at=None,
        duration_millis=None,
        last_error=None,
        error_class=None,
        created_at=created_at,
        updated_at=created_at,
        waiting_for=_scheduled(order.scheduled_for) if scheduled else None,
    )


#: Columns that are shown as they stand.
_PLAIN = (
    "external_id", "source", "type", "group_id", "target_url", "protocol", "payload_content_type",
    "max_retries", "retry_strategy", "ordering", "timeout_seconds", "idempotency_key", "queue_url",
)  # fmt: skip
_AS_ORDERED = (*_PLAIN, "payload", "scheduled_for", "expires_at")


def _summary(row: Row) -> dict[str, Any]:
    return {
        **{name: row[name] for name in (*_PLAIN, "status", "attempt_count", "duration_millis")},
        **{name: row[name] for name in ("last_error", "error_class")},
        "id": text_of(row["id"]),
        "credentials_id": None if row["credentials_id"] is None else text_of(row["credentials_id"]),
        "metadata": pairs_of(row["metadata"]),
        "next_attempt_at": iso(row["next_attempt_at"]) if row["status"] in OPEN else None,
        **{name: iso(row[name]) for name in ("scheduled_for", "expires_at", "last_attempt_at")},
        **{name: iso(row[name]) for name in ("completed_at", "created_at", "updated_at")},
    }


def pairs_of(text: str | None) -> dict[str, str]:
    """Metadata or headers, as the queries give them."""
    return msgspec.json.decode(text, type=dict[str, str]) if text else {}


# ── what a job waits for ─────────────────────────────────────────────────────────────────────────


def waiting_for(row: Row, head: Row | None = None) -> Waiting | None:
    """Of several reasons the one that lasts longest; behind others of its group, a job waits for them."""
    if row["status"] not in OPEN:
        return None
    if not row["ready"]:
        return _behind(head)
    now = instant(row["now"])
    held = [held for held in _holds(row) if now is not None and held[0] > now]
    if held:
        until, waiting = max(held, key=lambda one: one[0])
        return msgspec.structs.replace(waiting, until=until_text(until))
    if row["open_until"] is not None:
        return Waiting("breaker_open", None, "its target failed too often; one job at a time is tried")
    return None


def _behind(head: Row | None) -> Waiting:
    if head is None:
        return Waiting("group", None, "an earlier job of its group is still open")
    id = text_of(head["id"])
    return Waiting("group", None, f"job {id} of its group comes first and is {head['status']}", id)


def _holds(row: Row) -> list[tuple[datetime, Waiting]]:
    moments = (
        (row["next_attempt_at"], _delay(row)),
        (row["paused_until"], Waiting("target_paused", None, _paused(row))),
        (row["open_until"], Waiting("breaker_open", None, _broken(row))),
    )
    known = [(instant(moment), waiting) for moment, waiting in moments]
    return [(moment, waiting) for moment, waiting in known if moment is not None]


def _delay(row: Row) -> Waiting:
    # A deferral is not counted as an attempt, and yet the job had its turn.
    if row["attempt_count"] == row["attempts_before"] and not row["defer_count"]:
        return _scheduled(None)
    return Waiting("retry", None, f"it is tried again after: {row['last_error'] or 'a failure'}")


def _scheduled(until: str | None) -> Waiting:
    return Waiting("scheduled", until, "it is scheduled for later")


def _paused(row: Row) -> str:
    return f"its target is paused: {row['pause_reason'] or 'no reason was given'}"


def _broken(row: Row) -> str:
    return f"its target failed too often, last with: {row['target_error'] or 'an unknown error'}"


def until_text(moment: datetime | None) -> str | None:
    return None if moment is None or moment.year >= ENDLESS_YEAR else iso(moment)


# ── attempts ─────────────────────────────────────────────────────────────────────────────────────


def attempted(row: Row) -> Attempt:
    return Attempt(
        id=text_of(row["id"]),
        attempt_number=row["attempt_number"],
        status=row["status"],
        response_code=row["response_code"],
        response_body=row["response_body"],
        response_headers=_headers(row["response_headers"]),
        error_message=row["error_message"],
        error_class=row["error_class"],
        unknown=bool(row["unknown"]),
        duration_millis=row["duration_millis"],
        attempted_at=iso(row["attempted_at"]) or "",
        completed_at=iso(row["completed_at"]),
        worker=row["worker"],
        error_stack_trace=row["error_stack_trace"],
    )


def _headers(text: str | None) -> dict[str, str]:
    """Another program may have written the column, so it may hold anything."""
    try:
        given = msgspec.json.decode(text) if text else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return {str(name): str(value) for name, value in given.items()} if isinstance(given, Mapping) else {}
