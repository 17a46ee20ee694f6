"""What needs somebody now: from what was seen to a ranked list of things to look at.

Each names the page where something can be done about it. Nothing is asked here, so that every rule can be
tried without a database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlencode

from homing.desk import query
from homing.desk.model import DeadGroup, LaneName, Wanted
from homing.desk.overview_model import Attention, Hand, LaneView, Level, QueueDepth, Signs, TargetTrouble

#: Seconds for which the oldest message may wait before it is worth a line, and before it is urgent.
_LATE, _VERY_LATE = 60.0, 300.0
#: A message that nobody works on is noticed after so many seconds.
_UNCLAIMED = 30.0
#: Of so few attempts a rate says nothing.
_ENOUGH_ATTEMPTS = 20
_POOR, _BAD = 0.9, 0.5
#: As many of the newest deaths as this, within the hour, are not for tomorrow.
_MANY_DEAD = 10
_RECENT_DEATH, _STILL_A_TOPIC = timedelta(hours=1), timedelta(hours=24)
#: Rows that ended well, beyond which it is time to think of retention.
_MANY_ROWS = 1_000_000
#: So many of a kind are told one by one.
_TOLD_SINGLY = 4

_ORDER: Final[Mapping[Level, int]] = {"urgent": 0, "soon": 1, "note": 2}
_THINGS: Final[Mapping[LaneName, tuple[str, str]]] = {
    "mail_outbox": ("mail", "mails"),
    "dispatch_jobs": ("webhook", "webhooks"),
    "email_log": ("email", "emails"),
    "open_events": ("notification", "notifications"),
}


def attention(signs: Signs) -> tuple[Attention, ...]:
    """What needs somebody, the most urgent first; within a level in the order of the kinds below."""
    found = [
        *(item for lane in signs.lanes for item in _of_lane(lane, signs)),
        *_deaths(signs),
        *_targets(signs.targets),
        *_lost(signs.hands or ()),
        *_queues(signs.queues),
        *_retention(signs),
    ]
    return tuple(sorted(found, key=lambda item: _ORDER[item.level]))


def _of_lane(lane: LaneView, signs: Signs) -> Iterable[Attention]:
    waiting, things = lane.phases["waiting"], _THINGS[lane.lane][1]
    wait = f"{waiting:,} {things} wait, the oldest for {_span(lane.oldest_due)}"
    if lane.lane in signs.paused:
        by = signs.paused[lane.lane]
        yield Attention("paused", "soon", f"{things.capitalize()} are paused", f"by {by}; {wait}", "/workers")
    elif lane.oldest_due > _UNCLAIMED and _nobody_works_on(lane.lane, signs.hands):
        yield Attention("no_worker", "urgent", f"Nobody works on {things}", wait, "/workers")
    elif lane.oldest_due > _LATE:
        level: Level = "urgent" if lane.oldest_due > _VERY_LATE else "soon"
        link = _messages(Wanted(lanes=(lane.lane,), phases=("waiting",)))
        yield Attention("backlog", level, f"{things.capitalize()} are late", wait, link)
    yield from _failing(lane)


def _nobody_works_on(lane: str, hands: Sequence[Hand] | None) -> bool:
    if hands is None:
        return False
    at_work = {name.partition(":")[0] for hand in hands if not hand.is_lost for name in hand.lanes}
    return lane not in at_work


def _failing(lane: LaneView) -> Iterable[Attention]:
    hour, things = lane.hour, _THINGS[lane.lane][1]
    if hour.attempts < _ENOUGH_ATTEMPTS or hour.success is None or hour.success >= _POOR:
        return
    level: Level = "urgent" if hour.success < _BAD else "soon"
    failed = hour.attempts - hour.delivered
    detail = f"{failed:,} of {hour.attempts:,} attempts failed in the last hour"
    link = _messages(Wanted(lanes=(lane.lane,), phases=("waiting", "dead")))
    yield Attention("failing", level, f"Many attempts at {things} fail", detail, link)


def _deaths(signs: Signs) -> Iterable[Attention]:
    recent = [g for g in signs.dead if g.last_at is not None and g.last_at >= signs.now - _STILL_A_TOPIC]
    recent.sort(key=lambda group: -group.count)
    for group in recent[:_TOLD_SINGLY]:
        yield _death(group, signs.now)
    if more := recent[_TOLD_SINGLY:]:
        count = sum(group.count for group in more)
        title = f"{count:,} more given up, for {len(more)} other reasons"
        yield Attention("dead", "soon", title, "within the last 24 hours", "/dead")


def _death(group: DeadGroup, now: datetime) -> Attention:
    one, many = _THINGS[group.lane]
    is_recent = group.last_at is not None and group.last_at >= now - _RECENT_DEATH
    level: Level = "urgent" if is_recent and group.count >= _MANY_DEAD else "soon"
    ago = _span((now - group.last_at).total_seconds()) if group.last_at is not None else "some time"
    title = f"{group.count:,} {one if group.count == 1 else many} given up: {group.error or 'no reason kept'}"
    target = f", most of them for {group.target}" if group.target else ""
    wanted = Wanted(lanes=(group.lane,), phases=("dead",), error=group.error or query.UNCLASSIFIED)
    return Attention("dead", level, title, f"the last {ago} ago{target}", _messages(wanted))


def _targets(troubles: Sequence[TargetTrouble]) -> Iterable[Attention]:
    broken = [trouble for trouble in troubles if trouble.is_open]
    for trouble in broken[:_TOLD_SINGLY]:
        link = f"/targets?{urlencode({'q': trouble.target})}"
        yield Attention("breaker", "soon", f"{trouble.target} keeps failing", trouble.reason or "", link)
    if more := broken[_TOLD_SINGLY:]:
        title = f"{len(more):,} more targets keep failing"
        yield Attention("breaker", "soon", title, "they are left alone for a while", "/targets?state=open")
    if paused := [trouble for trouble in troubles if not trouble.is_open]:
        names = ", ".join(trouble.target for trouble in paused[:_TOLD_SINGLY])
        title = "A target is paused" if len(paused) == 1 else f"{len(paused):,} targets are paused"
        yield Attention("target_paused", "note", title, names, "/targets?state=paused")


def _lost(hands: Sequence[Hand]) -> Iterable[Attention]:
    lost = [hand for hand in hands if hand.is_lost]
    for hand in lost[:_TOLD_SINGLY]:
        detail = f"it was last heard of {_span(hand.silent_seconds)} ago"
        yield Attention("worker_lost", "soon", f"The worker {hand.name} is silent", detail, "/workers")
    if more := lost[_TOLD_SINGLY:]:
        yield Attention("worker_lost", "soon", f"{len(more):,} more workers are silent", "", "/workers")


def _queues(queues: Sequence[QueueDepth]) -> Iterable[Attention]:
    for depth in queues:
        if depth.waiting and depth.consumers == 0:
            detail = f"{depth.waiting:,} messages wait in it"
            yield Attention("queue", "soon", f"Nobody reads the queue {depth.name}", detail, "/queues")


def _retention(signs: Signs) -> Iterable[Attention]:
    kept = sum(lane.phases["delivered"] for lane in signs.lanes)
    if signs.keeps_everything and kept > _MANY_ROWS:
        detail = f"{kept:,} delivered messages are kept; HOMING_RETENTION says when they may go"
        yield Attention("retention", "note", "Nothing is ever deleted", detail, "/health")


def _messages(wanted: Wanted) -> str:
    return f"/messages?{urlencode({'q': query.write(wanted)})}"


def _span(seconds: float) -> str:
    """As a person would say it."""
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
