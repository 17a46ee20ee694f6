"""A mail, a sender of mails, and what became of it. The one seam of all mail lanes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Protocol

from msgspec import Struct

from homing.senders.printed import Filled


class Attachment(Struct, frozen=True):
    """A file that goes along; with a content id it is shown inside the html."""

    filename: str
    content: bytes
    content_type: str = "application/octet-stream"
    content_id: str | None = None


class MailMessage(Struct, frozen=True, kw_only=True):
    """One mail, rendered and ready to be assembled.

    Addresses in headers are as people write them (`Ann <ann@example.org>`), addresses in
    `recipients` are bare: that is the envelope, bcc included, and only those still open.
    """

    #: `<…@…>`; the same for every attempt, so that a receiver can drop a double.
    message_id: str
    date: datetime
    sender: str
    recipients: tuple[str, ...]
    to: tuple[str, ...] = ()
    cc: tuple[str, ...] = ()
    reply_to: tuple[str, ...] = ()
    subject: str = ""
    #: `Filled` is a text that others get nearly the same of; `whole_text` and `whole_html` are just text.
    text: str | Filled | None = None
    html: str | Filled | None = None
    headers: tuple[tuple[str, str], ...] = ()
    attachments: tuple[Attachment, ...] = ()
    #: An https link that unsubscribes by POST (RFC 8058).
    unsubscribe_url: str | None = None
    #: Where the receiver can change what they get.
    manage_url: str | None = None
    #: Providers that drop doubles are told this key. Notifications of one event share it: see `merge_key`.
    dedupe_key: str | None = None
    trace_id: str | None = None
    #: For whoever looks at the provider's side, such as `subscriptionId`.
    metadata: Mapping[str, Any] | None = None
    #: What the texts were made from, for senders that tell their provider.
    locale: str | None = None
    template_id: str | None = None
    template_version: str | None = None
    variables: Mapping[str, Any] | None = None

    @property
    def whole_text(self) -> str | None:
        return None if self.text is None else str(self.text)

    @property
    def whole_html(self) -> str | None:
        return None if self.html is None else str(self.html)

    @property
    def merge_key(self) -> str | None:
        """What two sends of the same mail have in common, and no two mails to different subscriptions."""
        subscription = (self.metadata or {}).get("subscriptionId")
        if self.dedupe_key is None or subscription is None:
            return self.dedupe_key
        return f"{self.dedupe_key}:{subscription}"


class SendErrorCode(StrEnum):
    """Why a mail was not taken; the words of the notification worker's contract."""

    RATE_LIMITED = "rate_limited"
    NETWORK_ERROR = "network_error"
    PROVIDER_ERROR = "provider_error"
    UNKNOWN = "unknown"
    VALIDATION_ERROR = "validation_error"
    INVALID_RECIPIENT = "invalid_recipient"
    TEMPLATE_MISSING_LOCALE = "template_missing_locale"
    TEMPLATE_VARIABLE_MISSING = "template_variable_missing"
    UNAUTHORIZED = "unauthorized"


#: What may be over in a minute. The others are for somebody to mend: the same mail would fail again.
_PASSING = frozenset(
    {
        SendErrorCode.RATE_LIMITED,
        SendErrorCode.NETWORK_ERROR,
        SendErrorCode.PROVIDER_ERROR,
        SendErrorCode.UNKNOWN,
    }
)


class SendError(Struct, frozen=True):
    code: SendErrorCode
    #: One line for a person; no address in it.
    message: str


class Verdict(Struct, frozen=True, omit_defaults=True):
    """What one recipient's server said."""

    status: Literal["accepted", "deferred", "rejected"]
    #: SMTP reply code, such as 250 or 550.
    code: int | None = None
    #: Enhanced status code (RFC 3463), such as `5.1.1`.
    enhanced: str | None = None
    #: The reply's text, one line, shortened.
    text: str | None = None


class SendResult(Struct, frozen=True, kw_only=True):
    """What became of one attempt. Never raised.

    `sent`: every recipient accepted. `retryable`: at least one is still open.
    `failed`: none is open any more, and at least one was refused.
    """

    status: Literal["sent", "retryable", "failed"]
    provider: str
    provider_message_id: str | None = None
    #: One entry for each address of `MailMessage.recipients` that got a verdict of its own.
    verdicts: Mapping[str, Verdict] = {}
    error: SendError | None = None
    #: Seconds the other side asked us to wait.
    retry_after: float | None = None
    #: False when this mail was never looked at: the relay was busy for everybody (421, 454) before
    #: it accepted a recipient, or the breaker kept us from asking.
    attempted: bool = True
    #: True when the connection was lost or timed out after the last byte: it may have been taken.
    unknown: bool = False


def is_retryable(result: SendResult) -> bool:
    """Whether the same mail may fare better later.

    | code | retryable |
    |---|---|
    | rate_limited, network_error, unknown | yes |
    | provider_error | as the status says: a 5xx is retryable, another 4xx has failed |
    | validation_error, invalid_recipient, template_missing_locale, template_variable_missing | no |
    | unauthorized | no, although senders say `retryable`: a lane that waits for new keys may do so |
    """
    error = result.error
    return result.status == "retryable" and (error is None or error.code in _PASSING)


class MailSender(Protocol):
    """A way out for mails: a relay, a provider's API, a shelf to look at."""

    @property
    def name(self) -> str:
        """What `provider` says of mails sent this way, such as `smtp`."""

    async def send(self, message: MailMessage) -> SendResult:
        """Try once. Raises nothing for what goes wrong out there."""

    def usable(self) -> bool:
        """What `available` would say without asking anybody: whether a mail may be handed over now."""

    async def available(self) -> bool:
        """False while sending makes no sense; asks the other side again when it is time to."""

    async def close(self) -> None:
        """Let go of connections."""
