"""A table that named queries prune. This is the engine's `Prunable` for rows, whichever the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from homing.db.attempts import Attempts
from homing.db.database import Database, Row, instant
from homing.db.queries import Queries, load_queries
from homing.engine.prune import Ages, Found, Window

_encode = msgspec.json.Encoder().encode


class PrunableRows:
    """Of a query's name `prune` there are four:

    prune_window        takes `:after`, `:window`, `:youngest` (seconds); returns `last`, and `old`: whether a
                        row of the window was made longer ago than that
    prune_survey        takes `:after`, `:until`, `:ages`; returns `state, count, oldest` of what may go
    prune_candidates    takes the same and `:limit`; returns `id`, in this order
    prune               takes `:ids`, `:ages`; deletes those that may still go; returns the `state` of each

    `:ages` is a JSON array of objects with `state` and `seconds`.
    """

    def __init__(
        self,
        database: Database,
        queries: Queries,
        lane: str,
        states: Sequence[str],
        *,
        name: str = "prune",
        follows: Sequence[str] = (),
        attempts: Attempts | None = None,
    ) -> None:
        self.lane = lane
        self.states = states
        self.follows = follows
        self._database = database
        self._queries = queries
        self._name = name
        #: Those that were kept of its rows, and go with them.
        self._attempts = attempts

    async def window(self, ages: Ages, after: int, size: int) -> Window:
        youngest = min(ages[state] for state in self.states if state in ages)
        (row,) = await self._run("_window", after=after, window=size, youngest=youngest)
        # What has no date may be old.
        return Window(row["last"], row["old"] is None or bool(row["old"]))

    async def survey(self, ages: Ages, after: int, until: int) -> list[Found]:
        rows = await self._run("_survey", after=after, until=until, ages=self._given(ages))
        return [Found(row["state"], row["count"], instant(row["oldest"])) for row in rows]

    async def candidates(self, ages: Ages, after: int, until: int, limit: int) -> list[int]:
        rows = await self._run("_candidates", after=after, until=until, limit=limit, ages=self._given(ages))
        return [row["id"] for row in rows]

    async def prune(self, ages: Ages, ids: Sequence[int]) -> Mapping[str, int]:
        given = {"ids": _encode(ids).decode(), "ages": self._given(ages), **self._more(ages)}
        rows = await self._delete(given)
        return Counter(row["state"] for row in rows)

    async def _delete(self, given: Mapping[str, Any]) -> Sequence[Row]:
        if self._attempts is None:
            return await self._run("", **given)
        queries = [self._queries[self._name], self._attempts.forgetting]
        rows, _ = await self._database.fetch_all(queries, given)
        return rows

    def _more(self, ages: Ages) -> Mapping[str, Any]:  # noqa: ARG002 - a lane that needs more takes it from them
        """What else the query that deletes is told."""
        return {}

    def _given(self, ages: Ages) -> str:
        given = [{"state": state, "seconds": ages[state]} for state in self.states if state in ages]
        return _encode(given).decode()

    async def _run(self, suffix: str, **parameters: Any) -> Sequence[Row]:
        return await self._database.fetch(self._queries[self._name + suffix], parameters)


def ended_rows(
    database: Database, lane: str, states: Sequence[str], *, table: str, state: str, ended: str, made: str
) -> PrunableRows:
    """Of a table of our own that nothing else goes with: by which words it knows how and when rows ended."""
    queries = load_queries(
        __package__ or "", database.dialect, "ended", table=table, state=state, ended=ended, made=made
    )
    return PrunableRows(database, queries, lane, states)


def orphaned_attempts(attempts: Attempts, ended: Sequence[str]) -> PrunableRows:
    """Of messages that another program has deleted; they may be as old as messages of all these states."""
    return PrunableRows(
        attempts.database, attempts.queries, attempts.lane, ("attempts",), name="prune_orphans", follows=ended
    )
