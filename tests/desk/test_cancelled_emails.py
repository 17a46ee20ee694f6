"""An email that a person cancelled is Dead in the table, and no dead letter: nobody sends it by mistake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from tests.desk.bulk import ANN, BulkBench, bulk_bench

from homing.desk import query
from homing.lanes.email_log.requeue import EmailRequeueRequest, requeue_dead
from homing.messages.model import Wanted

pytestmark = pytest.mark.clause("RTY-15")
BACK, DEAD, STOPPED = ("Pending", None), ("Dead", "InvalidRecipient"), ("Dead", "Cancelled")


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[BulkBench]:
    """email_1 died, email_2 was cancelled by a person."""
    async with bulk_bench(database_url) as bench:
        for status, reason in (("Dead", "InvalidRecipient"), ("Pending", None)):
            await bench.sql(
                "INSERT INTO email_log (to_address, subject, body, status, dead_reason, last_error) "
                "VALUES ('ann@example.org', 'Hi', 'Hello.', :status, :reason, 'timeout: x') RETURNING id",
                status=status, reason=reason,
            )  # fmt: skip
        assert await bench.homing.desk.lanes["email_log"].act("cancel", [2]) == [2]
        yield bench


async def states(desk: BulkBench) -> list[tuple[str, str | None]]:
    rows = await desk.sql("SELECT status, dead_reason AS reason FROM email_log ORDER BY id")
    return [(row["status"], row["reason"]) for row in rows]


async def found(desk: BulkBench, line: str) -> list[tuple[str, str, str]]:
    wanted = query.read(line, datetime.now(UTC))
    assert isinstance(wanted, Wanted), wanted
    page = await desk.homing.desk.find(wanted, may=lambda _scope: True)
    return [(row.id, row.state, row.phase) for row in page.rows]


async def test_it_is_stopped_wherever_messages_are_told(desk: BulkBench) -> None:
    one, two = ("email_1", "Dead", "dead"), ("email_2", "Cancelled", "stopped")
    assert await found(desk, "lane:email_log") == [two, one]
    assert await found(desk, "status:dead") == [one]
    assert await found(desk, "status:Dead") == [one]
    assert await found(desk, "status:stopped") == [two]
    assert await found(desk, "status:dead,stopped") == [two, one]
    assert await found(desk, "error:Cancelled") == [two]
    lane = desk.homing.desk.lanes["email_log"]
    assert await lane.counts() == {
        "Pending": 0, "RetryQueued": 0, "Sent": 0, "Failed": 0, "Dead": 1, "Cancelled": 1,
    }  # fmt: skip
    assert [(group.error, group.count) for group in await lane.dead_groups()] == [("InvalidRecipient", 1)]
    detail = await lane.show(2)
    assert detail is not None
    assert (detail.verbs, detail.timeline[-1].kind) == (("requeue",), "stopped")


async def test_the_overview_takes_it_for_no_trouble(desk: BulkBench) -> None:
    seen = await desk.homing.figures.overview.look(datetime.now(UTC))
    (lane,) = (lane for lane in seen.lanes if lane.lane == "email_log")
    assert (lane.phases["dead"], lane.phases["stopped"]) == (1, 1)
    assert [item.title for item in seen.attention if item.kind == "dead"] == [
        "1 email given up: InvalidRecipient"
    ]


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("status:dead", [BACK, STOPPED]),
        ("lane:email_log", [BACK, STOPPED]),
        ("to:ann@example.org", [BACK, STOPPED]),
        ("status:stopped", [DEAD, BACK]),
        ("status:Cancelled", [DEAD, BACK]),
        ("error:Cancelled", [DEAD, BACK]),
        ("code:Cancelled", [DEAD, BACK]),
        ("id:email_2", [DEAD, BACK]),
        ("status:dead,stopped", [BACK, BACK]),
    ],
)
async def test_a_bulk_run_brings_it_back_only_by_name(
    desk: BulkBench, line: str, after: list[tuple[str, str | None]]
) -> None:
    run = await desk.runs.start(line, "requeue", ANN)
    await desk.runner().once()
    assert (await desk.now(run.id)).total == after.count(BACK)
    assert await states(desk) == after


async def test_all_dead_emails_are_requeued_without_it(desk: BulkBench) -> None:
    emails = desk.homing.emails
    counted = await requeue_dead(emails, EmailRequeueRequest(all=True, dry_run=False))
    assert (counted.matched, await states(desk)) == (1, [BACK, STOPPED])
    counted = await requeue_dead(emails, EmailRequeueRequest(reason="Cancelled", dry_run=False))
    assert (counted.matched, await states(desk)) == (1, [BACK, BACK])
