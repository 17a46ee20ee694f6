"""`/api/dispatch`: jobs created, looked for, looked at, cancelled, requeued; dead letters and targets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from litestar import Controller, Request, Response, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from msgspec import Struct
from msgspec.structs import replace

from homing.db import Row
from homing.engine.aside import aside
from homing.errors import InvalidRequest, NotAllowed, NotFound
from homing.lanes.dispatch_jobs import bulk, target_desk
from homing.lanes.dispatch_jobs.bulk import BulkActions, JobBulkReply, JobBulkRequest
from homing.lanes.dispatch_jobs.dead import DeadJobs, DeadLetters
from homing.lanes.dispatch_jobs.filters import NAMES, Parameters
from homing.lanes.dispatch_jobs.jobs import DispatchJobs
from homing.lanes.dispatch_jobs.masking import attempts_sight_of, sight_of
from homing.lanes.dispatch_jobs.mistakes import read
from homing.lanes.dispatch_jobs.openapi import LOCATION, DeadOperation, SearchOperation, TargetsOperation
from homing.lanes.dispatch_jobs.orders import Admit, JobRequest, Rules
from homing.lanes.dispatch_jobs.placing import BatchRequest, JobOrders, Rejection, any_queue
from homing.lanes.dispatch_jobs.search import JobSearch, open_search
from homing.lanes.dispatch_jobs.statistics import JobStatistics, Statistics
from homing.lanes.dispatch_jobs.target_desk import (
    LimitRequest,
    PauseRequest,
    Probe,
    ProbeResult,
    ResumeRequest,
    TargetDesk,
    TargetPage,
    TargetView,
    ValidateRequest,
)
from homing.lanes.dispatch_jobs.tsid import number_of
from homing.lanes.dispatch_jobs.view import (
    Attempt,
    JobSummary,
    JobView,
    attempted,
    echoed,
    job_number,
    listed,
    shown,
)
from homing.replies import BatchReply, ErrorReply, answers, errors
from homing.strict_json import require_json
from homing.telemetry import Telemetry

AnyRequest = Request[Any, Any, Any]

#: Handlers decode their bodies themselves, into messages that say how to mend them.
_OWN_BODY = {"reads_own_body": True}
_READS = {"scope": "jobs:read"}
_CREATES = {**_OWN_BODY, "scope": "jobs:write", "audit": "counted"}
_BULK = {
    **_OWN_BODY,
    "scope": "jobs:operate",
    "audit_body": ("filter", "all", "dryRun", "limit"),
    "audit_reply": ("matched", "changed"),
}
#: The URL in the body may hold a secret of the receiver's; the target in the answer holds none.
_TARGET = {
    **_OWN_BODY,
    "scope": "jobs:operate",
    "audit_body": ("credentialsId", "seconds", "reason", "maxConcurrency", "ratePerSecond"),
    "audit_reply": ("target",),
}
_PROBE = {**_OWN_BODY, "scope": "jobs:operate", "audit_body": ("credentialsId",)}
_TOO_LARGE = "The payload is larger than 1 MiB, or the body larger than 16 MiB"
_NOT_NOW = errors({409: "The job is in a state in which that cannot be done"})
_PAGING = ("page", "size", "cursor")
_LAST_PAGE = 99_999


class JobPage(Struct, frozen=True, rename="camel"):
    """Jobs, newest first."""

    items: list[JobSummary]
    page: int
    size: int
    total_items: int
    total_pages: int
    #: False: exact. True above 100,000 matches, and where counting them would take too long.
    total_is_estimate: bool
    #: What to give as `cursor` to go on; null at the end.
    next: str | None


class _Batch(Struct, frozen=True, forbid_unknown_fields=True):
    jobs: list[msgspec.Raw]
    atomic: bool = False


_BATCH_HINTS: Mapping[str, str] = {
    "": "the body must be an array of jobs, or an object with jobs",
    "jobs": "it is an array of 1 to 1,000 jobs",
    "atomic": "it is true or false",
}


class Jobs(Controller):
    """Dispatch jobs: signed webhooks that are on their way, or were."""

    path = "/api/dispatch/jobs"
    tags = ("dispatch_jobs",)

    @post(
        "/",
        status_code=201,
        summary="Create a job",
        opt=_CREATES,
        responses={
            **answers((200, JobView, "The idempotency key is known with the same content")),
            **errors({409: "The idempotency key is another job's", 413: _TOO_LARGE}),
        },
        response_headers=[LOCATION],
    )
    async def create(
        self,
        job_orders: NamedDependency[JobOrders],
        dispatch_jobs: NamedDependency[DispatchJobs],
        request: AnyRequest,
        data: JSONBody[JobRequest | None] = None,  # noqa: ARG002 - documents the body
    ) -> Response[JobView]:
        """The payload will be posted to `targetUrl`, signed where `credentialsId` names credentials.

        With an `idempotencyKey`, the same order again answers 200 with the first job, and another order under
        that key 409. A key is one of its source, type, target and credentials, so one event's key serves all
        subscribers.

        Credentials are for the origins in their `allowedTargets`. Another is a 403, unless the caller has
        credentials:admin: then it is added.
        """
        require_json(request.headers.get("content-type"))
        placed = await job_orders.place(await request.body(), adds=_adds(request))
        ordered = placed.ordered
        created = ordered.verdict == "created"
        # The first of an ordered group is ready, the others wait: the row knows.
        at_hand = created and placed.order.ordering == "none"
        job = echoed(placed.order, ordered) if at_hand else await _shown(dispatch_jobs, ordered.id)
        location = {"Location": f"/api/dispatch/jobs/{job.id}"}
        return Response(job, status_code=201 if created else 200, headers=location)

    @post(
        "/batch",
        status_code=200,
        summary="Create up to 1,000 jobs",
        opt=_CREATES,
        responses={
            **answers((200, BatchReply, "A verdict for each job")),
            **errors({409: "With `atomic`: keys are other jobs', so none was created"}),
        },
    )
    async def create_batch(
        self,
        job_orders: NamedDependency[JobOrders],
        request: AnyRequest,
        data: JSONBody[BatchRequest | list[JobRequest] | None] = None,  # noqa: ARG002 - documents the body
    ) -> Response[BatchReply | ErrorReply]:
        """Every job gets a verdict: created, duplicate, conflict or invalid; one that is invalid fails alone.
        Credentials that may not be used for a `targetUrl` are invalid, with the code FORBIDDEN.

        With `"atomic": true` either all are created or none: 400 lists what is invalid, 403 what is not
        allowed where nothing else is wrong, 409 the keys that were used for other jobs.
        """
        require_json(request.headers.get("content-type"))
        body = await request.body()
        batch = await aside(len(body), _batch, body)
        if not batch.atomic:
            return Response(await job_orders.place_all(batch.jobs, adds=_adds(request)))
        placed = await job_orders.place_together(batch.jobs, adds=_adds(request))
        if isinstance(placed, Rejection):
            return Response(placed.reply, status_code=placed.status)
        return Response(placed)

    @get(
        "/",
        summary="Search jobs, newest first",
        opt=_READS,
        operation_class=SearchOperation,
    )
    async def search(self, job_search: NamedDependency[JobSearch], request: AnyRequest) -> JobPage:
        """All filters that are given must match. `page` reaches the first 100,000 matches; `cursor` any.

        The query of a `targetUrl` often holds a secret: who may write or operate jobs sees it.
        """
        given = Parameters(request.query_params.multi_items(), (*NAMES, *_PAGING), metadata=True)
        size = given.number("size", 20, 1, 100)
        page, cursor = given.number("page", 0, 0, _LAST_PAGE), given.text("cursor")
        if cursor is not None and given.text("page") is not None:
            raise InvalidRequest("page: a cursor knows its page; leave one of them out", "page")
        found = await job_search.page(given.filter(), page=page, size=size, cursor=cursor)
        seen = sight_of(request)
        return JobPage(
            [seen(listed(row)) for row in found.rows],
            found.page,
            size,
            found.total.items,
            found.total.pages(size),
            found.total.is_estimate,
            found.next,
        )

    @post(
        "/cancel",
        status_code=200,
        summary="Cancel many jobs, chosen by a filter",
        opt=_BULK,
    )
    async def cancel_many(
        self,
        job_bulk: NamedDependency[BulkActions],
        request: AnyRequest,
        data: JSONBody[JobBulkRequest | None] = None,  # noqa: ARG002 - documents the body
    ) -> JobBulkReply:
        """Only jobs that are PENDING or FAILED. Counts, unless `dryRun` is false."""
        return await job_bulk("cancel", await _body(request, JobBulkRequest, bulk.HINTS))

    @post(
        "/requeue",
        status_code=200,
        summary="Requeue many jobs, chosen by a filter",
        opt=_BULK,
    )
    async def requeue_many(
        self,
        job_bulk: NamedDependency[BulkActions],
        request: AnyRequest,
        data: JSONBody[JobBulkRequest | None] = None,  # noqa: ARG002 - documents the body
    ) -> JobBulkReply:
        """Only jobs that are in ERROR or CANCELLED. Counts, unless `dryRun` is false."""
        return await job_bulk("requeue", await _body(request, JobBulkRequest, bulk.HINTS))

    @get("/{job_id:str}", summary="One job, and what it waits for", opt=_READS)
    async def show(
        self, dispatch_jobs: NamedDependency[DispatchJobs], request: AnyRequest, job_id: FromPath[str]
    ) -> JobView:
        """`waitingFor` says why an open job is not sent yet, and until when.

        Headers and the query of `targetUrl` may hold secrets: who may write or operate jobs sees them.
        """
        return sight_of(request)(await _shown(dispatch_jobs, job_number(job_id)))

    @get(
        "/{job_id:str}/attempts",
        summary="The attempts of a job, in order",
        opt=_READS,
    )
    async def attempts(
        self, dispatch_jobs: NamedDependency[DispatchJobs], request: AnyRequest, job_id: FromPath[str]
    ) -> list[Attempt]:
        """`errorStackTrace` is that of an error of our own, and only administrators see it."""
        number = job_number(job_id)
        rows = await dispatch_jobs.attempts(number)
        if not rows:
            await _existing(dispatch_jobs, number)
        return [*map(attempts_sight_of(request), map(attempted, rows))]

    @post(
        "/{job_id:str}/cancel",
        status_code=200,
        summary="Cancel a job",
        opt={"scope": "jobs:operate"},
        responses=_NOT_NOW,
    )
    async def cancel(
        self, dispatch_jobs: NamedDependency[DispatchJobs], request: AnyRequest, job_id: FromPath[str]
    ) -> JobView:
        """One that is PENDING or FAILED. What is IN_PROGRESS answers 409: it is being sent."""
        number = job_number(job_id)
        if not await dispatch_jobs.cancel([number]):
            raise NotAllowed(_not_cancelled((await _existing(dispatch_jobs, number))["status"]))
        return sight_of(request)(await _shown(dispatch_jobs, number))

    @post(
        "/{job_id:str}/requeue",
        status_code=200,
        summary="Send an ended job again",
        opt={"scope": "jobs:operate"},
        responses=_NOT_NOW,
    )
    async def requeue(
        self, dispatch_jobs: NamedDependency[DispatchJobs], request: AnyRequest, job_id: FromPath[str]
    ) -> JobView:
        """One in ERROR or CANCELLED, with all its attempts again. In an ordered group it goes last."""
        number = job_number(job_id)
        if not await dispatch_jobs.requeue([number]):
            status = (await _existing(dispatch_jobs, number))["status"]
            raise NotAllowed(f"a job that is {status} cannot be requeued: only in ERROR or CANCELLED")
        return sight_of(request)(await _shown(dispatch_jobs, number))


class Overview(Controller):
    """What there is to look after."""

    path = "/api/dispatch"
    tags = ("dispatch_jobs",)

    @get(
        "/dead",
        summary="Dead letters, by what they died of",
        opt=_READS,
        operation_class=DeadOperation,
    )
    async def dead(self, dead_jobs: NamedDependency[DeadJobs], request: AnyRequest) -> DeadLetters:
        """Groups of jobs in ERROR by error class, source and type; with `errorClass` also the jobs of it."""
        known = ("errorClass", "source", "type", "before", "size")
        given = Parameters(request.query_params.multi_items(), known)
        before = given.text("before")
        number = number_of(before) if before is not None else None
        if before is not None and (number is None or given.text("errorClass") is None):
            raise InvalidRequest("before: is `next` of a list by errorClass; give both", "before")
        found = await dead_jobs.look(given.filter(), before=number, size=given.number("size", 20, 1, 100))
        return replace(found, items=[*map(sight_of(request), found.items)])

    @get(
        "/statistics",
        summary="Success by source, duration by type, jobs that need a person",
        opt=_READS,
    )
    async def statistics(
        self, job_statistics: NamedDependency[JobStatistics], request: AnyRequest
    ) -> Statistics:
        """Of jobs created in the last 24 hours. The answer may be seconds old, in large tables minutes."""
        found = await job_statistics.look()
        return replace(found, needing_attention=[*map(sight_of(request), found.needing_attention)])


class TargetsApi(Controller):
    """Targets: scheme, host, port and credentials of the URLs that jobs go to."""

    path = "/api/dispatch/targets"
    tags = ("dispatch_targets",)

    @get(
        "/",
        summary="Targets that fail, are paused, or have limits",
        opt=_READS,
        operation_class=TargetsOperation,
    )
    async def list(self, targets_desk: NamedDependency[TargetDesk], request: AnyRequest) -> TargetPage:
        """One that answers and has no limits is not listed."""
        given = Parameters(request.query_params.multi_items(), ("after",))
        return await targets_desk.page(given.text("after") or "")

    @put(
        "/",
        summary="Set the limits of a target",
        opt=_TARGET,
        responses=errors({409: "They are not those of `limitsVersion` any more"}),
    )
    async def limit(
        self,
        targets_desk: NamedDependency[TargetDesk],
        request: AnyRequest,
        data: JSONBody[LimitRequest | None] = None,  # noqa: ARG002 - documents the body
    ) -> TargetView:
        """They hold over all processes. What is left out is no limit.

        With the `limitsVersion` of the target as it was read, they are set only where they are still those;
        else the answer is a 409, and nothing is changed.
        """
        return await targets_desk.limit(await _body(request, LimitRequest, target_desk.HINTS))

    @post(
        "/pause",
        status_code=200,
        summary="Send a target nothing for a while",
        opt=_TARGET,
    )
    async def pause(
        self,
        targets_desk: NamedDependency[TargetDesk],
        request: AnyRequest,
        data: JSONBody[PauseRequest | None] = None,  # noqa: ARG002 - documents the body
    ) -> TargetView:
        """Its jobs wait, uncharged. Without `seconds` it lasts until the target is resumed."""
        return await targets_desk.pause(await _body(request, PauseRequest, target_desk.HINTS))

    @post(
        "/resume",
        status_code=200,
        summary="Send to a target again",
        opt=_TARGET,
    )
    async def resume(
        self,
        targets_desk: NamedDependency[TargetDesk],
        request: AnyRequest,
        data: JSONBody[ResumeRequest | None] = None,  # noqa: ARG002 - documents the body
    ) -> TargetView:
        """Ends a pause and closes its breaker: whoever resumes a target says that it is well."""
        return await targets_desk.resume(await _body(request, ResumeRequest, target_desk.HINTS))

    @post(
        "/validate",
        status_code=200,
        summary="Send a signed test event and tell what came back",
        opt=_PROBE,
    )
    async def validate(
        self,
        targets_desk: NamedDependency[TargetDesk],
        request: AnyRequest,
        data: JSONBody[ValidateRequest | None] = None,  # noqa: ARG002 - documents the body
    ) -> ProbeResult:
        """An event of the type `homing.test`, sent once. `completes`: whether a job would have ended well.

        Credentials go only to the origins in their `allowedTargets`, as for a job.
        """
        order = await _body(request, ValidateRequest, target_desk.HINTS)
        return await targets_desk.validate(order, adds=_adds(request))


ROUTES = (Jobs, Overview, TargetsApi)


def job_dependencies(
    jobs: DispatchJobs,
    telemetry: Telemetry,
    rules: Rules,
    *,
    admit: Admit,
    probe: Probe,
    known_queue: Callable[[str], Awaitable[bool]] = any_queue,
) -> dict[str, Any]:
    """What the handlers of `ROUTES` ask for, by name."""
    search = open_search(jobs)
    return {
        "dispatch_jobs": jobs,
        "job_orders": JobOrders(jobs, telemetry, rules, admit, known_queue),
        "job_search": search,
        "job_bulk": BulkActions(jobs, search),
        "dead_jobs": DeadJobs(jobs, search),
        "job_statistics": JobStatistics(jobs, search),
        "targets_desk": TargetDesk(jobs, rules, admit, probe),
    }


def _adds(request: AnyRequest) -> bool:
    """Whether credentials are theirs to give to anybody: then a new origin is one more that they allow."""
    user = request.scope.get("user")
    return user is None or user.may("credentials:admin")


async def _body(request: AnyRequest, kind: Any, hints: Mapping[str, str]) -> Any:
    require_json(request.headers.get("content-type"))
    body = await request.body()
    return await aside(len(body), read, body, kind, hints)


def _batch(body: bytes) -> _Batch:
    if body.lstrip()[:1] == b"[":
        return _Batch(read(body, list[msgspec.Raw], _BATCH_HINTS))
    batch: _Batch = read(body, _Batch, _BATCH_HINTS)
    return batch


async def _existing(jobs: DispatchJobs, number: int) -> Row:
    row = await jobs.get(number)
    if row is None:
        raise NotFound("there is no such job")
    return row


async def _shown(jobs: DispatchJobs, number: int) -> JobView:
    row = await _existing(jobs, number)
    return shown(row, None if row["ready"] else await _head(jobs, row["group_id"]))


async def _head(jobs: DispatchJobs, group_id: str) -> Row | None:
    rows = await jobs.run("group_head", group_id=group_id)
    return rows[0] if rows else None


def _not_cancelled(status: str) -> str:
    if status == "IN_PROGRESS":
        return "the job is being sent, which cannot be taken back; try again when the attempt has ended"
    return f"a job that is {status} cannot be cancelled: only PENDING or FAILED"
