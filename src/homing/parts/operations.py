"""Who is at work and what they hold, what is paused, and what waits in the queues."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from homing import __version__
from homing.brokers.depths import QueueDepths, Watched
from homing.brokers.router import queue_of
from homing.db import Database, load_queries
from homing.engine.deliver import Deliverer
from homing.errors import DatabaseError
from homing.lanes.dispatch_jobs.look import held_targets
from homing.lines import Line
from homing.parts.emails import Emails
from homing.parts.ground import Ground
from homing.parts.jobs import Jobs
from homing.workers.fleet import Fleet
from homing.workers.heartbeat import Heartbeat, Pausable
from homing.workers.leases import LaneLeases, Leases
from homing.workers.model import Identity, LaneReport, PoolReport, Report, WarningReport

_MOST_WARNINGS = 10


class Operations:
    """`lines` are those of this process; `lanes` the names that can be paused, those of stages among them."""

    def __init__(
        self,
        ground: Ground,
        lines: Callable[[], Mapping[str, Line]],
        jobs: Jobs,
        emails: Emails,
        *,
        lanes: Sequence[str],
        databases: Mapping[str, Database],
    ) -> None:
        self._ground, self._lines = ground, lines
        self._jobs, self._emails = jobs, emails
        self.fleet = Fleet(ground.database, lanes)
        held = [_leases_of(lane, database) for lane, database in databases.items()]
        self.leases = Leases(self.fleet, held, self._rescue)
        self.depths = QueueDepths(self._queues, ground.telemetry)

    # ── at work ──────────────────────────────────────────────────────────────────────────────────

    def heartbeat(self, lanes: Sequence[str], *, worked: Iterable[str], serves: bool) -> Heartbeat:
        """`worked` are the names of the lines that take something by themselves."""
        who = Identity(
            name=self._ground.owner,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            boot=uuid4().hex,
            lanes=tuple(lanes),
            serves=serves,
        )
        routes = "dispatch_jobs" in lanes
        names = frozenset(worked)
        return Heartbeat(
            self.fleet,
            who,
            self._ground.telemetry,
            works=self._pausable(routes=routes),
            report=lambda: self._report(names, routes=routes),
        )

    def _pausable(self, *, routes: bool) -> dict[str, list[Pausable]]:
        """Of dispatch jobs the router as well, and who sends messages to queues that nobody would read."""
        found: dict[str, list[Pausable]] = {"dispatch_jobs": []}
        if routes and self._jobs.router is not None:
            found["dispatch_jobs"].append(self._jobs.router)
        for line in self._lines().values():
            lane = "dispatch_jobs" if line is self._jobs.queueing else line.name
            found.setdefault(lane, []).append(line)
        return found

    def _report(self, worked: frozenset[str], *, routes: bool) -> Report:
        """A line that only did what somebody asked for is told of as well, once it has."""
        lanes = tuple(
            _lane_report(self._stage(line), line.deliverer)
            for name, line in self._lines().items()
            if name in worked or line.deliverer.claimed
        )
        router = self._jobs.router if routes else None
        brokers = {"email_log": self._emails.place}
        if router is None:
            return Report(lanes, brokers=brokers)
        pools = (PoolReport(p.code, p.concurrency, p.running, p.buffered, p.peak) for p in router.status())
        latest = list(router.warnings)[-_MOST_WARNINGS:][::-1]
        warnings = (WarningReport(w.at, w.kind, w.queue, w.detail) for w in latest)
        return Report(lanes, tuple(pools), tuple(warnings), brokers)

    def _stage(self, line: Line) -> str:
        """Its name as one of its lane: what sends messages of jobs to queues is a stage of theirs."""
        return "dispatch_jobs:queue" if line is self._jobs.queueing else line.name

    async def _rescue(self, lanes: Collection[str]) -> None:
        for name, line in self._lines().items():
            if name.partition(":")[0] in lanes:
                await line.maintenance.rescue()

    # ── queues ───────────────────────────────────────────────────────────────────────────────────

    async def _queues(self) -> list[Watched]:
        broker, queues = self._emails.broker, self._emails.queues
        found = [
            Watched(_last_part(queues.send.name), "email_log", broker, queues.send),
            Watched(_last_part(queues.dead_letters.name), "email_log", broker, queues.dead_letters, True),
        ]
        if self._jobs.broker is None:
            return found
        visibility = self._ground.settings.jobs_visibility_seconds
        for config in (await self._jobs.router_configs.recent()).queues:
            queue = queue_of(config.queue_uri, visibility)
            found.append(Watched(config.label, "dispatch_jobs", self._jobs.broker, queue))
        return found

    # ── out ──────────────────────────────────────────────────────────────────────────────────────

    async def refresh_gauges(self) -> None:
        await self.depths.refresh()
        try:
            targets = await held_targets(self._jobs.store)
        except DatabaseError as error:
            self._ground.telemetry.log.warning("metrics.stale", error=str(error))
            return
        broken = [target.target for target in targets if target.state in {"open", "half_open"}]
        self._ground.telemetry.breakers_open(broken)

    async def why_idle(self, lane: str) -> str | None:
        return (await self.fleet.crew(lane)).why

    def dependencies(self) -> dict[str, Any]:
        return {"fleet": self.fleet, "leases": self.leases, "queue_depths": self.depths}

    async def close(self) -> None:
        await self.depths.close()


def _leases_of(lane: str, database: Database) -> LaneLeases:
    return LaneLeases(lane, database, load_queries(f"homing.lanes.{lane}", database.dialect, "leases"))


def _lane_report(lane: str, deliverer: Deliverer) -> LaneReport:
    return LaneReport(
        lane=lane,
        in_flight=deliverer.slots - deliverer.free,
        slots=deliverer.slots,
        claimed=deliverer.claimed,
        delivered=deliverer.delivered,
        paused=deliverer.paused,
    )


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]
