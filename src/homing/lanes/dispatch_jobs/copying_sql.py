"""One side of a copy in PostgreSQL or SQLite."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from homing.db import Database, Dialect, Query, Row
from homing.db.queries import parse_queries
from homing.lanes.dispatch_jobs.copying import ATTEMPT, CREDENTIALS, JOB, TARGET, Whole, plain

_CURSORS = "CREATE TABLE IF NOT EXISTS homing_copy (source TEXT PRIMARY KEY, last BIGINT NOT NULL);"
_FINISH: Mapping[Dialect, str] = {
    "postgres": "SELECT setval('homing_job_position', greatest("
    "(SELECT coalesce(max(position), 1) FROM dispatch_job), (SELECT last_value FROM homing_job_position)))",
    # It looks for the largest id of its jobs itself, and counts places within each group.
    "sqlite": "UPDATE homing_tsid SET last = max(last, (SELECT coalesce(max(id), 0) FROM dispatch_attempt)) "
    "RETURNING last",
}
_IDS: Mapping[Dialect, str] = {
    "postgres": "= ANY (ARRAY(SELECT json_array_elements_text(:ids::json)::bigint))",
    "sqlite": "IN (SELECT value FROM json_each(:ids))",
}
_MANY = 2**31

_encode = msgspec.json.Encoder().encode


class SqlSide:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._dialect: Dialect = database.dialect

    async def prepare(self) -> None:
        await self._database.run_script(_CURSORS)

    async def cursor(self, source: str) -> int | None:
        rows = await self._run("SELECT last FROM homing_copy WHERE source = :source", source=source)
        return rows[0]["last"] if rows else None

    async def count(self) -> int:
        rows = await self._run("SELECT count(*) AS count FROM dispatch_job")
        return int(rows[0]["count"])

    async def finish(self) -> None:
        await self._run(_FINISH[self._dialect])

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    async def jobs(self, after: int, limit: int, upto: int | None = None) -> list[Whole]:
        end = "" if upto is None else "AND id <= :upto"
        rows = await self._run(
            f"SELECT * FROM dispatch_job WHERE id > :after {end} ORDER BY id LIMIT :limit",  # noqa: S608 - ours
            after=after, limit=limit or _MANY, **({} if upto is None else {"upto": upto}),
        )  # fmt: skip
        ids = [row["id"] for row in rows]
        metadata = await self._children("dispatch_job_metadata", ids)
        headers = await self._children("dispatch_job_headers", ids)
        attempts = await self._children("dispatch_attempt", ids)
        return [
            Whole(
                plain(row, JOB),
                [(one["meta_key"], one["meta_value"]) for one in metadata[row["id"]]],
                [(one["header_name"], one["header_value"]) for one in headers[row["id"]]],
                _in_turn(attempts[row["id"]]),
            )
            for row in rows
        ]

    async def _children(self, table: str, ids: Sequence[int]) -> Mapping[int, list[Row]]:
        found: dict[int, list[Row]] = defaultdict(list)
        if ids:
            text = f"SELECT * FROM {table} WHERE dispatch_job_id {_IDS[self._dialect]}"  # noqa: S608 - ours
            for row in await self._run(text, ids=_encode(ids).decode()):
                found[row["dispatch_job_id"]].append(row)
        return found

    async def credentials(self, after: int, limit: int) -> list[Mapping[str, Any]]:
        text = "SELECT * FROM dispatch_credentials WHERE id > :after ORDER BY id LIMIT :limit"
        return [plain(row, CREDENTIALS) for row in await self._run(text, after=after, limit=limit)]

    async def targets(self, after: str, limit: int) -> list[Mapping[str, Any]]:
        text = "SELECT * FROM homing_target WHERE target > :after ORDER BY target LIMIT :limit"
        return [plain(row, TARGET) for row in await self._run(text, after=after, limit=limit)]

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    async def put_jobs(self, jobs: Sequence[Whole], source: str) -> None:
        await self._put_jobs(jobs, [_CURSOR], {"source": source, "last": jobs[-1].id})

    async def put_late_jobs(self, jobs: Sequence[Whole]) -> None:
        await self._put_jobs(jobs, [], {})

    async def _put_jobs(self, jobs: Sequence[Whole], also: Sequence[str], given: Mapping[str, Any]) -> None:
        """What belongs to a job goes in before it, where it is not there yet: all in one transaction."""
        steps = [
            self._insert("dispatch_job_metadata", ("dispatch_job_id", "meta_key", "meta_value"), "metadata"),
            self._insert(
                "dispatch_job_headers", ("dispatch_job_id", "header_name", "header_value"), "headers"
            ),
            self._insert("dispatch_attempt", ("dispatch_job_id", *ATTEMPT), "attempts"),
            self._insert("dispatch_job", JOB, "jobs", is_child=False),
            *also,
        ]
        texts = {name: _encode(rows).decode() for name, rows in _tables(jobs).items()}
        await self._database.fetch_all([_query(step, self._dialect) for step in steps], {**texts, **given})

    async def put_credentials(self, rows: Sequence[Mapping[str, Any]]) -> None:
        text = self._insert("dispatch_credentials", CREDENTIALS, "rows", is_child=False)
        await self._run(text, rows=_encode(rows).decode())

    async def put_targets(self, rows: Sequence[Mapping[str, Any]]) -> None:
        text = self._insert("homing_target", TARGET, "rows", is_child=False)
        await self._run(text, rows=_encode(rows).decode())

    def _insert(self, table: str, names: Sequence[str], given: str, *, is_child: bool = True) -> str:
        """All rows of a JSON array. What is there already, by any key, is left as it is."""
        if self._dialect == "postgres":
            rows = f"json_populate_recordset(NULL::{table}, :{given}::json) AS r"
            values = {name: f"r.{name}" for name in names}
        else:
            rows = f"json_each(:{given}) AS r"
            values = {name: f"json_extract(r.value, '$.{name}')" for name in names}
        new = "true"
        if is_child:
            new = f"NOT EXISTS (SELECT 1 FROM dispatch_job AS j WHERE j.id = {values['dispatch_job_id']})"  # noqa: S608 - ours
        return (
            f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values.values())} FROM {rows} "  # noqa: S608 - ours
            f"WHERE {new} ON CONFLICT DO NOTHING RETURNING 1 AS one"
        )

    async def _run(self, text: str, **parameters: Any) -> Sequence[Row]:
        return await self._database.fetch(_query(text, self._dialect), parameters)


_CURSOR = (
    "INSERT INTO homing_copy (source, last) VALUES (:source, :last) "
    "ON CONFLICT (source) DO UPDATE SET last = excluded.last RETURNING last"
)


def _tables(jobs: Sequence[Whole]) -> dict[str, list[Mapping[str, Any]]]:
    """What goes where."""
    return {
        "metadata": [
            {"dispatch_job_id": job.id, "meta_key": key, "meta_value": value}
            for job in jobs
            for key, value in job.metadata
        ],
        "headers": [
            {"dispatch_job_id": job.id, "header_name": name, "header_value": value}
            for job in jobs
            for name, value in job.headers
        ],
        "attempts": [{"dispatch_job_id": job.id, **one} for job in jobs for one in job.attempts],
        "jobs": [job.columns for job in jobs],
    }


def _query(text: str, dialect: Dialect) -> Query:
    return next(parse_queries(f"-- name: copy\n{text}", dialect))


def _in_turn(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return sorted((plain(row, ATTEMPT) for row in rows), key=lambda one: (one["attempt_number"], one["id"]))
