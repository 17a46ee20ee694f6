"""The desk reads what it shows, or a bounded window, never the table. On 20,000 rows in each lane."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from tests.desk.rows import Bench, bench

from homing.db import Query, Row

ROWS = 20_000
FIRST_WINDOW, SCATTERED, WINDOW = 100, 300, 1_000
SERIES = {
    "postgres": f"generate_series(1, {ROWS}) AS s(n)",
    "sqlite": "(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s"
    f" WHERE n < {ROWS}) SELECT n FROM s) AS s",
}
STATE = "CASE WHEN n % 50 = 0 THEN '{0}' WHEN n % 500 = 1 THEN '{1}' ELSE '{2}' END"
MAILS = (
    "INSERT INTO mail_outbox (to_address, subject, status, idempotency_key)"
    " SELECT 'user' || n || '@example.org', 'Order ' || n,"
    f" {STATE.format('failed', 'queued', 'sent')}, 'k' || n FROM "
)
JOBS = (
    "INSERT INTO dispatch_job (source, type, target_url, payload, status, error_class, external_id)"
    " SELECT 'shop', 'order.' || (n % 20), 'https://hooks' || (n % 7) || '.example.com/', '{}',"
    f" {STATE.format('ERROR', 'PENDING', 'COMPLETED')},"
    " CASE WHEN n % 50 = 0 THEN 'http_500' END, 'x' || n FROM "
)
EMAILS = (
    "INSERT INTO email_log (to_address, subject, status, message_key)"
    " SELECT 'user' || n || '@example.org', 'Order ' || n,"
    f" {STATE.format('Dead', 'Pending', 'Sent')}, 'k' || n FROM "
)
NOTIFICATIONS = (
    "INSERT INTO open_event_notifications (open_event_id, subscription_id, dedupe_key, fanout_status)"
    f" SELECT 1, n, 'k', {STATE.format('failed', 'pending', 'sent')} FROM "
)
TABLES = ("mail_outbox", "dispatch_job", "email_log", "open_event_notifications")
#: Lines that an index answers: a page of each lane is read, and what is looked up for its rows.
SERVED = (
    "", "status:dead", "status:waiting", "status:running", "status:stopped,dead", "source:shop",
    "type:order.10 lane:dispatch_jobs",
    "error:http_500 status:dead lane:dispatch_jobs", "error:unclassified status:dead lane:dispatch_jobs",
    "outbox_77", "id:x77", "id:k77",
)  # fmt: skip
#: Lines that need a look through rows: a bounded one.
LOOKED_THROUGH = (
    "unfindable", "to:nobody@example.org", "to:*@nowhere.org", "type:nothing*", "status:dead unfindable",
    "status:delivered unfindable", "error:nothing", "meta.a:b*", "since:1h unfindable", "to:nowhere.com",
    "until:2000-01-01",
)  # fmt: skip


class Plans:
    """Stands before a database: what each statement has read is counted."""

    def __init__(self, lanes: Bench) -> None:
        database: Any = lanes.homing.database
        self.dialect = database.dialect
        self._fetch, self._fetch_all = database.fetch, database.fetch_all
        self.read = 0
        self.indexes: set[str] = set()
        database.fetch, database.fetch_all = self.fetch, self.fetch_all

    async def fetch(self, query: Query, parameters: Mapping[str, Any]) -> Sequence[Row]:
        await self._explain(query, parameters)
        rows: Sequence[Row] = await self._fetch(query, parameters)
        return rows

    async def fetch_all(self, queries: Sequence[Query], parameters: Mapping[str, Any]) -> Any:
        await self._explain(queries[-1], parameters)
        return await self._fetch_all(queries, parameters)

    async def _explain(self, query: Query, parameters: Mapping[str, Any]) -> None:
        if query.sql.startswith("EXPLAIN"):
            return
        words = "EXPLAIN (ANALYZE, FORMAT JSON) " if self.dialect == "postgres" else "EXPLAIN QUERY PLAN "
        rows = await self._fetch(msgspec.structs.replace(query, sql=words + query.sql), parameters)
        if self.dialect == "postgres":
            self._count(json.loads(next(iter(rows[0])))[0]["Plan"])
        else:
            self.indexes |= {word for row in rows for word in row["detail"].split() if "_" in word}

    def _count(self, node: Mapping[str, Any]) -> None:
        if "Relation Name" in node:
            each = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            self.read += round(each * node["Actual Loops"])
            self.indexes.add(node.get("Index Name", "none"))
        for inner in node.get("Plans", ()):
            self._count(inner)


async def filled(lanes: Bench) -> None:
    database = lanes.homing.database
    for sql in (MAILS, JOBS, EMAILS, NOTIFICATIONS):
        await database.run_script(f"{sql}{SERIES[database.dialect]} WHERE true;")
    if database.dialect == "postgres":
        for table in TABLES:
            await database.run_script(f"ANALYZE {table};")


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("homing.db.looking", "homing.lanes.dispatch_jobs.desk_find"):
        monkeypatch.setattr(f"{module}.FIRST_WINDOW", FIRST_WINDOW)
        monkeypatch.setattr(f"{module}.SCATTERED", SCATTERED)
        monkeypatch.setattr(f"{module}.WINDOW", WINDOW)


@pytest.mark.usefixtures("small_windows")
@pytest.mark.clause("JOB-22")
async def test_postgres_reads_a_page_or_a_window(postgres_url: str) -> None:
    async with bench(postgres_url) as lanes:
        await filled(lanes)
        plans = Plans(lanes)
        for line in SERVED:
            plans.read = 0
            found = await lanes.find(line, limit=20)
            assert found.looked_at is None, line
            # Of each lane a page, of each state one, and the rows that waited in another order.
            assert plans.read < 700, (line, plans.read)
        for line in LOOKED_THROUGH:
            plans.read = 0
            found = await lanes.find(line, limit=20)
            assert found.looked_at is not None, line
            # Of each lane both windows, each looked through and counted; of jobs one for each state.
            assert plans.read < 20 * WINDOW, (line, plans.read)
            assert found.looked_at <= 4 * WINDOW + 5 * SCATTERED, line


@pytest.mark.usefixtures("small_windows")
@pytest.mark.clause("JOB-22")
async def test_sqlite_reads_its_small_indexes(sqlite_url: str) -> None:
    async with bench(sqlite_url) as lanes:
        await filled(lanes)
        plans = Plans(lanes)
        for line, wanted in {
            "status:dead": {
                "mail_outbox_ended",
                "email_log_open",
                "homing_notifications_ended",
                "idx_dispatch_status",
            },
            "status:dead unfindable": {"mail_outbox_ended", "email_log_open", "homing_notifications_ended"},
            "status:running": {"mail_outbox_dispatching"},
            "status:waiting": {"mail_outbox_due", "email_log_due", "homing_notifications_new"},
            "id:k77": {"mail_outbox_idempotency", "email_log_message_key"},
            "id:x77": {"idx_dispatch_external_id"},
            "type:order.3": {"idx_dispatch_type"},
        }.items():
            plans.indexes.clear()
            found = await lanes.find(line, limit=20)
            assert wanted <= plans.indexes, (line, plans.indexes)
            assert found.rows or "unfindable" in line or line == "status:running"
