"""`postmark://SERVER_TOKEN@`: Postmark, by POST /email.

| answer | code | tried again |
|---|---|---|
| 200 with ErrorCode 0; inactive ones among several recipients are refused on their own | | |
| 406 inactive recipient; 300 about an address of the recipients | invalid_recipient | no |
| other 300, 402, 403, 409, 411; HTTP 413 | validation_error | no |
| 10 token, 400, 401 sender, 405, 412, 413 account, 1235, 1236 stream | unauthorized | see `judgement` |
| 429, by either | rate_limited | yes |
| 100 maintenance; HTTP 5xx | provider_error | yes |
| other 422 | provider_error | no |

Postmark knows no idempotency key: `Metadata.dedupeKey` stands beside the mail in its activity and comes
back with its webhooks. It writes a Message-ID of its own, unless `X-PM-KeepID` asks it to keep ours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from homing.senders.addresses import Address
from homing.senders.mail import Attachment, MailMessage
from homing.senders.providers import fields
from homing.senders.providers.account import Account, read_account
from homing.senders.providers.judgement import (
    Accepted,
    Refusal,
    by_status,
    invalid_mail,
    invalid_recipient,
    limited,
    named,
    object_of,
    our_setup,
    text_at,
    troubled,
    unclear,
)
from homing.senders.webhook import WebhookRequest, WebhookResult

EXAMPLE = "postmark://SERVER_TOKEN@"
_OPTIONS = ("stream",)
_OUR_SETUP = frozenset({10, 400, 401, 405, 412, 413, 1235, 1236})
_INVALID = frozenset({300, 402, 403, 409, 411})
_ABOUT_RECIPIENTS = re.compile(r"'(?:To|Cc|Bcc)'|recipient", re.IGNORECASE).search

_encode = msgspec.json.Encoder().encode


class Postmark:
    scheme = "postmark"
    most_recipients = 50
    #: Ten megabytes with attachments, which are a third larger in base64.
    most_bytes = 14_000_000
    shows_recipients = True

    def __init__(self, account: Account) -> None:
        self._token = account.key()
        root = account.endpoint or f"https://{account.place or 'api.postmarkapp.com'}"
        self._url = f"{root}/email"
        self._timeout = account.timeout
        self._stream = account.options.get("stream")
        self._headers = (
            ("X-Postmark-Server-Token", self._token),
            ("Content-Type", "application/json"),
            ("Accept", "application/json"),
        )

    @classmethod
    def from_url(cls, url: str) -> tuple[Postmark, Account]:
        account = read_account(url, options=_OPTIONS, example=EXAMPLE)
        return cls(account), account

    @property
    def place(self) -> str:
        return ""

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self._token,)

    async def request(self, message: MailMessage, recipients: Sequence[str]) -> WebhookRequest | Refusal:
        fields.check(message)
        mail = _mail(message, recipients)
        if self._stream is not None:
            mail["MessageStream"] = self._stream
        return self._post(_encode(mail))

    async def probe(self) -> WebhookRequest | Refusal:
        return self._post(b"{}")

    def _post(self, body: bytes) -> WebhookRequest:
        return WebhookRequest(self._url, self._headers, body, self._timeout)

    def judge(self, answer: WebhookResult, recipients: Sequence[str], now: datetime) -> Accepted | Refusal:  # noqa: ARG002 - as every provider is asked
        found = object_of(answer)
        code, said = found.get("ErrorCode"), text_at(found, "Message")
        if answer.status == 200:
            return _taken(found, recipients) if code == 0 else unclear("HTTP 200 without ErrorCode 0")
        if answer.status is not None and answer.status >= 500 and code != 100:
            return by_status(answer, said)
        return _refusal(answer, code, said, recipients) if isinstance(code, int) else by_status(answer, said)


def _taken(found: dict[str, Any], recipients: Sequence[str]) -> Accepted:
    """Of several recipients those are passed over that bounced before, and only the text says so."""
    said = text_at(found, "Message")
    inactive = named(recipients, said) if "inactive" in said else ()
    return Accepted(text_at(found, "MessageID") or None, inactive, said)


def _refusal(answer: WebhookResult, code: int, said: str, recipients: Sequence[str]) -> Refusal:
    message = f"ErrorCode {code}: {said}"
    match code:
        case 429:
            return limited(answer, message)
        case 100:
            return troubled(answer, message)
        case 300 | 406 if code == 406 or _ABOUT_RECIPIENTS(said):
            return invalid_recipient(message, named(recipients, said))
        case _ if code in _INVALID:
            return invalid_mail(message)
    return our_setup(message) if code in _OUR_SETUP else by_status(answer, message)


def _mail(message: MailMessage, recipients: Sequence[str]) -> dict[str, Any]:
    who = fields.shown(message, recipients)
    mail: dict[str, Any] = {
        "From": _mailbox(fields.sender(message)),
        "To": ", ".join(map(_mailbox, who.to)),
        "Subject": message.subject,
        "Headers": [{"Name": name, "Value": value} for name, value in _headers(message)],
    }
    optional = {
        "Cc": ", ".join(map(_mailbox, who.cc)),
        "Bcc": ", ".join(who.bcc),
        "ReplyTo": ", ".join(map(_mailbox, fields.reply_to(message))),
        # A mail without words is refused, so it gets a blank.
        "TextBody": message.whole_text or ("" if message.html else " "),
        "HtmlBody": message.whole_html,
        "Metadata": fields.metadata(message, name=20, value=80, entries=10),
        "Attachments": [_attachment(one) for one in message.attachments],
    }
    return mail | {name: value for name, value in optional.items() if value}


def _headers(message: MailMessage) -> list[tuple[str, str]]:
    return [*fields.headers(message), ("X-PM-KeepID", "true")]


def _mailbox(mailbox: Address) -> str:
    name, address = mailbox
    if not name:
        return address
    # Quoted always: a comma or a bracket in a name would otherwise end it.
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}" <{address}>'


def _attachment(attachment: Attachment) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "Name": attachment.filename or "attachment",
        # Bytes become base64 in JSON.
        "Content": attachment.content,
        "ContentType": attachment.content_type,
    }
    if attachment.content_id is not None:
        entry["ContentID"] = f"cid:{attachment.content_id.removeprefix('<').removesuffix('>')}"
    return entry
