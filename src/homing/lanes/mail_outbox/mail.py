"""A row of `mail_outbox`, as it is claimed and as it is ordered."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from homing.db import Row
from homing.senders.compose import StoredAttachment

#: How the idempotency keys of alerts begin, and nobody else's. The table's triggers know it, too.
ALERT_KEY: Final = "homing-alert:"


class Mail(Struct, frozen=True, gc=False):
    """What a dispatcher needs of a row. JSON columns stay text until they are wanted.

    The fields stand in the order in which `claim` returns its columns, after the engine's six.
    """

    due_at: datetime | str
    last_attempt_at: datetime | str
    expired: bool | int | None
    from_address: str | None
    to_address: str
    cc_address: str | None
    bcc_address: str | None
    reply_to: str | None
    subject: str
    text_body: str | None
    html_body: str | None
    template: str | None
    variables: str | None
    locale: str | None
    headers: str | None
    has_attachments: bool | int
    unsubscribe_url: str | None
    token: str
    recipients: str | None
    #: About how many bytes it has when it is large. What may be long is None then, and is read for the
    #: attempt.
    size: int = 0


_ENGINE_COLUMNS = 6


def mail_of(row: Row) -> Mail:
    """By position: looking twenty columns up by name takes longer than assembling the mail's headers."""
    return Mail(*tuple(row)[_ENGINE_COLUMNS:])


class NewMail(Struct, frozen=True, kw_only=True):
    """An order, by column. `token` ties the row that is returned to the order that was given."""

    token: str
    to_address: str
    from_address: str | None = None
    cc_address: str | None = None
    bcc_address: str | None = None
    reply_to: str | None = None
    subject: str = ""
    text_body: str | None = None
    html_body: str | None = None
    template: str | None = None
    variables: Mapping[str, Any] | None = None
    locale: str | None = None
    headers: Mapping[str, str] | None = None
    attachments: tuple[StoredAttachment, ...] | None = None
    unsubscribe_url: str | None = None
    idempotency_key: str | None = None
    #: Tells a repeated order from another one under the same key.
    fingerprint: str | None = None
    expires_at: str | None = None
    metadata: Mapping[str, Any] | None = None
    traceparent: str | None = None
    send_at: str | None = None
    urgent: bool = False
