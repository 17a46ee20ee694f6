"""What people do with messages by a button: one, or those that they selected. All at once is a bulk run's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from homing.access.audit import AuditLog, Entry, Outcome
from homing.access.principal import Principal
from homing.desk.desk import Desk
from homing.errors import Forbidden, InvalidRequest
from homing.http.asking import AnyRequest, address_of, who_of
from homing.messages.model import LaneDesk, LaneName, Verb

VERBS: Final[tuple[Verb, ...]] = ("requeue", "send_now", "cancel")
DONE: Final[dict[Verb, str]] = {"requeue": "requeued", "send_now": "due now", "cancel": "cancelled"}
#: A page has fifty rows, and the tail adds some; whoever means more means a filter.
MOST_SELECTED: Final = 500
_TOLD_IDS = 100


class Acted(Struct, frozen=True):
    done: int
    #: Are not there, or in no state for it.
    left: int
    #: What would be, in the words of the lanes.
    states: tuple[str, ...] = ()

    @property
    def why_not(self) -> str:
        if not self.states:
            return "there are no such messages, or none that this can be done with"
        return f"this needs one that is {' or '.join(self.states)}"


def verb_of(text: str) -> Verb:
    for verb in VERBS:
        if text == verb:
            return verb
    raise InvalidRequest(f"there is nothing like {text[:40]!r} to do", "verb")


def allowed_verbs(desk: Desk, user: Principal) -> list[Verb]:
    """What somebody may do with messages of at least one lane."""
    lanes = [lane for lane in desk.lanes.values() if user.may(f"{lane.scope}:operate")]
    return [verb for verb in VERBS if any(lane.from_states.get(verb) for lane in lanes)]


async def act(desk: Desk, audit: AuditLog, request: AnyRequest, verb: Verb, ids: Sequence[str]) -> Acted:
    """Lane by lane. Who may not in one of them changes nothing in any."""
    user = who_of(request)
    chosen = _by_lane(desk, ids)
    try:
        _require(user, [lane for lane, _ in chosen.values()])
    except Forbidden:
        await audit.write(_entry(request, verb, ids, "refused"))
        raise
    done = 0
    for lane, numbers in chosen.values():
        done += len(await lane.act(verb, numbers))
    await audit.write(_entry(request, verb, ids, "done" if done else "refused", done))
    states = (state for lane, _ in chosen.values() for state in lane.from_states.get(verb, ()))
    return Acted(done, len(ids) - done, tuple(dict.fromkeys(states)))


def _by_lane(desk: Desk, ids: Sequence[str]) -> dict[LaneName, tuple[LaneDesk, list[int]]]:
    found: dict[LaneName, tuple[LaneDesk, list[int]]] = {}
    for id in dict.fromkeys(ids):
        place = desk.place(id)
        if place is not None:
            found.setdefault(place[0].name, (place[0], []))[1].append(place[1])
    return found


def _require(user: Principal, lanes: Sequence[LaneDesk]) -> None:
    for lane in lanes:
        user.require(f"{lane.scope}:operate")


def _entry(request: AnyRequest, verb: Verb, ids: Sequence[str], outcome: Outcome, done: int = 0) -> Entry:
    object = ids[0][:100] if len(ids) == 1 else None
    detail = None if len(ids) == 1 and done else {"done": done, "ids": [id[:100] for id in ids[:_TOLD_IDS]]}
    who = who_of(request).who
    return Entry(who, f"messages.{verb}", object, address_of(request), detail, outcome)
