"""An old event is no news, unless an operator has put the row back: then it is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.notifications import NotificationBench, notification_bench

from homing.senders.mail import SendError, SendErrorCode, SendResult

OLD = timedelta(hours=30)
GONE = SendResult(status="retryable", provider="smtp", error=SendError(SendErrorCode.NETWORK_ERROR, "gone"))
REFUSED = SendResult(status="failed", provider="smtp", error=SendError(SendErrorCode.UNAUTHORIZED, "no"))
REQUEUE: dict[str, Any] = {"fanout_status": "pending", "fanout_attempts": 0, "error": None}


@pytest.fixture
async def bench(database_url: str) -> AsyncIterator[NotificationBench]:
    async with notification_bench(database_url) as opened:
        yield opened


async def state(bench: NotificationBench, id: int) -> str:
    status: str = (await bench.other.row(id))["fanout_status"]
    return status


async def grow_old(bench: NotificationBench, id: int) -> None:
    event = (await bench.other.row(id))["open_event_id"]
    await bench.other.sql(
        "UPDATE open_events SET event_at = :then WHERE open_event_id = :id RETURNING 1 AS one",
        then=datetime.now(UTC) - OLD, id=event,
    )  # fmt: skip


@pytest.mark.clause("NTF-30")
@pytest.mark.parametrize(
    ("end", "by"),
    [
        *((end, by) for end in ("failed", "skipped", "expired") for by in ("our requeue", "plain SQL")),
        ("sent", "plain SQL"),
    ],
)
async def test_a_requeued_row_is_sent_however_old_its_event_is(
    bench: NotificationBench, end: str, by: str
) -> None:
    id = await bench.notification()
    if end == "failed":
        bench.memory.answer_next(REFUSED)
    elif end == "skipped":
        await bench.notifications.cancel([id])
    elif end == "expired":
        await grow_old(bench, id)
    await bench.deliver()
    assert await state(bench, id) == end
    await grow_old(bench, id)
    if by == "plain SQL":
        await bench.other.change(id, **REQUEUE)
    else:
        assert await bench.notifications.requeue([id]) == [id]
    before = len(bench.memory.messages)
    await bench.deliver()
    assert await state(bench, id) == "sent"
    assert len(bench.memory.messages) == before + 1


@pytest.mark.clause("NTF-30")
async def test_a_requeued_row_keeps_its_right_through_its_retries(bench: NotificationBench) -> None:
    id = await bench.notification()
    bench.memory.answer_next(REFUSED)
    await bench.deliver()
    await grow_old(bench, id)
    await bench.other.change(id, **REQUEUE)
    bench.memory.answer_next(GONE)
    await bench.deliver()
    assert (await bench.other.row(id))["fanout_attempts"] == 1
    await bench.age(id, 600)
    await bench.deliver()
    assert await state(bench, id) == "sent"


@pytest.mark.clause("NTF-30")
async def test_a_row_that_a_foreign_worker_ended_is_sent_when_it_is_requeued(
    bench: NotificationBench,
) -> None:
    """Of its end only the time of its last attempt is left; the mark of ours outlives the retries."""
    id = await bench.notification()
    await grow_old(bench, id)
    await bench.other.change(
        id, fanout_status="failed", fanout_attempts=3, last_attempt_at=datetime.now(UTC), error='{"code":"x"}'
    )
    await bench.other.change(id, **REQUEUE)
    bench.memory.answer_next(GONE)
    await bench.deliver()
    await bench.age(id, 600)
    await bench.deliver()
    assert await state(bench, id) == "sent"


@pytest.mark.clause("NTF-24", "NTF-30")
async def test_a_row_that_never_ended_expires_with_its_event(bench: NotificationBench) -> None:
    bench.memory.answer_next(GONE)
    tried, fresh = await bench.notification(), await bench.notification()
    await bench.deliver(1)
    for id in (tried, fresh):
        await grow_old(bench, id)
        await bench.age(id, 600)
    await bench.deliver()
    assert [await state(bench, id) for id in (tried, fresh)] == ["expired", "expired"]
    assert len(bench.memory.messages) == 1


@pytest.mark.clause("NTF-30")
async def test_a_row_that_expired_before_the_upgrade_is_sent_when_it_is_requeued(
    database_url: str,
) -> None:
    """The version before kept no mark; the migration gives it to what has expired."""
    async with notification_bench(database_url) as bench:
        id = await bench.notification()
        await grow_old(bench, id)
        await bench.deliver()
        assert await state(bench, id) == "expired"
        await bench.other.sql("UPDATE open_event_notifications SET ended_claim = NULL RETURNING 1 AS one")
        await bench.run_migration_again("0003")
        await bench.other.change(id, **REQUEUE)
        await bench.deliver()
        assert await state(bench, id) == "sent"
