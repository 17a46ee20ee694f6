"""Seats that open: sections with subscribers, as a producer would have left them in the tables."""

from __future__ import annotations

from homing.db import Database
from homing.db.queries import parse_queries

#: Subscribers of one section.
PER_EVENT = 50

_FILL = """
-- fragment: numbers
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count)

-- name: courses
{numbers}
INSERT INTO courses (course_id, term_id, campus_code, subject_code, course_number, course_string, title)
SELECT n, '20269', 'NB', '198', CAST(n AS text), '01:198:' || n, 'Data Structures ' || n
FROM numbers

-- name: sections
{numbers}
INSERT INTO sections (section_id, course_id, term_id, campus_code, subject_code, section_number, index_number,
    open_status)
SELECT n, n, '20269', 'NB', '198', '03', 'I' || n, 'OPEN'
FROM numbers

-- name: meetings
{numbers}
INSERT INTO section_meetings (section_id, meeting_day, start_minutes, end_minutes, campus_abbrev,
    building_code, room_number)
SELECT n, 'M', 620, 700, 'BUS', 'HLL', '114'
FROM numbers

-- name: events
{numbers}
INSERT INTO open_events (open_event_id, section_id, term_id, campus_code, index_number, status_before,
    status_after, event_at, detected_by, dedupe_key, trace_id, payload)
SELECT n, n, '20269', 'NB', 'I' || n, 'CLOSED', 'OPEN', CURRENT_TIMESTAMP, 'poller', 'key' || n, 'trace' || n,
    '{"courseTitle":"Data Structures ' || n || '","sectionNumber":"03","snapshotHash":"f00d"}'
FROM numbers

-- name: subscriptions
{numbers}
INSERT INTO subscriptions (subscription_id, section_id, term_id, campus_code, index_number, contact_type,
    contact_value, contact_hash, locale, status, is_verified)
SELECT n, (n - 1) / :per_event + 1, '20269', 'NB', 'I' || ((n - 1) / :per_event + 1), 'email',
    'user' || n || '@example.org', 'hash' || n, CASE WHEN n % 10 = 0 THEN 'zh-CN' ELSE 'en-US' END,
    'active', 1
FROM numbers

-- name: notifications
{numbers}
INSERT INTO open_event_notifications (open_event_id, subscription_id, dedupe_key)
SELECT (n - 1) / :per_event + 1, n, 'key' || ((n - 1) / :per_event + 1)
FROM numbers

-- name: same_mails
{numbers}
INSERT INTO mail_outbox (from_address, to_address, template, locale, variables)
SELECT 'seats@example.com', 'user' || n || '@example.org', 'open-seat',
    CASE WHEN n % 10 = 0 THEN 'zh-CN' ELSE 'en-US' END,
    CAST('{"courseTitle":"Data Structures ' || n || '","courseString":"01:198:' || n
        || '","sectionIndex":"I' || n || '","sectionNumber":"03","campus":"NB",'
        || '"meetingSummary":"Monday 10:20-11:40 BUS HLL-114",'
        || '"eventDetectedAt":"2026-11-16T10:12:00.000Z","eventDetectedText":"Mon, Nov 16, 10:12 AM UTC",'
        || '"manageUrl":"https://seats.example.com/subscriptions/' || n
        || '?token=bQGqjB3wYx3bSkFQm1hKcQ5l7Xo9",'
        || '"unsubscribeUrl":"https://seats.example.com/unsubscribe?token=dQGqjB3wYx3bSkFQm1hKcQ5l7Xo9"}'
        AS json)
FROM numbers
"""


async def fill_same_mails(database: Database, count: int) -> None:
    """Mails that say the same, as `mail_outbox` would send them."""
    text = _FILL if database.dialect == "postgres" else _FILL.replace("AS json", "AS text")
    queries = {query.name: query for query in parse_queries(text, database.dialect)}
    await database.fetch(queries["same_mails"], {"count": count})


async def fill_openings(database: Database, count: int, per_event: int = PER_EVENT) -> None:
    """`count` notifications, due now, of events with so many subscribers each."""
    events = -(-count // per_event)
    counts = dict.fromkeys(("courses", "sections", "meetings", "events"), events)
    await _fill(database, {**counts, "subscriptions": count, "notifications": count}, per_event)


async def fill_subscribers(database: Database, count: int) -> None:
    """One section and its subscribers, which has not opened yet."""
    await _fill(database, {"courses": 1, "sections": 1, "meetings": 1, "subscriptions": count}, count)


async def _fill(database: Database, counts: dict[str, int], per_event: int) -> None:
    queries = {query.name: query for query in parse_queries(_FILL, database.dialect)}
    for name, count in counts.items():
        await database.fetch(queries[name], {"count": count, "per_event": per_event})
