"""Targets as an operator looks for them: all that have a row or open jobs, with what waits and flies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from homing.db import Row, instant, load_queries
from homing.lanes.dispatch_jobs.dead_letters import SOURCE
from homing.lanes.dispatch_jobs.jobs import DispatchJobs
from homing.lanes.dispatch_jobs.masking import HIDDEN, shown_url
from homing.lanes.dispatch_jobs.target_desk import State, TargetView, target_view

#: Jobs of one target are counted up to here.
COUNTED: Final = 1000
#: Attempts of all targets that are looked through for those of one.
RESULTS_OF: Final = 5000
#: Jobs of all targets that are looked through for the last of one.
_LAST_OF = 2000
_HOUR = 3600.0
_PAGE = 50
_CHUNK = 200
#: Targets that one page looks through at most.
_MOST_LOOKED_AT = 2000

_encode = msgspec.json.Encoder().encode


class Load(Struct, frozen=True):
    #: At most `COUNTED`.
    waiting: int = 0
    in_flight: int = 0


class LoadedTarget(Struct, frozen=True):
    #: As the tables name it: the place, and the number of the credentials.
    key: str
    view: TargetView
    load: Load


class Targets(Struct, frozen=True):
    """In the order of their names."""

    items: Sequence[LoadedTarget]
    #: What to give as `after` to go on; None at the end.
    next: str | None


class TargetFilter(Struct, frozen=True):
    #: Part of its name.
    contains: str = ""
    #: None: in any.
    state: State | None = None

    def means(self, view: TargetView) -> bool:
        return self.contains.lower() in view.target and self.state in {None, view.state}


class RecentResults(Struct, frozen=True):
    """What came of attempts of the last hour, as far as the newest of all targets tell."""

    attempts: int
    successful: int
    mean_millis: float | None
    #: Since when there is nothing missing; None where the whole hour was seen.
    since: datetime | None

    @property
    def success(self) -> float | None:
        return self.successful / self.attempts if self.attempts else None


class LastUrl(Struct, frozen=True):
    """Where the last job of a target went."""

    #: Without its query and password; None where the path is a secret, too: of our own jobs.
    url: str | None
    is_cut: bool


class TargetLook:
    def __init__(self, jobs: DispatchJobs) -> None:
        self._database = jobs.database
        self._queries = load_queries(__package__ or "", self._database.dialect, "targets")

    async def page(self, wanted: TargetFilter, after: str = "") -> Targets:
        found: list[tuple[str, TargetView]] = []
        place: str | None = after
        looked_at = 0
        while place is not None and len(found) < _PAGE and looked_at < _MOST_LOOKED_AT:
            rows = await self._run("seen_targets", after=place, limit=_CHUNK)
            looked_at += len(rows)
            place = rows[-1]["target"] if len(rows) == _CHUNK else None
            views = [(str(row["target"]), target_view(row)) for row in rows]
            found += [(key, view) for key, view in views if wanted.means(view)]
        more = found[_PAGE - 1][0] if len(found) > _PAGE else place
        return Targets(await self._loaded(found[:_PAGE]), more)

    async def load(self, target: str) -> Load:
        return (await self._loads([target])).get(target, Load())

    async def results(self, target: str) -> RecentResults | None:
        """None where attempts cannot be looked through."""
        rows = await self._run("target_results", target=target, window=RESULTS_OF, seconds=_HOUR)
        if not rows:
            return None
        (row,) = rows
        cut = row["looked_at"] >= RESULTS_OF
        return RecentResults(
            row["attempts"],
            row["successful"],
            row["mean_millis"],
            instant(row["looked_since"]) if cut else None,
        )

    async def last_url(self, target: str, *, with_path: bool = True) -> LastUrl | None:
        """None where no job is found."""
        rows = await self._run("target_last_job", target=target, window=_LAST_OF)
        if not rows:
            return None
        source, url = rows[0]["source"], rows[0]["target_url"]
        shown = shown_url(source, url, with_path=with_path).removesuffix(f"?{HIDDEN}")
        return LastUrl(shown if with_path and source != SOURCE else None, is_cut=shown != url)

    async def _loaded(self, found: Sequence[tuple[str, TargetView]]) -> list[LoadedTarget]:
        loads = await self._loads([key for key, _ in found])
        return [LoadedTarget(key, view, loads.get(key, Load())) for key, view in found]

    async def _loads(self, targets: Sequence[str]) -> Mapping[str, Load]:
        rows = await self._run("target_loads", targets=_encode(targets).decode()) if targets else []
        return {row["target"]: Load(row["waiting"], row["in_flight"]) for row in rows}

    async def _run(self, query: str, /, **parameters: Any) -> Sequence[Row]:
        return await self._database.fetch(self._queries[query], parameters)
