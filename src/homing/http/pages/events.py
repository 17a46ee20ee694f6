"""GET /events: the live updates of a page, as server-sent events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Literal

from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import FromQuery
from litestar.response import Stream

from homing.access.desk import Access
from homing.access.principal import Principal
from homing.desk.bulk import BulkRuns
from homing.desk.desk import Desk
from homing.desk.overview import Hours, Overview
from homing.errors import DatabaseError
from homing.http.asking import AnyRequest
from homing.http.guard import Site
from homing.http.live import Look, Streams
from homing.http.messages_api import wanted_of
from homing.http.pages.bulk import run_pieces
from homing.http.pages.message import story_pieces
from homing.http.pages.messages import message_pieces
from homing.http.pages.overview import overview_pieces
from homing.http.pages.shell import PAGE

#: A proxy must not hold back what comes bit by bit.
_HEADERS = {"X-Accel-Buffering": "no"}
#: Seconds between two looks.
_EVERY = {"overview": 2.0, "messages": 1.0, "message": 1.0, "bulk": 0.5}


class LiveEvents(Controller):
    include_in_schema = False
    opt = PAGE

    @get("/events", media_type="text/event-stream")
    async def events(
        self,
        *,
        request: AnyRequest,
        streams: NamedDependency[Streams],
        access: NamedDependency[Access],
        site: NamedDependency[Site],
        desk: NamedDependency[Desk],
        overview: NamedDependency[Overview],
        bulk_runs: NamedDependency[BulkRuns],
        topic: FromQuery[Literal["overview", "messages", "message", "bulk"]],
        q: FromQuery[str] = "",
        id: FromQuery[int] = 0,
        hours: FromQuery[Hours] = 3,
    ) -> Stream:
        user: Principal = request.user
        match topic:
            case "overview":
                key, look = _overview(overview, user, hours)
            case "messages":
                key, look = _messages(desk, user, q)
            case "message":
                key, look = await _message(desk, user, q)
            case "bulk":
                key, look = await _bulk(bulk_runs, user, id)
        # A topic is shared by those who may do the same: nobody gets what only another one may see.
        following = await streams.follow(
            user.who,
            (key, user.scopes),
            look,
            every=_EVERY[topic],
            counts=_still_counts(request, access, site),
        )
        return Stream(following, media_type="text/event-stream", headers=_HEADERS)


def _overview(overview: Overview, user: Principal, hours: Hours) -> tuple[Hashable, Look]:
    return ("overview", hours), lambda: overview_pieces(overview, hours, user.may)


def _messages(desk: Desk, user: Principal, line: str) -> tuple[Hashable, Look]:
    wanted_of(line)
    return ("messages", line), lambda: message_pieces(desk, line, user.may)


async def _message(desk: Desk, user: Principal, id: str) -> tuple[Hashable, Look]:
    """Who may not see it is refused here. Of a bulk run, who may read all its lanes sees more than others."""
    await story_pieces(desk, id, user.may)
    return ("message", id), lambda: story_pieces(desk, id, user.may)


async def _bulk(bulk_runs: BulkRuns, user: Principal, id: int) -> tuple[Hashable, Look]:
    """As with a message."""
    await run_pieces(bulk_runs, id, user.may)
    return ("bulk", id), lambda: run_pieces(bulk_runs, id, user.may)


def _still_counts(request: AnyRequest, access: Access, site: Site) -> Callable[[], Awaitable[bool]]:
    """Whether whoever began to follow is logged in still, and may. To look on is no use of a session."""
    user: Principal = request.user
    token, key = site.session_cookie(request), request.headers.get("authorization", "")

    async def counts() -> bool:
        try:
            match user.kind:
                case "user":
                    found = await access.sessions.look(token or "")
                case "key":
                    answer = await access.keys.authenticate(key.partition(" ")[2].strip())
                    found = answer if isinstance(answer, Principal) else None
                case _:
                    found = None if await access.is_configured() else user
        except DatabaseError:
            # Nothing is shown of a database that is away, so nothing is to be hidden either.
            return True
        return found is not None and found.scopes >= user.scopes

    return counts
