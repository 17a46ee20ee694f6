"""What is wrong with a request, said so that its sender can mend it.

Requests are decoded by their types, which is quick and strict; only when that fails is it worked out here,
at leisure, what a person would like to be told.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from homing.errors import InvalidRequest
from homing.strict_json import decode

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_UNKNOWN = re.compile(r"contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(\w+)`$")
_WRONG_TYPE = re.compile(r"xpected `([^`]*)`, got `(\w+)`$")
_LENGTH = re.compile(r"xpected `(\w+)` of length (<=|>=) (\d+)$")
_RANGE = re.compile(r"xpected `(?:int|float)` (<=|>=) ([\d.]+)$")
_ENUM = re.compile(r"nvalid enum value '?([^']*)'?$")

_JSON_NAMES = {"str": "text", "int": "a number", "float": "a number", "bool": "true or false", "null": "null"}
_WHOLE = {**_JSON_NAMES, "int": "a whole number", "float": "a fraction"}


def read(body: bytes | msgspec.Raw, kind: Any, hints: Mapping[str, str]) -> Any:
    """Decode into a type. `hints` say for a field what it takes; raises `InvalidRequest` with the field."""
    try:
        return decode(body, kind)
    except InvalidRequest as error:
        raise _explained(error, body, kind, hints) from None


def known_names(kind: Any) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(kind)]


def suggestion(name: str, known: Iterable[str]) -> str:
    """Beginning with a semicolon, so that it goes on a sentence."""
    choices = list(known)
    plain = {_plain(choice): choice for choice in choices}
    near = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.6)
    return f"; did you mean {plain[near[0]]}?" if near else f"; known are {', '.join(choices)}"


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _explained(
    error: InvalidRequest, body: bytes | msgspec.Raw, kind: Any, hints: Mapping[str, str]
) -> InvalidRequest:
    reason = str(error)
    if unknown := _UNKNOWN.search(reason):
        return _unknown(unknown[1], kind)
    if missing := _MISSING.search(reason):
        return InvalidRequest(f"{missing[1]}: is required{_hint(hints, missing[1])}", missing[1])
    if error.field is None:
        return _misshapen(reason, hints)
    field, words = error.field, reason.removeprefix(f"{error.field}: ")
    if field.endswith("[...]"):
        field = _entry(field.removesuffix("[...]"), body)
        return InvalidRequest(f"{field}: must be a string; write numbers, true and false as a string", field)
    return InvalidRequest(f"{field}: {_said(words)}{_hint(hints, field)}", field)


def _unknown(name: str, kind: Any) -> InvalidRequest:
    shown = CONTROL.sub("?", name)[:100]
    return InvalidRequest(f"{shown}: there is no such field{suggestion(shown, known_names(kind))}", shown)


def _misshapen(reason: str, hints: Mapping[str, str]) -> InvalidRequest:
    wrong = _WRONG_TYPE.search(reason)
    return InvalidRequest(hints.get("", "the body must be a JSON object") if wrong else reason)


def _said(reason: str) -> str:
    if wrong := _WRONG_TYPE.search(reason):
        kinds = [kind.strip() for kind in wrong[1].split("|")]
        # Where a fraction is the mistake, a number is not what is wanted.
        names = _WHOLE if "int" in kinds and wrong[2] == "float" else _JSON_NAMES
        wanted = " or ".join(names.get(kind, kind) for kind in kinds if kind != "null")
        return f"must be {wanted}, not {names.get(wrong[2], wrong[2])}"
    if length := _LENGTH.search(reason):
        return _length(length[1], length[2], int(length[3]))
    if bound := _RANGE.search(reason):
        return f"must be {'at most' if bound[1] == '<=' else 'at least'} {float(bound[2]):g}"
    if choice := _ENUM.search(reason):
        return f"{CONTROL.sub('?', choice[1])[:60]!r} is not possible"
    if "timezone" in reason:
        return "the time needs a zone, such as Z"
    return "must be a time such as 2026-01-31T12:00:00Z" if "RFC3339" in reason else reason


def _length(kind: str, sign: str, length: int) -> str:
    what = "characters" if kind == "str" else "entries"
    if sign == ">=":
        return "must not be empty" if length == 1 else f"must have at least {length:,} {what}"
    return f"must have at most {length:,} {what}"


def _entry(field: str, body: bytes | msgspec.Raw) -> str:
    """Which entry of an object it was: the decoder does not say."""
    given = msgspec.json.decode(body)
    for step in field.split("."):
        given = given.get(step) if isinstance(given, dict) else None
    entries = given.items() if isinstance(given, dict) else []
    name = next((name for name, value in entries if not isinstance(value, str)), "")
    return f"{field}.{CONTROL.sub('?', str(name))[:100]}"


def _hint(hints: Mapping[str, str], field: str) -> str:
    return f"; {hints[field]}" if field in hints else ""
