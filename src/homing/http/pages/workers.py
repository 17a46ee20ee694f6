"""`/workers`: the processes at work, what they hold, and what they are told to leave alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from litestar import Controller, MediaType, Response, get, post
from litestar.di import NamedDependency
from msgspec import Struct
from msgspec.structs import replace

from homing.access.desk import Access
from homing.desk.desk import Desk
from homing.http.asking import AnyRequest, who_of
from homing.http.pages.deeds import OWN_AUDIT, Deed, tried
from homing.http.pages.forms import NOTHING_SENT, Form, Refused, Sent
from homing.http.pages.shell import LANE_NAMES, gone_to, read_form, render
from homing.http.pages.sight import readable
from homing.workers.crew import Crew, crew_of
from homing.workers.fleet import Fleet
from homing.workers.leases import Held, Leases
from homing.workers.model import LaneReport, Pause, Scope, WorkerView, is_paused

_LARGEST_FORM = 16 * 1024
_PAUSE = Form("/workers/pause", about="reason")
_SO_ALREADY = "It was so already."
_OPERATES = {"scope": "workers:operate", **OWN_AUDIT}
_TONES: Mapping[str, str] = {
    "running": "good", "paused": "wait", "stopping": "busy", "stopped": "quiet", "lost": "bad",
}  # fmt: skip
#: While somebody waits for a pause to be heard, the page is loaded again after so many seconds.
_AGAIN: Mapping[str, str] = {"Refresh": "2"}
_STAGES: Mapping[str, str] = {"schedule": "scheduler", "send": "sender"}


class LaneLine(Struct, frozen=True):
    """A lane that can be paused on all workers at once."""

    lane: str
    label: str
    workers: int
    in_flight: int
    claimed: int
    delivered: int
    #: Tried again, given up, or given back.
    otherwise: int
    crew: Crew
    #: Its own, or that of the lane whose stage it is.
    pause: Pause | None
    is_own: bool


class WorkerLine(Struct, frozen=True):
    worker: WorkerView
    word: str
    tone: str
    in_flight: int
    slots: int
    claimed: int
    delivered: int
    otherwise: int
    #: What it works on, and whether that is paused while the process is not.
    lanes: Sequence[tuple[str, bool]]
    held: Sequence[Held]


class WorkerPages(Controller):
    path = "/workers"
    include_in_schema = False
    opt: Mapping[str, Any] = {"scope": "desk:read"}
    request_max_body_size = _LARGEST_FORM

    @get("/", media_type=MediaType.HTML)
    async def list(
        self,
        request: AnyRequest,
        fleet: NamedDependency[Fleet],
        leases: NamedDependency[Leases],
        desk: NamedDependency[Desk],
    ) -> Response[str]:
        return await _page(request, fleet, leases, readable(desk, who_of(request)))

    @post("/pause", status_code=303, media_type=MediaType.HTML, opt=_OPERATES)
    async def pause(
        self,
        *,
        request: AnyRequest,
        fleet: NamedDependency[Fleet],
        leases: NamedDependency[Leases],
        desk: NamedDependency[Desk],
        access: NamedDependency[Access],
    ) -> Response[str]:
        form = await read_form(request)
        scope, name = _scope(form), form.get("name", "")
        reason = form.get("reason", "").strip() or None
        deed = Deed("workers.pause", f"{scope} {name}", {"reason": reason})
        work = partial(fleet.pause, scope, name, by=who_of(request).who, reason=reason)
        done = await tried(request, access, deed, work, result=_unless_changed)
        if isinstance(done, Refused):
            seen = readable(desk, who_of(request))
            return await _page(request, fleet, leases, seen, sent=_PAUSE.sent(form, done))
        told = f"{name} is paused: within five seconds nothing more is claimed, and what has begun ends."
        return gone_to("/workers", told if done else _SO_ALREADY)

    @post("/resume", status_code=303, media_type=MediaType.HTML, opt=_OPERATES)
    async def resume(
        self, request: AnyRequest, fleet: NamedDependency[Fleet], access: NamedDependency[Access]
    ) -> Response[str]:
        form = await read_form(request)
        scope, name = _scope(form), form.get("name", "")
        deed = Deed("workers.resume", f"{scope} {name}")
        done = await tried(request, access, deed, lambda: fleet.resume(scope, name), result=_unless_changed)
        if isinstance(done, Refused):
            return gone_to("/workers", done.text, is_good=False)
        return gone_to("/workers", f"{name} goes on within five seconds." if done else _SO_ALREADY)

    @post("/release", status_code=303, media_type=MediaType.HTML, opt=_OPERATES)
    async def release(
        self, request: AnyRequest, leases: NamedDependency[Leases], access: NamedDependency[Access]
    ) -> Response[str]:
        name = (await read_form(request)).get("name", "")
        deed = Deed("workers.release", name)
        done = await tried(request, access, deed, lambda: leases.release(name))
        if isinstance(done, Refused):
            return gone_to("/workers", done.text, is_good=False)
        told = ", ".join(f"{count:,} of {lane}" for lane, count in done.items())
        return gone_to("/workers", f"Due again: {told}." if told else f"{name} held nothing any more.")


async def _page(
    request: AnyRequest,
    fleet: Fleet,
    leases: Leases,
    seen: Collection[str],
    *,
    sent: Sent = NOTHING_SENT,
) -> Response[str]:
    """Who works on what everybody may see; how much, of the lanes that they may read."""
    workers, pauses = [_as_seen(one, seen) for one in await fleet.workers()], await fleet.pauses()
    held = [one for one in await leases.held() if one.lane in seen]
    lines = [_worker_line(worker, pauses, held) for worker in workers]
    known = {worker.name for worker in workers}
    return render(
        request,
        "workers.html",
        # Not while somebody mends what they wrote.
        headers=_AGAIN if not sent.why and _is_changing(workers, pauses) else None,
        sent=sent,
        workers=[line for line in lines if line.worker.state != "stopped"],
        stopped=[line for line in lines if line.worker.state == "stopped"],
        lanes=[_lane_line(lane, workers, pauses) for lane in _in_order(fleet.lanes) if whole(lane) in seen],
        strangers=[one for one in held if one.owner not in known],
        figures=_figures(lines),
    )


def _as_seen(worker: WorkerView, seen: Collection[str]) -> WorkerView:
    lanes = tuple(report for report in worker.report.lanes if whole(report.lane) in seen)
    return replace(worker, report=replace(worker.report, lanes=lanes))


def _unless_changed(changed: bool) -> Mapping[str, Any]:
    """For the audit log: somebody else was first."""
    return {} if changed else {"changed": "nothing"}


def _scope(form: Mapping[str, str]) -> Scope:
    return "lane" if form.get("scope") == "lane" else "worker"


# ── lines ────────────────────────────────────────────────────────────────────────────────────────


def _worker_line(worker: WorkerView, pauses: Sequence[Pause], held: Sequence[Held]) -> WorkerLine:
    reports = worker.report.lanes
    asked = frozenset((pause.scope, pause.name) for pause in pauses if pause.scope == "lane")
    # It was told and has not said yet that it heard.
    is_pausing = worker.pause is not None and worker.state == "running"
    return WorkerLine(
        worker,
        "pausing" if is_pausing else worker.state,
        "wait" if is_pausing else _TONES[worker.state],
        in_flight=sum(report.in_flight for report in reports),
        slots=sum(report.slots for report in reports if _is_worked(worker, report)),
        claimed=sum(report.claimed for report in reports),
        delivered=sum(report.delivered for report in reports),
        otherwise=sum(report.otherwise for report in reports),
        lanes=_named(worker, asked),
        held=[one for one in held if one.owner == worker.name],
    )


def _named(worker: WorkerView, asked: frozenset[tuple[str, str]]) -> list[tuple[str, bool]]:
    named = [(lane_label(lane), is_paused(worker.name, lane, asked)) for lane in worker.lanes]
    is_whole = set(LANE_NAMES) <= set(worker.lanes) and not any(paused for _, paused in named)
    return [("All lanes", False)] if is_whole else named


def _is_worked(worker: WorkerView, report: LaneReport) -> bool:
    return report.lane in worker.lanes or whole(report.lane) in worker.lanes


def _lane_line(lane: str, workers: Sequence[WorkerView], pauses: Sequence[Pause]) -> LaneLine:
    asked = {pause.name: pause for pause in pauses if pause.scope == "lane"}
    reports = [
        report
        for worker in workers
        if not worker.is_gone
        for report in worker.report.lanes
        if lane in {report.lane, whole(report.lane)}
    ]
    return LaneLine(
        lane,
        lane_label(lane),
        workers=sum(bool({lane, whole(lane)} & set(w.lanes)) for w in workers if not w.is_gone),
        in_flight=sum(report.in_flight for report in reports),
        claimed=sum(report.claimed for report in reports),
        delivered=sum(report.delivered for report in reports),
        otherwise=sum(report.otherwise for report in reports),
        crew=crew_of(lane, workers, pauses),
        pause=asked.get(lane) or asked.get(whole(lane)),
        is_own=lane in asked,
    )


def _is_changing(workers: Sequence[WorkerView], pauses: Sequence[Pause]) -> bool:
    """Whether somebody who is there has not yet heard what it is told."""
    asked = frozenset((pause.scope, pause.name) for pause in pauses)
    return any(
        report.paused != is_paused(worker.name, report.lane, asked)
        for worker in workers
        if not worker.is_gone
        for report in worker.report.lanes
    )


def _in_order(lanes: Sequence[str]) -> list[str]:
    """Stages after their lane."""
    places = {lane: place for place, lane in enumerate(lanes)}
    return sorted(lanes, key=lambda lane: (places[whole(lane)], places[lane]))


def whole(lane: str) -> str:
    """The lane, where it is a stage of one."""
    return lane.partition(":")[0]


def lane_label(lane: str) -> str:
    name, _, stage = lane.partition(":")
    label = LANE_NAMES.get(name, name)
    return f"{label}: {_STAGES.get(stage, stage)}" if stage else label


def _figures(lines: Sequence[WorkerLine]) -> dict[str, int]:
    living = [line for line in lines if not line.worker.is_gone]
    return {
        "working": sum(bool(line.worker.lanes) for line in living),
        "serving": sum(line.worker.serves for line in living),
        "paused": sum(line.worker.state == "paused" for line in living),
        "lost": sum(line.worker.state == "lost" for line in lines),
        "in_flight": sum(line.in_flight for line in living),
    }
