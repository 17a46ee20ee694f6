"""One row of each kind with a value in every column that the API shows, and a job that was delivered."""

from __future__ import annotations

import json
from typing import Any

from tests.http.door import Door

from homing.lanes.dispatch_jobs.credentials import CreateCredentials
from homing.lanes.dispatch_jobs.tsid import text_of

THEN = "2026-01-02T03:04:05.000Z"
A_MINUTE_LATER = "2026-01-02T03:05:05.000Z"
LATER = "2099-01-01T00:00:00.000Z"
MADE_BY_A_JOB = {"to": "ann@example.org", "subject": "Hi", "text": "Hello.", "idempotencyKey": "by a job"}

_MAIL = {
    "from_address": "shop@example.org",
    "cc_address": "bob@example.org",
    "bcc_address": "eve@example.org",
    "reply_to": "help@example.org",
    "html_body": "<p>Hello.</p>",
    "template": "welcome",
    "variables": '{"a": 1}',
    "locale": "en",
    "headers": '{"X-A": "1"}',
    "attachments": '[{"filename": "a.txt", "contentType": "text/plain", "content": "YQ=="}]',
    "unsubscribe_url": "https://example.org/unsubscribe",
    "recipients": '{"ann@example.org": "accepted"}',
    "provider": "memory",
    "provider_message_id": "1",
    "last_error": "a failure",
    "last_attempt_at": THEN,
    "sent_at": THEN,
    "locked_by": "worker-1",
}
_JOB = {
    "external_id": "order-1",
    "group_id": "g",
    "queue_url": "jobs.fifo",
    "scheduled_for": THEN,
    "expires_at": LATER,
    "timeout_seconds": 5.0,
    "idempotency_key": "full",
    "last_error": "a failure",
    "error_class": "http_500",
}
_SEAT = {"termId": "20269", "campusCode": "NB", "indexNumber": "09214"}
_SECTION = {"term_id": "20269", "campus_code": "NB", "subject_code": "198"}
_BULK_RUN = {
    "verb": "requeue",
    "query": "lane:mail_outbox status:dead",
    "lanes": '["mail_outbox"]',
    "created_by": "key:1",
    "total": 10,
    "done": 5,
    "started_at": THEN,
    "updated_at": A_MINUTE_LATER,
    "last_error": "a failure",
}


async def insert(door: Door, table: str, **columns: Any) -> None:
    names = ", ".join(columns)
    marks = ", ".join(f":{name}" for name in columns)
    await door.sql(f"INSERT INTO {table} ({names}) VALUES ({marks}) RETURNING 1 AS one", **columns)


async def update(door: Door, table: str, where: str, **columns: Any) -> None:
    changes = ", ".join(f"{name} = :{name}" for name in columns)
    await door.sql(f"UPDATE {table} SET {changes} WHERE {where} RETURNING 1 AS one", **columns)


async def fill(door: Door, key: str) -> str:
    """Mail 5, email 4, notification 1 and what else has columns; told is the id of the delivered job."""
    await update(
        door, "mail_outbox", "id = 5", **_MAIL,
        idempotency_key="full", metadata='{"k": "v"}', expires_at=LATER, lease_expires_at=THEN,
    )  # fmt: skip
    await insert(
        door, "email_log", **_MAIL,
        message_key="full", to_address="ann@example.org", subject="Hi", body="Hello.", status="Failed",
        attempt_count=1, next_attempt_at=LATER, last_queued_at=THEN, locked_until=THEN,
        dead_reason="InvalidRecipient",
    )  # fmt: skip
    await insert(door, "email_idempotency", message_key="full", email_id=4, completed_at=THEN)
    await _fill_targets(door)
    await _fill_notification(door, key)
    await insert(door, "homing_bulk_run", **_BULK_RUN, state="done", finished_at=A_MINUTE_LATER)
    await insert(door, "homing_bulk_run", **_BULK_RUN, state="running")
    await insert(
        door, "homing_bulk_batch", run_id=1, lane="mail_outbox", low=5, high=5, at=LATER, numbers="[5]"
    )
    await door.homing.figures.count.flush()
    return await _fill_job(door)


async def deliver_a_job(door: Door, key: str) -> None:
    """To the API itself, which takes a mail by it."""
    made = await door.homing.credentials.create(
        CreateCredentials(name="itself", bearer_token=key, allowed_targets=("*",))
    )
    await insert(
        door, "dispatch_job",
        source="shop", type="order.paid", target_url=f"{door.address}/api/mail", target=door.address,
        payload=json.dumps(MADE_BY_A_JOB), credentials_id=made.row["id"], status="PENDING",
        payload_content_type="application/json",
    )  # fmt: skip
    deliverer = door.homing.webhooks.deliverer
    await deliverer.settled(await deliverer.run_batch(10))
    await door.homing.jobs.judged()


async def _fill_job(door: Door) -> str:
    (row,) = await door.sql("SELECT id, status FROM dispatch_job WHERE status = 'COMPLETED'")
    await update(door, "dispatch_job", "status = 'COMPLETED'", **_JOB)
    await update(door, "dispatch_attempt", "true", error_stack_trace="KeyError\n  lane.py:1 in attempt")
    return text_of(row["id"])


async def _fill_targets(door: Door) -> None:
    """More than one page has, after those that are asked for."""
    await door.sql(
        "INSERT INTO homing_target (target) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n"
        " WHERE i < 101) SELECT 'https://later-' || i || '.example' FROM n RETURNING target"
    )


async def _fill_notification(door: Door, key: str) -> None:
    await insert(door, "courses", course_id=1, **_SECTION, course_number="111",
                 course_string="01:198:111", title="Introduction")  # fmt: skip
    await insert(door, "sections", section_id=1, course_id=1, **_SECTION, section_number="01",
                 index_number="09214", open_status="Open")  # fmt: skip
    await update(door, "subscriptions", "1", section_id=1, locale="en", last_notified_at=THEN,
                 last_known_section_status="Open")  # fmt: skip
    await update(door, "subscription_events", "1", section_status_snapshot="Open")
    await update(door, "open_event_notifications", "1", due_at=LATER, last_attempt_at=THEN,
                 locked_by="worker-1", locked_at=THEN)  # fmt: skip
    other = {**_SEAT, "email": "carol@example.org"}
    subscribed = await door.ask("POST", "/api/notifications/subscriptions", key, json=other)
    assert subscribed.is_success, subscribed.text
    await door.sql(
        "INSERT INTO open_event_notifications (open_event_id, subscription_id, dedupe_key, error, due_at,"
        " due_attempts, fanout_attempts) SELECT open_event_id, 2, 'waits', error, :later, 1, 1"
        " FROM open_event_notifications RETURNING notification_id",
        later=LATER,
    )
