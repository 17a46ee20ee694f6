"""Dead letters, grouped by what they died of. A whole group is requeued by a bulk run."""

from __future__ import annotations

from litestar import Controller, MediaType, Response, get
from litestar.di import NamedDependency
from msgspec import Struct

from homing.access.principal import Principal
from homing.desk import query
from homing.desk.desk import Desk
from homing.http.asking import AnyRequest
from homing.http.pages.shell import PAGE, link, render
from homing.messages.model import DeadGroup


class GroupRow(Struct, frozen=True):
    group: DeadGroup
    #: The messages of the group, as a list.
    messages: str
    #: Where it is asked how many would be requeued; empty for who may not.
    requeue: str


class DeadPage(Controller):
    include_in_schema = False
    opt = PAGE

    @get("/dead", media_type=MediaType.HTML)
    async def dead(self, request: AnyRequest, desk: NamedDependency[Desk]) -> Response[str]:
        user: Principal = request.user
        found = await desk.dead_groups(may=user.may)
        rows = [_row(desk, user, group) for group in found.groups]
        total = sum(group.count for group in found.groups)
        return render(request, "dead.html", rows=rows, notes=found.notes, total=total)


def _row(desk: Desk, user: Principal, group: DeadGroup) -> GroupRow:
    line = query.write(query.of_group(group))
    may = user.may(f"{desk.lanes[group.lane].scope}:operate")
    requeue = link("/bulk/new", q=line, verb="requeue") if may else ""
    return GroupRow(group, link("/messages", q=line), requeue)
