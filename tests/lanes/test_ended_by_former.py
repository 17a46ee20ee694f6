"""What processes of the version before end after the migration, which marked what had ended until then."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.emails import EmailBench, email_bench

from homing.db import connect
from homing.db.migrate import load_migrations, migrate
from homing.workers.model import Identity, Own, Report

pytestmark = pytest.mark.clause("OUT-15", "NTF-30")

#: Ended as by that version: without a mark.
ENDED = {
    "mail_outbox": (
        "INSERT INTO mail_outbox (to_address, subject, status) VALUES ('ann@example.org', 'Hi', 'failed')"
    ),
    "email_log": (
        "INSERT INTO email_log (to_address, subject, status) VALUES ('ann@example.org', 'Hi', 'Dead')"
    ),
    "open_event_notifications": (
        "INSERT INTO open_event_notifications (open_event_id, subscription_id, dedupe_key, fanout_status) "
        "SELECT 1, 1 + count(*), 'k', 'expired' FROM open_event_notifications"
    ),
}


@pytest.fixture
async def lane(database_url: str) -> AsyncIterator[EmailBench]:
    async with email_bench(database_url) as opened:
        yield opened


@pytest.fixture
async def upgraded(lane: EmailBench) -> EmailBench:
    """As right after the migration, while the version before is at work."""
    await beat(lane, "running")
    await lane.sql("DELETE FROM homing_migration WHERE component LIKE '%_again' RETURNING 1 AS one")
    return lane


async def beat(lane: EmailBench, state: Own) -> None:
    """A process that began before the migration says that it lives."""
    who = Identity("other:1", "other", 1, "0.1.0", "boot", ("mail_outbox",), serves=True)
    await lane.homing.fleet.beat(who, state, Report(), up_seconds=86_400.0)


async def end(lane: EmailBench, table: str) -> None:
    await lane.sql(f"{ENDED[table]} RETURNING 1 AS one")


async def marks(lane: EmailBench, table: str) -> list[bool]:
    rows = await lane.sql(f"SELECT ended_claim FROM {table} ORDER BY 1 NULLS LAST")
    return [row["ended_claim"] is not None for row in rows]


@pytest.mark.parametrize("table", ENDED)
async def test_what_former_processes_ended_is_marked_when_the_last_of_them_has_gone(
    upgraded: EmailBench, table: str
) -> None:
    await end(upgraded, table)
    assert not await upgraded.homing.finish_migration()
    assert await marks(upgraded, table) == [False], "it ends more of them"
    await beat(upgraded, "stopped")
    assert await upgraded.homing.finish_migration()
    assert await marks(upgraded, table) == [True]
    await end(upgraded, table)
    assert await upgraded.homing.finish_migration()
    assert await marks(upgraded, table) == [True, False], "once: what another program ends is not ours"


async def test_a_new_database_has_nobody_to_wait_for(lane: EmailBench) -> None:
    await beat(lane, "running")
    assert await lane.homing.finish_migration()


#: As a version before 0007 had left them. The retry was published by a scheduler that notes no time.
LEFT = {
    "queued": "'Pending', 0, 1, '{now}', NULL",
    "dead": "'Dead', 1, 2, '{now}', '{now}'",
    "put back": "'Pending', 0, 2, '{now}', '{now}'",
    "retried": "'Pending', 1, 2, '{now}', '{now}'",
}


@pytest.mark.clause("RTY-16", "RTY-20", "RTY-22", "OUT-15")
async def test_what_was_there_before_the_upgrade_is_known_for_what_it_is(database_url: str) -> None:
    database = connect(database_url)
    try:
        wanted = load_migrations(["homing.lanes.email_log"], database.dialect)
        await migrate(database, [one for one in wanted if one.version < 7])
        now = f"{datetime.now(UTC) - timedelta(minutes=10):%Y-%m-%dT%H:%M:%S.000Z}"
        rows = ", ".join(f"('a@example.org', 's', 'b', {left.format(now=now)})" for left in LEFT.values())
        await database.run_script(
            "INSERT INTO email_log (to_address, subject, body, status, attempt_count, claim_seq, "
            f"last_queued_at, last_attempt_at) VALUES {rows};"
        )
    finally:
        await database.close()
    queued, dead, put_back, retried = range(1, 5)
    async with email_bench(database_url) as lane:
        await lane.due.sweep(10)
        assert (await lane.row(dead))["announced_at"] is not None
        value = lane.homing.telemetry.registry.get_sample_value
        assert value("homing_emails_dead_total", {"reason": ""}) is None, "it was counted when it died"
        await lane.deliver()
        assert await lane.states([queued, dead, put_back, retried]) == ["Pending", "Dead", "Sent", "Pending"]
        await lane.due.run("saw_queue", is_gone=True, is_empty=False, since=0.0)
        await lane.due.sweep(10)
        claims = await lane.due.claim(10)
        assert sorted(claim.id for claim in claims) == [queued, retried], "their messages are ours"
