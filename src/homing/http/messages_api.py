"""`/api/messages`: the messages of all lanes by a query line, and one with everything about it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter

from homing.desk import query
from homing.desk.desk import MOST_ROWS, Desk
from homing.desk.view import MessageDetail, MessagePage, detail_view, page_view
from homing.errors import InvalidRequest, NotFound
from homing.http.asking import AnyRequest
from homing.messages.model import Wanted

Line = Annotated[
    str,
    QueryParameter(
        name="q", description="A query line, such as `status:dead type:order.* since:2h`; all when empty."
    ),
]
Cursor = Annotated[str | None, QueryParameter(description="`next` of another page, to go on from there.")]
Limit = Annotated[int, QueryParameter(ge=1, le=MOST_ROWS, description="How many at most.")]


class MessagesApi(Controller):
    """Messages of all lanes."""

    path = "/api/messages"
    tags = ("messages",)

    @get(
        "/",
        summary="Messages of all lanes, newest first, by a query line",
        opt={"scope": "desk:read"},
    )
    async def list(
        self,
        request: AnyRequest,
        desk: NamedDependency[Desk],
        q: Line = "",
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> MessagePage:
        """Of the lanes whose read scope the key has."""
        wanted = wanted_of(q)
        found = await desk.find(wanted, cursor=cursor, limit=limit, may=_may(request))
        return page_view(found, wanted)

    @get(
        "/{message_id:str}",
        summary="One message of any lane: timeline, payload, mail, and why it waits",
        opt={"scope": "desk:read"},
    )
    async def get(
        self, request: AnyRequest, desk: NamedDependency[Desk], message_id: FromPath[str]
    ) -> MessageDetail:
        may = _may(request)
        detail = await desk.show(message_id, may=may)
        if detail is None:
            raise NotFound(
                f"there is no message {message_id[:40]!r}; ids look like outbox_123, email_123, "
                "notification_123 or 0ARYZVZXW372S"
            )
        mail = await desk.mail(message_id, may=may) if detail.has_mail else None
        return detail_view(detail, mail)


def wanted_of(line: str) -> Wanted:
    """Raises `InvalidRequest` with the place and what was probably meant."""
    wanted = query.read(line, datetime.now(UTC))
    if isinstance(wanted, Wanted):
        return wanted
    raise InvalidRequest(query.told(wanted), "q")


def _may(request: AnyRequest) -> Any:
    """Without a door nobody is asked: for tests of routes."""
    user = request.scope.get("user")
    return user.may if user is not None else lambda _scope: True
