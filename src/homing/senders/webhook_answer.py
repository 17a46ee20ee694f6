"""What a receiver answered, made fit to be kept: short, harmless, and without secrets."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from itertools import islice

from aiohttp import ClientPayloadError, ClientResponse, StreamReader

#: Bytes of a body that are read; the rest is not waited for.
READ_LIMIT = 65_536
#: Characters of a body that are kept, the mark of a cut included.
KEPT_CHARACTERS = 5_000
_KEPT_HEADERS = 50
_LONGEST_NAME, _LONGEST_VALUE = 100, 500
_LONGEST_WAIT = 3600.0

_CUT = "… [cut]"
_HIDDEN = "[redacted]"
# So many bytes hold all characters that are kept, and a secret that begins among them.
_WINDOW = 4 * KEPT_CHARACTERS + 4096
_SECRET_NAME = re.compile(r"auth|cookie|token|secret|key|passw|credential|session", re.IGNORECASE).search
_SECONDS = re.compile(r"\d{1,12}(\.\d{1,9})?", re.ASCII).fullmatch
# What neither a database nor a terminal should be given: all controls but tab and line ends.
_HARMFUL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


async def read_body(response: ClientResponse) -> tuple[bytes, bool]:
    """The body as far as it is read, and whether that is all of it."""
    content = response.content
    if content.is_eof():
        # Everything is here already, which is how nearly every answer comes.
        body = content.read_nowait(-1)
        return body[:READ_LIMIT], len(body) <= READ_LIMIT
    with _ending_with_its_connection(response):
        return await _read_on(content)


async def _read_on(content: StreamReader) -> tuple[bytes, bool]:
    chunks: list[bytes] = []
    size = 0
    while size <= READ_LIMIT:
        chunk = await content.readany()
        if not chunk:
            return b"".join(chunks), True
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)[:READ_LIMIT], False


@contextmanager
def _ending_with_its_connection(response: ClientResponse) -> Iterator[None]:
    """Fail a read when the connection is gone.

    Where a body turns into something that is not HTTP, aiohttp hangs up but leaves its reader waiting.
    """
    content = response.content
    protocol = None if response.connection is None else response.connection.protocol
    closed = None if protocol is None else protocol.closed
    if closed is None:
        yield
        return

    def end(_closed: object) -> None:
        if not content.is_eof() and content.exception() is None:
            content.set_exception(ClientPayloadError("the body is not valid HTTP"))

    # Somebody has to look at how a connection ended, or asyncio complains of it; once is enough.
    closed.remove_done_callback(asyncio.Future.exception)
    closed.add_done_callback(asyncio.Future.exception)
    closed.add_done_callback(end)
    try:
        yield
    finally:
        closed.remove_done_callback(end)


def body_text(body: bytes, secrets: Sequence[str], *, complete: bool = True) -> str:
    """A body as text that can be kept. What is not UTF-8 shows as �."""
    if not body:
        return ""
    text = harmless(_without(secrets, body[:_WINDOW].decode("utf-8", "replace")))
    if complete and len(body) <= _WINDOW and len(text) <= KEPT_CHARACTERS:
        return text
    return text[: KEPT_CHARACTERS - len(_CUT)] + _CUT


def kept_headers(headers: Mapping[str, str], secrets: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The first fifty headers of an answer, without what somebody could log in with."""
    pairs = islice(headers.items(), _KEPT_HEADERS)
    return tuple([(_name(name), _value(name, value, secrets)) for name, value in pairs])


def secrets_of(headers: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The values in a request that must not come back to us out of an answer that repeats them."""
    values = [value.rpartition(" ")[2] for name, value in headers if is_secret_name(name)]
    # A short value would blank out words that have nothing to do with it.
    return tuple([value for value in values if len(value) >= 8])


@lru_cache(maxsize=2048)
def is_secret_name(name: str) -> bool:
    return _SECRET_NAME(name) is not None


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds to wait, from a number or an HTTP date; at most an hour, and None for anything else."""
    if value is None:
        return None
    value = value.strip()
    if _SECONDS(value):
        return min(float(value), _LONGEST_WAIT)
    try:
        when = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return min(max((aware - now).total_seconds(), 0.0), _LONGEST_WAIT)


def harmless(text: str) -> str:
    return text if text.isascii() and text.isprintable() else _HARMFUL.sub("\ufffd", text)


@lru_cache(maxsize=2048)
def _name(name: str) -> str:
    return harmless(name)[:_LONGEST_NAME]


def _value(name: str, value: str, secrets: Sequence[str]) -> str:
    if is_secret_name(name):
        return _HIDDEN
    if not value.isascii():
        # The parser hides bytes that are not UTF-8 in lone surrogates.
        value = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    value = harmless(_without(secrets, value))
    return value if len(value) <= _LONGEST_VALUE else value[: _LONGEST_VALUE - 1] + "…"


def _without(secrets: Sequence[str], text: str) -> str:
    for secret in secrets:
        text = text.replace(secret, _HIDDEN)
    return text
