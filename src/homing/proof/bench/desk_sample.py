"""Months of work in all lanes, for a desk to look through: in either database, by plain inserts.

The SQL is one for both databases but for times and JSON: `MOMENT[…]` is a time from milliseconds since 1970,
`JSON[…]` a text as the column has it. `n` counts from the oldest row to the newest, `ms` is when it was made.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from homing.db import Database, Dialect

#: What share of the messages each lane has, in percent.
SHARES: Final = {"dispatch_jobs": 40, "mail_outbox": 30, "email_log": 15, "open_events": 15}
#: Of a hundred messages, how many wait: on a usual day, and when nothing has gone out for two weeks.
USUAL, INCIDENT = 1, 50
#: The newest message is from now, the oldest from so long ago.
_SPAN_MS = 30 * 86_400_000
_EPOCH_MS = 1_577_836_800_000
_AT_ONCE = 100_000
#: Rows of the audit log, of a minute of traffic and of targets, whatever the number of messages.
_MINUTES = 48 * 60
TARGETS: Final = 200
_DAY_MS = 86_400_000


class Chunk(Struct, frozen=True):
    """Some rows of one table."""

    first: int
    last: int
    total: int
    now_ms: int
    #: How many of all rows, the newest, still wait.
    waiting: int = 0

    @property
    def gap(self) -> int:
        return max(1, _SPAN_MS // self.total)


_NUMBERS = "WITH RECURSIVE numbers(n) AS (SELECT FIRST UNION ALL SELECT n + 1 FROM numbers WHERE n < LAST)"

_JOBS = """
INSERT INTO dispatch_job (
    id, created_at, updated_at, external_id, source, type, group_id, target_url, target, payload, status,
    attempt_count, last_attempt_at, completed_at, duration_millis, error_class, last_error, has_headers,
    next_attempt_at, dead_letter_sent, locked_by, lease_expires_at)
NUMBERS, timed AS (
    SELECT n, MADE AS ms FROM numbers
), made AS (
    SELECT n, ms, ((ms - EPOCH) << 22) + n % 4194303 AS id,
        CASE WHEN n % 20 = 5 THEN 'ERROR'
             WHEN n % 1000 = 3 THEN 'FAILED'
             WHEN n % 5000 = 9 THEN 'CANCELLED'
             WHEN n % 100000 = 77 THEN 'IN_PROGRESS'
             WHEN n > TOTAL - WAITING THEN 'PENDING'
             ELSE 'COMPLETED' END AS status,
        'https://partner-' || n % 200 || '.example.com' AS host
    FROM timed
)
SELECT id, MOMENT[ms], MOMENT[ms], 'ext-' || n,
    CASE WHEN n % 400000 = 7 THEN 'rare-service' WHEN n % 10 < 3 THEN 'billing' ELSE 'shop' END,
    CASE WHEN n % 400000 = 8 THEN 'audit.sealed'
         WHEN n % 10 < 5 THEN 'order.created' WHEN n % 10 < 8 THEN 'order.shipped'
         ELSE 'invoice.kind-' || n % 20 END,
    CASE WHEN n % 3 = 0 THEN 'order-' || n / 20 END,
    host || '/hooks/' || n % 7, host || ':443', '{"orderId": ' || n || ', "total": 12.50}', status,
    CASE WHEN status = 'PENDING' THEN 0 WHEN status = 'ERROR' THEN 3 ELSE 1 END,
    CASE WHEN status <> 'PENDING' THEN MOMENT[ms + 900] END,
    CASE WHEN status IN ('COMPLETED', 'ERROR', 'CANCELLED') THEN MOMENT[ms + 1000] END,
    CASE WHEN status = 'COMPLETED' THEN n % 3000 END,
    CASE WHEN status IN ('ERROR', 'FAILED') THEN
        CASE WHEN n % 8 = 5 THEN 'http_503' WHEN n % 3 = 0 THEN 'timeout' ELSE 'connect_error' END END,
    CASE WHEN status IN ('ERROR', 'FAILED') THEN 'no answer within ' || n % 30 || ' s' END,
    n % 400000 = -1, MOMENT[NOW + CASE status WHEN 'FAILED' THEN 86400000 ELSE 0 END], status = 'ERROR',
    CASE WHEN status = 'IN_PROGRESS' THEN 'bench:1' END,
    CASE WHEN status = 'IN_PROGRESS' THEN MOMENT[NOW + 86400000] END
FROM made
"""
_METADATA = """
INSERT INTO dispatch_job_metadata (id, dispatch_job_id, meta_key, meta_value)
NUMBERS, made AS (
    SELECT n, ((MADE - EPOCH) << 22) + n % 4194303 AS id FROM numbers
), entries(number, meta_key) AS (VALUES (0, 'tenantId'), (1, 'priority'))
SELECT id + number, id, meta_key,
    CASE WHEN number = 0 THEN CASE WHEN n % 2 = 0 THEN 'acme' ELSE 'tenant-' || n % 1000 END
         WHEN n % 50000 = 11 THEN 'urgent' ELSE 'low' END
FROM made, entries
"""
_ATTEMPTS = """
INSERT INTO dispatch_attempt (
    id, dispatch_job_id, attempt_number, attempted_at, completed_at, duration_millis, status, response_code,
    response_body, error_message, error_class)
NUMBERS, made AS (
    SELECT n, MADE AS ms, ((MADE - EPOCH) << 22) + n % 4194303 AS id FROM numbers
    WHERE n > TOTAL - TOTAL / 5 AND n <= TOTAL - WAITING
)
SELECT id, id, 1, MOMENT[ms + 800], MOMENT[ms + 900], n % 3000,
    CASE WHEN n % 20 = 5 THEN 'FAILURE' ELSE 'SUCCESS' END, CASE WHEN n % 20 = 5 THEN 503 ELSE 200 END,
    '{"ok": true}', CASE WHEN n % 20 = 5 THEN 'it is busy' END, CASE WHEN n % 20 = 5 THEN 'http_503' END
FROM made
"""
_MAILS = """
INSERT INTO mail_outbox (
    created_at, next_attempt_at, last_attempt_at, sent_at, status, retry_count, last_error, from_address,
    to_address, subject, text_body, template, variables, metadata, provider, locked_by, lease_expires_at)
NUMBERS, made AS (
    SELECT n, MADE AS ms,
        CASE WHEN n % 50 = 5 THEN 'failed' WHEN n % 5000 = 9 THEN 'cancelled'
             WHEN n % 5000 = 11 THEN 'expired' WHEN n % 100000 = 77 THEN 'dispatching'
             WHEN n > TOTAL - WAITING THEN 'queued' ELSE 'sent' END AS status
    FROM numbers
)
SELECT MOMENT[ms], MOMENT[ms], CASE WHEN status <> 'queued' THEN MOMENT[ms + 500] END,
    CASE WHEN status = 'sent' THEN MOMENT[ms + 700] END, status,
    CASE WHEN status = 'failed' THEN 3 ELSE 0 END,
    CASE WHEN status = 'failed' THEN
        CASE WHEN n % 4 = 1 THEN 'invalid_recipient: there is no such mailbox'
             ELSE 'network_error: no answer from the relay' END END,
    'shop@example.com',
    'user' || n || CASE WHEN n % 10000 = 17 THEN '@rare.example.net' WHEN n % 3 = 0 THEN '@x.com'
                        ELSE '@example.org' END,
    'Order ' || n || ' has shipped', 'Your order ' || n || ' is on its way.',
    CASE WHEN n % 3 = 0 THEN 'receipt' END, CASE WHEN n % 3 = 0 THEN JSON['{"number": ' || n || '}'] END,
    JSON['{"tenantId": "tenant-' || n % 1000 || '"}'], CASE WHEN status = 'sent' THEN 'smtp' END,
    CASE WHEN status = 'dispatching' THEN 'bench:1' END,
    CASE WHEN status = 'dispatching' THEN MOMENT[NOW + 86400000] END
FROM made
"""
_EMAILS = """
INSERT INTO email_log (
    created_at, next_attempt_at, last_attempt_at, sent_at, status, attempt_count, last_error, dead_reason,
    announced_at, last_queued_at, to_address, subject, body, provider)
NUMBERS, made AS (
    SELECT n, MADE AS ms,
        CASE WHEN n % 50 = 5 THEN 'Dead' WHEN n % 500 = 3 THEN 'Failed'
             WHEN n > TOTAL - WAITING THEN 'Pending' ELSE 'Sent' END AS status
    FROM numbers
)
SELECT MOMENT[ms], MOMENT[NOW + 86400000], CASE WHEN status <> 'Pending' THEN MOMENT[ms + 500] END,
    CASE WHEN status = 'Sent' THEN MOMENT[ms + 700] END, status,
    CASE status WHEN 'Dead' THEN 5 WHEN 'Failed' THEN 1 ELSE 0 END,
    CASE WHEN status IN ('Dead', 'Failed') THEN 'provider_error: the provider said no' END,
    CASE WHEN status = 'Dead' THEN CASE WHEN n % 4 = 1 THEN 'MaxAttemptsReached' ELSE 'Rejected' END END,
    CASE WHEN status = 'Dead' THEN MOMENT[ms + 900] END, MOMENT[ms],
    'reader' || n || CASE WHEN n % 10000 = 17 THEN '@rare.example.net' ELSE '@example.org' END,
    'News of day ' || n % 365, 'Here is what happened.', CASE WHEN status = 'Sent' THEN 'smtp' END
FROM made
"""
_SECTIONS = """
INSERT INTO sections (
    section_id, term_id, campus_code, subject_code, section_number, index_number, open_status)
NUMBERS
SELECT n, '20269', 'NB', '198', '03', 'I' || n, 'OPEN' FROM numbers WHERE n <= TOTAL / 50 + 1
"""
_EVENTS = """
INSERT INTO open_events (
    open_event_id, section_id, term_id, campus_code, index_number, status_before, status_after, event_at,
    detected_by, dedupe_key, trace_id, created_at)
NUMBERS
SELECT n / 50, n / 50, '20269', 'NB', 'I' || n / 50, 'CLOSED', 'OPEN', MOMENT[MADE], 'poller', 'key-' || n,
    'trace-' || n, MOMENT[MADE]
FROM numbers WHERE n % 50 = 0
"""
_SUBSCRIPTIONS = """
INSERT INTO subscriptions (
    subscription_id, section_id, term_id, campus_code, index_number, contact_value, contact_hash, status,
    is_verified)
NUMBERS
SELECT n, n % 1000 + 1, '20269', 'NB', 'I' || (n % 1000 + 1), 'student' || n || '@example.edu', 'hash-' || n,
    CASE WHEN n % 20 = 0 THEN 'unsubscribed' ELSE 'active' END, 1
FROM numbers WHERE n <= TOTAL / 10 + 50
"""
_NOTIFICATIONS = """
INSERT INTO open_event_notifications (
    open_event_id, subscription_id, dedupe_key, fanout_status, fanout_attempts, last_attempt_at, error,
    created_at, due_at)
NUMBERS, made AS (
    SELECT n, MADE AS ms,
        CASE WHEN n % 50 = 5 THEN 'failed' WHEN n % 200 = 3 THEN 'skipped' WHEN n % 5000 = 11 THEN 'expired'
             WHEN n > TOTAL - WAITING THEN 'pending' ELSE 'sent' END AS status
    FROM numbers
)
SELECT n / 50 + 1, n % (TOTAL / 10 + 50) + 1, 'key-' || n, status,
    CASE WHEN status = 'pending' THEN 0 ELSE 1 END, CASE WHEN status <> 'pending' THEN MOMENT[ms + 500] END,
    CASE WHEN status = 'failed' THEN '{"code": "invalid_recipient", "message": "no such mailbox"}' END,
    MOMENT[ms], CASE WHEN status = 'pending' THEN MOMENT[NOW + 86400000] END
FROM made
"""
_AUDIT = """
INSERT INTO homing_audit (at, who, address, action, object, detail, outcome)
NUMBERS
SELECT MOMENT[MADE], CASE WHEN n % 3 = 0 THEN 'key:abc' || n % 7 ELSE 'user:ann' END, '127.0.0.1',
    CASE WHEN n % 5 = 0 THEN 'targets.pause' ELSE 'messages.requeue' END, 'outbox_' || n,
    JSON['{"count": ' || n % 9 || '}'], CASE WHEN n % 50 = 0 THEN 'refused' ELSE 'done' END
FROM numbers WHERE n <= TOTAL / 20
"""
_TRAFFIC = """
INSERT INTO homing_traffic (at, lane, span, writer, delivered, retried, dead, stopped, attempts, waits)
NUMBERS, lanes(lane) AS (VALUES ('mail_outbox'), ('dispatch_jobs'), ('email_log'), ('open_events')),
    writers(writer) AS (VALUES ('a'), ('b'), ('c'), ('d'))
SELECT (NOW / 60000 - n) * 60, lane, 60, writer, 50 + n % 17, n % 5, n % 2, 0,
    '[0,0,5,10,20,10,5,1,0,0,0,0,0,0,0,0,0]', '[5,10,20,10,5,1,0,0,0,0,0,0,0,0,0,0,0,0]'
FROM numbers, lanes, writers
"""
_TARGETS = """
INSERT INTO homing_target (target, failures, open_until, cooldown, last_error, paused_until, pause_reason)
NUMBERS
SELECT 'https://partner-' || n || '.example.com:443', n % 7,
    CASE WHEN n % 20 = 0 THEN MOMENT[NOW + 86400000] END, 30, 'HTTP 503',
    CASE WHEN n % 50 = 1 THEN MOMENT[NOW + 86400000] END, CASE WHEN n % 50 = 1 THEN 'they move' END
FROM numbers
"""


async def fill(database: Database, messages: int, waiting: int = USUAL) -> None:
    """That many messages over all lanes, `waiting` of a hundred not sent yet; and what operators left."""
    now_ms = time.time_ns() // 1_000_000
    rows = {lane: messages * share // 100 for lane, share in SHARES.items()}
    tables = (
        (_JOBS, rows["dispatch_jobs"]),
        (_METADATA, rows["dispatch_jobs"]),
        (_ATTEMPTS, rows["dispatch_jobs"]),
        (_MAILS, rows["mail_outbox"]),
        (_EMAILS, rows["email_log"]),
        (_SECTIONS, rows["open_events"]),
        (_EVENTS, rows["open_events"]),
        (_SUBSCRIPTIONS, rows["open_events"]),
        (_NOTIFICATIONS, rows["open_events"]),
        (_AUDIT, messages),
        (_TRAFFIC, _MINUTES),
        (_TARGETS, TARGETS),
    )
    for text, total in tables:
        for chunk in _chunks(total, now_ms, waiting):
            await database.run_script(_written(text, chunk, database.dialect))
    await _settle_down(database)


async def _settle_down(database: Database) -> None:
    """Statistics as after a while of running."""
    if database.dialect == "sqlite":
        await database.run_script("ANALYZE;")


def _chunks(total: int, now_ms: int, waiting: int) -> Iterator[Chunk]:
    for first in range(1, total + 1, _AT_ONCE):
        yield Chunk(first, min(first + _AT_ONCE - 1, total), total, now_ms, total * waiting // 100)


def _written(text: str, chunk: Chunk, dialect: Dialect) -> str:
    made = f"(CAST({chunk.now_ms} AS bigint) - CAST({chunk.total} - n AS bigint) * {chunk.gap})"
    words = {
        "NUMBERS": _NUMBERS,
        "FIRST": str(chunk.first),
        "LAST": str(chunk.last),
        "MADE": made,
        "TOTAL": str(chunk.total),
        "WAITING": str(chunk.waiting),
        "EPOCH": str(_EPOCH_MS),
        "NOW": f"CAST({chunk.now_ms} AS bigint)",
    }
    for word, meaning in words.items():
        text = re.sub(rf"\b{word}\b", meaning, text)
    moment, json = _FORMS[dialect]
    text = re.sub(r"MOMENT\[([^\]]*)\]", moment, text)
    # A command that the log need not be flushed for: what is filled is measured, not the filling.
    quick = "SET LOCAL synchronous_commit = off;\n" if dialect == "postgres" else ""
    return quick + re.sub(r"JSON\[([^\]]*)\]", json, text).strip() + ";"


_FORMS: dict[Dialect, tuple[str, str]] = {
    "postgres": (r"to_timestamp((\1) / 1000.0)", r"CAST(\1 AS jsonb)"),
    "sqlite": (r"strftime('%Y-%m-%dT%H:%M:%fZ', (\1) / 1000.0, 'unixepoch')", r"(\1)"),
}
