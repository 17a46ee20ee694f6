"""What a receiver answered, made fit to be kept: short, harmless, and without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from urllib.parse import quote, quote_plus

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


def body_text(body: bytes, secrets: Sequence[str], *, complete: bool = True) -> str:
    """A body as text that can be kept. What is not UTF-8 shows as �."""
    if not body:
        return ""
    text = harmless(_without(secrets, body[:_WINDOW].decode("utf-8", "replace")))
    if complete and len(body) <= _WINDOW and len(text) <= KEPT_CHARACTERS:
        return text
    return text[: KEPT_CHARACTERS - len(_CUT)] + _CUT


def kept_headers(
    headers: Sequence[tuple[bytes, bytes]], secrets: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """The first fifty headers of an answer, without what somebody could log in with."""
    return tuple([_kept(name, value, secrets) for name, value in headers[:_KEPT_HEADERS]])


def retry_after(headers: Sequence[tuple[bytes, bytes]], now: datetime) -> float | None:
    """Seconds that the receiver asks us to wait."""
    values = (value for name, value in headers if name.lower() == b"retry-after")
    value = next(values, None)
    return None if value is None else parse_retry_after(value.decode("latin-1"), now)


def secrets_of(headers: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The values in a request that must not come back to us out of an answer that repeats them."""
    values = [value.rpartition(" ")[2] for name, value in headers if is_secret_name(name)]
    # A short value would blank out words that have nothing to do with it.
    return tuple([form for value in values if len(value) >= 8 for form in _forms(value)])


@lru_cache(maxsize=1024)
def _forms(value: str) -> tuple[str, ...]:
    """As it is, and as others write it: in JSON, where some escape the slash, and in URLs."""
    return tuple(dict.fromkeys((value, value.replace("/", r"\/"), quote(value, safe=""), quote_plus(value))))


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


def _kept(name: bytes, value: bytes, secrets: Sequence[str]) -> tuple[str, str]:
    shown, is_secret = _name(name)
    return shown, _HIDDEN if is_secret else _value(value, secrets)


@lru_cache(maxsize=2048)
def _name(name: bytes) -> tuple[str, bool]:
    text = name.decode("utf-8", "replace")
    return harmless(text)[:_LONGEST_NAME], is_secret_name(text)


def _value(value: bytes, secrets: Sequence[str]) -> str:
    text = harmless(_without(secrets, value.decode("utf-8", "replace")))
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def _without(secrets: Sequence[str], text: str) -> str:
    for secret in secrets:
        text = text.replace(secret, _HIDDEN)
    return text
