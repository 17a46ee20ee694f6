"""Rows of `email_log` as the API and the command line show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from homing.db import Row, iso
from homing.errors import InvalidRequest, NotFound
from homing.lanes.email_log.queues import CONTROL

_PREFIX = "email_"
#: In other states the column says when the scheduler looks at the row again, which is nobody's attempt.
_WAITING = ("Failed", "RetryQueued")


class EmailSummary(Struct, frozen=True, rename="camel"):
    """An email, as lists show it."""

    id: str
    message_key: str
    #: Pending, RetryQueued, Sent, Failed or Dead
    status: str
    attempt_count: int
    #: Of one that failed and will be tried again.
    next_attempt_at: str | None
    last_attempt_at: str | None
    #: When its message was last put into the queue.
    last_queued_at: str | None
    last_error: str | None
    #: MaxAttemptsExceeded, or of what kind the failure was for which no other attempt makes sense.
    dead_reason: str | None
    to: str
    subject: str
    template: str | None
    provider: str | None
    created_at: str | None
    sent_at: str | None


class EmailView(EmailSummary, frozen=True, rename="camel", kw_only=True):
    """Everything about an email but the contents of its attachments."""

    sender: str | None = msgspec.field(name="from")
    cc: str | None
    bcc: str | None
    reply_to: str | None
    body: str | None
    html: str | None
    variables: Any
    locale: str | None
    headers: Any
    #: Their names.
    attachments: list[str]
    unsubscribe_url: str | None
    #: The last verdict of each recipient that has one.
    recipients: Any
    provider_message_id: str | None
    locked_by: str | None
    locked_until: str | None
    claim_seq: int
    rescue_count: int
    defer_count: int
    publish_failures: int
    #: When its message key was done with.
    completed_at: str | None


def email_id(number: int) -> str:
    return f"{_PREFIX}{number}"


def email_number(text: str) -> int:
    digits = text.removeprefix(_PREFIX)
    if not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        raise NotFound(f"there is no email {text[:40]!r}; ids look like email_123")
    return int(digits)


def check_plain(field: str, text: str | None) -> None:
    """What is looked for, or kept, as one word of text."""
    if text is not None and CONTROL.search(text):
        raise InvalidRequest(f"{field}: must not contain control characters", field)


def _summary(row: Row) -> Mapping[str, Any]:
    return {
        "id": email_id(row["id"]),
        "message_key": row["message_key"],
        "status": row["status"],
        "attempt_count": row["attempt_count"],
        "next_attempt_at": iso(row["next_attempt_at"]) if row["status"] in _WAITING else None,
        "last_attempt_at": iso(row["last_attempt_at"]),
        "last_queued_at": iso(row["last_queued_at"]),
        "last_error": row["last_error"],
        "dead_reason": row["dead_reason"],
        "to": row["to_address"],
        "subject": row["subject"],
        "template": row["template"],
        "provider": row["provider"],
        "created_at": iso(row["created_at"]),
        "sent_at": iso(row["sent_at"]),
    }


def listed(row: Row) -> EmailSummary:
    return EmailSummary(**_summary(row))


def shown(row: Row) -> EmailView:
    return EmailView(
        **_summary(row),
        sender=row["from_address"],
        cc=row["cc_address"],
        bcc=row["bcc_address"],
        reply_to=row["reply_to"],
        body=row["body"],
        html=row["html_body"],
        variables=_read(row["variables"]),
        locale=row["locale"],
        headers=_read(row["headers"]),
        attachments=_filenames(_read(row["attachments"])),
        unsubscribe_url=row["unsubscribe_url"],
        recipients=_read(row["recipients"]) or {},
        provider_message_id=row["provider_message_id"],
        locked_by=row["locked_by"],
        locked_until=iso(row["locked_until"]),
        claim_seq=row["claim_seq"],
        rescue_count=row["rescue_count"],
        defer_count=row["defer_count"],
        publish_failures=row["publish_failures"],
        completed_at=iso(row["completed_at"]),
    )


def _read(text: str | None) -> Any:
    return msgspec.json.decode(text) if text else None


def _filenames(attachments: Any) -> list[str]:
    """Another program may have written the column, so it may hold anything."""
    files = attachments if isinstance(attachments, list) else []
    return [str(file.get("filename", "?")) if isinstance(file, dict) else "?" for file in files]
