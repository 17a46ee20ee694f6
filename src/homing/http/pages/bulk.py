"""Bulk runs: count first, then confirm, then watch."""

from __future__ import annotations

from collections.abc import Callable

from litestar import Controller, MediaType, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery

from homing.access.principal import Principal
from homing.desk.bulk import BulkRun, BulkRuns, Counted
from homing.desk.bulk_changed import newest_changed
from homing.errors import Forbidden, HomingError, InvalidRequest
from homing.http.asking import AnyRequest, asker_of, who_of
from homing.http.live import Piece
from homing.http.numbers import page_before, row_id
from homing.http.pages.acting import verb_of
from homing.http.pages.forms import NOTHING_SENT, Form, Refused, Sent
from homing.http.pages.shell import PAGE, VERB_NAMES, gone_to, link, read_form, render
from homing.messages.model import Summary, Verb

_LISTED = 30
#: Of the messages that a run has changed.
_SHOWN = 20
#: The page has but one field that a mistake can be about.
_PLAN = Form("/bulk/new", about="q")
#: Which lanes it touches is known when the line is read; a run asks for their scopes, and is written down.
_ACT = {"scope": "known", "audit": "own"}


class BulkPages(Controller):
    include_in_schema = False
    opt = PAGE

    @get("/bulk", media_type=MediaType.HTML)
    async def bulk(
        self, request: AnyRequest, bulk_runs: NamedDependency[BulkRuns], before: FromQuery[int | None] = None
    ) -> Response[str]:
        runs = await bulk_runs.page(before=page_before(before), limit=_LISTED, may=request.user.may)
        older = link("/bulk", before=runs[-1].id) if len(runs) == _LISTED else ""
        return render(request, "bulk.html", runs=runs, older=older, newest="/bulk" if before else "")

    @get("/bulk/new", media_type=MediaType.HTML)
    async def plan(
        self,
        request: AnyRequest,
        bulk_runs: NamedDependency[BulkRuns],
        q: FromQuery[str] = "",
        verb: FromQuery[str] = "requeue",
    ) -> Response[str]:
        """How many it would be: nothing is changed before that was seen."""
        chosen, counted, sent = verb_of(verb), None, NOTHING_SENT
        try:
            counted = await bulk_runs.count(bulk_runs.read(q), chosen, who_of(request).may)
        except (InvalidRequest, Forbidden) as error:
            sent = _refused(q, error)
        return _plan_page(request, q, chosen, counted, sent)

    @post("/bulk", status_code=303, media_type=MediaType.HTML, opt=_ACT)
    async def start(self, request: AnyRequest, bulk_runs: NamedDependency[BulkRuns]) -> Response[str]:
        form = await read_form(request)
        verb = verb_of(form.get("verb", ""))
        try:
            run = await bulk_runs.start(form.get("q", ""), verb, asker_of(request))
        except InvalidRequest as error:
            return _plan_page(request, form.get("q", ""), verb, sent=_refused(form.get("q", ""), error))
        return gone_to(f"/bulk/{run.id}")

    @get("/bulk/{id:int}", media_type=MediaType.HTML)
    async def run(
        self, request: AnyRequest, bulk_runs: NamedDependency[BulkRuns], id: FromPath[int]
    ) -> Response[str]:
        user: Principal = request.user
        run = await bulk_runs.readable(row_id(id), user.may)
        may = all(user.may(f"{bulk_runs.lanes[name].scope}:operate") for name in run.lanes)
        changed = await _changed(bulk_runs, run)
        return render(request, "bulk_run.html", run=run, changed=changed, may_cancel=may and not run.is_over)

    @post("/bulk/{id:int}/cancel", status_code=303, media_type=MediaType.HTML, opt=_ACT)
    async def cancel(
        self, request: AnyRequest, bulk_runs: NamedDependency[BulkRuns], id: FromPath[int]
    ) -> Response[str]:
        run = await bulk_runs.cancel(row_id(id), asker_of(request))
        stopped = run.state == "cancelled"
        told = "It stops after the batch that is under way." if stopped else "It was over already."
        return gone_to(f"/bulk/{run.id}", told, is_good=stopped)


def _refused(line: str, error: HomingError) -> Sent:
    return _PLAN.sent({"q": line}, Refused(str(error).removeprefix("query: ")))


def _plan_page(
    request: AnyRequest, q: str, verb: Verb, counted: Counted | None = None, sent: Sent = NOTHING_SENT
) -> Response[str]:
    """With the line to be mended, where it cannot be counted."""
    return render(
        request, "bulk_new.html", sent=sent, q=q, verb=verb, label=VERB_NAMES[verb], counted=counted
    )


async def run_pieces(bulk_runs: BulkRuns, id: int, may: Callable[[str], bool]) -> list[Piece]:
    """The progress of a run, for those who watch it."""
    run: BulkRun = await bulk_runs.readable(row_id(id), may)
    changed = await _changed(bulk_runs, run)
    return [
        Piece("progress", "bulk_progress.html", {"run": run}),
        Piece("changed", "bulk_changed.html", {"run": run, "changed": changed}),
    ]


async def _changed(bulk_runs: BulkRuns, run: BulkRun) -> list[Summary]:
    """While it goes on they would be others with each look."""
    return await newest_changed(bulk_runs, run, limit=_SHOWN) if run.is_over and run.done else []
