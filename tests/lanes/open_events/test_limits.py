"""How many mails a subscription gets, and that the worker leaves the other program's columns alone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.notifications import NotificationBench, notification_bench, read_json


@pytest.fixture
async def bench(database_url: str) -> AsyncIterator[NotificationBench]:
    async with notification_bench(database_url) as opened:
        yield opened


async def outcome(bench: NotificationBench, id: int) -> tuple[str, str | None]:
    row = await bench.other.row(id)
    return row["fanout_status"], read_json(row["error"]).get("code")


@pytest.mark.clause("NTF-26")
@pytest.mark.parametrize("metadata", [None, "{}", '{"preferences": {"notifyOn": ["open"]}}'])
async def test_subscription_without_a_limit_gets_every_mail(
    bench: NotificationBench, metadata: str | None
) -> None:
    subscription = await bench.subscription(metadata=metadata)
    ids = [await bench.notification(subscription=subscription) for _ in range(5)]
    await bench.drain()
    assert [await outcome(bench, id) for id in ids] == [("sent", None)] * 5
    assert len(bench.memory.messages) == 5


@pytest.mark.clause("NTF-26")
async def test_subscription_at_its_limit_is_skipped_and_stays_active(bench: NotificationBench) -> None:
    subscription = await bench.subscription(metadata='{"preferences": {"maxNotifications": 2}}')
    ids = []
    for _ in range(4):
        ids.append(await bench.notification(subscription=subscription))
        await bench.drain()
    assert [await outcome(bench, id) for id in ids] == [("sent", None)] * 2 + [
        ("skipped", "limit_reached")
    ] * 2
    assert (await bench.other.subscription(subscription))["status"] == "active"
    events = [line["event_type"] for line in await bench.other.history(subscription)]
    assert "status_changed" not in events


@pytest.mark.clause("NTF-26", "NTF-11")
async def test_worker_changes_two_columns_of_a_subscription_and_no_other(bench: NotificationBench) -> None:
    subscription = await bench.subscription(metadata='{"preferences": {"maxNotifications": 1}}')
    before = await bench.other.subscription(subscription)
    for _ in range(2):
        await bench.notification(subscription=subscription)
        await bench.drain()
    after = await bench.other.subscription(subscription)
    assert {name for name in after if after[name] != before[name]} == {
        "last_notified_at",
        "last_known_section_status",
    }


@pytest.mark.clause("NTF-28")
@pytest.mark.parametrize("window", ['{"startMinutes": 0}', '{"endMinutes": 1440}', "{}"])
async def test_subscription_with_one_edge_of_a_window_gets_its_mail(
    bench: NotificationBench, window: str
) -> None:
    metadata = f'{{"preferences": {{"deliveryWindow": {window}}}}}'
    id = await bench.notification(subscription=await bench.subscription(metadata=metadata))
    await bench.drain()
    assert await outcome(bench, id) == ("sent", None)
