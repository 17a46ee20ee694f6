"""What processes of the version before end after the migration, which marked what had ended until then."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.emails import EmailBench, email_bench

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
