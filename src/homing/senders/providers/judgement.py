"""What a provider's answer means. Each provider adds what its own words say to what the status says.

| status | code | the mail | the provider |
|---|---|---|---|
| 401, 402, 403, 404, 405, 3xx | unauthorized | stays open | has another idea of us, for all mails |
| 429 | rate_limited | stays open | wants us to wait |
| 408, 5xx | provider_error | stays open | is in trouble |
| 413 | validation_error | has failed | |
| other 4xx | provider_error | has failed | |
| anything else | unknown | stays open | nobody knows what that was |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from homing.senders.mail import SendErrorCode
from homing.senders.webhook import WebhookResult

_decode = msgspec.json.Decoder().decode


class Accepted(Struct, frozen=True):
    """The provider has taken the mail."""

    message_id: str | None = None
    #: Those of the recipients that will not get it.
    refused: tuple[str, ...] = ()
    #: Why, in the provider's words.
    reason: str = ""


class Refusal(Struct, frozen=True, kw_only=True):
    """The provider has not taken it, or nobody knows."""

    code: SendErrorCode
    message: str
    retryable: bool = False
    #: Those of the recipients that are the reason, where the answer names them.
    recipients: tuple[str, ...] = ()
    #: Seconds to wait.
    wait: float | None = None
    #: The provider asked for that wait, and means everybody by it.
    holds: bool = False
    attempted: bool = True
    unknown: bool = False


def by_status(answer: WebhookResult, detail: str = "") -> Refusal:
    """What the status alone says, with a detail for whoever reads it."""
    status = answer.status or 0
    message = f"HTTP {status}: {detail}" if detail else f"HTTP {status}"
    if status == 429:
        return limited(answer, message)
    if status in {401, 402, 403, 404, 405} or 300 <= status < 400:
        return our_setup(message)
    if status == 408 or 500 <= status < 600:
        return troubled(answer, message)
    if 400 <= status < 500:
        code = SendErrorCode.VALIDATION_ERROR if status == 413 else SendErrorCode.PROVIDER_ERROR
        return Refusal(code=code, message=message)
    return unclear(f"{message}, which is no answer of this API")


def limited(answer: WebhookResult, message: str) -> Refusal:
    wait = answer.retry_after
    return Refusal(
        code=SendErrorCode.RATE_LIMITED, message=message, retryable=True, wait=wait, holds=wait is not None
    )


def troubled(answer: WebhookResult, message: str) -> Refusal:
    wait = answer.retry_after
    return Refusal(
        code=SendErrorCode.PROVIDER_ERROR, message=message, retryable=True, wait=wait, holds=wait is not None
    )


def our_setup(message: str) -> Refusal:
    """Key, account, domain or address are wrong, and that for every mail: none of them is to blame."""
    return Refusal(code=SendErrorCode.UNAUTHORIZED, message=message, retryable=True)


def unclear(message: str) -> Refusal:
    """It may have been taken: a lost mail is worse than a double."""
    return Refusal(code=SendErrorCode.UNKNOWN, message=message, retryable=True, unknown=True)


def invalid_recipient(message: str, recipients: tuple[str, ...] = ()) -> Refusal:
    return Refusal(code=SendErrorCode.INVALID_RECIPIENT, message=message, recipients=recipients)


def invalid_mail(message: str) -> Refusal:
    return Refusal(code=SendErrorCode.VALIDATION_ERROR, message=message)


def header(answer: WebhookResult, name: str) -> str | None:
    return next((value for given, value in answer.headers if given.lower() == name), None)


def object_of(answer: WebhookResult) -> dict[str, Any]:
    """The JSON object in an answer; empty where there is none."""
    try:
        found = _decode(answer.body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        # The last is for brackets in brackets, thousands of them.
        return {}
    return found if isinstance(found, dict) else {}


def text_at(found: dict[str, Any], *names: str) -> str:
    """The first of these keys that holds text."""
    return next((value for name in names if isinstance(value := found.get(name), str)), "")


def named(recipients: Sequence[str], text: str) -> tuple[str, ...]:
    """Those recipients that a text names."""
    return tuple(who for who in recipients if _names(who, text))


def _names(address: str, text: str) -> bool:
    return re.search(rf"(?<![\w.+-]){re.escape(address)}(?![\w-])", text, re.IGNORECASE) is not None
