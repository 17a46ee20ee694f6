"""Subscriptions on the desk: found by what people know, shown without the address, paused and ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.http.door import Door
from tests.http.pages.visitor import Visitor, door_with_people, forms_of, visiting

from homing.errors import InvalidRequest
from homing.lanes.open_events import subscription_look
from homing.lanes.open_events.links import contact_hash
from homing.lanes.open_events.subscription_look import SubscriptionFilter, SubscriptionLook, filter_of
from homing.lanes.open_events.subscriptions import Subscriptions, new_token
from homing.lanes.open_events.wishes import SubscriptionRequest, order_of

WINDOW = {"startMinutes": 480, "endMinutes": 1320, "timeZone": "America/New_York"}
ACTIONS = ("/subscriptions/pause", "/subscriptions/resume", "/subscriptions/end")


@pytest.fixture
async def each_door(database_url: str) -> AsyncIterator[Door]:
    """For what has SQL of its own: on both databases."""
    async with door_with_people(database_url) as door:
        yield door


@pytest.fixture
async def door(sqlite_url: str) -> AsyncIterator[Door]:
    async with door_with_people(sqlite_url) as door:
        yield door


@pytest.fixture
async def operator(door: Door) -> AsyncIterator[Visitor]:
    async with visiting(door, "operator") as visitor:
        yield visitor


def of(door: Door) -> Subscriptions:
    return door.homing.notifications_part.subscriptions


async def subscribe(door: Door, email: str, index: str = "09214", **preferences: Any) -> None:
    given = {"termId": "20269", "campusCode": "NB", "indexNumber": index, "email": email}
    request = msgspec.convert({**given, "preferences": preferences}, SubscriptionRequest)
    await of(door).subscribe(order_of(request, new_token()))


def count(page: str) -> int:
    return page.count('<th scope="row"')


async def test_they_are_found_by_what_people_know_and_shown(
    each_door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with visiting(each_door, "operator") as operator:
        await found(each_door, operator)
        await shown(each_door, operator)
        monkeypatch.setattr(subscription_look, "_WINDOW", 2)
        await looked_for(each_door, operator)


async def found(door: Door, operator: Visitor) -> None:
    assert "Nobody has subscribed yet" in await operator.read("/subscriptions")
    for email, index in (
        ("ina@example.org", "09214"),
        ("ina@example.org", "09215"),
        ("bo@example.org", "09214"),
    ):
        await subscribe(door, email, index, deliveryWindow=WINDOW)
    await of(door).confirm([1], "ina@example.org")
    page = await operator.read("/subscriptions")
    assert count(page) == 3
    assert "ina@example.org" not in page
    assert "i***@example.org" in page
    for query, many in (
        ({"q": " Ina@Example.org"}, 2),
        ({"q": contact_hash("bo@example.org").upper()}, 1),
        ({"q": "20269/NB/09214"}, 2),
        ({"q": "20269 NB 09214", "status": "active"}, 1),
        ({"q": "ina@example.org", "status": "pending"}, 1),
        ({"status": "active"}, 1),
        ({"status": "paused"}, 0),
        ({"q": "nobody@example.org"}, 0),
        ({"q": "0" * 40}, 0),
        ({"before": "2"}, 1),
    ):
        assert count(await operator.read("/subscriptions", **query)) == many, query
    answer = await operator.client.get("/subscriptions", params={"q": "#3"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/subscriptions/one?id=3")
    for query in ({"q": "just words"}, {"q": "@"}, {"status": "odd"}, {"before": "-1"}):
        assert 'role="alert"' in await operator.read("/subscriptions", 422, **query)


async def looked_for(door: Door, operator: Visitor) -> None:
    """A look for a state goes so far and says so."""
    look = SubscriptionLook(door.homing.notify_database, of(door))
    seen, before = list[int](), None
    for _ in range(4):
        some = await look.page(SubscriptionFilter(status="unsubscribed"), before=before)
        seen += [row["subscription_id"] for row in some.rows]
        before = some.next
        if before is None:
            break
    assert seen == [1]
    page = await operator.read("/subscriptions", status="unsubscribed")
    assert "Looked through 2 subscriptions" in page
    assert "Older" in page


async def shown(door: Door, operator: Visitor) -> None:
    await door.sql(
        "INSERT INTO open_event_notifications (open_event_id, subscription_id, dedupe_key) "
        "VALUES (7, 1, 'k') RETURNING notification_id"
    )
    page = await operator.read("/subscriptions/one", id=1)
    assert "ina@example.org" not in page
    assert "08:00 and 22:00, America/New_York" in page
    assert "address confirmed" in page
    assert '<a href="/messages/notification_1">' in page
    assert "cannot be resumed" in await operator.done("/subscriptions/resume", id=1)
    assert "Paused" in await operator.done("/subscriptions/pause", id=1)
    assert "Resumed" in await operator.done("/subscriptions/resume", id=1)
    assert "tick that you are sure" in await operator.refused("/subscriptions/end", id=1)
    assert "Ended for good" in await operator.done("/subscriptions/end", id=1, sure="yes")
    page = await operator.read("/subscriptions/one", id=1)
    assert "unsubscribed" in page
    assert forms_of(page) == set()
    assert "not notified" in page
    told = [(one["action"].rpartition(".")[2], one["object"], one["outcome"]) for one in await door.audit()][
        1:
    ]
    assert told == [
        ("resume", "1", "refused"),
        ("pause", "1", "done"),
        ("resume", "1", "done"),
        ("end", "1", "refused"),
        ("end", "1", "done"),
    ]
    for id in ("99", "0", str(2**70)):
        assert "no subscription" in (await operator.client.get(f"/subscriptions/one?id={id}")).text


async def test_who_may_only_look_does_only_that(door: Door) -> None:
    await subscribe(door, "ina@example.org")
    await of(door).confirm([1], "ina@example.org")
    async with visiting(door, "viewer") as viewer:
        assert forms_of(await viewer.read("/subscriptions/one", id=1)) == set()
        for action in ACTIONS:
            assert (await viewer.send(action, {"id": 1, "sure": "yes"})).status_code == 403
    row = await of(door).get(1)
    assert row is not None
    assert row["status"] == "active"


def test_what_somebody_types_is_told_apart() -> None:
    assert filter_of("", "") == SubscriptionFilter()
    assert filter_of("a@b.example", "").email == "a@b.example"
    assert filter_of("1/2/3", "paused").section == {"term_id": "1", "campus_code": "2", "index_number": "3"}
    for text in ("a b", "x\x00/y/z", "a@"):
        with pytest.raises(InvalidRequest):
            filter_of(text, "")
    with pytest.raises(InvalidRequest, match=r"there is no subscription 7$"):
        filter_of("#7", "")
