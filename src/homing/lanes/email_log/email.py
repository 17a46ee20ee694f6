"""A row of `email_log`, as each stage claims it and as it is ordered."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from homing.db import Row
from homing.engine.model import Claim
from homing.senders.compose import StoredAttachment
from homing.senders.mailing import Report

STATES = ("Pending", "RetryQueued", "Sent", "Failed", "Dead")

EXHAUSTED = "MaxAttemptsExceeded"


class Terms(Struct, frozen=True):
    """What the statements of both stages go by."""

    #: Whose name is on a lock.
    owner: str
    lease_seconds: float
    max_attempts: int
    #: Whether new rows of other programs are ours to publish.
    publish_new: bool
    #: After this long a message of ours that no sender has answered is taken for lost.
    lost_after_seconds: float
    #: The queue that messages go to, and its broker, as sightings of it are kept.
    queue: str


class Email(Struct, frozen=True, gc=False):
    """What a sender needs of a row. JSON columns stay text until they are wanted.

    The fields stand in the order in which a claim returns its columns, after the engine's six.
    """

    due_at: datetime | str
    message_key: str
    last_attempt_at: datetime | str
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


class Due(Struct, frozen=True, gc=False):
    """What a scheduler needs of a row."""

    due_at: datetime | str | None
    message_key: str


_ENGINE_COLUMNS = 6


def email_of(row: Row) -> Email:
    return Email(*tuple(row)[_ENGINE_COLUMNS:])


def due_of(row: Row) -> Due:
    return Due(*tuple(row)[_ENGINE_COLUMNS:])


class NewEmail(Struct, frozen=True, kw_only=True):
    """An order, by column."""

    message_key: str
    #: Tells a repeated order from another one under the same key.
    fingerprint: str
    token: str
    to_address: str
    subject: str
    body: str | None = None
    from_address: str | None = None
    cc_address: str | None = None
    bcc_address: str | None = None
    reply_to: str | None = None
    html_body: str | None = None
    template: str | None = None
    variables: Mapping[str, Any] | None = None
    locale: str | None = None
    headers: Mapping[str, str] | None = None
    attachments: tuple[StoredAttachment, ...] | None = None
    unsubscribe_url: str | None = None
    traceparent: str | None = None


class Ordered(Struct, frozen=True):
    """What became of an order."""

    verdict: Literal["created", "duplicate", "conflict"]
    id: int
    message_key: str
    #: None when the email of a known key was deleted since.
    status: str | None
    #: A new row may be ours to publish, from the moment in which it is written.
    claim: Claim[Due] | None = None


class Refusal(Report, frozen=True, gc=False):
    """The report of an attempt after which no other makes sense."""


class Dropped(Struct, frozen=True, gc=False):
    """A message that names nothing to send, and why."""

    reason: str


class Held(Struct, frozen=True, gc=False):
    """A message that was handed out before, while another worker may be sending its row: for how long."""

    seconds: float
