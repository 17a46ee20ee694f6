"""What people are told: a title that says it all, some facts, what to do, and where to look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from msgspec import Struct

from homing.alerts.rules import Event, Kind
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.senders.addresses import CONTROL

#: One of a lane's messages, and several.
_NOUNS: Final[Mapping[str, tuple[str, str]]] = {
    "mail_outbox": ("mail", "mails"),
    "dispatch_jobs": ("webhook", "webhooks"),
    "email_log": ("email", "emails"),
    "open_events": ("notification", "notifications"),
}
_LONGEST = 200
#: No id has so many.
_DIGITS = 20
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


class Told(Struct, frozen=True):
    """An alert as it is stored."""

    id: int
    cause: str
    kind: Kind
    event: Event
    facts: Mapping[str, Any]
    at: datetime


class Words(Struct, frozen=True):
    title: str
    #: Name and value, in the order in which a person wants them.
    facts: tuple[tuple[str, str], ...]
    #: What to do about it.
    advice: str
    #: A path of the desk.
    link: str


def words_of(kind: Kind, event: Event, facts: Mapping[str, Any]) -> Words:
    facts = {name: _line(value) for name, value in facts.items()}
    link = _link(kind, facts)
    details = _facts_of_end(facts) if event == "resolved" else _facts(kind, facts)
    told = tuple((name, text) for name, text in details if text)
    return Words(_title(kind, event, facts), told, _advice(kind, event), link)


def _line(value: Any) -> Any:
    """An error's word may be another program's, and a subject has one line."""
    return CONTROL.sub(" ", value)[:_LONGEST] if isinstance(value, str) else value


def _title(kind: Kind, event: Event, facts: Mapping[str, Any]) -> str:
    match kind:
        case "dead":
            return f"{_count(facts)} given up: {facts.get('error') or 'unclassified'}"
        case "target":
            return _target_title(event, facts)
        case "backlog":
            return _backlog_title(event, facts)
        case "idle":
            many = _many(facts)
            return f"Workers take {many} again" if event == "resolved" else f"No worker takes {many}"
        case "worker":
            return f"The worker {facts.get('worker', '')} was lost"
        case "test":
            return "This is a test: alerts reach you"


def _target_title(event: Event, facts: Mapping[str, Any]) -> str:
    place = place_of(facts.get("target", ""))
    if event == "resolved":
        return f"{place} answers again"
    failures, level = facts.get("failures", 0), facts.get("level", 0)
    return f"{place} has failed {_plural(failures, 'time')} in a row ({level} % of the threshold)"


def _backlog_title(event: Event, facts: Mapping[str, Any]) -> str:
    many = _many(facts).capitalize()
    if event == "resolved":
        return f"{many} are on time again"
    still = "still " if event == "again" else ""
    return f"{many} are {still}late: the oldest has waited {span(facts.get('age', 0))}"


def _facts(kind: Kind, facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if kind == "test":
        yield "Sent by", "homing alerts test"
        return
    yield "Lane", str(facts.get("lane", ""))
    if kind == "dead":
        yield "Error", str(facts.get("error") or "")
        yield "Given up", f"{facts.get('count', 0):,} since the last alert"
        yield "Dead now", _dead_now(facts)
        yield "One of them", str(facts.get("example", ""))
    elif kind == "target":
        yield "Target", str(facts.get("target", "")).partition("#")[0]
        yield "Failures in a row", f"{facts.get('failures', 0):,}; {_too_many(facts)}"
        yield "Last error", str(facts.get("error") or "")
        yield "Paused by hand", "yes" if facts.get("paused") else ""
    elif kind in {"backlog", "idle"}:
        yield "Oldest has waited", span(facts.get("age", 0))
        yield "Allowed", span(facts["limit"]) if facts.get("limit") else ""
        yield "Held back", _held_back(facts)
    else:
        yield "Worker", str(facts.get("worker", ""))
        yield "Last seen", str(facts.get("seenAt", ""))


def _too_many(facts: Mapping[str, Any]) -> str:
    threshold = facts.get("threshold", 0)
    return "one is too many" if threshold == 1 else f"{threshold:,} are too many"


def _held_back(facts: Mapping[str, Any]) -> str:
    """How many of them wait for targets, and for which."""
    if not facts.get("heldBack"):
        return ""
    more = " or more" if facts.get("heldBackOrMore") else ""
    places = ", ".join(_line(place_of(target)) for target in facts.get("targets", ()))
    return f"{facts['heldBack']:,}{more} since {facts.get('heldBackSince')}, for {places}: paused, or failing"


def _dead_now(facts: Mapping[str, Any]) -> str:
    """Empty where it is not known."""
    more = "or more" if facts.get("deadOrMore") else ""
    return f"{facts['dead']:,} {more}".rstrip() if facts.get("dead") else ""


def _facts_of_end(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "Lane", str(facts.get("lane", ""))
    yield "Target", str(facts.get("target", "")).partition("#")[0]
    yield "It lasted", span(facts.get("lasted", 0))


def _advice(kind: Kind, event: Event) -> str:
    if event == "resolved":
        return "Nothing is to be done."
    return {
        "dead": "Look at why they failed, mend it, and requeue the group on the page of dead letters.",
        "target": "Its jobs wait and are tried again. Ask whoever runs it; pause it if that takes long.",
        "backlog": "Look at the queues and workers: add workers, or find out what slows them down.",
        "idle": "Start a worker of this lane (`homing work`), or resume it if it was paused.",
        "worker": "What it held is taken over by others. Look whether its process or machine is still there.",
        "test": "Nothing is to be done. Mails and webhooks like this one tell you when something is wrong.",
    }[kind]


def _link(kind: Kind, facts: Mapping[str, Any]) -> str:
    lane = str(facts.get("lane", ""))
    return {
        "dead": "/dead",
        "target": _link_of_target(str(facts.get("target", ""))),
        "backlog": f"/messages?q={quote(f'status:waiting lane:{lane}')}",
        "idle": "/queues",
        "worker": "/workers",
        "test": "/",
    }[kind]


def _link_of_target(target: str) -> str:
    """Another program may have written a target that is none; then to all of them."""
    place, _, number = target.partition("#")
    if not place:
        return "/targets"
    named = {"target": place}
    if number.isdecimal() and len(number) < _DIGITS:
        named["credentials"] = text_of(int(number))
    return f"/targets/one?{urlencode(named)}"


def _count(facts: Mapping[str, Any]) -> str:
    count = facts.get("count", 0)
    one, many = _NOUNS.get(str(facts.get("lane")), ("message", "messages"))
    return f"{count:,} {one} was" if count == 1 else f"{count:,} {many} were"


def _many(facts: Mapping[str, Any]) -> str:
    return _NOUNS.get(str(facts.get("lane")), ("message", "messages"))[1]


def place_of(target: str) -> str:
    """Host and port of a target, without its scheme's own port and the number of its credentials."""
    url = target.partition("#")[0]
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # Another program may have written an address that is none.
        return url.partition("://")[2] or url
    usual = {"https": 443, "http": 80}.get(parts.scheme)
    return (parts.hostname or url) if port in {None, usual} else parts.netloc


def span(seconds: float) -> str:
    """In words, as exact as anybody wants to know."""
    for unit, name in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")):
        if seconds >= 2 * unit or (seconds >= unit and unit == _MINUTE):
            return _plural(int(seconds // unit), name)
    return _plural(int(seconds), "second")


def _plural(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"
