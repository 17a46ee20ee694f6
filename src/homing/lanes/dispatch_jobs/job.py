"""A row of `dispatch_job`, as it is claimed and as it is ordered."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec
from msgspec import Struct

from homing.db import Row
from homing.tracing import Trace

STATES = ("PENDING", "IN_PROGRESS", "COMPLETED", "FAILED", "ERROR", "CANCELLED")
#: Those that nobody has claimed and that have not ended.
OPEN = ("PENDING", "FAILED")
#: The only one so far.
PROTOCOL = "HTTP_WEBHOOK"
#: The source of what Homing sends by itself, dead letters and alerts, and nobody else's.
OWN_SOURCE = "homing"


class Job(Struct, frozen=True, gc=False):
    """What a worker needs of a row.

    The fields stand in the order in which `claim` returns its columns, after the engine's six.
    """

    due_at: datetime | str
    expired: bool | int | None
    target: str
    target_url: str
    #: None when it is large: then it is read for the attempt.
    payload: str | None
    payload_content_type: str
    credentials_id: int | None
    max_retries: int
    retry_strategy: str
    timeout_seconds: float | None
    #: The group, when its jobs are delivered in order.
    ordered_group: str | None
    type: str
    source: str
    #: JSON: pairs of name and value. Empty where they are more than any server takes.
    headers: str | None
    #: What other tracing systems want to know beside the claim's `traceparent`.
    tracestate: str | None = None
    protocol: str = PROTOCOL
    #: Bytes of a payload that is large, else 0.
    size: int = 0


_ENGINE_COLUMNS = 6


def job_of(row: Row) -> Job:
    """By position: looking a dozen columns up by name takes longer than signing."""
    return Job(*tuple(row)[_ENGINE_COLUMNS:])


class NewJob(Struct, frozen=True, kw_only=True):
    """An order, by column. Metadata and headers become rows of their own tables."""

    source: str
    type: str
    target_url: str
    target: str
    payload: str
    external_id: str | None = None
    group_id: str | None = None
    protocol: str = PROTOCOL
    payload_content_type: str = "application/json"
    credentials_id: int | None = None
    max_retries: int = 3
    retry_strategy: str = "exponential"
    scheduled_for: str | None = None
    expires_at: str | None = None
    idempotency_key: str | None = None
    #: Tells a repeated order from another one under the same key.
    fingerprint: str | None = None
    queue_url: str | None = None
    ordering: str = "none"
    timeout_seconds: float | None = None
    metadata: Mapping[str, str] | None = None
    headers: Mapping[str, str] | None = None


class TracedJob(NewJob, frozen=True, kw_only=True):
    """An order that belongs to a trace. Apart from it, for a repeated order comes in a trace of its own."""

    traceparent: str
    tracestate: str | None = None


def of_trace(order: NewJob, trace: Trace | None) -> NewJob:
    if trace is None:
        return order
    columns = msgspec.structs.asdict(order)
    return TracedJob(**columns, traceparent=trace.traceparent, tracestate=trace.tracestate)


class Report(Struct, frozen=True, gc=False):
    """What an attempt leaves behind beside its outcome: its row, and what it says of the target."""

    seconds: float = 0.0
    response_code: int | None = None
    response_body: str | None = None
    response_headers: Mapping[str, str] | None = None
    #: The request had gone out completely and no answer came: it may have been processed.
    unknown: bool = False
    #: None when nothing was learnt of the target: it was not asked, or what failed was this job's own fault.
    target_failed: bool | None = None
    #: Seconds that the target asked everybody to wait.
    pause: float = 0.0
    #: There was not even a connection: that says the same of all URLs of the target.
    unreachable: bool = False


read_headers = msgspec.json.Decoder(list[tuple[str, str]]).decode
