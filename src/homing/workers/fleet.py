"""All processes that work on one database, and what they are told to leave alone."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from homing.db import Database, Row, instant, load_queries
from homing.errors import InvalidRequest, NotFound
from homing.senders.addresses import CONTROL
from homing.workers.crew import Crew, crew_of
from homing.workers.model import Identity, Own, Pause, Report, Scope, WorkerView

#: A process that was not seen for so many seconds is lost: seven heartbeats.
LOST_AFTER = 30.0
CHANNEL = "homing_pause"

_STOPPED_ARE_KEPT, _LOST_ARE_KEPT = 3600.0, 86400.0
_MOST_SHOWN = 500
_LONGEST_REASON = 500

_encode = msgspec.json.Encoder().encode
_report = msgspec.json.Decoder(Report).decode
_names = msgspec.json.Decoder(tuple[str, ...]).decode


class Fleet:
    """`lanes` are the names that can be paused: of lanes, and of their stages."""

    def __init__(self, database: Database, lanes: Sequence[str]) -> None:
        self.lanes = tuple(lanes)
        self._database = database
        self._queries = load_queries(__package__ or "", database.dialect)

    @property
    def database(self) -> Database:
        return self._database

    # ── what a process says of itself ────────────────────────────────────────────────────────────

    async def beat(self, who: Identity, state: Own, report: Report, *, up_seconds: float) -> None:
        given = {
            "name": who.name,
            "host": who.host,
            "pid": who.pid,
            "boot": who.boot,
            "version": who.version,
            "lanes": _encode(who.lanes).decode(),
            "serves": who.serves,
            "state": state,
            "report": _encode(report).decode(),
            "up_seconds": up_seconds,
        }
        await self._database.fetch(self._queries["beat"], given)

    async def forget_the_old(self) -> None:
        """Those that stopped an hour ago, or were lost a day ago."""
        given = {"stopped_after": _STOPPED_ARE_KEPT, "lost_after": _LOST_ARE_KEPT}
        steps = [self._queries[name] for name in ("forget_pauses", "forget_workers") if name in self._queries]
        await self._database.fetch_all(steps, given)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────

    async def workers(self) -> list[WorkerView]:
        """Those that were lost stand after those that are there, and those that stopped last."""
        rows = await self._database.fetch(
            self._queries["workers"], {"lost_after": LOST_AFTER, "limit": _MOST_SHOWN}
        )
        paused = {pause.name: pause for pause in await self.pauses() if pause.scope == "worker"}
        return [_worker(row, paused.get(row["name"])) for row in rows]

    async def pauses(self) -> list[Pause]:
        return [_pause(row) for row in await self._database.fetch(self._queries["pauses"], {})]

    async def crew(self, lane: str) -> Crew:
        return (await self.crews([lane]))[lane]

    async def crews(self, lanes: Sequence[str]) -> dict[str, Crew]:
        """Who works on each of these lanes."""
        workers, pauses = await self.workers(), await self.pauses()
        return {lane: crew_of(lane, workers, pauses) for lane in lanes}

    async def require_gone(self, name: str) -> None:
        """Raise unless the worker is known, and nobody is there any more."""
        state = await self._state(name)
        if state not in {"lost", "stopped"}:
            instead = "stop it" if state == "paused" else "pause or stop it"
            raise InvalidRequest(
                f"{name} is {state} and finishes what it holds by itself; {instead} instead", "name"
            )

    async def _state(self, name: str) -> str:
        given = {"name": name, "lost_after": LOST_AFTER}
        rows = await self._database.fetch(self._queries["worker"], given) if _can_be(name) else []
        if not rows:
            raise NotFound(f"there is no worker {name}; `homing workers` shows those there are")
        state: str = rows[0]["state"]
        return state

    # ── pausing ──────────────────────────────────────────────────────────────────────────────────

    async def pause(self, scope: Scope, name: str, *, by: str, reason: str | None = None) -> bool:
        """False when it was paused already. Every process honours it within five seconds."""
        await self._require_at_work(scope, name)
        given = {"scope": scope, "name": name, "by": by, "reason": _reason(reason)}
        return await self._change("pause", given)

    async def resume(self, scope: Scope, name: str) -> bool:
        """False when it was not paused. What is paused may be gone by now, and is resumed all the same."""
        if _can_be(name) and await self._change("resume", {"scope": scope, "name": name}):
            return True
        await self._require_named(scope, name)
        return False

    async def _change(self, query: str, given: dict[str, str | None]) -> bool:
        changed = bool(await self._database.fetch(self._queries[query], given))
        self._database.announce(CHANNEL)
        return changed

    async def _require_at_work(self, scope: Scope, name: str) -> None:
        if await self._require_named(scope, name) == "stopped":
            raise InvalidRequest(f"{name} has stopped, and claims nothing", "name")

    async def _require_named(self, scope: Scope, name: str) -> str | None:
        """Raise unless there is such a lane or worker; the state of a worker."""
        if scope == "worker":
            return await self._state(name)
        if name not in self.lanes:
            raise InvalidRequest(f"there is no lane {name!r}; there are {', '.join(self.lanes)}", "lane")
        return None


def _worker(row: Row, pause: Pause | None) -> WorkerView:
    started, seen = instant(row["started_at"]), instant(row["seen_at"])
    assert started is not None, "the column is NOT NULL"
    assert seen is not None, "the column is NOT NULL"
    return WorkerView(
        name=row["name"],
        host=row["host"],
        pid=row["pid"],
        version=row["version"],
        state=row["state"],
        lanes=_names(row["lanes"]),
        serves=bool(row["serves"]),
        started_at=started,
        seen_at=seen,
        silent_seconds=max(0.0, row["silent_seconds"]),
        report=_report(row["report"]),
        pause=pause,
    )


def _pause(row: Row) -> Pause:
    asked = instant(row["asked_at"])
    assert asked is not None, "the column is NOT NULL"
    return Pause(row["scope"], row["name"], row["reason"], row["asked_by"], asked)


def _can_be(name: str) -> bool:
    """No name has what is no text for PostgreSQL."""
    return CONTROL.search(name) is None


def _reason(given: str | None) -> str | None:
    text = " ".join(CONTROL.sub(" ", given or "").split())
    if len(text) > _LONGEST_REASON:
        raise InvalidRequest(f"reason: it has at most {_LONGEST_REASON} characters", "reason")
    return text or None
