"""Queries that are not the worker's have files of their own, such as `fanout_postgres.sql`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import TypeVar

from homing.db.queries import Dialect, Queries, parse_queries
from homing.errors import Conflict

Result = TypeVar("Result")

#: How often a lock that another process holds is waited for; each time for as long as the database waits.
_TRIES = 4


def queries_of(subject: str, dialect: Dialect) -> Queries:
    text = files(__package__ or "").joinpath(f"{subject}_{dialect}.sql").read_text(encoding="utf-8")
    return {query.name: query for query in parse_queries(text, dialect)}


async def patiently(write: Callable[[], Awaitable[Result]]) -> Result:
    """Another program may hold its lock for seconds, or a fan-out to very many; nothing was written then."""
    for _ in range(_TRIES - 1):
        try:
            return await write()
        except Conflict:
            continue
    return await write()
