"""Orders of mails, checked: nothing is stored that could never be sent. For every lane that takes orders."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from homing.errors import InvalidRequest
from homing.senders.addresses import InvalidAddress, parse_address, split_address_list
from homing.senders.compose import StoredAttachment
from homing.senders.mail import MailMessage
from homing.senders.mime import Unassemblable, assemble

_MOST_RECIPIENTS = 1000
#: Bytes of all names and values. A server that takes mails reads no longer ones, and each claim would.
_LARGEST_HEADERS = 64 * 1024
#: PostgreSQL writes a number out: an array of 1e308 becomes fifty times as long as it was when it came.
_SMALLEST, _GREATEST = 1e-40, 1e40
#: The escape of a NUL, as against the text of one after a backslash of its own.
_NUL_IN_JSON = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
#: What the sender calls a field, and what the API does.
_JSON_NAMES = {"unsubscribe_url": "unsubscribeUrl", "reply_to": "replyTo"}
_SOME_DATE = datetime(2000, 1, 1, tzinfo=UTC)


def checked_recipients(field: str, given: str | list[str]) -> list[str]:
    try:
        items = split_address_list(given) if isinstance(given, str) else given
        if len(items) > _MOST_RECIPIENTS:
            raise InvalidRequest(f"{field}: at most {_MOST_RECIPIENTS} recipients", field)
        for item in items:
            parse_address(item)
    except InvalidAddress as error:
        raise InvalidRequest(f"{field}: {error}", field) from None
    return items


def checked_address(field: str, given: str | None) -> str | None:
    try:
        if given is not None:
            parse_address(given)
    except InvalidAddress as error:
        raise InvalidRequest(f"{field}: {error}", field) from None
    return given


def check_texts(request: Struct) -> None:
    text = msgspec.json.encode(request)
    # Of 13 MiB the pattern takes half a second.
    if b"\\u0000" in text and _NUL_IN_JSON.search(text):
        raise InvalidRequest("a text contains a NUL character, which no database keeps")


def check_numbers(field: str, given: Mapping[str, Any] | None) -> None:
    for number in _numbers(given) if given else ():
        if number and not _SMALLEST <= abs(number) <= _GREATEST:
            bounds = f"between {_SMALLEST} and {_GREATEST}"
            raise InvalidRequest(f"{field}: a number must be {bounds}; send any other as a text", field)


def _numbers(given: Any) -> Iterator[float]:
    # Not by recursion: it may be as deep as the decoder allows.
    pending = [iter((given,))]
    while pending:
        for one in pending[-1]:
            if isinstance(one, int | float):
                yield one
            elif isinstance(one, dict | list):
                pending.append(iter(one.values() if isinstance(one, dict) else one))
                break
        else:
            pending.pop()


def check_draft(
    *,
    subject: str,
    headers: Mapping[str, str] | None,
    attachments: Sequence[StoredAttachment] | None,
    unsubscribe_url: str | None,
) -> None:
    """Everything that can be wrong with the mail itself; addresses and bodies are judged elsewhere."""
    if headers and sum(len(part.encode()) for pair in headers.items() for part in pair) > _LARGEST_HEADERS:
        raise InvalidRequest("headers: must have at most 65,536 bytes in all, with their names", "headers")
    draft = MailMessage(
        message_id="<draft@localhost>",
        date=_SOME_DATE,
        sender="draft@localhost",
        recipients=(),
        subject=subject,
        headers=tuple((headers or {}).items()),
        attachments=tuple(a.attachment() for a in attachments or ()),
        unsubscribe_url=unsubscribe_url,
    )
    try:
        assemble(draft)
    except Unassemblable as error:
        field = _JSON_NAMES.get(error.field, error.field)
        raise InvalidRequest(f"{field}: {error.reason}", field) from None


def fingerprint(request: Struct) -> str:
    """Tells a repeated order from another one under the same key."""
    return hashlib.sha256(msgspec.json.encode(request, order="deterministic")).hexdigest()
