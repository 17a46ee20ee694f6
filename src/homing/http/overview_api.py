"""`GET /api/overview`: what the first page shows, for programs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from litestar import Controller, Request, get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromQuery

from homing.access.api import ErrorReply
from homing.access.principal import Principal
from homing.desk.overview import Hours, Overview, OverviewView

_DESCRIPTIONS = {
    400: "hours is 3 or 24",
    401: "A key is needed, and none that counts was given",
    403: "The key lacks the scope that the message names",
}
#: Parameters of a query are texts.
_HOURS: dict[str, Hours] = {"3": 3, "24": 24}


class OverviewApi(Controller):
    path = "/api/overview"
    tags = ("desk",)

    @get(
        summary="How each lane does, and what needs somebody now",
        opt={"scope": "desk:read"},
        responses={
            status: ResponseSpec(ErrorReply, description=told, generate_examples=False)
            for status, told in _DESCRIPTIONS.items()
        },
    )
    async def overview(
        self,
        request: Request[Any, Any, Any],
        overview: NamedDependency[Overview],
        hours: FromQuery[Literal["3", "24"]] = "3",
    ) -> OverviewView:
        """Of the lanes whose read scope the key has.

        Durations are seconds. A `series` goes back as many hours as asked for, in even steps.
        """
        user: Principal = request.user
        return await overview.look(datetime.now(UTC), hours=_HOURS[hours], may=user.may)
