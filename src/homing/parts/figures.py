"""What is counted, by this process and for all of them: tallies, traffic, and the first page made of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from homing.db.tally import Tallies, recount
from homing.desk.desk import Desk
from homing.desk.overview import Hand, Overview, QueueDepth, Sources, TargetTrouble
from homing.desk.standing import Standings
from homing.desk.traffic import TrafficCount, TrafficTable
from homing.lanes.dispatch_jobs.look import held_targets
from homing.messages.model import DeadGroup
from homing.parts.ground import Ground
from homing.parts.jobs import Jobs
from homing.parts.operations import Operations
from homing.workers.model import Pause, WorkerView


class Figures:
    """`desk` knows the lanes, and is asked for when somebody looks."""

    def __init__(
        self,
        ground: Ground,
        jobs: Jobs,
        operations: Operations,
        *,
        desk: Callable[[], Desk],
        keeps_everything: bool,
    ) -> None:
        self._jobs, self._operations, self._desk = jobs, operations, desk
        self._keeps_everything = keeps_everything
        #: Open seats have none: their table may be another program's.
        self._tallied = {
            "mail_outbox": (ground.database, "mail_outbox"),
            "dispatch_jobs": (jobs.database, "dispatch_job"),
            "email_log": (ground.database, "email_log"),
        }
        databases = {database for database, _table in self._tallied.values()}
        self._tallies = [Tallies(database, ground.telemetry) for database in databases]
        self.traffic = TrafficTable(ground.database)
        self.count = TrafficCount(self.traffic, ground.telemetry, lambda: datetime.now(UTC))

    def keepers(self, *, serves: bool) -> list[Callable[[], Awaitable[None]]]:
        """What goes on beside work and service, in every process."""
        first_look = [self._look_first] if serves else []
        return [self.count.run, *(tallies.run for tallies in self._tallies), *first_look]

    async def _look_first(self) -> None:
        """Before somebody comes: the first look at large tables takes longer than all others."""
        await self.overview.look(datetime.now(UTC))

    async def recount(self) -> None:
        """Put all tallies right; it reads every row."""
        for lane, (database, table) in self._tallied.items():
            await recount(database, lane, table)

    @cached_property
    def standings(self) -> Standings:
        return Standings(self._desk().lanes)

    @cached_property
    def overview(self) -> Overview:
        return self.make_overview()

    def make_overview(self) -> Overview:
        """One that remembers nothing yet."""
        lanes = self._desk().lanes
        return Overview(
            Sources(
                backlogs=self.standings.of,
                phases={name: lane.phases for name, lane in lanes.items()},
                scopes={name: lane.scope for name, lane in lanes.items()},
                traffic=self.traffic,
                dead=self._dead,
                targets=self._targets,
                hands=self._hands,
                paused=self._paused,
                queues=self._queues,
                keeps_everything=self._keeps_everything,
            )
        )

    async def _dead(self) -> Sequence[DeadGroup]:
        """Of every lane: there is nothing in it but counts and names."""
        return (await self._desk().dead_groups(may=lambda _scope: True)).groups

    async def _targets(self) -> list[TargetTrouble]:
        return [
            TargetTrouble(view.target, view.state != "paused", view.reason or view.last_error)
            for view in await held_targets(self._jobs.store)
        ]

    async def _hands(self) -> list[Hand]:
        workers = await self._operations.fleet.workers()
        return [
            Hand(worker.name, worker.state == "lost", worker.lanes, worker.silent_seconds, _paused(worker))
            for worker in workers
            if worker.state != "stopped"
        ]

    async def _paused(self) -> dict[str, str]:
        """By lane: one whose stage is paused does not come to its end either."""
        pauses = await self._operations.fleet.pauses()
        return {pause.name.partition(":")[0]: _asked(pause) for pause in pauses if pause.scope == "lane"}

    async def _queues(self) -> list[QueueDepth]:
        """Not those of dead letters: they wait for a person."""
        measured = await self._operations.depths.look()
        return [
            QueueDepth(one.label, one.depth.waiting, one.depth.consumers)
            for one in measured
            if one.depth is not None and not one.holds_dead_letters
        ]

    def api(self) -> tuple[list[Any], dict[str, Any]]:
        from homing.http.overview_api import OverviewApi

        return [OverviewApi], {"overview": self.overview, "standings": self.standings}

    async def close(self) -> None:
        await self.count.close()


def _paused(worker: WorkerView) -> str | None:
    return f"by {_asked(worker.pause)}" if worker.pause is not None else None


def _asked(pause: Pause) -> str:
    """Who paused it, and why."""
    return f"{pause.asked_by}: {pause.reason}" if pause.reason else pause.asked_by
