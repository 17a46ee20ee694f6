"""`/queues`: how much waits where, in the brokers and in the database, and the pools that work it off."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from litestar import Controller, MediaType, Response, get
from litestar.di import NamedDependency
from msgspec import Struct

from homing.brokers.depths import QueueDepths
from homing.db.backlog import Snapshot
from homing.desk.desk import Desk
from homing.desk.standing import Standings
from homing.http.asking import AnyRequest, who_of
from homing.http.pages.shell import link, render
from homing.http.pages.sight import readable
from homing.http.pages.workers import lane_label
from homing.messages.model import LaneDesk
from homing.workers.crew import Crew, crew_of
from homing.workers.fleet import Fleet
from homing.workers.model import WorkerView


class LaneQueue(Struct, frozen=True):
    """A table as a queue."""

    lane: str
    label: str
    waiting: int
    #: Seconds since they were counted, and whether there are more.
    age: float
    is_at_least: bool
    oldest_due: float
    crew: Crew
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
        standings: NamedDependency[Standings],
    ) -> Response[str]:
        lanes = [lane for name, lane in desk.lanes.items() if name in readable(desk, who_of(request))]
        looks = await asyncio.gather(*(standings.of[lane.name].look() for lane in lanes))
        workers, pauses = await fleet.workers(), await fleet.pauses()
        return render(
            request,
            "queues.html",
            queues=await queue_depths.look(),
            lanes=[
                _lane(lane, look, crew_of(lane.name, workers, pauses))
                for lane, look in zip(lanes, looks, strict=True)
            ],
            pools=pool_lines(workers),
            lane_label=lane_label,
        )


def _lane(lane: LaneDesk, snapshot: Snapshot, crew: Crew) -> LaneQueue:
    states = [state for state, phase in lane.phases.items() if phase == "waiting"]
    return LaneQueue(
        lane.name,
        lane_label(lane.name),
        waiting=sum(snapshot.counts.get(state, 0) for state in states),
        age=snapshot.age,
        is_at_least=not snapshot.at_least.isdisjoint(states),
        oldest_due=snapshot.oldest_due,
        crew=crew,
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
