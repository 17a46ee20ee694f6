"""`/queues`: how much waits where, in the brokers and in the database, and the pools that work it off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from litestar import Controller, MediaType, Response, get
from litestar.di import NamedDependency
from msgspec import Struct

from homing.brokers.depths import QueueDepths
from homing.db.backlog import Backlog, Snapshot
from homing.desk.desk import Desk
from homing.http.pages.shell import AnyRequest, link, render
from homing.http.pages.workers import lane_label
from homing.messages.model import LaneDesk, LaneName
from homing.workers.fleet import Fleet
from homing.workers.model import Pause, WorkerView


class LaneQueue(Struct, frozen=True):
    """A table as a queue."""

    lane: str
    label: str
    waiting: int
    oldest_due: float
    pause: Pause | None
    path: str


class PoolLine(Struct, frozen=True):
    """A pool, over all routers."""

    code: str
    routers: int
    concurrency: int
    running: int
    buffered: int
    peak: int


class QueuePages(Controller):
    path = "/queues"
    include_in_schema = False
    opt: Mapping[str, Any] = {"scope": "router:read"}

    @get("/", media_type=MediaType.HTML)
    async def list(
        self,
        *,
        request: AnyRequest,
        queue_depths: NamedDependency[QueueDepths],
        desk: NamedDependency[Desk],
        fleet: NamedDependency[Fleet],
        backlog: NamedDependency[Backlog],
        jobs_backlog: NamedDependency[Backlog],
        emails_backlog: NamedDependency[Backlog],
        notifications_backlog: NamedDependency[Backlog],
    ) -> Response[str]:
        backlogs: Mapping[LaneName, Backlog] = {
            "mail_outbox": backlog,
            "dispatch_jobs": jobs_backlog,
            "email_log": emails_backlog,
            "open_events": notifications_backlog,
        }
        pauses = {pause.name: pause for pause in await fleet.pauses() if pause.scope == "lane"}
        return render(
            request,
            "queues.html",
            queues=await queue_depths.look(),
            lanes=[
                _lane(desk.lanes[lane], await own.look(), pauses.get(lane)) for lane, own in backlogs.items()
            ],
            pools=pool_lines(await fleet.workers()),
            lane_label=lane_label,
        )


def _lane(lane: LaneDesk, snapshot: Snapshot, pause: Pause | None) -> LaneQueue:
    waiting = [count for state, count in snapshot.counts.items() if lane.phases.get(state) == "waiting"]
    return LaneQueue(
        lane.name,
        lane_label(lane.name),
        waiting=sum(waiting),
        oldest_due=snapshot.oldest_due,
        pause=pause,
        path=link("/messages", q=f"lane:{lane.name} status:waiting"),
    )


def pool_lines(workers: Sequence[WorkerView]) -> list[PoolLine]:
    found: dict[str, PoolLine] = {}
    for worker in workers:
        for pool in () if worker.is_gone else worker.report.pools:
            known = found.get(pool.code, PoolLine(pool.code, 0, 0, 0, 0, 0))
            found[pool.code] = PoolLine(
                pool.code,
                known.routers + 1,
                known.concurrency + pool.concurrency,
                known.running + pool.running,
                known.buffered + pool.buffered,
                max(known.peak, pool.peak),
            )
    return [found[code] for code in sorted(found)]
