"""`mailgun://:API_KEY@DOMAIN`: Mailgun, by POST /v3/DOMAIN/messages.mime with a mail that we write.

| answer | code | tried again |
|---|---|---|
| 200 with an id | | |
| 400 about the parameter `to` | invalid_recipient | no |
| other 400, 413 | validation_error | no |
| 401 key, 402 unpaid, 403, 404 domain | unauthorized | see `judgement` |
| 429 | rate_limited | yes |
| 5xx | provider_error | yes |

The envelope is `to`, the headers are ours: whoever is in bcc is in none. Mailgun keeps our Message-ID and
gives it back as the id. It knows no idempotency key: `v:dedupeKey` comes back with its events.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import blake2b

from homing.senders.addresses import envelope_address
from homing.senders.mail import MailMessage
from homing.senders.mime import assemble
from homing.senders.providers import fields
from homing.senders.providers.account import Account, read_account
from homing.senders.providers.judgement import (
    Accepted,
    Refusal,
    by_status,
    invalid_mail,
    invalid_recipient,
    named,
    object_of,
    text_at,
    unclear,
)
from homing.senders.webhook import WebhookRequest, WebhookResult

EXAMPLE = "mailgun://:API_KEY@mg.example.org"
_OPTIONS = ("region", "sandbox", "tags")
_HOSTS = {"us": "api.mailgun.net", "eu": "api.eu.mailgun.net"}
_ABOUT_RECIPIENTS = re.compile(r"'?\b(?:to|recipients?)\b'? ?(?:parameter|address)", re.IGNORECASE).search
#: What may not stand in the name of a form's field.
_UNSAFE = re.compile(r'[\x00-\x1f\x7f"\\]')


class Mailgun:
    scheme = "mailgun"
    most_recipients = 1000
    #: Twenty-five megabytes, attachments and all.
    most_bytes = 26_214_400
    shows_recipients = False

    def __init__(self, account: Account) -> None:
        self._key = account.key()
        if "." not in account.place:
            account.wrong("names no domain")
        self._domain = account.place
        region = account.choice("region", tuple(_HOSTS))
        root = account.endpoint or f"https://{_HOSTS[region]}"
        self._url = f"{root}/v3/{self._domain}/messages.mime"
        self._timeout = account.timeout
        self._login = b64encode(f"api:{self._key}".encode()).decode()
        self._settings = _settings(account)

    @classmethod
    def from_url(cls, url: str) -> tuple[Mailgun, Account]:
        account = read_account(url, options=_OPTIONS, example=EXAMPLE)
        return cls(account), account

    @property
    def place(self) -> str:
        return self._domain

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self._key, self._login)

    async def request(self, message: MailMessage, recipients: Sequence[str]) -> WebhookRequest | Refusal:
        mail = assemble(fields.with_trace(message))
        pairs = [("to", envelope_address(who)) for who in recipients]
        # Sixteen kilobytes for all options together.
        told = fields.metadata(message, name=100, value=500, entries=20)
        pairs += [(f"v:{name}", value) for name, value in told.items()]
        boundary = _boundary(message.message_id, mail)
        return self._post(_form([*pairs, *self._settings], mail, boundary), boundary)

    async def probe(self) -> WebhookRequest | Refusal:
        boundary = "=_nothing"
        return self._post(f"--{boundary}--\r\n".encode(), boundary)

    def _post(self, body: bytes, boundary: str) -> WebhookRequest:
        kind = f'multipart/form-data; boundary="{boundary}"'
        headers = (("Authorization", f"Basic {self._login}"), ("Content-Type", kind))
        return WebhookRequest(self._url, headers, body, self._timeout)

    def judge(self, answer: WebhookResult, recipients: Sequence[str], now: datetime) -> Accepted | Refusal:  # noqa: ARG002 - as every provider is asked
        found = object_of(answer)
        if answer.status == 200:
            taken = text_at(found, "id")
            return Accepted(taken) if taken else unclear("HTTP 200 without an id")
        said = text_at(found, "message")
        if answer.status != 400:
            return by_status(answer, said)
        if _ABOUT_RECIPIENTS(said):
            return invalid_recipient(f"HTTP 400: {said}", named(recipients, said))
        return invalid_mail(f"HTTP 400: {said}")


def _settings(account: Account) -> list[tuple[str, str]]:
    settings = [("o:tag", tag) for tag in account.words("tags")]
    return [*settings, ("o:testmode", "yes")] if account.flag("sandbox") else settings


def _form(pairs: Iterable[tuple[str, str]], mail: bytes, boundary: str) -> bytes:
    """A form (RFC 7578) whose last field is the mail, as a file."""
    start = f"--{boundary}\r\nContent-Disposition: form-data; name="
    parts = [f'{start}"{_UNSAFE.sub("_", name)}"\r\n\r\n{value}\r\n' for name, value in pairs]
    head = f'{start}"message"; filename="message.eml"\r\nContent-Type: message/rfc822\r\n\r\n'
    return b"".join(
        (*(part.encode() for part in parts), head.encode(), mail, f"\r\n--{boundary}--\r\n".encode())
    )


def _boundary(message_id: str, mail: bytes) -> str:
    """One that does not occur in the mail; the other fields have no line ends, and so no boundary either."""
    seed = message_id.encode()
    while True:
        candidate = "=_" + blake2b(seed, digest_size=16, person=b"homing.form").hexdigest()
        if candidate.encode() not in mail:
            return candidate
        seed = candidate.encode()
