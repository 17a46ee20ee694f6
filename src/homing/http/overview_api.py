"""`GET /api/overview`: what the first page shows, for programs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import FromQuery

from homing.desk.overview import Hours, Overview, OverviewView
from homing.http.asking import AnyRequest, who_of

#: Parameters of a query are texts.
_HOURS: dict[str, Hours] = {"3": 3, "24": 24}


class OverviewApi(Controller):
    path = "/api/overview"
    tags = ("desk",)

    @get(
        summary="How each lane does, and what needs somebody now",
        opt={"scope": "desk:read"},
    )
    async def overview(
        self,
        request: AnyRequest,
        overview: NamedDependency[Overview],
        hours: FromQuery[Literal["3", "24"]] = "3",
    ) -> OverviewView:
        """Of the lanes whose read scope the key has.

        Durations are seconds. A `series` goes back as many hours as asked for, in even steps.
        """
        return await overview.look(datetime.now(UTC), hours=_HOURS[hours], may=who_of(request).may)
