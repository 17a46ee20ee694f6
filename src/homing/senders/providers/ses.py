"""`ses://ACCESS_KEY:SECRET@REGION` or `ses://REGION`: Amazon SES v2, SendEmail with a mail that we write.

Without keys in the URL they come from where AWS tools look for them: the environment, a profile, the role
of the machine. They are asked for again every minute, in a thread, because a role's keys expire.

| answer | code | tried again |
|---|---|---|
| 200 with MessageId | | |
| BadRequestException about an address, MessageRejected for a suppressed one | invalid_recipient | no |
| other BadRequestException, ValidationException, MessageRejected; 413 | validation_error | no |
| AccessDenied, a wrong or expired signature, AccountSuspended | unauthorized | see `judgement` |
| NotFound (the configuration set), a sender or domain that is not verified | unauthorized | see `judgement` |
| TooManyRequests, Throttling, LimitExceeded | rate_limited | yes |
| SendingPaused; 5xx | provider_error | yes |

The envelope is `Destination`, the headers are ours. SES replaces Message-ID and Date: what it names the mail
is in the result, and `X-Message-ID` keeps our name for who compares. It knows no idempotency key: the tag
`dedupeKey` comes back with its events.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from datetime import datetime
from importlib import import_module
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from homing.engine.model import Monotonic
from homing.errors import SettingsError
from homing.senders.addresses import envelope_address
from homing.senders.mail import MailMessage
from homing.senders.mime import assemble
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
    our_setup,
    text_at,
    troubled,
    unclear,
)
from homing.senders.webhook import WebhookRequest, WebhookResult

EXAMPLE = "ses://ACCESS_KEY:SECRET@eu-central-1 or ses://eu-central-1"
_OPTIONS = ("configuration_set",)
#: Seconds for which the keys of the environment are used before they are asked for again.
_KEYS_LAST = 60.0

#: botocore ships no types.
_Keys: TypeAlias = Any

_encode = msgspec.json.Encoder().encode
_IS_REGION = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d{1,2}").fullmatch
#: In names and values of tags.
_NOT_IN_A_TAG = re.compile(r"[^A-Za-z0-9_-]")
_LIMITED = re.compile(r"TooManyRequests|Throttl|LimitExceeded")
_OUR_SETUP = re.compile(
    r"AccessDenied|AccountSuspended|NotFound|MailFromDomainNotVerified|NotVerified|InvalidClientToken|"
    r"UnrecognizedClient|Signature|ExpiredToken|RequestExpired|MissingAuthentication|OptInRequired|NotAuthorized"
)
_TROUBLED = re.compile(
    r"SendingPaused|ServiceUnavailable|InternalFailure|InternalServer|InternalServiceError"
)
_UNVERIFIED = re.compile(r"not verified", re.IGNORECASE).search
_ABOUT_ADDRESS = re.compile(
    r"address|@domain|local (?:part|name)|domain (?:contains|starts|ends)|recipient", re.IGNORECASE
).search
_SUPPRESSED = re.compile(r"suppress|blacklist", re.IGNORECASE).search


class Ses:
    scheme = "ses"
    most_recipients = 50
    #: Forty megabytes, in base64 a third more.
    most_bytes = 54_000_000
    shows_recipients = False

    def __init__(self, account: Account, *, monotonic: Monotonic = time.monotonic) -> None:
        if not _IS_REGION(account.place):
            account.wrong("names no region")
        if (account.user is None) != (account.password is None):
            account.wrong("needs both an access key and its secret, or neither")
        self._region = account.place
        self._signer = _Signer(account.user, account.password, self._region, monotonic)
        self._secret = account.password
        root = account.endpoint or f"https://email.{self._region}.{_suffix(self._region)}"
        self._url = f"{root}/v2/email/outbound-emails"
        self._timeout = account.timeout
        self._set = account.options.get("configuration_set")

    @classmethod
    def from_url(cls, url: str) -> tuple[Ses, Account]:
        account = read_account(url, options=_OPTIONS, example=EXAMPLE)
        return cls(account), account

    @property
    def place(self) -> str:
        return self._region

    @property
    def secrets(self) -> tuple[str, ...]:
        return () if self._secret is None else (self._secret,)

    async def request(self, message: MailMessage, recipients: Sequence[str]) -> WebhookRequest | Refusal:
        order: dict[str, Any] = {
            "Destination": {"ToAddresses": [envelope_address(who) for who in recipients]},
            # Bytes become base64 in JSON.
            "Content": {"Raw": {"Data": assemble(_named_twice(fields.with_trace(message)))}},
        }
        if tags := _tags(message):
            order["EmailTags"] = tags
        if self._set is not None:
            order["ConfigurationSetName"] = self._set
        return await self._signed(_encode(order))

    async def probe(self) -> WebhookRequest | Refusal:
        return await self._signed(b"{}")

    async def _signed(self, body: bytes) -> WebhookRequest | Refusal:
        headers = await self._signer.headers(self._url, body)
        if isinstance(headers, Refusal):
            return headers
        return WebhookRequest(self._url, headers, body, self._timeout)

    def judge(self, answer: WebhookResult, recipients: Sequence[str], now: datetime) -> Accepted | Refusal:  # noqa: ARG002 - as every provider is asked
        found = object_of(answer)
        if answer.status == 200:
            taken = text_at(found, "MessageId")
            return Accepted(taken) if taken else unclear("HTTP 200 without MessageId")
        kind = _kind(answer, found)
        said = text_at(found, "message", "Message")
        message = f"{kind}: {said}" if kind else said
        return _refusal(answer, kind, said, recipients) or by_status(answer, message)


def _suffix(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def _kind(answer: WebhookResult, found: dict[str, Any]) -> str:
    """`MessageRejected`, from `com.amazonaws.sesv2#MessageRejected:http://…`."""
    given = header(answer, "x-amzn-errortype") or text_at(found, "__type", "code", "Code")
    return given.partition(":")[0].rpartition("#")[2]


def _refusal(answer: WebhookResult, kind: str, said: str, recipients: Sequence[str]) -> Refusal | None:
    """What the name of an error says; None where only its status does."""
    message = f"{kind}: {said}"
    if _LIMITED.match(kind):
        return limited(answer, message)
    if _OUR_SETUP.search(kind) or (kind == "MessageRejected" and _UNVERIFIED(said)):
        return our_setup(message)
    if _TROUBLED.match(kind):
        return troubled(answer, message)
    if answer.status != 400:
        return None
    if _SUPPRESSED(said) or (kind.startswith("BadRequest") and _ABOUT_ADDRESS(said)):
        return invalid_recipient(message, named(recipients, said))
    return invalid_mail(message)


def _named_twice(message: MailMessage) -> MailMessage:
    """SES overwrites the Message-ID, so our own goes along under another name."""
    if any(name.lower() == "x-message-id" for name, _ in message.headers):
        return message
    return replace(message, headers=(*message.headers, ("X-Message-ID", message.message_id)))


def _tags(message: MailMessage) -> list[dict[str, str]]:
    """Tags take letters, digits, _ and - only: every other character becomes _."""
    told = fields.metadata(message, name=256, value=256, entries=20)
    pairs = {_NOT_IN_A_TAG.sub("_", name): _NOT_IN_A_TAG.sub("_", value) for name, value in told.items()}
    return [{"Name": name, "Value": value} for name, value in pairs.items() if name and value]


class _Signer:
    """Signs requests as AWS wants it (SigV4), with keys from the URL or from the environment."""

    def __init__(self, access: str | None, secret: str | None, region: str, monotonic: Monotonic) -> None:
        self._auth, self._request, self._credentials = _botocore()
        self._region = region
        self._monotonic = monotonic
        self._given = None if access is None else self._credentials.ReadOnlyCredentials(access, secret, None)
        self._found: _Keys | None = None
        self._until = 0.0
        self._source: Any = None
        self._asking = asyncio.Lock()

    async def headers(self, url: str, body: bytes) -> tuple[tuple[str, str], ...] | Refusal:
        keys = self._given or await self._current()
        if isinstance(keys, Refusal):
            return keys
        request = self._request(
            method="POST", url=url, data=body, headers={"Content-Type": "application/json"}
        )
        self._auth(keys, "ses", self._region).add_auth(request)
        return tuple(request.headers.items())

    async def _current(self) -> _Keys | Refusal:
        if self._monotonic() < self._until:
            return self._found
        async with self._asking:
            if self._monotonic() < self._until:
                return self._found
            try:
                # It may read files, and ask the machine's metadata service.
                keys = await asyncio.to_thread(self._look)
            except Exception as error:  # noqa: BLE001 - botocore raises what its providers raise, and their texts may quote keys
                return our_setup(f"AWS credentials could not be had: {type(error).__name__}")
            if keys is None:
                return our_setup("there are no AWS credentials: none in the URL, the environment or a role")
            self._found, self._until = keys, self._monotonic() + _KEYS_LAST
            return keys

    def _look(self) -> _Keys | None:
        if self._source is None:
            self._source = import_module("botocore.session").get_session().get_credentials()
        return None if self._source is None else self._source.get_frozen_credentials()


def _botocore() -> tuple[Any, Any, Any]:
    """What signs; imported late, for it takes a while and belongs to an extra."""
    try:
        auth = import_module("botocore.auth")
        request = import_module("botocore.awsrequest")
        credentials = import_module("botocore.credentials")
    except ImportError:
        raise SettingsError("ses:// needs botocore: pip install 'homing[ses]'") from None
    return auth.SigV4Auth, request.AWSRequest, credentials
