"""JSON from outside is read strictly: `"5"` is no 5, an unknown field is a mistake, and errors name it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec

from homing.errors import InvalidRequest, WrongMediaType

_PLACE = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_NAMED = re.compile(r"field `(\w+)`")
#: A pattern is for programs; whoever has to mend the text is no wiser by it.
_PATTERN = re.compile(r"^Expected `str` matching regex .*$", re.DOTALL)


def require_json(content_type: str | None) -> None:
    if (content_type or "").partition(";")[0].strip().lower() != "application/json":
        raise WrongMediaType("the body must be JSON: send it with Content-Type: application/json")


def decode(body: bytes | msgspec.Raw, kind: Any) -> Any:
    """Decode into a type; raises `InvalidRequest` with the field."""
    try:
        return _decoder(kind).decode(body)
    except msgspec.ValidationError as error:
        raise _explained(str(error)) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is no valid JSON: {error}") from None


def pretty(text: str) -> str | None:
    """JSON set out in lines, every number and key as it was written; None of what is no JSON."""
    try:
        return msgspec.json.format(text, indent=2)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


@lru_cache(maxsize=64)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, strict=True)


def _explained(text: str) -> InvalidRequest:
    match = _PLACE.match(text)
    reason, place = (match[1], match[2]) if match else (text, None)
    reason = _PATTERN.sub("is not written as it has to be", reason)
    if not place and (named := _NAMED.search(reason)):
        place = named[1]
    return InvalidRequest(f"{place}: {reason[:1].lower()}{reason[1:]}" if place else reason, place or None)
