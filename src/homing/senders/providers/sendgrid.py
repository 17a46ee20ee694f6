"""`sendgrid://:API_KEY@`: Twilio SendGrid, by POST /v3/mail/send.

| answer | code | tried again |
|---|---|---|
| 202, in sandbox mode 200 | | |
| 400 that names an address of the recipients | invalid_recipient | no |
| other 400, 413 | validation_error | no |
| 401, 403 (also a sender that is not verified, and used-up credits) | unauthorized | see `judgement` |
| 429: after Retry-After, else X-RateLimit-Reset, else 30 s | rate_limited | yes |
| 5xx | provider_error | yes |

SendGrid knows no idempotency key: `custom_args.dedupeKey` comes back with its events, for whoever looks
for doubles. Our Message-ID is sent as a header; X-Message-Id, the provider's own name of the mail, is
another one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from homing.senders.addresses import Address
from homing.senders.mail import Attachment, MailMessage
from homing.senders.mime import Unassemblable
from homing.senders.providers import fields
from homing.senders.providers.account import Account, read_account
from homing.senders.providers.judgement import (
    Accepted,
    Refusal,
    by_status,
    header,
    invalid_mail,
    invalid_recipient,
    limited,
    named,
    object_of,
    text_at,
)
from homing.senders.webhook import WebhookRequest, WebhookResult

EXAMPLE = "sendgrid://:API_KEY@ or sendgrid://API_KEY@api.sendgrid.com"
_OPTIONS = ("region", "sandbox", "categories", "ip_pool")
_HOSTS = {"global": "api.sendgrid.com", "eu": "api.eu.sendgrid.com"}
#: Where no answer says for how long to wait.
_WAIT = 30.0
_LONGEST_WAIT = 3600.0
_RECIPIENT_FIELD = re.compile(r"personalizations\.0\.(to|cc|bcc)(?:\.(\d{1,4})(?!\d))?").match

_encode = msgspec.json.Encoder().encode


class SendGrid:
    scheme = "sendgrid"
    most_recipients = 1000
    #: "The total size of your email, including attachments, must be less than 30MB", in base64 a third more.
    most_bytes = 40_000_000
    shows_recipients = True

    def __init__(self, account: Account) -> None:
        self._key = account.key()
        region = account.choice("region", tuple(_HOSTS))
        if account.place and "region" in account.options:
            account.wrong("names both a host and a region: keep one of them")
        root = account.endpoint or f"https://{account.place or _HOSTS[region]}"
        self._url = f"{root}/v3/mail/send"
        self._timeout = account.timeout
        self._headers = (("Authorization", f"Bearer {self._key}"), ("Content-Type", "application/json"))
        self._settings = _settings(account)
        self._sandbox = account.flag("sandbox")

    @classmethod
    def from_url(cls, url: str) -> tuple[SendGrid, Account]:
        account = read_account(url, options=_OPTIONS, example=EXAMPLE)
        return cls(account), account

    @property
    def place(self) -> str:
        return ""

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self._key,)

    async def request(self, message: MailMessage, recipients: Sequence[str]) -> WebhookRequest | Refusal:
        fields.check(message)
        return self._post(_encode(_mail(message, recipients) | self._settings))

    async def probe(self) -> WebhookRequest | Refusal:
        return self._post(b"{}")

    def _post(self, body: bytes) -> WebhookRequest:
        return WebhookRequest(self._url, self._headers, body, self._timeout)

    def judge(self, answer: WebhookResult, recipients: Sequence[str], now: datetime) -> Accepted | Refusal:
        if answer.status == 202 or (answer.status == 200 and self._sandbox):
            return Accepted(header(answer, "x-message-id"))
        errors = _errors(answer)
        detail = text_at(errors[0], "message") if errors else ""
        if answer.status == 429:
            return _limited(answer, f"HTTP 429: {detail}", now)
        if answer.status == 400:
            return _invalid(errors, recipients, f"HTTP 400: {detail}")
        return by_status(answer, detail)


def _settings(account: Account) -> dict[str, Any]:
    """What is the same for every mail."""
    settings: dict[str, Any] = {}
    if account.flag("sandbox"):
        settings["mail_settings"] = {"sandbox_mode": {"enable": True}}
    if categories := account.words("categories"):
        if len(categories) > 10:
            account.wrong("has more than the ten categories that a mail may have")
        settings["categories"] = categories
    if pool := account.options.get("ip_pool"):
        settings["ip_pool_name"] = pool
    return settings


def _mail(message: MailMessage, recipients: Sequence[str]) -> dict[str, Any]:
    mail: dict[str, Any] = {
        "personalizations": [_personalization(fields.shown(message, recipients))],
        "from": _mailbox(fields.sender(message)),
        "subject": message.subject,
        "content": _content(message),
        "headers": _headers(message),
    }
    if replies := fields.reply_to(message):
        mail["reply_to_list"] = [_mailbox(one) for one in replies]
    if message.attachments:
        mail["attachments"] = [_attachment(one, message) for one in message.attachments]
    # Ten thousand bytes in all.
    if arguments := fields.metadata(message, name=100, value=300, entries=20):
        mail["custom_args"] = arguments
    return mail


def _personalization(who: fields.Shown) -> dict[str, Any]:
    lists: dict[str, Any] = {"to": [_mailbox(one) for one in who.to]}
    if who.cc:
        lists["cc"] = [_mailbox(one) for one in who.cc]
    if who.bcc:
        lists["bcc"] = [{"email": address} for address in who.bcc]
    return lists


def _mailbox(mailbox: Address) -> dict[str, str]:
    name, address = mailbox
    return {"email": address, "name": name} if name else {"email": address}


def _content(message: MailMessage) -> list[dict[str, str]]:
    """The text first, as SendGrid wants it. An empty part is refused: a mail without words gets a blank."""
    given = (("text/plain", message.whole_text), ("text/html", message.whole_html))
    parts = [{"type": kind, "value": value} for kind, value in given if value]
    return parts or [{"type": "text/plain", "value": " "}]


def _headers(message: MailMessage) -> dict[str, str]:
    pairs = fields.headers(message)
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Unassemblable("headers", "SendGrid takes each header once")
    return found


def _attachment(attachment: Attachment, message: MailMessage) -> dict[str, Any]:
    entry: dict[str, Any] = {
        # Bytes become base64 in JSON.
        "content": attachment.content,
        "filename": attachment.filename or "attachment",
        "type": attachment.content_type,
        "disposition": "attachment",
    }
    if attachment.content_id is not None and message.html is not None:
        bare = attachment.content_id.removeprefix("<").removesuffix(">")
        entry |= {"disposition": "inline", "content_id": bare}
    return entry


def _errors(answer: WebhookResult) -> list[dict[str, Any]]:
    errors = object_of(answer).get("errors")
    return [one for one in errors if isinstance(one, dict)] if isinstance(errors, list) else []


def _limited(answer: WebhookResult, message: str, now: datetime) -> Refusal:
    refusal = limited(answer, message)
    if refusal.wait is not None:
        return refusal
    reset = header(answer, "x-ratelimit-reset") or ""
    if reset.isascii() and reset.isdecimal() and len(reset) <= 12:
        wait = min(max(int(reset) - now.timestamp(), 0.0), _LONGEST_WAIT)
        return replace(refusal, wait=wait, holds=True)
    return replace(refusal, wait=_WAIT)


def _invalid(errors: list[dict[str, Any]], recipients: Sequence[str], message: str) -> Refusal:
    """A 400: about the recipients if one of its errors names their field."""
    places = [found for error in errors if (found := _RECIPIENT_FIELD(text_at(error, "field")))]
    if not places:
        return invalid_mail(message)
    said = " ".join(text_at(error, "message") for error in errors)
    return invalid_recipient(message, named(recipients, said) or _placed(places, recipients))


def _placed(places: list[re.Match[str]], recipients: Sequence[str]) -> tuple[str, ...]:
    """Whom a field such as `personalizations.0.to.1.email` stands for, where there is but one list."""
    if any(place[1] != "to" or place[2] is None for place in places):
        return ()
    numbers = [int(place[2]) for place in places]
    return tuple(recipients[number] for number in numbers if number < len(recipients))
