"""What is due is read from small indexes and nothing else, on 100,000 rows that ended or wait."""

from __future__ import annotations

import json
import re

import pytest
from tests.notifications import NotificationBench, notification_bench
from tests.plans import assert_only_ours_are_read, measuring, our_batch
from tests.plans import plan_of as measured

ROWS = 100_000
#: Of ten six are sent, one failed, and three wait for a window that is not open.
_STATUS = "CASE WHEN g % 10 < 6 THEN 'sent' WHEN g % 10 = 6 THEN 'failed' ELSE 'pending' END"
POSTGRES_ROWS = f"""
INSERT INTO open_event_notifications (open_event_id, subscription_id, dedupe_key, fanout_status,
    fanout_attempts, error, claim_seq, due_at, due_attempts)
SELECT 1, 1000000 + g, 'k', {_STATUS}, 1, '{{}}', 1,
    CASE WHEN g % 10 > 6 THEN now() + interval '1 hour' END, CASE WHEN g % 10 > 6 THEN 1 END
FROM generate_series(1, {ROWS}) AS g RETURNING 1
"""
SQLITE_ROWS = f"""
WITH RECURSIVE series(g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM series WHERE g < {ROWS})
INSERT INTO open_event_notifications (open_event_id, subscription_id, dedupe_key, fanout_status,
    fanout_attempts, error, claim_seq, due_at, due_attempts)
SELECT 1, 1000000 + g, 'k', {_STATUS}, 1, '{{}}', 1,
    CASE WHEN g % 10 > 6 THEN strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '+1 hour') END,
    CASE WHEN g % 10 > 6 THEN 1 END
FROM series RETURNING 1
"""


async def fill(bench: NotificationBench, fresh: int = 100) -> None:
    await bench.other.sql(POSTGRES_ROWS if bench.other.dialect == "postgres" else SQLITE_ROWS)
    await add_fresh(bench, fresh)


async def add_fresh(bench: NotificationBench, count: int) -> None:
    event = await bench.event()
    for _ in range(count):
        await bench.notification(event)
    if bench.other.dialect == "postgres":
        await bench.other.sql("VACUUM ANALYZE open_event_notifications")


async def plan_of(bench: NotificationBench, name: str, how: str = "", **parameters: object) -> str:
    store = bench.notifications
    query = store._queries[name]
    explain = f"EXPLAIN ({how}FORMAT JSON) " if bench.other.dialect == "postgres" else "EXPLAIN QUERY PLAN "
    explained = type(query)("explain", explain + query.sql, query.parameters, writes=bool(how))
    rows = await bench.database.fetch(explained, {**store._parameters, **parameters})
    return json.dumps([str(dict(row)) for row in rows])


def scans_the_table(plan: str) -> bool:
    found = re.search(r"Seq Scan[^{}]*Relation Name[^a-z]+open_event_notifications", plan)
    return found is not None or "SCAN open_event_notifications" in plan.replace(
        "SCAN open_event_notifications USING", ""
    )


@pytest.mark.clause("NTF-02")
async def test_postgres_reads_only_what_is_due(postgres_url: str) -> None:
    async with notification_bench(postgres_url) as bench:
        await add_fresh(bench, 100)
        alone = await _pages(bench, postgres_url)
        await bench.other.sql("DELETE FROM open_event_notifications RETURNING 1")
        await fill(bench)
        among_many = await _pages(bench, postgres_url)
        # A hundred due rows among 100,000 cost about as much as among none.
        assert among_many < alone * 2 + 200, (alone, among_many)
        await add_fresh(bench, 100)
        plan = await plan_of(bench, "claim", limit=100)
        for index in (
            "homing_notifications_new",
            "homing_notifications_waiting",
            "homing_notifications_reset",
        ):
            assert plan.count(index) == 1, index
        assert not scans_the_table(plan)
        batch = json.dumps([{"id": i, "fence": 1} for i in range(1, 500)])
        for name in ("settle", "renew", "release", "confirm"):
            plan = await plan_of(bench, name, batch=batch)
            assert not scans_the_table(plan), name
        ids = json.dumps(list(range(1, 500)))
        for name in ("subscribers", "standings", "requeue"):
            assert not scans_the_table(await plan_of(bench, name, ids=ids)), name
        plan = await plan_of(bench, "subscribers", ids=ids)
        assert plan.count("homing_notifications_of_subscription") == 3
        assert "homing_notifications_delivered" in plan
        assert "homing_subscription_history" in plan
        for status in ("failed", "skipped"):
            plan = await plan_of(bench, "page_ended", status=status, before=None, limit=20)
            assert "homing_notifications_ended" in plan, status
        assert not scans_the_table(await plan_of(bench, "oldest_due"))


@pytest.mark.clause("NTF-02")
async def test_postgres_settles_without_a_look_at_what_others_have_in_flight(postgres_url: str) -> None:
    async with notification_bench(postgres_url) as bench, measuring(postgres_url) as connection:
        await fill(bench)
        store = bench.notifications
        batch = our_batch(ROWS, status="sent", charged=1, told="notify_sent", story="{}")
        given = {**store._parameters, "batch": batch}
        await assert_only_ours_are_read(
            connection,
            "open_event_notifications",
            f"""UPDATE open_event_notifications SET fanout_status = 'pending', claim_seq = 1,
                locked_by = '{store._parameters["owner"]}', locked_at = now(), lock_written_at = now()
                WHERE notification_id % 5 = 0""",
            {name: (store._queries[name], given) for name in ("settle", "renew", "release")},
        )


async def _pages(bench: NotificationBench, url: str) -> int:
    """Buffers that a claim of a hundred touches, as the server counts them."""
    store = bench.notifications
    async with measuring(url) as connection:
        plan = await measured(connection, store._queries["claim"], {**store._parameters, "limit": 100})
    return plan.buffers


@pytest.mark.clause("NTF-02")
async def test_sqlite_reads_only_what_is_due(sqlite_url: str) -> None:
    async with notification_bench(sqlite_url) as bench:
        await fill(bench)
        for name in ("claim", "preview"):
            plan = await plan_of(bench, name, limit=100)
            for index in (
                "homing_notifications_new",
                "homing_notifications_waiting",
                "homing_notifications_reset",
            ):
                assert plan.count(index) == 1, (name, index)
            assert (
                "SEARCH open_event_notifications USING INDEX homing_notifications_waiting (due_at"
                in plan.replace("COVERING ", "")
            )
        batch = json.dumps([{"id": 1, "fence": 1}])
        for name in ("renew", "release", "confirm"):
            plan = await plan_of(bench, name, batch=batch)
            assert "INTEGER PRIMARY KEY" in plan, name
            assert "SCAN n" not in plan, name
        for status in ("failed", "expired"):
            plan = await plan_of(bench, "page_ended", status=status, before=None, limit=20)
            assert "homing_notifications_ended" in plan
        plan = await plan_of(bench, "subscribers", ids="[1]")
        assert plan.count("homing_notifications_of_subscription") == 3
        assert "homing_notifications_delivered" in plan
        assert "homing_subscription_history" in plan
        assert len(await bench.notifications.claim(500)) == 100
