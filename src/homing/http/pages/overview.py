"""The first page: how much there is of everything, how it goes, and what needs a person now."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from litestar import Controller, MediaType, Response, get
from litestar.di import NamedDependency
from litestar.params import FromQuery

from homing.access.principal import Principal
from homing.db.lately import Lately
from homing.desk import query
from homing.desk.overview import Hours, LaneView, Overview, OverviewView
from homing.errors import DatabaseError
from homing.http.asking import AnyRequest
from homing.http.live import Piece
from homing.http.pages.caught import MAIL_SCOPE, listed_mail
from homing.http.pages.charts import chart_of
from homing.http.pages.shell import PAGE, link, render
from homing.lanes.dispatch_jobs.masking import shown_url
from homing.lanes.dispatch_jobs.statistics import Statistics
from homing.messages.model import Wanted, sees_whole
from homing.senders.caught_mail import Shelf

_LATEST_CAUGHT = 5
#: Webhooks that are named one by one: on a phone each takes a fifth of the screen.
_NEEDING = 5
#: Seconds that the page waits for figures that take their time.
_PATIENCE = 0.1
#: What the charts can show, in hours.
RANGES: Final[tuple[Hours, ...]] = (3, 24)


class OverviewPage(Controller):
    include_in_schema = False
    opt = PAGE

    @get("/", media_type=MediaType.HTML)
    async def overview(
        self,
        request: AnyRequest,
        overview: NamedDependency[Overview],
        job_figures: NamedDependency[Lately[[], Statistics]],
        shelf: NamedDependency[Shelf],
        hours: FromQuery[Hours] = 3,
    ) -> Response[str]:
        user: Principal = request.user
        view = await overview.look(datetime.now(UTC), hours=hours, may=user.may)
        figures = await _at_hand(job_figures) if user.may("jobs:read") else None
        caught = await shelf.list(_LATEST_CAUGHT) if user.may(MAIL_SCOPE) else []
        return render(
            request,
            "overview.html",
            hours=hours,
            ranges=RANGES,
            attention=view.attention,
            notes=view.notes,
            lanes=[lane_values(lane) for lane in view.lanes],
            statistics=figures,
            caught=[listed_mail(row) for row in caught],
            asked=asked,
            shown_url=partial(shown_url, with_path=sees_whole(user.may, "jobs")),
            needing=_NEEDING,
        )


async def _at_hand(figures: Lately[[], Statistics]) -> Statistics | None:
    """They take their time, and the page does not: newer ones are made beside it."""
    try:
        known = await figures.at_hand(_PATIENCE)
    except DatabaseError:
        # The page tells of an outage by itself.
        return None
    return known.answer if known is not None else None


def asked(**wanted: Any) -> str:
    """The list of these messages."""
    return link("/messages", q=query.write(Wanted(**wanted)))


def lane_values(lane: LaneView) -> dict[str, object]:
    return {"lane": lane, "chart": chart_of(lane.series)}


async def overview_pieces(overview: Overview, hours: Hours, may: Callable[[str], bool]) -> list[Piece]:
    """The same, for those who keep the page open."""
    view = await overview.look(datetime.now(UTC), hours=hours, may=may)
    return [_attention(view), *(_lane(lane) for lane in view.lanes)]


def _attention(view: OverviewView) -> Piece:
    return Piece("attention", "overview_attention.html", {"attention": view.attention, "notes": view.notes})


def _lane(lane: LaneView) -> Piece:
    return Piece(f"lane-{lane.lane}", "overview_lane.html", lane_values(lane))
