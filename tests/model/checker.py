"""Reads the history of a simulation and says what should not have happened.

It shares no code with the store: ownership is worked out from the order of events alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.model.world import Event, Row, World

from homing.engine.model import Bury, Complete, Discard, Reject, Retry, RetryIn, Skip


@dataclass
class _Life:
    """What the events say about one row, as far as they have been read."""

    owner: int = 0
    held: bool = False
    ended: bool = False
    charged: int = 0
    accepted: list[int] = field(default_factory=list)
    struck: set[int] = field(default_factory=set)
    answers: dict[int, object] = field(default_factory=dict)
    highest: int = 0


def check(world: World) -> list[str]:
    """Every violation, in words; none is what we want."""
    lives: dict[int, _Life] = {number: _Life() for number in world.rows}
    found = [f"a bug was logged: {bug}" for bug in world.history.bugs]
    for event in world.history.events:
        found.extend(_step(lives, event))
    for number, row in world.rows.items():
        found.extend(_at_the_end(row, lives[number], world.max_attempts))
    return found


def _step(lives: dict[int, _Life], event: Event) -> Iterator[str]:
    life = lives.get(event.id)
    if life is None:
        yield f"unexpected: {event} is about a row that nobody inserted"
        return
    match event.kind:
        case "claim":
            yield from _on_claim(life, event)
        case "settle":
            yield from _on_settle(life, event)
        case "release" | "rescue":
            if not life.held or life.owner != event.fence:
                yield f"given back by one who did not hold it: {event}"
            life.held = False
        case "stale":
            if life.held and life.owner == event.fence:
                yield f"refused although it was the owner's: {event}"
        case _:
            _remember(life, event)


def _remember(life: _Life, event: Event) -> None:
    """What is right or wrong only later."""
    match event.kind:
        case "requeue":
            life.ended, life.charged = False, 0
            life.accepted.clear()
        case "accept":
            life.accepted.append(event.fence)
        case "answer":
            life.answers[event.fence] = event.what
        case "struck":
            life.struck.add(event.fence)
        case _:
            pass


def _on_claim(life: _Life, event: Event) -> Iterator[str]:
    if event.fence <= life.highest:
        yield f"the fence did not rise: {event}"
    if life.ended:
        yield f"claimed after its end: {event}"
    life.owner, life.held, life.highest = event.fence, True, event.fence


def _on_settle(life: _Life, event: Event) -> Iterator[str]:
    if not life.held:
        yield f"settled twice, or without a claim: {event}"
    elif life.owner != event.fence:
        yield f"settled by a stale claim (the owner has {life.owner}): {event}"
    if life.ended:
        yield f"settled after its end: {event}"
    life.held = False
    life.charged += getattr(event.what, "charged", False)
    life.ended = not isinstance(event.what, RetryIn)
    yield from _justified(life, event)


def _justified(life: _Life, event: Event) -> Iterator[str]:
    """What is written must follow from what the receiver answered to that very claim."""
    answer = life.answers.get(event.fence)
    match event.what:
        case Complete() if event.fence not in life.accepted:
            yield f"lost: complete, but the receiver never took it from this claim: {event}"
        case Bury(failure=failure) if failure.code != "worker_died" and not isinstance(
            answer, Reject | Retry
        ):
            yield f"buried without a reason: {event}"
        case Discard() if not isinstance(answer, Skip):
            yield f"discarded without a reason: {event}"
        case _:
            pass


def _at_the_end(row: Row, life: _Life, max_attempts: int) -> Iterator[str]:
    if row.status in {"queued", "dispatching"}:
        yield f"lost: row {row.id} never ended: {row}"
    if row.status == "sent" and not life.accepted:
        yield f"lost: row {row.id} is sent, and nobody received it"
    if row.attempts != life.charged or life.charged > max_attempts:
        yield f"row {row.id} was charged {life.charged} times and says {row.attempts}"
    yield from _unexcused_doubles(row.id, life)


def _unexcused_doubles(id: int, life: _Life) -> Iterator[str]:
    """A row may be received again only when a fault hit an earlier claim that had been received."""
    for fence, times in Counter(life.accepted).items():
        if times > 1:
            yield f"row {id} was sent {times} times under one claim ({fence})"
    excused = {fence for fence in life.accepted if fence in life.struck}
    if len(life.accepted) - 1 > len(excused):
        yield f"row {id} was received under {life.accepted}, and only {sorted(excused)} were hit by a fault"


def doubles(events: Sequence[Event]) -> int:
    received = Counter(event.id for event in events if event.kind == "accept")
    return sum(times - 1 for times in received.values())
