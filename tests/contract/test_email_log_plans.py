"""What is due is read from the index and nothing else, on 100,000 rows of which most are sent."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from tests.emails import EmailBench, email_bench
from tests.notifications import sqlite_path
from tests.plans import assert_only_ours_are_read, measuring, our_batch
from tests.plans import plan_of as measured

from homing.db.store import SqlStore

ROWS = 100_000
#: Of a thousand nine hundred are sent; of the others some wait, some are queued, some in somebody's hands.
_STATUS = """CASE WHEN g % 10 <> 0 THEN 'Sent' WHEN g % 100 = 0 THEN 'Dead' WHEN g % 50 = 0 THEN 'RetryQueued'
    WHEN g % 20 = 0 THEN 'Failed' ELSE 'Pending' END"""
POSTGRES_ROWS = f"""
INSERT INTO email_log (message_key, to_address, subject, body, status, attempt_count, next_attempt_at,
    last_queued_at, locked_by, locked_until, announced_at)
SELECT 'k' || g, 'a@example.org', 's', 'b', {_STATUS}, 1, now() + (g - 50000) * interval '1 second', now(),
    CASE WHEN g % 50 = 0 AND g % 100 <> 0 THEN 'someone' END, CASE WHEN g % 50 = 0 THEN now() END, now()
FROM generate_series(1, {ROWS}) AS g RETURNING 1
"""
SQLITE_ROWS = f"""
WITH RECURSIVE series(g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM series WHERE g < {ROWS})
INSERT INTO email_log (to_address, subject, body, status, attempt_count, next_attempt_at, last_queued_at,
    locked_by, announced_at)
SELECT 'a@example.org', 's', 'b', {_STATUS}, 1,
    strftime('%Y-%m-%dT%H:%M:%fZ', 'now', (g - 50000) || ' seconds'), strftime('%Y-%m-%dT%H:%M:%fZ', 'now'),
    CASE WHEN g % 50 = 0 AND g % 100 <> 0 THEN 'someone' END, strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
FROM series RETURNING 1
"""


async def plan_of(lane: EmailBench, store: SqlStore[Any], name: str, **parameters: object) -> str:
    query = store._queries[name]
    explain = "EXPLAIN (FORMAT JSON) " if lane.is_postgres else "EXPLAIN QUERY PLAN "
    explained = type(query)("explain", explain + query.sql, query.parameters, writes=False)
    rows = await lane.homing.database.fetch(explained, {**store._parameters, **parameters})
    return json.dumps([str(dict(row)) for row in rows])


@pytest.mark.clause("RTY-11", "RTY-02")
async def test_postgres_reads_only_what_is_due(postgres_url: str) -> None:
    async with email_bench(postgres_url) as lane:
        await lane.sql(POSTGRES_ROWS)
        await lane.sql("VACUUM ANALYZE email_log")
        plan = await plan_of(lane, lane.due, "claim", limit=100)
        assert plan.count("email_log_due") == 2, "one jump for each state that can be due"
        assert plan.count("email_log_unpublished_ours") == 1
        assert plan.count("email_log_unpublished_new") == 1
        assert "Seq Scan" not in plan
        for name, index in (
            ("rescue", "email_log_locked"),
            ("claim_lost", "email_log_locked"),
        ):
            plan = await plan_of(lane, lane.emails, name, limit=100)
            assert index in plan, name
            assert "Seq Scan" not in plan, name
        for name in ("sweep", "claim_deaths"):
            assert "Seq Scan" not in await plan_of(lane, lane.due, name, limit=100), name
        assert "email_log_unannounced" in await plan_of(lane, lane.due, "claim_deaths", limit=100)
        assert "email_log_retried" in await plan_of(lane, lane.due, "sweep", limit=100)
        assert "email_log_queued" in await plan_of(lane, lane.due, "lost", limit=100)
        assert "email_log_locked" in await plan_of(lane, lane.emails, "disown", limit=100)
        keys = json.dumps([f"k{i}" for i in range(100)])
        plan = await plan_of(lane, lane.emails, "by_message_key", keys=keys)
        assert "email_log_message_key" in plan
        assert not re.search(r"Seq Scan[^{}]*Relation Name[^a-z]+email_log[^_a-z]", plan)


#: In the hands of those who send or publish.
IN_FLIGHT = """
UPDATE email_log SET status = '{status}', claim_seq = 1, locked_by = 'someone', last_queued_at = now(),
    locked_until = now() + interval '1 minute' WHERE id % 5 = 0
"""
FENCED = ("settle", "renew", "release")


@pytest.mark.clause("RTY-11", "RTY-02")
@pytest.mark.parametrize(
    ("stage", "status", "names"),
    [
        ("send", "Pending", FENCED),
        ("send", "RetryQueued", ("claim_these",)),
        ("schedule", "RetryQueued", FENCED),
    ],
)
async def test_postgres_settles_without_a_look_at_what_others_have_in_flight(
    postgres_url: str, stage: str, status: str, names: tuple[str, ...]
) -> None:
    async with email_bench(postgres_url) as lane, measuring(postgres_url) as connection:
        await lane.sql(POSTGRES_ROWS)
        store: SqlStore[Any] = lane.emails if stage == "send" else lane.due
        batch = our_batch(ROWS, status="Sent", charged=1, published=True)
        given = {**store._parameters, "batch": batch}
        await assert_only_ours_are_read(
            connection,
            "email_log",
            IN_FLIGHT.format(status=status),
            {name: (store._queries[name], given) for name in names},
        )


@pytest.mark.clause("RTY-11")
async def test_a_claim_touches_a_handful_of_pages(postgres_url: str) -> None:
    """A hundred due rows among 100,000 cost about as much as among a hundred."""
    async with email_bench(postgres_url) as lane:
        await lane.sql(POSTGRES_ROWS)
        await lane.sql("VACUUM ANALYZE email_log")
        async with measuring(postgres_url) as connection:
            given = {**lane.due._parameters, "limit": 100}
            plan = await measured(connection, lane.due._queries["preview"], given)
        assert plan.buffers < 3000, "the table alone has more pages than that"


#: Pending rows that are not ours to publish, or no more: their producer has published them and notes nothing,
#: their scheduler has; we have, after they were put back.
NOT_OURS = {
    "new": "attempt_count = 0, claim_seq = 0, last_queued_at = NULL",
    "retried": "attempt_count = 1, claim_seq = 0, last_queued_at = NULL",
    "queued again": "attempt_count = 0, claim_seq = 3, ended_claim = 1, last_attempt_at = created_at, "
    "last_queued_at = next_attempt_at",
}


@pytest.mark.clause("RTY-11", "RTY-22")
@pytest.mark.parametrize("backlog", NOT_OURS)
async def test_postgres_looks_at_no_backlog_that_is_not_ours(postgres_url: str, backlog: str) -> None:
    async with (
        email_bench(postgres_url, email_publish_new=False) as lane,
        measuring(postgres_url) as connection,
    ):
        await lane.sql(POSTGRES_ROWS)
        await connection.execute(
            "UPDATE email_log SET status = 'Pending', claim_seq = 1, locked_by = NULL, locked_until = NULL, "
            "created_at = now() - interval '2 hours', next_attempt_at = now() - interval '1 hour'"
        )
        await connection.execute(f"UPDATE email_log SET {NOT_OURS[backlog]}")
        await connection.execute("VACUUM ANALYZE email_log")
        given = {**lane.due._parameters, "limit": 100}
        for generic in (False, True):
            plan = await measured(connection, lane.due._queries["preview"], given, generic=generic)
            assert plan.rows_read == 0, generic
            assert plan.buffers <= 50, generic


@pytest.mark.clause("RTY-11", "RTY-22")
@pytest.mark.parametrize("backlog", NOT_OURS)
async def test_sqlite_looks_at_no_backlog_that_is_not_ours(sqlite_url: str, backlog: str) -> None:
    async with email_bench(sqlite_url, email_publish_new=False) as lane:
        await lane.sql(SQLITE_ROWS)
        query, given = lane.due._queries["preview"], {**lane.due._parameters, "limit": 100}
    ticks = [0]

    def tick() -> int:
        ticks[0] += 1
        return 0

    with closing(sqlite3.connect(sqlite_path(sqlite_url))) as connection:
        connection.execute(
            "UPDATE email_log SET status = 'Pending', claim_seq = 1, locked_by = NULL, locked_until = NULL, "
            "created_at = '2026-01-01T00:00:00.000Z', next_attempt_at = '2026-01-01T01:00:00.000Z'"
        )
        connection.execute(f"UPDATE email_log SET {NOT_OURS[backlog]}")
        # The schema is read first, and takes steps too.
        connection.execute(query.sql, given).fetchall()
        connection.set_progress_handler(tick, 100)
        assert connection.execute(query.sql, given).fetchall() == []
    assert ticks[0] <= 5, "hundreds of steps, of which each row takes some"


@pytest.mark.clause("RTY-11", "RTY-02")
async def test_sqlite_reads_only_what_is_due(sqlite_url: str) -> None:
    async with email_bench(sqlite_url) as lane:
        await lane.sql(SQLITE_ROWS)
        plan = await plan_of(lane, lane.due, "claim", limit=100)
        assert plan.count("email_log_due (status=? AND next_attempt_at<?)") == 2
        assert plan.count("email_log_unpublished_ours (<expr><?)") == 1
        assert plan.count("email_log_unpublished_new (<expr><?)") == 1
        assert "SCAN email_log" not in plan
        for name in ("rescue", "claim_lost", "disown"):
            plan = await plan_of(lane, lane.emails, name, limit=100)
            assert "email_log_locked" in plan, name
        for name, index in (
            ("sweep", "email_log_retried"),
            ("claim_deaths", "email_log_unannounced"),
            ("lost", "email_log_queued"),
        ):
            assert index in await plan_of(lane, lane.due, name, limit=100), name
        batch = json.dumps([{"id": 1, "fence": 1, "key": "k"}])
        for store, name in ((lane.emails, "claim_these"), (lane.emails, "settle"), (lane.due, "settle")):
            plan = await plan_of(lane, store, name, batch=batch)
            assert "SCAN email_log" not in plan, name
            assert "INTEGER PRIMARY KEY" in plan, name


@pytest.mark.parametrize("status", ["Failed", "Dead", "RetryQueued"])
async def test_lists_of_what_ended_badly_need_no_scan(database_url: str, status: str) -> None:
    async with email_bench(database_url) as lane:
        await lane.sql(POSTGRES_ROWS if lane.is_postgres else SQLITE_ROWS)
        if lane.is_postgres:
            await lane.sql("VACUUM ANALYZE email_log")
        plan = await plan_of(
            lane, lane.emails, "page_open", status=status, before=None, reason=None, limit=20
        )
        assert "Seq Scan" not in plan
        assert "SCAN email_log" not in plan
        assert "email_log_" in plan
