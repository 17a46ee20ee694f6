"""Rows of `mail_outbox` as the API and the command line show them."""

from __future__ import annotations

from typing import Any

import msgspec

from homing.db import Row, iso
from homing.errors import NotFound


def row_number(text: str) -> int:
    digits = text.removeprefix("outbox_")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        raise NotFound(f"there is no mail {text[:40]!r}; ids look like outbox_123")
    return int(digits)


def listed(row: Row) -> dict[str, Any]:
    return {
        "id": f"outbox_{row['id']}",
        "status": row["status"],
        "retryCount": row["retry_count"],
        "nextAttemptAt": _due(row),
        "lastAttemptAt": iso(row["last_attempt_at"]),
        "lastError": row["last_error"],
        "to": row["to_address"],
        "subject": row["subject"],
        "template": row["template"],
        "idempotencyKey": row["idempotency_key"],
        "provider": row["provider"],
        "createdAt": iso(row["created_at"]),
        "sentAt": iso(row["sent_at"]),
    }


def _due(row: Row) -> str | None:
    """An urgent mail has a time before its order, by which it goes first; it is due since it was ordered."""
    due, created = iso(row["next_attempt_at"]), iso(row["created_at"])
    return max(due, created) if due and created else due


def _filenames(attachments: str | None) -> list[str]:
    """Another program wrote the column, so it may hold anything; a mail with nonsense in it is shown too."""
    given = msgspec.json.decode(attachments) if attachments else None
    listed_files = given if isinstance(given, list) else []
    return [str(file.get("filename", "?")) if isinstance(file, dict) else "?" for file in listed_files]


def shown(row: Row) -> dict[str, Any]:
    """Everything but the attachments' contents."""
    read = msgspec.json.decode
    return {
        **listed(row),
        "from": row["from_address"],
        "cc": row["cc_address"],
        "bcc": row["bcc_address"],
        "replyTo": row["reply_to"],
        "text": row["text_body"],
        "html": row["html_body"],
        "variables": read(row["variables"]) if row["variables"] else None,
        "locale": row["locale"],
        "headers": read(row["headers"]) if row["headers"] else None,
        "attachments": _filenames(row["attachments"]),
        "unsubscribeUrl": row["unsubscribe_url"],
        "metadata": read(row["metadata"]) if row["metadata"] else None,
        "expiresAt": iso(row["expires_at"]),
        "recipients": read(row["recipients"]) if row["recipients"] else {},
        "providerMessageId": row["provider_message_id"],
        "rescueCount": row["rescue_count"],
        "deferCount": row["defer_count"],
        "claimSeq": row["claim_seq"],
        "lockedBy": row["locked_by"],
        "leaseExpiresAt": iso(row["lease_expires_at"]),
    }
