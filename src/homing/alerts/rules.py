"""When somebody is told: from how a cause stood and what was seen of it to how it stands and what is told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

Kind = Literal["dead", "target", "backlog", "idle", "worker", "test"]
State = Literal["quiet", "watching", "firing"]
Event = Literal["fired", "again", "level", "resolved", "test"]

#: In percent of the failures in a row that are too many.
LEVELS: Final = (50, 70, 90, 100)
#: Seconds for which it has to be so.
_LASTS: Final[Mapping[Kind, float]] = {"backlog": 60.0, "idle": 60.0}
#: A process that was lost does not come back; another takes its place.
_ONCE: Final[frozenset[Kind]] = frozenset({"worker"})


class Terms(Struct, frozen=True):
    #: Seconds in which the same is told once.
    cooldown: float
    #: Failures in a row that are too many of a target.
    target_failures: int
    #: Seconds that the oldest message of a lane may be due.
    backlog_age: float
    #: Alerts that all causes together may raise in an hour.
    most_per_hour: int


class Cause(Struct, frozen=True):
    """Something that may be wrong, and how it stands."""

    cause: str
    kind: Kind
    since: datetime
    state: State = "quiet"
    facts: Mapping[str, Any] = {}
    #: Of dead messages, how many nobody was told of.
    pending: int = 0
    #: The highest level that was told of in this episode; 1 where there are no levels.
    level: int = 0
    #: When each level was told of last, in this episode or before.
    told: Mapping[str, datetime] = {}
    silenced: bool = False
    revision: int = 0


class Seen(Struct, frozen=True):
    """What was seen of a cause. `value` is what its rule counts: failures, seconds, or dead messages."""

    cause: str
    kind: Kind
    value: float
    facts: Mapping[str, Any] = {}


class Verdict(Struct, frozen=True):
    """How a cause stands now, if its alert goes out; and how, if it may not, so that it is told later."""

    cause: Cause
    event: Event | None = None
    untold: Cause | None = None

    def without_alert(self) -> Verdict:
        return Verdict(self.untold or self.cause)


def judge(before: Cause, seen: Seen | None, terms: Terms, now: datetime) -> Verdict:
    """Whoever is silenced stays as if there had been no room for the alert."""
    verdict = _judge(before, seen, terms, now)
    return verdict.without_alert() if before.silenced and verdict.event else verdict


def _judge(before: Cause, seen: Seen | None, terms: Terms, now: datetime) -> Verdict:
    match before.kind:
        case "dead":
            return _of_deaths(before, seen, terms, now)
        case "target":
            return _of_target(before, seen, terms, now)
        case _:
            return _of_lasting(before, seen, terms, now)


def _of_deaths(before: Cause, seen: Seen | None, terms: Terms, now: datetime) -> Verdict:
    """The first is told at once; those that follow together, once per cool-down. Over when none is left."""
    if seen is not None and not seen.value:
        # Also of those that nobody was told of: there is nothing to be done about them any more.
        return Verdict(replace(before, state="quiet", level=0, pending=0))
    before = replace(before, facts=seen.facts) if seen is not None else before
    if not _may_tell(before, 1, terms, now):
        return Verdict(before)
    if not before.pending:
        # Nobody died for a whole cool-down: the next is news again.
        return Verdict(replace(before, state="quiet", level=0))
    told = replace(before, facts={**before.facts, "count": before.pending}, pending=0)
    return Verdict(_told(told, 1, now), "again" if before.level else "fired", before)


def _of_target(before: Cause, seen: Seen | None, terms: Terms, now: datetime) -> Verdict:
    """Each level once per episode, of several that are passed at once the highest."""
    if seen is None or not seen.value:
        return _over(before, now)
    level = max((one for one in LEVELS if seen.value >= enough(terms, one)), default=0)
    if not level:
        return Verdict(before)
    after = _firing(before, now, {**seen.facts, "level": level})
    if level <= before.level or not _may_tell(before, level, terms, now):
        return Verdict(after)
    return Verdict(_told(after, level, now), "level" if before.level else "fired", after)


def enough(terms: Terms, level: int) -> int:
    """The failures in a row that a level stands for."""
    return math.ceil(terms.target_failures * level / 100)


def _of_lasting(before: Cause, seen: Seen | None, terms: Terms, now: datetime) -> Verdict:
    """What has to be so for a while, is told again after each cool-down, and has an end."""
    if seen is None or not seen.value:
        return _over(before, now)
    if before.state == "quiet":
        before = replace(before, state="watching", since=now)
    lasts = timedelta(seconds=_LASTS.get(before.kind, 0.0))
    if before.state == "watching" and now - before.since < lasts:
        return Verdict(replace(before, facts=seen.facts))
    after = _firing(before, now, seen.facts)
    if not _may_tell(before, 1, terms, now) or (before.kind in _ONCE and before.level):
        return Verdict(after)
    return Verdict(_told(after, 1, now), "again" if before.level else "fired", after)


def _over(before: Cause, now: datetime) -> Verdict:
    """Only who was told that it began is told that it is over."""
    if before.state == "quiet":
        return Verdict(before)
    after = replace(before, state="quiet", since=now, level=0)
    if not before.level or before.kind in _ONCE:
        return Verdict(after)
    lasted = round((now - before.since).total_seconds())
    told = replace(after, facts={**before.facts, "lasted": lasted})
    # One that is silenced ends in silence; where there is no room it stays until it can be told.
    return Verdict(told, "resolved", after if before.silenced else before)


def _firing(before: Cause, now: datetime, facts: Mapping[str, Any]) -> Cause:
    since = before.since if before.state != "quiet" else now
    return replace(before, state="firing", since=since, facts=facts)


def _told(cause: Cause, level: int, now: datetime) -> Cause:
    return replace(cause, state="firing", level=level, told={**cause.told, str(level): now})


def _may_tell(before: Cause, level: int, terms: Terms, now: datetime) -> bool:
    last = before.told.get(str(level))
    return last is None or now - last >= timedelta(seconds=terms.cooldown)
