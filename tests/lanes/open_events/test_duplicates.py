"""Several events with one dedupe key: a subscription gets one mail for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.engine.waiting import until
from tests.lanes.open_events.test_lane import POLICY, Held
from tests.notifications import NotificationBench, lane_on, notification_bench, read_json

from homing.engine.deliver import Deliverer
from homing.engine.model import Skip
from homing.senders.mail import SendError, SendErrorCode, SendResult

KEY = "5" * 40
REFUSED = SendResult(status="failed", provider="smtp", error=SendError(SendErrorCode.UNAUTHORIZED, "no"))


@pytest.fixture
async def bench(database_url: str) -> AsyncIterator[NotificationBench]:
    async with notification_bench(database_url) as opened:
        yield opened


async def twins(bench: NotificationBench, count: int, subscription: int | None = None) -> list[int]:
    """Notifications of one subscription, each of an event of its own, all with one key."""
    who = await bench.subscription() if subscription is None else subscription
    return [
        await bench.notification(await bench.event(dedupe_key=KEY), who, dedupe_key=KEY) for _ in range(count)
    ]


async def states(bench: NotificationBench, ids: list[int]) -> list[tuple[str, str | None]]:
    rows = [await bench.other.row(id) for id in ids]
    return [(row["fanout_status"], (read_json(row["error"]) or {}).get("code")) for row in rows]


async def drain_all(bench: NotificationBench, ids: list[int]) -> None:
    """Until nothing of these waits, however long it would have waited."""
    while any([(await bench.other.row(id))["fanout_status"] == "pending" for id in ids]):
        for id in ids:
            if (await bench.other.row(id))["fanout_status"] == "pending":
                await bench.age(id, 10)
        await bench.drain()


async def notify_sent(bench: NotificationBench, id: int) -> int:
    history = await bench.other.history((await bench.other.row(id))["subscription_id"])
    return sum(line["event_type"] == "notify_sent" for line in history)


@pytest.mark.clause("NTF-25", "NTF-04")
async def test_one_key_is_one_mail_for_a_subscription(bench: NotificationBench) -> None:
    ids = await twins(bench, 3)
    another = (await twins(bench, 1))[0]
    await drain_all(bench, [*ids, another])
    assert await states(bench, ids) == [("sent", None), ("skipped", "duplicate"), ("skipped", "duplicate")]
    assert await states(bench, [another]) == [("sent", None)], "another subscription has a mail of its own"
    assert len(bench.memory.messages) == 2
    assert await notify_sent(bench, ids[0]) == 1
    assert [(await bench.other.row(id))["fanout_attempts"] for id in ids] == [1, 1, 1]


@pytest.mark.clause("NTF-25")
async def test_a_key_that_is_empty_is_nobodys(bench: NotificationBench) -> None:
    subscription = await bench.subscription()
    ids = [await bench.notification(subscription=subscription, dedupe_key="") for _ in range(2)]
    await bench.drain()
    assert await states(bench, ids) == [("sent", None)] * 2


@pytest.mark.clause("NTF-25")
async def test_while_one_is_in_flight_the_other_waits(database_url: str) -> None:
    """Two workers: the second may not send, and may not share the first one's result either."""
    sender = Held()
    async with notification_bench(database_url, sender=sender) as bench:
        ids = await twins(bench, 2)
        second = Deliverer(
            lane_on(bench.notifications, sender, POLICY), bench.telemetry, concurrency=10, slots=500
        )
        await bench.deliverer.run_batch(1)
        await until(lambda: len(sender.messages) == 1)
        await second.run_batch(1)
        await second.finished()
        assert await states(bench, ids) == [("pending", None), ("pending", "after_another")]
        assert (await bench.other.row(ids[1]))["fanout_attempts"] == 0
        sender.gate.set()
        await bench.deliverer.finished()
        await drain_all(bench, ids)
        assert await states(bench, ids) == [("sent", None), ("skipped", "duplicate")]
        assert len(sender.messages) == 1
        assert await notify_sent(bench, ids[0]) == 1
        await second.drain(1)


@pytest.mark.clause("NTF-25")
async def test_two_workers_that_claim_at_the_same_moment_do_not_wait_for_ever(
    bench: NotificationBench,
) -> None:
    """Both claims are committed before either is read: the lower id looks again first, and goes."""
    ids = await twins(bench, 2)
    store = bench.notifications
    first = await store.run("claim", limit=1)
    # What one worker locks in one millisecond is one claim.
    await asyncio.sleep(0.002)
    second = await store.run("claim", limit=1)
    claims = [*await store._claims_of(first), *await store._claims_of(second)]
    outcomes = [await bench.lane.attempt(claim) for claim in claims]
    waits = [getattr(outcome, "after", None) for outcome in outcomes]
    assert bench.memory.messages == []
    assert waits[0] is not None
    assert waits[1] is not None
    assert waits[0] < waits[1]
    await store.release(claims)
    await drain_all(bench, ids)
    assert await states(bench, ids) == [("sent", None), ("skipped", "duplicate")]


@pytest.mark.clause("NTF-25")
async def test_when_the_first_fails_the_second_is_sent(bench: NotificationBench) -> None:
    bench.memory.answer_next(REFUSED)
    ids = await twins(bench, 2)
    await drain_all(bench, ids)
    assert await states(bench, ids) == [("failed", "unauthorized"), ("sent", None)]


@pytest.mark.clause("NTF-25")
async def test_what_a_foreign_worker_sent_meanwhile_is_not_sent_again(database_url: str) -> None:
    """It knows nothing of our waiting: it takes the second row while the first waits for its turn here."""
    async with notification_bench(database_url) as bench:
        ids = await twins(bench, 2)
        (claim,) = await bench.notifications.claim(1)
        await bench.other.change(ids[1], fanout_status="sent", fanout_attempts=1)
        bench.lane._last_look._monotonic = lambda: claim.item.claimed + 60.0
        outcome = await bench.lane.attempt(claim)
        assert isinstance(outcome, Skip)
        assert outcome.failure.code == "duplicate"
        assert bench.memory.messages == []


@pytest.mark.clause("NTF-25", "NTF-16")
async def test_operator_requeues_by_sql(bench: NotificationBench) -> None:
    """What was sent is sent again; what was a duplicate is one again."""
    ids = await twins(bench, 2)
    await drain_all(bench, ids)
    for id in ids:
        await bench.other.change(id, fanout_status="pending", fanout_attempts=0, error=None)
        await drain_all(bench, ids)
    assert await states(bench, ids) == [("sent", None), ("skipped", "duplicate")]
    assert len(bench.memory.messages) == 2


@pytest.mark.clause("NTF-25", "NTF-16")
async def test_a_sent_row_beside_another_sent_one_is_sent_again_when_requeued(
    bench: NotificationBench,
) -> None:
    ids = await twins(bench, 2)
    await bench.drain()
    await bench.other.change(ids[1], fanout_status="sent", fanout_attempts=1)
    await bench.other.change(ids[0], fanout_status="pending", fanout_attempts=0, error=None)
    await bench.drain()
    assert len(bench.memory.messages) == 2


@pytest.mark.clause("NTF-25")
async def test_many_twins_and_two_workers_make_one_mail(database_url: str) -> None:
    async with (
        notification_bench(database_url, owner="one") as one,
        notification_bench(database_url, owner="two", migrated=False) as two,
    ):
        ids = await twins(one, 12)
        while any([(await one.other.row(id))["fanout_status"] == "pending" for id in ids]):
            await asyncio.gather(one.deliver(2), two.deliver(2))
            for id in ids:
                row = await one.other.row(id)
                if row["fanout_status"] == "pending" and row["locked_at"] is None:
                    await one.age(id, 10)
        assert len(one.memory.messages) + len(two.memory.messages) == 1
        codes = sorted(str(code) for _, code in await states(one, ids))
        assert codes == ["None", *["duplicate"] * 11]
        assert await notify_sent(one, ids[0]) == 1
