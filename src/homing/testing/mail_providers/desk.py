"""What all desks have in common: they look at a request as the provider would, and keep the mails."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections import deque
from collections.abc import Iterator, Mapping
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from homing.testing.http_sink import Answer, SinkRequest

#: What providers take for an address; ours are checked by stricter rules before they are sent.
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+").fullmatch


class Taken(Struct, frozen=True, kw_only=True):
    """A mail that a provider has accepted."""

    provider_id: str
    #: Everybody who gets it, as they were given.
    recipients: tuple[str, ...]
    to: tuple[str, ...]
    cc: tuple[str, ...]
    subject: str
    text: str | None
    html: str | None
    headers: tuple[tuple[str, str], ...]
    #: Names and contents.
    attachments: tuple[tuple[str, bytes], ...] = ()
    #: What the provider was told beside the mail.
    told: Mapping[str, str] = {}
    #: The request's own fields, as far as they are no mail.
    options: Mapping[str, Any] = {}

    def header(self, name: str) -> str | None:
        wanted = name.lower()
        return next((value for given, value in self.headers if given.lower() == wanted), None)


class Refused(Exception):
    """The request is wrong, and this is what the provider says to it."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class Desk(Protocol):
    """A provider behind its counter."""

    mails: list[Taken]
    #: What is answered to the next requests, whatever they are.
    faults: deque[Answer]
    #: Addresses that the provider refuses, and those that make it ask for patience.
    rejected: set[str]
    deferred: set[str]

    @property
    def url(self) -> str:
        """The mail URL, but for where the provider is."""

    def answer(self, request: SinkRequest) -> Answer:
        """Look at a request; raises `Refused`."""


class Counter:
    """The state that every desk has."""

    def __init__(self) -> None:
        self.mails: list[Taken] = []
        self.faults: deque[Answer] = deque()
        self.rejected: set[str] = set()
        self.deferred: set[str] = set()
        self._count = 0

    def next_number(self) -> int:
        self._count += 1
        return self._count


def attend(desk: Desk, request: SinkRequest) -> Answer:
    if desk.faults:
        return desk.faults.popleft()
    try:
        return desk.answer(request)
    except Refused as refused:
        return refused.answer


def json_answer(status: int, content: Any, *headers: tuple[str, str]) -> Answer:
    kind = ("Content-Type", "application/json")
    return Answer(status=status, headers=(kind, *headers), body=msgspec.json.encode(content))


def json_body(request: SinkRequest, otherwise: Answer) -> dict[str, Any]:
    if not (request.header("content-type") or "").startswith("application/json"):
        raise Refused(otherwise)
    try:
        found = msgspec.json.decode(request.body)
    except msgspec.DecodeError:
        raise Refused(otherwise) from None
    if not isinstance(found, dict):
        raise Refused(otherwise)
    return found


def is_address(text: object) -> bool:
    return isinstance(text, str) and _ADDRESS(text) is not None


def decoded(text: object, otherwise: Answer) -> bytes:
    try:
        return b64decode(str(text), validate=True)
    except Base64Error:
        raise Refused(otherwise) from None


def read_mime(data: bytes) -> EmailMessage:
    """A mail that was given as one; the standard library reads it, which nobody here wrote."""
    message = message_from_bytes(data, policy=default)
    assert isinstance(message, EmailMessage)
    return message


def content_of(message: EmailMessage, kind: str) -> str | None:
    part = message.get_body((kind,))
    return None if part is None else str(part.get_content())


def files_of(message: EmailMessage) -> Iterator[tuple[str, bytes]]:
    for part in message.walk():
        if part.get_filename():
            content = part.get_payload(decode=True)
            assert isinstance(content, bytes)
            yield part.get_filename() or "", content


def addresses_in(message: EmailMessage, name: str) -> tuple[str, ...]:
    found = message[name]
    return () if found is None else tuple(one.addr_spec for one in found.addresses)
