"""Rows of `mail_outbox` as the API and the command line show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from homing.db import Row, iso
from homing.errors import NotFound


class MailSummary(Struct, frozen=True, rename="camel"):
    """A mail, as lists show it."""

    id: str
    #: queued, dispatching, sent, failed, cancelled or expired
    status: str
    retry_count: int
    next_attempt_at: str | None
    last_attempt_at: str | None
    last_error: str | None
    to: str | None
    subject: str | None
    template: str | None
    idempotency_key: str | None
    provider: str | None
    created_at: str | None
    sent_at: str | None


class OutboxMail(MailSummary, frozen=True, rename="camel", kw_only=True):
    """Everything about a mail but the contents of its attachments."""

    sender: str | None = msgspec.field(name="from")
    cc: str | None
    bcc: str | None
    reply_to: str | None
    text: str | None
    html: str | None
    #: Another program may have written the JSON of the table, so it may be anything.
    variables: Any
    locale: str | None
    headers: Any
    #: Their names.
    attachments: list[str]
    unsubscribe_url: str | None
    metadata: Any
    expires_at: str | None
    #: The last verdict of each recipient that has one.
    recipients: Any
    provider_message_id: str | None
    rescue_count: int
    defer_count: int
    claim_seq: int
    locked_by: str | None
    lease_expires_at: str | None


def row_number(text: str) -> int:
    digits = text.removeprefix("outbox_")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        raise NotFound(f"there is no mail {text[:40]!r}; ids look like outbox_123")
    return int(digits)


def listed(row: Row) -> MailSummary:
    return MailSummary(**_summary(row))


def _summary(row: Row) -> Mapping[str, Any]:
    return {
        "id": f"outbox_{row['id']}",
        "status": row["status"],
        "retry_count": row["retry_count"],
        "next_attempt_at": _due(row),
        "last_attempt_at": iso(row["last_attempt_at"]),
        "last_error": row["last_error"],
        "to": row["to_address"],
        "subject": row["subject"],
        "template": row["template"],
        "idempotency_key": row["idempotency_key"],
        "provider": row["provider"],
        "created_at": iso(row["created_at"]),
        "sent_at": iso(row["sent_at"]),
    }


def _due(row: Row) -> str | None:
    """An urgent mail has a time before its order, by which it goes first; it is due since it was ordered."""
    due, created = iso(row["next_attempt_at"]), iso(row["created_at"])
    return max(due, created) if due and created else due


def _filenames(attachments: str | None) -> list[str]:
    """Another program wrote the column, so it may hold anything; a mail with nonsense in it is shown too."""
    given = _read(attachments)
    listed_files = given if isinstance(given, list) else []
    return [str(file.get("filename", "?")) if isinstance(file, dict) else "?" for file in listed_files]


def shown(row: Row) -> OutboxMail:
    return OutboxMail(
        **_summary(row),
        sender=row["from_address"],
        cc=row["cc_address"],
        bcc=row["bcc_address"],
        reply_to=row["reply_to"],
        text=row["text_body"],
        html=row["html_body"],
        variables=_read(row["variables"]),
        locale=row["locale"],
        headers=_read(row["headers"]),
        attachments=_filenames(row["attachments"]),
        unsubscribe_url=row["unsubscribe_url"],
        metadata=_read(row["metadata"]),
        expires_at=iso(row["expires_at"]),
        recipients=_read(row["recipients"]) if row["recipients"] else {},
        provider_message_id=row["provider_message_id"],
        rescue_count=row["rescue_count"],
        defer_count=row["defer_count"],
        claim_seq=row["claim_seq"],
        locked_by=row["locked_by"],
        lease_expires_at=iso(row["lease_expires_at"]),
    )


def _read(text: str | None) -> Any:
    """What is no JSON, as it is: in SQLite another program's column takes any text."""
    try:
        return msgspec.json.decode(text) if text else None
    except msgspec.DecodeError:
        return text
