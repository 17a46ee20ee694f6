"""`/api/bulk`: one verb on all messages that a query line means; `/api/messages/{id}/…`: on one of them."""

from __future__ import annotations

from typing import Annotated, Literal

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import Meta, Struct

from homing.access.principal import Principal
from homing.desk.bulk import PARTICIPLES, BulkRuns
from homing.desk.bulk_view import BulkView, CountView, bulk_view, count_view
from homing.desk.desk import Desk
from homing.errors import InvalidRequest, NotAllowed, NotFound
from homing.http.asking import AnyRequest, asker_of, who_of
from homing.http.numbers import page_before, row_id
from homing.messages.model import Verb
from homing.replies import answers, errors

#: Of who has any key. A query line has 2,000 characters, however they are written.
_LARGEST_BODY = 16 * 1024
_MOST_LISTED = 100
_NOT_NOW = errors({409: "The message is in a state in which that cannot be done"})


# ── many ─────────────────────────────────────────────────────────────────────────────────────────


class BulkRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Which messages, what to do with them, and whether it is meant: `dryRun` is true unless it is said."""

    verb: Literal["requeue", "cancel", "send_now"]
    #: As the search has it, such as `status:dead lane:dispatch_jobs error:timeout`.
    query: Annotated[str, Meta(min_length=1, max_length=2000)]
    dry_run: bool = True


class BulkPage(Struct, frozen=True):
    items: list[BulkView]
    #: What to give as `before` to go on; null at the end.
    next: int | None


class BulkApi(Controller):
    path = "/api/bulk"
    tags = ("desk",)
    request_max_body_size = _LARGEST_BODY

    @post(
        summary="Requeue, cancel or send now all messages that a query line means",
        # Which lanes it touches is known when the line is read. The run writes its own entries.
        opt={"scope": "known", "audit": "own"},
        status_code=202,
        responses=answers(
            (200, CountView, "With `dryRun`: nothing is changed"),
            (202, BulkView, "The run begins"),
        ),
    )
    async def start(
        self,
        request: AnyRequest,
        bulk_runs: NamedDependency[BulkRuns],
        data: JSONBody[BulkRequest],
    ) -> Response[BulkView | CountView]:
        """Needs `desk:read`, and of every lane that the line touches the scopes to read and to operate."""
        asker = asker_of(request)
        if data.dry_run:
            counted = await bulk_runs.count(bulk_runs.read(data.query), data.verb, asker.may)
            return Response(count_view(counted), status_code=200)
        return Response(bulk_view(await bulk_runs.start(data.query, data.verb, asker)), status_code=202)

    @get(summary="Bulk runs, newest first", opt={"scope": "desk:read"})
    async def list(
        self,
        request: AnyRequest,
        bulk_runs: NamedDependency[BulkRuns],
        before: FromQuery[int | None] = None,
        limit: FromQuery[int] = 20,
    ) -> BulkPage:
        """Those whose lanes the key may all read."""
        if not 1 <= limit <= _MOST_LISTED:
            raise InvalidRequest(f"limit must be from 1 to {_MOST_LISTED}", "limit")
        may = asker_of(request).may
        runs = await bulk_runs.page(before=page_before(before), limit=limit, may=may)
        items = [bulk_view(run) for run in runs]
        return BulkPage(items, items[-1].id if len(items) == limit else None)

    @get(
        "/{run_id:int}",
        summary="How a bulk run stands",
        opt={"scope": "desk:read"},
    )
    async def get(
        self, request: AnyRequest, bulk_runs: NamedDependency[BulkRuns], run_id: FromPath[int]
    ) -> BulkView:
        return bulk_view(await bulk_runs.readable(row_id(run_id), asker_of(request).may))

    @post(
        "/{run_id:int}/cancel",
        summary="Stop a bulk run after the batch that is under way",
        opt={"scope": "known", "audit": "own"},
        status_code=200,
    )
    async def cancel(
        self, request: AnyRequest, bulk_runs: NamedDependency[BulkRuns], run_id: FromPath[int]
    ) -> BulkView:
        """What was done stays done. One that is over stays as it is."""
        return bulk_view(await bulk_runs.cancel(row_id(run_id), asker_of(request)))


# ── one ──────────────────────────────────────────────────────────────────────────────────────────


class ActedView(Struct, frozen=True):
    """A message after something was done with it."""

    id: str
    lane: str
    #: In the lane's own word.
    state: str
    phase: str


class MessageActions(Controller):
    """Of every lane. The scope is that of the message's lane, such as `jobs:operate`."""

    path = "/api/messages"
    tags = ("desk",)
    opt = {"scope": "known"}  # noqa: RUF012 - Litestar's own form
    request_max_body_size = _LARGEST_BODY

    @post(
        "/{message_id:str}/requeue",
        summary="Deliver an ended message again, with all attempts",
        status_code=200,
        responses=_NOT_NOW,
    )
    async def requeue(
        self, request: AnyRequest, desk: NamedDependency[Desk], message_id: FromPath[str]
    ) -> ActedView:
        return await _act(desk, who_of(request), "requeue", message_id)

    @post(
        "/{message_id:str}/cancel",
        summary="End a message that waits",
        status_code=200,
        responses=_NOT_NOW,
    )
    async def cancel(
        self, request: AnyRequest, desk: NamedDependency[Desk], message_id: FromPath[str]
    ) -> ActedView:
        return await _act(desk, who_of(request), "cancel", message_id)

    @post(
        "/{message_id:str}/send-now",
        summary="Make a message due that waits",
        status_code=200,
        responses=_NOT_NOW,
    )
    async def send_now(
        self, request: AnyRequest, desk: NamedDependency[Desk], message_id: FromPath[str]
    ) -> ActedView:
        """What holds it back besides its time stays so: a pause, a limit, an order, somebody's hours."""
        return await _act(desk, who_of(request), "send_now", message_id)


async def _act(desk: Desk, who: Principal, verb: Verb, id: str) -> ActedView:
    place = desk.place(id)
    if place is None:
        raise NotFound(f"there is no message {id[:100]}")
    lane, number = place
    who.require(f"{lane.scope}:operate")
    changed = await lane.act(verb, [number])
    shown = await lane.show(number)
    if shown is None:
        raise NotFound(f"there is no message {id}")
    if not changed:
        raise NotAllowed(
            f"a message that is {shown.summary.state} cannot be {PARTICIPLES[verb]}: only one that is "
            f"{' or '.join(lane.from_states[verb])}, and that nobody holds"
        )
    summary = shown.summary
    return ActedView(summary.id, summary.lane, summary.state, summary.phase)
