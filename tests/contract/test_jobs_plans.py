"""What the statements of dispatch jobs read: by index, and as little when 90,000 jobs are held back.

On 100,000 rows, most of them done. On PostgreSQL by buffers, with the plan for given values and with the
generic one that a prepared statement may get; on SQLite by steps of its virtual machine.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.jobs import job_bench
from tests.plans import A_WRITE, OURS, Connection, Plan, assert_only_ours_are_read, measuring, plan_of

from homing.db import load_queries
from homing.db.sqlite import _statements
from homing.engine.model import WORKER_LOST
from homing.proof.bench.jobs_scale import Kind, add_jobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

ROWS = 100_000
HELD = 90_000
TARGETS = 20
EACH = 5

#: Every tenth is open; of the open ones some are under way, some expire, some stand in ordered groups.
COLUMNS = """
    id, created_at, source, type, target_url, target, payload, idempotency_key, status, attempt_count,
    next_attempt_at, lease_expires_at, locked_by, claim_seq, expires_at, group_id, ordering, position, ready,
    rescue_count, has_headers
"""
VALUES = """
    {id}, {created}, 'source-' || (n % 50), 'type-' || (n % 20),
    'https://partner' || (n / 10 % 20) || '.example/',
    'https://partner' || (n / 10 % 20) || '.example:443', '', 'key-' || n,
    CASE WHEN n % 10 <> 0 THEN 'COMPLETED' WHEN n % 500 = 0 THEN 'IN_PROGRESS' ELSE 'PENDING' END, 0,
    {created}, CASE WHEN n % 1000 = 0 THEN {created} WHEN n % 500 = 0 THEN {later} END,
    CASE WHEN n % 500 = 0 THEN 'someone' END, CASE WHEN n % 500 = 0 THEN 1 ELSE 0 END,
    CASE WHEN n % 300 = 0 THEN {created} WHEN n % 50 = 0 THEN {later} END,
    'group-' || (n / 1000), CASE WHEN n % 1000 BETWEEN 10 AND 200 AND n % 10 = 0 THEN 'group' ELSE 'none' END,
    n, NOT (n % 1000 BETWEEN 20 AND 200 AND n % 10 = 0), CASE WHEN n % 2000 = 0 THEN 3 ELSE 0 END, true
"""
ATTEMPTS = """
INSERT INTO dispatch_attempt (dispatch_job_id, attempt_number, attempted_at, status)
SELECT id, 1, created_at, 'SUCCESS' FROM dispatch_job WHERE status = 'COMPLETED'
"""
HEADERS = """
INSERT INTO dispatch_job_headers (dispatch_job_id, header_name, header_value)
SELECT id, 'X-One', '1' FROM dispatch_job WHERE status <> 'COMPLETED'
"""
METADATA = """
INSERT INTO dispatch_job_metadata (id, dispatch_job_id, meta_key, meta_value)
SELECT id, id, 'tenantId', 'acme' FROM dispatch_job WHERE status <> 'COMPLETED'
"""
#: Targets that have failed some time or other, and stay known.
KNOWN_TARGETS = """
INSERT INTO homing_target (target)
SELECT 'https://known' || id || '.example:443'
FROM dispatch_job WHERE status <> 'COMPLETED' ORDER BY id LIMIT 5000
"""

SHARES = json.dumps([{"target": f"https://partner{n}.example:443", "slots": EACH} for n in range(TARGETS)])


def parameters(ids: list[int]) -> dict[str, dict[str, Any]]:
    """Each statement with values as the store gives them; `ids` are jobs under way."""
    batch = json.dumps(
        [
            {"id": id, "fence": 1, "status": "COMPLETED", "counted": 1, "attempt": "SUCCESS", "millis": 5}
            for id in ids
        ]
    )
    keys = [
        {"number": n, "source": f"source-{n % 50}", "type": f"type-{n % 20}",
         "target_url": f"https://partner{n // 10 % 20}.example/", "idempotency_key": f"key-{n}"}
        for n in range(100, 200)
    ]  # fmt: skip
    chosen = json.dumps(ids)
    return {
        "due_targets": {"after": "", "most": 1000},
        "oldest_due": {"after": "", "most": 1000, "but_for": ""},
        "oldest_claimable": {"after": "", "most": 1000},
        "claim": {"shares": SHARES},
        "probes": {"target": "https://partner1.example:443", "most": 50},
        "claim_one": {"id": ids[0]},
        "claim_one_limited": {"id": ids[0]},
        "claim_these": {"ids": chosen},
        "hold_up": {"id": ids[0]},
        "unsent": {"limit": 100},
        "postpone_unsent": {"limit": 100, "window": 300.0},
        "claim_unsent": {"limit": 100, "window": 300.0},
        "settle": {"batch": batch},
        "confirm": {"batch": batch},
        "renew": {"batch": batch},
        "release": {"batch": batch},
        "record_late": {"batch": batch},
        "rescue": {"limit": 50},
        "claim_lost": {"limit": 50},
        "expired": {"limit": 100},
        "expire": {"ids": chosen},
        "promote": {"groups": json.dumps([f"group-{n}" for n in range(50)])},
        "stuck_groups": {"after": "", "limit": 100},
        "by_idempotency_key": {"keys": json.dumps(keys)},
        "get": {"id": ids[0]},
        "attempts": {"id": ids[0] + 1},
        "ordered_groups": {"ids": chosen},
        "cancel": {"ids": chosen},
        "requeue": {"ids": chosen},
    }


#: Twenty thousand, everywhere in the table.
TAKEN = "status = 'COMPLETED' AND position % 5 = 1"
ALWAYS = {
    "owner": "me", "lease_seconds": 60.0, "lost_class": WORKER_LOST.code, "lost_error": WORKER_LOST.message,
}  # fmt: skip

# ── PostgreSQL ───────────────────────────────────────────────────────────────────────────────────

POSTGRES_VALUES = VALUES.format(
    id=f"homing_tsid_at(now() - ({ROWS} - n) * interval '1 second') + n",
    created=f"now() - ({ROWS} - n) * interval '1 second'",
    later="now() + interval '1 day'",
)


class Postgres:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queries = load_queries("homing.lanes.dispatch_jobs", "postgres")

    async def fill(self) -> list[int]:
        series = f"generate_series(1, {ROWS}) AS n"
        await self._connection.execute(
            f"INSERT INTO dispatch_job ({COLUMNS}) SELECT {POSTGRES_VALUES} FROM {series}"
        )
        for statement in (ATTEMPTS, HEADERS, METADATA, KNOWN_TARGETS):
            await self._connection.execute(statement)
        await self.settle_down()
        rows = await self._connection.fetch(
            "SELECT id FROM dispatch_job WHERE status = 'IN_PROGRESS' ORDER BY id LIMIT 100"
        )
        return [row["id"] for row in rows]

    async def settle_down(self) -> None:
        await self._connection.execute("VACUUM ANALYZE")

    async def all_plans(self, ids: list[int]) -> dict[tuple[str, bool], Plan]:
        return {
            (name, generic): await plan_of(
                self._connection, self._queries[name], {**ALWAYS, **given}, generic=generic
            )
            for name, given in parameters(ids).items()
            for generic in (False, True)
        }

    async def only_its_own(self) -> None:
        ids = [
            row["id"]
            for row in await self._connection.fetch(
                f"SELECT id FROM dispatch_job WHERE {TAKEN} AND position % 1000 = 1 ORDER BY id LIMIT {OURS}"
            )
        ]
        given = parameters(ids)
        await assert_only_ours_are_read(
            self._connection,
            "dispatch_job",
            f"""UPDATE dispatch_job SET status = 'IN_PROGRESS', claim_seq = 1, locked_by = 'someone',
                lease_expires_at = now() + interval '1 minute' WHERE {TAKEN}""",
            {
                name: (self._queries[name], {**ALWAYS, **given[name]})
                for name in ("settle", "renew", "release")
            },
        )


A_LOOK = 12
MOST_BUFFERS = {
    "due_targets": TARGETS * A_LOOK + 250,
    "claim": TARGETS * EACH * A_WRITE,
    "probes": 100 * A_LOOK,
    "settle": 100 * (A_WRITE + 30),
    "rescue": 50 * A_WRITE + 250,
    "claim_lost": 50 * A_WRITE + 250,
    "promote": 50 * A_WRITE,
    "stuck_groups": 100 * A_LOOK,
    "expired": 100 * A_LOOK,
    "by_idempotency_key": 100 * A_LOOK,
    "get": 40,
    "claim_one": 100,
    "attempts": 60,
}
#: None of these ids is in a state to be changed, which one plan sees by the state and another by the ids.
BY_ID = {"expire", "cancel", "requeue"}
LARGE = ("dispatch_job", "dispatch_attempt")


@pytest.mark.clause("JOB-21")
async def test_postgres_reads_by_index_and_what_is_held_back_costs_nothing(postgres_url: str) -> None:
    async with job_bench(postgres_url), measuring(postgres_url) as connection:
        postgres = Postgres(connection)
        ids = await postgres.fill()
        before = await postgres.all_plans(ids)
        for (name, generic), plan in before.items():
            assert not [t for t in plan.scanned if t.startswith(LARGE)], (name, generic)
            assert plan.buffers <= MOST_BUFFERS.get(name, 100 * A_WRITE), (name, generic, plan.buffers)
        await add_jobs(postgres_url, Kind(0, HELD, "one paused target"))
        await add_jobs(postgres_url, Kind(0, HELD, "one ordered group"))
        await postgres.settle_down()
        after = await postgres.all_plans(ids)
        await postgres.only_its_own()
    for key, plan in after.items():
        assert not [table for table in plan.scanned if table.startswith(LARGE)], key
        most = before[key].buffers * 1.5 + 20
        if key[0] in BY_ID:
            most = max(most, 100 * A_LOOK)
        assert plan.buffers <= most, (key, before[key].buffers, plan.buffers)


# ── SQLite ───────────────────────────────────────────────────────────────────────────────────────

SQLITE_SERIES = "WITH RECURSIVE series(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM series WHERE n < {rows})"
SQLITE_CREATED = f"strftime('%Y-%m-%dT%H:%M:%fZ', 'now', (n - {ROWS}) || ' seconds')"
SQLITE_VALUES = VALUES.format(
    id="n * 64", created=SQLITE_CREATED, later="strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '1 day')"
)
SQLITE_PAUSED = f"""
{SQLITE_SERIES.format(rows=HELD)}
INSERT INTO dispatch_job (source, type, target_url, target, payload)
SELECT 's', 't', 'https://paused.example/', 'https://paused.example:443', '' FROM series
"""
SQLITE_GROUP = f"""
{SQLITE_SERIES.format(rows=HELD)}
INSERT INTO dispatch_job (
    source, type, target_url, target, payload, group_id, ordering, position, ready, status, next_attempt_at)
SELECT 's', 't', 'https://partner0.example/', 'https://partner0.example:443', '', 'held', 'group', n, n = 1,
    'PENDING', CASE n WHEN 1 THEN '2999-01-01T00:00:00.000Z' ELSE '2020-01-01T00:00:00.000Z' END
FROM series
"""


class Sqlite:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._queries = load_queries("homing.lanes.dispatch_jobs", "sqlite")

    def fill(self) -> list[int]:
        series = SQLITE_SERIES.format(rows=ROWS)
        self.run(f"{series} INSERT INTO dispatch_job ({COLUMNS}) SELECT {SQLITE_VALUES} FROM series")
        for statement in (ATTEMPTS, HEADERS, METADATA, KNOWN_TARGETS):
            self.run(statement)
        rows = self._connection.execute(
            "SELECT id FROM dispatch_job WHERE status = 'IN_PROGRESS' ORDER BY id LIMIT 100"
        )
        return [row[0] for row in rows]

    def run(self, statement: str) -> None:
        self._connection.execute(statement)

    def steps(self, name: str, given: Mapping[str, Any]) -> int:
        """Hundreds of steps that it takes; undone afterwards."""
        query = self._queries[name]
        values = {parameter: {**ALWAYS, **given}[parameter] for parameter in query.parameters}
        with self._counted() as counted:
            self._connection.execute("BEGIN IMMEDIATE")
            for statement in _statements(query.sql):
                self._connection.execute(statement, values).fetchall()
            self._connection.execute("ROLLBACK")
        return counted[0]

    @contextmanager
    def _counted(self) -> Iterator[list[int]]:
        counted = [0]

        def tick() -> int:
            counted[0] += 1
            return 0

        self._connection.set_progress_handler(tick, 100)
        yield counted
        self._connection.set_progress_handler(None, 0)

    def scans(self, name: str, given: Mapping[str, Any]) -> list[str]:
        """Lines of its plans that read a large table without an index."""
        query = self._queries[name]
        values = {parameter: {**ALWAYS, **given}[parameter] for parameter in query.parameters}
        return [
            row[3]
            for statement in _statements(query.sql)
            for row in self._connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)
            if re.match(r"SCAN (dispatch_\w+|homing_target|[a-z])$", row[3])
        ]

    def all_steps(self, ids: list[int]) -> dict[str, int]:
        return {name: self.steps(name, given) for name, given in parameters(ids).items()}


#: Hundreds, as they are counted: a hundred rows at most are written, each with its entries in all indexes.
MOST_STEPS = 1000


@pytest.mark.clause("JOB-21")
async def test_sqlite_reads_by_index_and_what_is_held_back_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "homing.db"
    async with job_bench(f"sqlite:///{path}"):
        pass
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -65536")
        sqlite = Sqlite(connection)
        ids = sqlite.fill()
        before = sqlite.all_steps(ids)
        _assert_bounded(sqlite, ids, before)
        sqlite.run(SQLITE_PAUSED)
        sqlite.run(
            "INSERT INTO homing_target (target, paused_until) VALUES ('https://paused.example:443', '2999')"
        )
        sqlite.run(SQLITE_GROUP)
        _assert_as_before(before, sqlite.all_steps(ids))
        sqlite.run("ANALYZE")
        _assert_bounded(sqlite, ids, sqlite.all_steps(ids))


def _assert_bounded(sqlite: Sqlite, ids: list[int], steps: Mapping[str, int]) -> None:
    for name, given in parameters(ids).items():
        assert sqlite.scans(name, given) == [], name
        assert steps[name] <= MOST_STEPS, name


def _assert_as_before(before: Mapping[str, int], after: Mapping[str, int]) -> None:
    for name, steps in after.items():
        assert steps <= before[name] * 1.5 + 20, (name, before[name], steps)
