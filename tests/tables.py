"""The jobs' tables as another program would use them, with a few words that every database understands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec

from homing.db import Database, instant, iso
from homing.db.mongo import MongoDatabase
from homing.db.queries import parse_queries
from homing.errors import Conflict
from homing.lanes.dispatch_jobs.mongo_documents import (
    ATTEMPTS,
    JOBS,
    attempt_columns,
    job_columns,
    without_nothing,
)

#: What MongoDB calls `_id`.
_IDS = {JOBS: "id", ATTEMPTS: "id", "homing_target": "target", "dispatch_credentials": "id"}


class Tables:
    def __init__(self, database: Database) -> None:
        self.database = database

    # ── plain SQL ────────────────────────────────────────────────────────────────────────────────

    async def sql(self, statement: str, **parameters: Any) -> list[dict[str, Any]]:
        """Run plain SQL with `:name` parameters, outside of everything Homing knows."""
        query = next(parse_queries(f"-- name: plain\n{statement}", self.database.dialect))
        query = msgspec.structs.replace(query, writes=not statement.lstrip().upper().startswith("SELECT"))
        while True:
            # It knows no order of rows, so it may meet a worker's statement in a deadlock, and goes again.
            with suppress(Conflict):
                return [dict(row) for row in await self.database.fetch(query, parameters)]

    # ── what every database can do ───────────────────────────────────────────────────────────────

    async def rows(self, table: str, **equal: Any) -> list[dict[str, Any]]:
        """Those whose columns are equal to what is given."""
        if isinstance(self.database, MongoDatabase):
            return await self._documents(self.database, table, equal)
        return await self.sql(f"SELECT * FROM {table}{_where(equal)}", **equal)

    async def change(self, table: str, values: Mapping[str, Any], **equal: Any) -> None:
        """None takes a value away."""
        if isinstance(self.database, MongoDatabase):
            await self._set(self.database, table, values, equal)
            return
        sets = ", ".join(f"{name} = :{name}" for name in values)
        given = {name: self.time(value) for name, value in values.items()}
        await self.sql(
            f"UPDATE {table} SET {sets}{_where(equal, 'only_')} RETURNING 1 AS one",
            **given, **{f"only_{name}": value for name, value in equal.items()},
        )  # fmt: skip

    async def insert(self, table: str, values: Mapping[str, Any]) -> None:
        if isinstance(self.database, MongoDatabase):
            renamed = _renamed(table, without_nothing(values))
            await self.database.opened[table].insert_one(renamed)
            return
        names, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
        given = {name: self.time(value) for name, value in values.items()}
        await self.sql(f"INSERT INTO {table} ({names}) VALUES ({marks}) RETURNING 1 AS one", **given)

    async def add_header(self, job_id: int, name: str, value: str) -> None:
        if isinstance(self.database, MongoDatabase):
            header = {"$set": {f"headers.{name}": value}}
            await self.database.opened[JOBS].update_one({"_id": job_id}, header)
            return
        row = {"dispatch_job_id": job_id, "header_name": name, "header_value": value}
        await self.insert("dispatch_job_headers", row)

    async def delete(self, table: str, **equal: Any) -> None:
        if isinstance(self.database, MongoDatabase):
            await self.database.opened[table].delete_many(_renamed(table, equal))
            return
        await self.sql(f"DELETE FROM {table}{_where(equal)} RETURNING 1 AS one", **equal)

    async def shift(self, table: str, columns: Sequence[str], seconds: float, **equal: Any) -> None:
        """Bring times nearer by so many seconds."""
        if isinstance(self.database, MongoDatabase):
            sets = {name: {"$cond": [{"$eq": [{"$type": f"${name}"}, "date"]},
                                     {"$subtract": [f"${name}", round(seconds * 1000)]}, "$$REMOVE"]}
                    for name in columns}  # fmt: skip
            await self.database.opened[table].update_many(_renamed(table, equal), [{"$set": sets}])
            return
        shifted = (
            "{0} - make_interval(secs => :s)"
            if self.database.dialect == "postgres"
            else "strftime('%Y-%m-%dT%H:%M:%fZ', {0}, printf('%+.3f seconds', -:s))"
        )
        sets_ = ", ".join(f"{column} = {shifted.format(column)}" for column in columns)
        await self.sql(
            f"UPDATE {table} SET {sets_}{_where(equal)} RETURNING 1 AS one", s=float(seconds), **equal
        )

    async def now(self) -> datetime:
        """The database's time."""
        if isinstance(self.database, MongoDatabase):
            moment = instant((await self.database.opened.command("hello"))["localTime"])
        else:
            text = "now()" if self.database.dialect == "postgres" else "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"
            moment = instant((await self.sql(f"SELECT {text} AS now"))[0]["now"])
        assert moment is not None
        return moment

    def time(self, value: Any) -> Any:
        return iso(value) if isinstance(value, datetime) and self.database.dialect == "sqlite" else value

    # ── MongoDB ──────────────────────────────────────────────────────────────────────────────────

    async def _documents(
        self, database: MongoDatabase, table: str, equal: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        if table == ATTEMPTS:
            return await self._attempts(database)
        found = await database.opened[table].find(_renamed(table, equal)).to_list()
        if table == JOBS:
            return [job_columns(one) for one in found]
        return [{**one, _IDS[table]: one["_id"]} for one in found]

    async def _attempts(self, database: MongoDatabase) -> list[dict[str, Any]]:
        jobs = await database.opened[JOBS].find({}, {"attempts": 1}).to_list()
        embedded = [attempt_columns(job["_id"], one) for job in jobs for one in job.get("attempts", ())]
        later = await database.opened[ATTEMPTS].find().to_list()
        return [
            *embedded,
            *(attempt_columns(one["dispatch_job_id"], {**one, "id": one["_id"]}) for one in later),
        ]

    async def _set(
        self, database: MongoDatabase, table: str, values: Mapping[str, Any], equal: Mapping[str, Any]
    ) -> None:
        sets = {name: "$$REMOVE" if value is None else {"$literal": value} for name, value in values.items()}
        query = database.fetch(_raw(table, _renamed(table, equal), sets), {})
        await query


def _raw(table: str, chosen: Mapping[str, Any], sets: Mapping[str, Any]) -> Any:
    """Through `fetch`, so that errors are ours."""
    from homing.db.queries import Query

    async def update(session: Any, _parameters: Any) -> list[Any]:
        await session.update_many(table, chosen, [{"$set": sets}])
        return []

    return Query("change", "", (), True, update)


def _renamed(table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {"_id" if name == _IDS[table] else name: value for name, value in values.items()}


def _where(equal: Mapping[str, Any], prefix: str = "") -> str:
    return f" WHERE {' AND '.join(f'{name} = :{prefix}{name}' for name in equal)}" if equal else ""
