"""The table of this lane that another program may have made, as `homing.db.adoption` checks it."""

from __future__ import annotations

from typing import Final

from homing.db.adoption import TableSpec, UniqueSpec, added, required
from homing.lanes.mail_outbox.outbox import STATES

_TEXT, _JSON, _INTEGER = added("text"), added("json"), added("integer")
_COUNT = added("integer", is_filled=True)
_CLEARED_TIME = added("time", is_cleared=True)

TABLES: Final = (
    TableSpec(
        name="mail_outbox",
        columns={
            "id": required("integer"),
            "status": required("text", words=STATES, length=max(map(len, STATES))),
            "to_address": required("text", sample="ann@example.org"),
            "subject": required("text"),
            "retry_count": _COUNT,
            "next_attempt_at": added("time", is_filled=True),
            "last_attempt_at": added("time"),
            "last_error": added("text", is_cleared=True, length=500),
            "from_address": _TEXT,
            "cc_address": _TEXT,
            "bcc_address": _TEXT,
            "reply_to": _TEXT,
            "text_body": _TEXT,
            "html_body": _TEXT,
            "template": _TEXT,
            "variables": _JSON,
            "locale": _TEXT,
            "headers": _JSON,
            "attachments": _JSON,
            "unsubscribe_url": _TEXT,
            "idempotency_key": _TEXT,
            "fingerprint": _TEXT,
            "expires_at": _CLEARED_TIME,
            "metadata": _JSON,
            "token": added("text", length=32),
            "recipients": added("json", is_cleared=True),
            "provider": _TEXT,
            "provider_message_id": _TEXT,
            "created_at": added("time"),
            "sent_at": added("time"),
            "claim_seq": _COUNT,
            "locked_by": added("text", is_cleared=True),
            "lease_expires_at": _CLEARED_TIME,
            "rescue_count": _COUNT,
            "defer_count": _COUNT,
            "traceparent": _TEXT,
            "send_at": added("time"),
            "delivered_by": _TEXT,
            "delivered_millis": _INTEGER,
            "ended_claim": _INTEGER,
        },
        key="id",
        one_of=(("text_body", "html_body"),),
        unique=UniqueSpec(
            ("idempotency_key",),
            "mail_outbox_idempotency",
            "idempotency keys",
            "a key is that of one mail, so change the others, or make them NULL",
        ),
        indexes=(
            "mail_outbox_due",
            "mail_outbox_dispatching",
            "mail_outbox_retried",
            "mail_outbox_expiring",
            "mail_outbox_ended",
            "mail_outbox_idempotency",
            "mail_outbox_due_since",
            "homing_mail_outbox_foreign",
        ),
        text_times=("next_attempt_at",),
    ),
)
