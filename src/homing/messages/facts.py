"""What every lane tells of a message in the same way: bodies, times, recipients, the error's code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from homing.db import iso
from homing.db.conditions import LONGEST_CODE, UNCLASSIFIED, readable, written
from homing.messages.model import Body, Verb
from homing.strict_json import pretty

#: So much of a payload is shown; whoever wants more has the API.
LONGEST_BODY: Final = 200_000
_LONGEST_FACT: Final = 2_000
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,80}(?=:|$)")


def body_of(text: str, content_type: str) -> Body:
    """Set out in lines where it is JSON, with every number as it was written; cut where it is long."""
    set_out = pretty(text) if len(text) <= LONGEST_BODY and text[:1] in {"{", "["} else None
    return Body(content_type, (set_out or text)[:LONGEST_BODY], len(text))


def json_body(columns: Mapping[str, str | None]) -> Body | None:
    """Some JSON columns of a row as one object; what is no JSON is shown as the text that it is."""
    given = {name: _json(written(text)) for name, text in columns.items() if text}
    if not given:
        return None
    return body_of(msgspec.json.encode(given).decode(), "application/json")


def _json(text: str) -> Any:
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return text
    return msgspec.Raw(text.encode())


def facts(pairs: Iterable[tuple[str, Any]]) -> list[tuple[str, str]]:
    """Those that have something to tell, as text."""
    return [(name, _fact(value)) for name, value in pairs if value is not None and value != ""]


def _fact(value: Any) -> str:
    if isinstance(value, datetime):
        return iso(value) or ""
    text = written(value)
    return text if len(text) <= _LONGEST_FACT else f"{text[:_LONGEST_FACT]}…"


def moment_fact(value: object) -> str | None:
    """A time in our form; one that another program wrote and nobody can read, as it is."""
    if value is None:
        return None
    known = readable(value)
    return iso(known) if known is not None else str(value)


def code_of(error: str | None) -> str | None:
    """The code of `code: message`; of another program's text, its beginning."""
    if not error:
        return None
    text = written(error)
    found = _CODE.match(text)
    return found[0] if found else text.partition(":")[0].strip()[:LONGEST_CODE] or UNCLASSIFIED


def message_of(error: str | None) -> str | None:
    """What `code: message` says after its code."""
    if not error:
        return None
    text = written(error)
    found = _CODE.match(text)
    return text[found.end() + 1 :].strip() or text if found else text


def verdicts(text: str | None) -> list[tuple[str, str]]:
    """What is known of each recipient, in words. Another program may have written the column."""
    given = _decoded(text)
    if not isinstance(given, dict):
        return []
    return [(f"Recipient {address}", _verdict(verdict)) for address, verdict in given.items()]


def _verdict(verdict: Any) -> str:
    if not isinstance(verdict, dict):
        return str(verdict)
    said = [str(verdict[name]) for name in ("code", "enhanced", "text") if verdict.get(name)]
    status = str(verdict.get("status", "unknown"))
    return f"{status}: {' '.join(said)}" if said else status


def filenames(text: str | None) -> str | None:
    given = _decoded(text)
    files = given if isinstance(given, list) else []
    names = [str(file.get("filename", "?")) if isinstance(file, dict) else "?" for file in files]
    return ", ".join(names) or None


def _decoded(text: str | None) -> Any:
    try:
        return msgspec.json.decode(text) if text else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


def trace_of(traceparent: str | None) -> str | None:
    """The id of the trace that a message belongs to; None of what is none."""
    found = _TRACE.match(traceparent) if traceparent else None
    return found[1] if found else None


#: How it begins when nothing but a worker is missing; the desk tells where there is none.
DUE: Final = "it is due, and "


def possible(from_states: Mapping[Verb, Sequence[str]], state: str) -> tuple[Verb, ...]:
    """What can be done with a message in this state."""
    return tuple(verb for verb, states in from_states.items() if state in states)
