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
from homing.desk.overview_model import Attention, Hand, LaneView, Level, QueueDepth, Signs, TargetTrouble
from homing.messages.model import DeadGroup, LaneName, Wanted

#: Seconds for which the oldest message may wait before it is worth a line, and before it is urgent.
_LATE, _VERY_LATE = 60.0, 300.0
#: A message that nobody works on is noticed after so many seconds.
_UNCLAIMED = 30.0
#: So many seconds a lost worker is news, though others do its work.
_NEWS = 900.0
#: What failed before that is over, if nothing fails since. A point of the chart has up to half an hour.
_LATELY = timedelta(minutes=30)
#: Of so few attempts a rate says nothing.
_ENOUGH_ATTEMPTS = 20
_POOR, _BAD = 0.9, 0.5
#: Of the newest attempts, so many tell whether it goes on.
_A_FEW = 5
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
        # Below what can be acted on: it tells of the same trouble.
        *(item for lane in signs.lanes for item in _failing(lane, signs.now)),
        *_paused(signs.hands or ()),
        *_lost(signs.hands or ()),
        *_queues(signs.queues),
        *_retention(signs),
    ]
    return tuple(sorted(found, key=lambda item: _ORDER[item.level]))


def _of_lane(lane: LaneView, signs: Signs) -> Iterable[Attention]:
    things, wait = _THINGS[lane.lane][1], _backlog(lane)
    if lane.lane in signs.paused:
        by = signs.paused[lane.lane]
        yield Attention("paused", "soon", f"{things.capitalize()} are paused", f"by {by}; {wait}", "/workers")
    elif _is_left_alone(lane, signs.hands):
        yield Attention("no_worker", "urgent", f"Nobody works on {things}", wait, "/workers")
    elif lane.oldest_due > _LATE:
        level: Level = "urgent" if lane.oldest_due > _VERY_LATE else "soon"
        link = _messages(Wanted(lanes=(lane.lane,), phases=("waiting",)))
        yield Attention("backlog", level, f"{things.capitalize()} are late", wait, link)


def _backlog(lane: LaneView) -> str:
    """In a sentence; where nothing can be sent now there is no oldest: all wait for their time or target."""
    waiting, names = lane.phases["waiting"], _THINGS[lane.lane]
    if not waiting:
        return "nothing waits"
    more = "+" if "waiting" in lane.at_least else ""
    wait = f"{names[0]} waits" if waiting == 1 and not more else f"{names[1]} wait"
    oldest = f", the oldest for {_span(lane.oldest_due)}" if lane.oldest_due else ""
    return f"{waiting:,}{more} {wait}{oldest}"


def _is_left_alone(lane: LaneView, hands: Sequence[Hand] | None) -> bool:
    """Who was there is missed at once; a lane may be looked after by a command that is run now and then."""
    if hands is None or lane.lane in _at_work(hands):
        return False
    had_somebody = any(lane.lane in _lanes_of(hand) for hand in hands)
    return lane.oldest_due > (0 if had_somebody else _UNCLAIMED)


def _at_work(hands: Sequence[Hand]) -> set[str]:
    """The lanes that somebody takes from."""
    there = [hand for hand in hands if not hand.is_lost and hand.paused is None]
    return {lane for hand in there for lane in _lanes_of(hand)}


def _lanes_of(hand: Hand) -> set[str]:
    return {name.partition(":")[0] for name in hand.lanes}


def _is_over(lane: LaneView, now: datetime) -> bool:
    """Whether what failed in the last hour has not gone on lately: nothing failed, or hardly anything."""
    lately = [point for point in lane.series if point.at >= now - _LATELY]
    failed = sum(point.retried + point.dead for point in lately)
    delivered = sum(point.delivered for point in lately)
    return bool(lane.series) and delivered >= _POOR * (failed + delivered)


def _failing(lane: LaneView, now: datetime) -> Iterable[Attention]:
    hour, things = lane.hour, _THINGS[lane.lane][1]
    if (
        hour.attempts < _ENOUGH_ATTEMPTS
        or hour.success is None
        or hour.success >= _POOR
        or _is_over(lane, now)
    ):
        return
    detail = f"{hour.attempts - hour.delivered:,} of {hour.attempts:,} attempts failed in the last hour"
    link = _messages(Wanted(lanes=(lane.lane,), phases=("waiting", "dead")))
    if mended := _mended(lane, now):
        yield Attention("failing", "note", f"Many attempts at {things} failed", f"{detail}; {mended}", link)
        return
    level: Level = "urgent" if hour.success < _BAD else "soon"
    yield Attention("failing", level, f"Many attempts at {things} fail", detail, link)


def _mended(lane: LaneView, now: datetime) -> str:
    """Why what failed is nothing to get up for, in words; nothing where it is."""
    if not lane.phases["waiting"] and not lane.phases["running"] and not lane.phases["dead"]:
        return "nothing waits now, and nothing is given up"
    failed = delivered = 0
    for point in sorted(lane.series, key=lambda point: point.at, reverse=True):
        if point.at < now - _LATELY or failed + delivered >= _A_FEW:
            break
        failed, delivered = failed + point.retried + point.dead, delivered + point.delivered
    tried = failed + delivered
    return "the newest succeed" if tried >= _A_FEW and delivered >= _POOR * tried else ""


def _deaths(signs: Signs) -> Iterable[Attention]:
    since = signs.now - _STILL_A_TOPIC
    recent = [group for group in signs.dead if group.last_at is not None and group.last_at >= since]
    for lane in _THINGS:
        if groups := sorted((g for g in recent if g.lane == lane), key=lambda group: -group.count):
            yield _death(lane, groups, signs.now)


def _death(lane: LaneName, groups: Sequence[DeadGroup], now: datetime) -> Attention:
    """Of one lane, its largest groups by name."""
    last = max(group.last_at for group in groups if group.last_at is not None)
    count = sum(group.count for group in groups)
    is_urgent = last >= now - _RECENT_DEATH and count >= _MANY_DEAD
    told = f"{_at_least(groups)}{count:,} {_THINGS[lane][count != 1]} given up: {_reasons(groups)}"
    detail = f"the last {_span((now - last).total_seconds())} ago{_aim(groups[0])}"
    return Attention("dead", "urgent" if is_urgent else "soon", told, detail, _dead_letters(groups))


def _reasons(groups: Sequence[DeadGroup]) -> str:
    if len(groups) == 1:
        return groups[0].error or "no reason kept"
    named = [f"{group.error or 'no reason kept'} {group.count:,}" for group in groups[:_TOLD_SINGLY]]
    others = groups[_TOLD_SINGLY:]
    more = [f"{len(others)} other reason{'s' if len(others) > 1 else ''}"] if others else []
    return ", ".join([*named, *more])


def _at_least(groups: Sequence[DeadGroup]) -> str:
    return "at least " if any(group.is_lower_bound for group in groups) else ""


def _aim(group: DeadGroup) -> str:
    """The place without the number of its credentials, which says nothing here."""
    return f", many of them for {group.target.partition('#')[0]}" if group.target else ""


def _dead_letters(groups: Sequence[DeadGroup]) -> str:
    if len(groups) > 1:
        return "/dead"
    return _messages(query.of_group(groups[0]))


def _targets(troubles: Sequence[TargetTrouble]) -> Iterable[Attention]:
    if broken := [trouble for trouble in troubles if trouble.is_open]:
        yield _breakers(broken)
    if paused := [trouble.target for trouble in troubles if not trouble.is_open]:
        title = "A target is paused" if len(paused) == 1 else f"{len(paused):,} targets are paused"
        yield Attention("target_paused", "note", title, _names(paused), "/targets?state=paused")


def _breakers(broken: Sequence[TargetTrouble]) -> Attention:
    if len(broken) == 1:
        (only,) = broken
        link = f"/targets?{urlencode({'q': only.target})}"
        detail = "; ".join(filter(None, (only.reason, "its webhooks wait")))
        return Attention("breaker", "soon", f"{only.target} keeps failing", detail, link)
    names = f"{_names([trouble.target for trouble in broken])}; their webhooks wait"
    return Attention("breaker", "soon", f"{len(broken):,} targets keep failing", names, "/targets?state=open")


def _paused(hands: Sequence[Hand]) -> Iterable[Attention]:
    paused = [hand for hand in hands if hand.paused is not None and not hand.is_lost]
    if not paused:
        return
    title, detail = f"The worker {paused[0].name} is paused", paused[0].paused or ""
    if len(paused) > 1:
        title, detail = f"{len(paused):,} workers are paused", _names([hand.name for hand in paused])
    yield Attention("worker_paused", "soon", title, detail, "/workers")


def _lost(hands: Sequence[Hand]) -> Iterable[Attention]:
    """One whose work others do is news for a while only: it does not come back, and nothing is to be done."""
    at_work = _at_work(hands)
    lost = [
        hand
        for hand in hands
        if hand.is_lost and (hand.silent_seconds < _NEWS or not _lanes_of(hand) <= at_work)
    ]
    if not lost:
        return
    title = f"The worker {lost[0].name} is silent"
    detail = f"it was last heard of {_span(lost[0].silent_seconds)} ago"
    if len(lost) > 1:
        title, detail = f"{len(lost):,} workers are silent", _names([hand.name for hand in lost])
    yield Attention("worker_lost", "soon", title, detail, "/workers")


def _names(names: Sequence[str]) -> str:
    more = len(names) - _TOLD_SINGLY
    return ", ".join(names[:_TOLD_SINGLY]) + (f" and {more:,} more" if more > 0 else "")


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
    """As a person would say it. Another clock may be ahead of ours."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"
