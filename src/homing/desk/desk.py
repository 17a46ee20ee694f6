"""The messages of all lanes as one list, and one message by its id, whichever lane it is in."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from homing.db.conditions import is_pattern
from homing.desk.bulk_story import BulkStory
from homing.errors import DatabaseError, Forbidden, InvalidRequest
from homing.messages.facts import DUE
from homing.messages.mails import spelling_out
from homing.messages.model import (
    DeadGroup,
    Detail,
    LaneDesk,
    LaneName,
    MailParts,
    Seen,
    Summary,
    Wanted,
    sees_whole,
)

Answer = TypeVar("Answer")
May = Callable[[str], bool]
WhyIdle = Callable[[str], Awaitable[str | None]]

MOST_ROWS: Final = 200
#: A lane that takes longer is left out, and the page says so: the others are not kept waiting.
_PATIENCE = 5.0


class Found(Struct, frozen=True):
    """A page of messages, newest first."""

    rows: Sequence[Summary]
    #: What to give as cursor to go on; None at the end.
    next: str | None
    #: How many rows were looked through, where no index serves the question and the page is not full.
    looked_at: int | None = None
    #: Why a lane is not in it: its database is away.
    troubles: Mapping[LaneName, str] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not in it, in sentences."""
        return _notes(self.troubles)


class DeadGroups(Struct, frozen=True):
    groups: Sequence[DeadGroup]
    notes: tuple[str, ...] = ()


class Cursor(Struct, frozen=True, array_like=True):
    """Where each lane stands. One that is not in it has been read to its end."""

    filter: str
    positions: Mapping[LaneName, int | None]


class Desk:
    """`why_idle` says in words why nobody takes from a lane; None where somebody does."""

    def __init__(
        self,
        lanes: Mapping[LaneName, LaneDesk],
        why_idle: WhyIdle | None = None,
        bulk_story: BulkStory | None = None,
    ) -> None:
        self.lanes = lanes
        self._why_idle, self._bulk_story = why_idle, bulk_story

    # ── many ─────────────────────────────────────────────────────────────────────────────────────

    async def find(self, wanted: Wanted, *, cursor: str | None = None, limit: int = 50, may: May) -> Found:
        """The next page, of the lanes that whoever asks may read."""
        begun = read_cursor(cursor, wanted) if cursor is not None else None
        positions = self._positions(wanted, begun, may)
        limit = max(1, min(limit, MOST_ROWS))
        looks = {
            name: partial(self.lanes[name].find, wanted, before=before, limit=limit)
            for name, before in positions.items()
        }
        seen, troubles = await _all_of(looks)
        rows = merged(seen, limit)
        following = _following(positions, seen, rows)
        for name in self._readable_of(wanted, may):
            if (what := self._spelt_out(name, wanted, may)) is not None:
                scope = self.lanes[name].scope
                troubles[name] = f"to look for {what} needs the scope {scope}:write or {scope}:operate"
        looked = [one.looked_at for one in seen.values() if one.looked_at is not None]
        return Found(
            rows,
            _written(Cursor(_digest(wanted), following)) if following else None,
            # Of none it need not be said: no message has an error, or whatever else comes first.
            (sum(looked) or None) if len(rows) < limit else None,
            troubles,
        )

    def _positions(self, wanted: Wanted, begun: Cursor | None, may: May) -> dict[LaneName, int | None]:
        readable = [
            name for name in self._readable_of(wanted, may) if self._spelt_out(name, wanted, may) is None
        ]
        if begun is None:
            return dict.fromkeys(readable)
        return {name: begun.positions[name] for name in readable if name in begun.positions}

    def _readable_of(self, wanted: Wanted, may: May) -> list[LaneName]:
        return [
            name for name, lane in self.lanes.items() if name in wanted.lanes and may(f"{lane.scope}:read")
        ]

    def _spelt_out(self, name: LaneName, wanted: Wanted, may: May) -> str | None:
        """What would be told, letter by letter or by guesses, that is shown only to who knows it."""
        if sees_whole(may, self.lanes[name].scope):
            return None
        if name in {"mail_outbox", "email_log"}:
            return spelling_out(wanted)
        is_path = wanted.to is not None and "/" in wanted.to and is_pattern(wanted.to)
        return "a pattern of a URL's path" if name == "dispatch_jobs" and is_path else None

    async def dead_groups(self, *, may: May) -> DeadGroups:
        """What was given up and why, of all lanes; the largest groups first."""
        asked = {name: lane.dead_groups for name, lane in self.lanes.items() if may(f"{lane.scope}:read")}
        found, troubles = await _all_of(asked)
        groups = [group for groups in found.values() for group in groups]
        return DeadGroups(sorted(groups, key=lambda group: -group.count), _notes(troubles))

    # ── one ──────────────────────────────────────────────────────────────────────────────────────

    def place(self, id: str) -> tuple[LaneDesk, int] | None:
        """Which lane an id belongs to, and its number there; None for what is no id."""
        for lane in self.lanes.values():
            if (number := lane.number(id)) is not None:
                return lane, number
        return None

    async def show(self, id: str, *, may: May) -> Detail | None:
        found = self._readable(id, may)
        if found is None:
            return None
        lane, number = found
        detail = await lane.show(number, whole=sees_whole(may, lane.scope))
        return detail if detail is None else await self._with_bulk_runs(await self._told_truly(detail), may)

    async def _with_bulk_runs(self, detail: Detail, may: May) -> Detail:
        """A lane knows nothing of the runs that changed its messages."""
        if self._bulk_story is None:
            return detail
        readable = {name for name, lane in self.lanes.items() if may(f"{lane.scope}:read")}
        message, timeline = detail.summary, [*detail.timeline]
        # What else is known of the message is shown all the same.
        with suppress(DatabaseError):
            for done in await self._bulk_story.of(message.lane, message.number, readable=readable):
                # A table that was emptied gives its numbers out again.
                if done.at >= message.created_at:
                    later = (place for place, step in enumerate(timeline) if step.at >= done.at)
                    timeline.insert(next(later, len(timeline)), done)
        return msgspec.structs.replace(detail, timeline=timeline)

    async def _told_truly(self, detail: Detail) -> Detail:
        """A lane takes for granted that somebody works on it."""
        if self._why_idle is None or not (detail.waits or "").startswith(DUE):
            return detail
        # What else is known of the message is shown all the same.
        with suppress(DatabaseError):
            if (why := await self._why_idle(detail.summary.lane)) is not None:
                return msgspec.structs.replace(detail, waits=f"it is due, but {why}")
        return detail

    async def mail(self, id: str, *, may: May) -> MailParts | None:
        found = self._readable(id, may)
        return await found[0].mail(found[1]) if found is not None else None

    def _readable(self, id: str, may: May) -> tuple[LaneDesk, int] | None:
        found = self.place(id)
        if found is not None and not may(scope := f"{found[0].scope}:read"):
            raise Forbidden(f"this needs the scope {scope}")
        return found


async def _all_of(
    asked: Mapping[LaneName, Callable[[], Awaitable[Answer]]],
) -> tuple[dict[LaneName, Answer], dict[LaneName, str]]:
    """What each lane answers, all asked at once; of a lane that cannot answer, why."""
    answers = await asyncio.gather(*(_patiently(one) for one in asked.values()))
    found: dict[LaneName, Answer] = {}
    troubles: dict[LaneName, str] = {}
    for name, (answer, trouble) in zip(asked, answers, strict=True):
        if trouble is not None:
            troubles[name] = trouble
        elif answer is not None:
            found[name] = answer
    return found, troubles


def _notes(troubles: Mapping[LaneName, str]) -> tuple[str, ...]:
    return tuple(f"{name} is left out: {trouble}" for name, trouble in troubles.items())


async def _patiently(ask: Callable[[], Awaitable[Answer]]) -> tuple[Answer | None, str | None]:
    """Asked only here: whoever goes away before it has begun leaves nothing behind that nobody awaits."""
    try:
        async with asyncio.timeout(_PATIENCE):
            return await ask(), None
    except TimeoutError:
        return None, f"its database did not answer within {_PATIENCE:.0f} s"
    except (DatabaseError, InvalidRequest) as error:
        return None, str(error)


# ── merging ──────────────────────────────────────────────────────────────────────────────────────


def merged(seen: Mapping[LaneName, Seen], limit: int) -> list[Summary]:
    """The newest of all. Within a lane the order stays: it is that of its ids, by which it goes on."""
    streams = [list(one.rows) for one in seen.values()]
    rows: list[Summary] = []
    while len(rows) < limit and (some := [stream for stream in streams if stream]):
        newest = max(some, key=lambda stream: stream[0].created_at)
        rows.append(newest.pop(0))
    return rows


def _following(
    positions: Mapping[LaneName, int | None], seen: Mapping[LaneName, Seen], rows: Sequence[Summary]
) -> dict[LaneName, int | None]:
    """Where each lane goes on; those that were read to their end are left out."""
    shown = {row.lane: row.number for row in rows}
    following: dict[LaneName, int | None] = {}
    for name, before in positions.items():
        if name not in seen:
            # It could not be asked; perhaps it can next time.
            following[name] = before
            continue
        all_shown = not seen[name].rows or seen[name].rows[-1].number == shown.get(name)
        position = seen[name].next if all_shown else shown.get(name, before)
        if not all_shown or position is not None:
            following[name] = position
    return following


# ── cursors ──────────────────────────────────────────────────────────────────────────────────────


def _digest(wanted: Wanted) -> str:
    """Of what was typed, ages are another time with each look; so times do not count."""
    lasting = msgspec.structs.replace(wanted, since=None, until=None)
    return hashlib.sha256(msgspec.json.encode(lasting)).hexdigest()[:12]


def _written(cursor: Cursor) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")


def read_cursor(text: str, wanted: Wanted) -> Cursor:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        cursor = msgspec.json.decode(data, type=Cursor)
    except (ValueError, msgspec.MsgspecError):
        raise InvalidRequest("cursor: is none; take it from `next` of a page", "cursor") from None
    if cursor.filter != _digest(wanted):
        raise InvalidRequest("cursor: belongs to another query; begin without it", "cursor")
    if any(position is not None and not 0 <= position < 2**63 for position in cursor.positions.values()):
        raise InvalidRequest("cursor: is none; take it from `next` of a page", "cursor")
    return cursor
