"""Who works on a lane, and why nobody does: from what processes say of themselves, and what is paused."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from homing.workers.model import Pause, WorkerView


class Crew(Struct, frozen=True):
    """The processes of one lane, or of one stage of it."""

    lane: str
    #: That of the lane itself.
    pause: Pause | None = None
    #: Those who take from it.
    working: tuple[WorkerView, ...] = ()
    #: Those who would, but are paused themselves.
    paused: tuple[WorkerView, ...] = ()
    #: Those who did, until they fell silent; the last one first.
    lost: tuple[WorkerView, ...] = ()

    @property
    def is_idle(self) -> bool:
        """Whether nobody takes from it."""
        return self.pause is not None or not self.working

    @property
    def word(self) -> str:
        if self.pause is not None:
            return "paused"
        if self.working:
            return "worked on"
        return "all workers paused" if self.paused else "nobody works on it"

    @property
    def why(self) -> str | None:
        """Why nobody takes from it, in a sentence without a stop; None where somebody does."""
        if not self.is_idle:
            return None
        if self.pause is not None:
            return f"{self.lane} is paused by {self.pause.asked_by}{_because(self.pause)}"
        if self.paused:
            return f"all workers of {self.lane} are paused: {_named(self.paused)}"
        if self.lost:
            last = self.lost[0]
            return f"nobody works on {self.lane}: {last.name} fell silent {last.silent_seconds:.0f} s ago"
        return f"nobody works on {self.lane}"


def crew_of(lane: str, workers: Sequence[WorkerView], pauses: Sequence[Pause]) -> Crew:
    asked = {pause.name: pause for pause in pauses if pause.scope == "lane"}
    mine = [worker for worker in workers if _works_on(worker, lane)]
    there = [worker for worker in mine if not worker.is_gone]
    lost = sorted((one for one in mine if one.state == "lost"), key=lambda one: one.silent_seconds)
    return Crew(
        lane,
        asked.get(lane) or asked.get(lane.partition(":")[0]),
        working=tuple(one for one in there if not _is_paused(one)),
        paused=tuple(one for one in there if _is_paused(one)),
        lost=tuple(lost),
    )


def _works_on(worker: WorkerView, lane: str) -> bool:
    """Whoever works on a lane does so on its stages; and a lane is worked on where one of its stages is."""
    whole = lane.partition(":")[0]
    return any(name in {lane, whole} or name.partition(":")[0] == lane for name in worker.lanes)


def _is_paused(worker: WorkerView) -> bool:
    return worker.pause is not None or worker.state == "paused"


def _named(workers: Sequence[WorkerView]) -> str:
    return ", ".join(f"{one.name}{_by(one.pause)}" for one in workers)


def _by(pause: Pause | None) -> str:
    return f" by {pause.asked_by}{_because(pause)}" if pause is not None else ""


def _because(pause: Pause) -> str:
    return f" ({pause.reason})" if pause.reason else ""
