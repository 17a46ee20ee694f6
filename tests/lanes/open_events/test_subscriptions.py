"""Subscriptions: asked for, confirmed, changed, paused, ended; and what stands in the tables of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.lanes.open_events.desk import SECTION, WHERE, Desk, opened_desk

from homing.db import instant
from homing.errors import InvalidRequest
from homing.lanes.open_events.links import contact_hash
from homing.lanes.open_events.subscriptions import Confirmation, Subscriptions
from homing.lanes.open_events.wishes import (
    PreferencesRequest,
    SubscriptionRequest,
    changes_of,
    order_of,
)

ANN = "ann@example.org"


@pytest.fixture
async def desk(seats_url: str) -> AsyncIterator[Desk]:
    async with opened_desk(seats_url) as desk:
        yield desk


async def _let_time_pass(desk: Desk, seconds: float) -> None:
    """For confirmations: those that were sent become so much older."""
    for row in await desk.sql("SELECT event_id, created_at FROM subscription_events"):
        earlier: Any = instant(row["created_at"])
        earlier -= timedelta(seconds=seconds)
        if desk.database.dialect == "sqlite":
            # As another program might write it.
            earlier = earlier.isoformat(sep=" ")
        await desk.sql(
            "UPDATE subscription_events SET created_at = :at WHERE event_id = :id",
            at=earlier,
            id=row["event_id"],
        )


# ── asked for ────────────────────────────────────────────────────────────────────────────────────


async def test_a_subscription_waits_until_it_is_confirmed(desk: Desk) -> None:
    section = await desk.insert("sections", "section_id", **SECTION)
    await desk.subscribe(" Ann@Example.org ", locale="zh_cn", preferences={"maxNotifications": 5})
    row = await desk.row(1)
    assert {name: row[name] for name in SECTION} == SECTION
    assert (row["status"], row["is_verified"], row["contact_type"]) == ("pending", 0, "email")
    assert (row["contact_value"], row["contact_hash"]) == ("Ann@Example.org", contact_hash(ANN))
    assert (row["locale"], row["section_id"]) == ("zh-CN", section)
    assert json.loads(row["metadata"]) == {"preferences": {"maxNotifications": 5}}
    assert len(row["unsubscribe_token"]) == 32
    assert row["created_at"] == row["updated_at"]
    assert [type for type, _ in await desk.events(1)] == ["created", "verification_sent"]
    (mail,) = desk.mails
    assert (mail.email, mail.locale, mail.send_at) == ("Ann@Example.org", "zh-CN", None)
    assert (mail.subscription_id, mail.expiration_minutes) == (1, 1440)
    assert mail.url.startswith("https://seats.example/confirm?token=")
    await desk.flip()
    assert await desk.told() == [], "it is not confirmed"


async def test_the_same_again_makes_no_second_row_and_no_second_mail(desk: Desk) -> None:
    await desk.subscribe(ANN, preferences={"maxNotifications": 5})
    desk.clock.advance(seconds=1)
    before = await desk.row(1)
    await desk.subscribe("ANN@example.org", locale="zh-CN", preferences={"maxNotifications": 9})
    # The first confirmation has only just been sent: the second one is for later, and covers a third.
    await desk.subscribe(ANN)
    assert await desk.count("subscriptions") == 1
    assert await desk.row(1) == before, "a stranger changes nothing"
    first, second = desk.mails
    assert first.send_at is None
    assert second.send_at is not None
    assert first.key != second.key


async def test_an_address_gets_one_confirmation_in_ten_minutes_however_many_ask(desk: Desk) -> None:
    for number in range(5):
        await desk.subscribe(ANN, indexNumber=f"{number}")
    now, later = desk.mails
    assert now.send_at is None
    assert later.send_at is not None
    sent = await desk.sql(
        "SELECT created_at FROM subscription_events WHERE event_type = 'verification_sent' ORDER BY event_id"
    )
    moments: list[Any] = [instant(row["created_at"]) for row in sent]
    assert moments[1] - moments[0] == timedelta(minutes=10)
    assert later.send_at == moments[1]
    await desk.subscribe("ben@example.org")
    assert [mail.email for mail in desk.mails[2:]] == ["ben@example.org"], "another address is another matter"
    await _let_time_pass(desk, 601)
    await desk.subscribe(ANN, indexNumber="again")
    assert desk.mails[-1].send_at is not None, "ten minutes after the second one"
    await _let_time_pass(desk, 1200)
    await desk.subscribe(ANN, indexNumber="and again")
    assert desk.mails[-1].send_at is None


async def test_who_is_subscribed_is_not_asked_again(desk: Desk) -> None:
    states = ["active", "paused", "suppressed"]
    for status in states:
        await desk.subscriber(f"{status}@example.org", status=status)
        await desk.subscribe(f"{status}@example.org")
    assert desk.mails == []
    rows = await desk.sql("SELECT status FROM subscriptions ORDER BY subscription_id")
    assert [row["status"] for row in rows] == states


async def test_who_unsubscribed_and_asks_again_has_to_confirm_again(desk: Desk) -> None:
    id = await desk.subscriber(ANN, status="Unsubscribed", preferences={"maxNotifications": 9})
    await desk.subscribe(ANN, preferences={"notifyOn": ["open"]})
    row = await desk.row(id)
    assert (row["status"], row["is_verified"]) == ("pending", 0)
    assert json.loads(row["metadata"]) == {"preferences": {"notifyOn": ["open"]}}
    assert await desk.count("subscriptions") == 1
    assert len(desk.mails) == 1
    changed = {"from": "unsubscribed", "to": "pending", "reason": "subscribed_again"}
    assert await desk.events(id) == [("status_changed", changed), ("verification_sent", {})]
    await desk.flip()
    assert await desk.told() == []


@pytest.mark.parametrize("hash", [None, "", "made in another way"])
async def test_an_address_that_another_program_subscribed_is_known(desk: Desk, hash: str | None) -> None:
    """By the address itself: two rows would be two mails for one opening."""
    id = await desk.subscriber(" Ann@Example.org", contact_hash=hash)
    await desk.subscribe(ANN)
    assert await desk.count("subscriptions") == 1
    assert desk.mails == []
    assert [row["subscription_id"] for row in await desk.subscriptions.page(email=ANN)] == [id]
    waiting = await desk.subscriber(ANN, contact_hash=hash, status="pending", index_number="1")
    assert [row["subscription_id"] for row in await desk.subscriptions.waiting_for(ANN)] == [waiting]
    await desk.happened(waiting, "verification_sent")
    await desk.subscribe(ANN, indexNumber="2")
    assert [mail.send_at is None for mail in desk.mails] == [False], (
        "one mail in ten minutes, whoever sent it"
    )


async def test_a_key_of_another_program_tells_nobody_who_is_subscribed(desk: Desk) -> None:
    """It may take for one what we take for two; then it is known, and the answer is the same."""
    await desk.database.run_script("CREATE UNIQUE INDEX theirs ON subscriptions (term_id, index_number);")
    await desk.subscriber("ben@example.org")
    await desk.subscribe(ANN)
    assert await desk.count("subscriptions") == 1
    assert await desk.count("subscription_events") == 0
    assert desk.mails == []


async def test_a_confirmation_by_another_program_counts_in_any_form_of_its_time(sqlite_url: str) -> None:
    async with opened_desk(sqlite_url) as desk:
        id = await desk.subscriber(ANN, status="pending")
        now = f"{desk.clock():%Y%m%dT%H%M%SZ}"
        await desk.insert(
            "subscription_events", "event_id",
            subscription_id=id, event_type="verification_sent", created_at=now,
        )  # fmt: skip
        await desk.subscribe(ANN)
        assert [mail.send_at for mail in desk.mails] == [desk.clock() + timedelta(minutes=10)]


async def test_what_was_suppressed_stays_suppressed(desk: Desk) -> None:
    """To unsubscribe and to ask again does not wash it off."""
    id = await desk.subscriber(ANN, status="suppressed")
    for _ in range(2):
        await desk.subscriptions.unsubscribe(id, "link")
        await desk.subscribe(ANN)
        assert (await desk.row(id))["status"] == "suppressed"
        assert await desk.subscriptions.confirm([id], ANN) == []
    changed = {"from": "unsubscribed", "to": "suppressed", "reason": "subscribed_again"}
    assert (await desk.events(id))[-1] == ("status_changed", changed)
    assert desk.mails == []
    # Who was let in again by an operator, and leaves then, may come back.
    await desk.sql("UPDATE subscriptions SET status = 'active' WHERE subscription_id = :id", id=id)
    await desk.subscriptions.unsubscribe(id, "link")
    await desk.subscribe(ANN)
    assert (await desk.row(id))["status"] == "pending"


async def test_wishes_from_before_an_unsubscription_are_forgotten(desk: Desk) -> None:
    id = await desk.subscriber(ANN, status="unsubscribed", locale="zh-CN", preferences={"notifyOn": []})
    await desk.subscribe(ANN)
    row = await desk.row(id)
    assert (row["locale"], json.loads(row["metadata"])) == ("zh-CN", {})


async def test_of_several_rows_of_one_contact_the_living_one_counts(desk: Desk) -> None:
    await desk.subscriber(ANN, status="unsubscribed")
    await desk.subscriber(ANN, status="active")
    await desk.subscribe(ANN)
    rows = await desk.sql("SELECT status FROM subscriptions ORDER BY subscription_id")
    assert [row["status"] for row in rows] == ["unsubscribed", "active"]


async def test_requests_that_race_make_one_row_and_one_mail(desk: Desk) -> None:
    await asyncio.gather(*(desk.subscribe(ANN) for _ in range(8)))
    assert await desk.count("subscriptions") == 1
    assert sum(mail.send_at is None for mail in desk.mails) == 1
    assert len(desk.mails) <= 2
    types = [type for type, _ in await desk.events(1)]
    assert types.count("created") == 1


async def test_a_confirmation_that_could_not_be_sent_is_not_counted(desk: Desk) -> None:
    async def fail(_mail: Confirmation) -> None:
        raise OSError("no outbox")

    broken = Subscriptions(desk.database, desk.links, send_confirmation=fail, clock=desk.clock)
    request = msgspec.convert({**WHERE, "email": ANN}, SubscriptionRequest)
    with pytest.raises(OSError, match="no outbox"):
        await broken.subscribe(order_of(request, "token"))
    await desk.subscribe(ANN)
    assert [mail.send_at for mail in desk.mails] == [None]
    assert [type for type, _ in await desk.events(1)] == ["created", "verification_sent"]


# ── confirmed, paused, resumed ───────────────────────────────────────────────────────────────────


async def test_a_confirmation_makes_it_active_once(desk: Desk) -> None:
    await desk.subscribe(ANN)
    assert await desk.subscriptions.confirm([1], "Ann@example.ORG") == [1]
    assert await desk.subscriptions.confirm([1], ANN) == []
    row = await desk.row(1)
    assert (row["status"], row["is_verified"]) == ("active", 1)
    assert (await desk.events(1))[2:] == [
        ("verified", {}),
        ("status_changed", {"from": "pending", "to": "active"}),
    ]
    assert (await desk.flip()).notifications == 1


async def test_only_what_is_pending_and_of_the_same_contact_is_confirmed(desk: Desk) -> None:
    await desk.subscribe(ANN)
    await desk.subscribe("ben@example.org")
    ended = await desk.subscriber(ANN, status="unsubscribed", index_number="9")
    assert await desk.subscriptions.confirm([1, 2, ended], ANN) == [1]
    assert (await desk.row(2))["status"] == "pending"
    assert (await desk.row(ended))["status"] == "unsubscribed"


@pytest.mark.clause("NTF-23")
async def test_pause_and_resume_start_the_count_anew(desk: Desk) -> None:
    id = await desk.subscriber(preferences={"maxNotifications": 3})
    await desk.happened(id, *["notify_sent"] * 3)
    assert (await desk.flip()).notifications == 0
    assert await desk.subscriptions.pause(id, "api")
    assert not await desk.subscriptions.pause(id, "api")
    assert (await desk.row(id))["status"] == "paused"
    assert await desk.subscriptions.resume(id, "page")
    assert not await desk.subscriptions.resume(id, "page")
    changes = [payload for type, payload in await desk.events(id) if type == "status_changed"]
    assert changes == [
        {"from": "active", "to": "paused", "via": "api"},
        {"from": "paused", "to": "active", "via": "page"},
    ]
    assert (await desk.flip(desk.clock() - timedelta(minutes=5))).notifications == 1


# ── ended ────────────────────────────────────────────────────────────────────────────────────────


async def test_unsubscribed_is_for_good(desk: Desk) -> None:
    for status in ("active", "Pending", "paused", "suppressed"):
        id = await desk.subscriber(status=status, last_known_section_status="CLOSED")
        await desk.subscriptions.unsubscribe(id, "one-click")
        await desk.subscriptions.unsubscribe(id, "one-click")
        assert (await desk.row(id))["status"] == "unsubscribed"
        assert await desk.events(id) == [("unsubscribed", {"from": status.lower(), "via": "one-click"})]
        assert not await desk.subscriptions.resume(id, "api")
        assert await desk.subscriptions.confirm([id], ANN) == []
    assert (await desk.flip()).notifications == 0


@pytest.mark.clause("NTF-14")
async def test_what_is_queued_ends_with_the_subscription(desk: Desk) -> None:
    id, other = await desk.subscriber(), await desk.subscriber("ben@example.org")
    queued = await desk.notification(id, 1, fanout_attempts=1, error='{"code":"network_error"}')
    upper = await desk.notification(id, 2, fanout_status="PENDING")
    claimed = await desk.notification(id, 3, locked_by="worker-1")
    sent = await desk.notification(id, 4, fanout_status="sent", fanout_attempts=1)
    foreign = await desk.notification(other, 1)
    await desk.subscriptions.unsubscribe(id, "api")
    rows = await desk.sql("SELECT * FROM open_event_notifications ORDER BY notification_id")
    found = {row["notification_id"]: (row["fanout_status"], row["fanout_attempts"]) for row in rows}
    assert found == {
        queued: ("skipped", 2), upper: ("skipped", 1), claimed: ("pending", 0), sent: ("sent", 1),
        foreign: ("pending", 0),
    }  # fmt: skip
    ended = rows[0]
    assert json.loads(ended["error"])["code"] == "unsubscribed"
    assert ended["last_attempt_at"] is not None
    assert [ended[name] for name in ("locked_by", "locked_at", "due_at", "due_attempts")] == [None] * 4
    failed = [payload for type, payload in await desk.events(id) if type == "notify_failed"]
    assert failed == [
        {"notificationId": queued, "openEventId": 1, "code": "unsubscribed"},
        {"notificationId": upper, "openEventId": 2, "code": "unsubscribed"},
    ]


# ── changed ──────────────────────────────────────────────────────────────────────────────────────


async def test_changes_keep_what_is_not_ours(desk: Desk) -> None:
    theirs = {"source": "app", "preferences": {"theme": "dark", "maxNotifications": 5}}
    id = await desk.subscriber(metadata=json.dumps(theirs), locale="en-US")
    await desk.subscriptions.change(id, {"maxNotifications": None, "notifyOn": []}, "zh-CN")
    row = await desk.row(id)
    assert json.loads(row["metadata"]) == {"source": "app", "preferences": {"theme": "dark", "notifyOn": []}}
    assert row["locale"] == "zh-CN"
    await desk.subscriptions.change(id, {}, None)
    assert (await desk.row(id))["metadata"] == row["metadata"]
    assert await desk.subscriptions.change(99, {"notifyOn": []}, None) is None


async def test_changes_at_the_same_time_are_all_kept(desk: Desk) -> None:
    id = await desk.subscriber()
    some: list[dict[str, Any]] = [
        {"maxNotifications": 7},
        {"notifyOn": ["open"]},
        {"snoozeUntil": "2030-01-01T00:00:00.000Z"},
    ]
    await asyncio.gather(*(desk.subscriptions.change(id, change, None) for change in some))
    wishes = json.loads((await desk.row(id))["metadata"])["preferences"]
    assert wishes == {
        "maxNotifications": 7, "notifyOn": ["open"], "snoozeUntil": "2030-01-01T00:00:00.000Z",
    }  # fmt: skip


async def test_a_mail_that_waits_is_looked_at_again_after_a_change(desk: Desk) -> None:
    id = await desk.subscriber()
    later: Any = desk.clock() + timedelta(hours=9)
    later = later if desk.database.dialect == "postgres" else later.isoformat()
    waits = await desk.notification(id, 1, due_at=later, due_attempts=0)
    retries = await desk.notification(id, 2, due_at=later, due_attempts=1, fanout_attempts=1)
    await desk.subscriptions.change(id, {"deliveryWindow": None}, None)
    due = {
        row["notification_id"]: row["due_at"]
        for row in await desk.sql("SELECT notification_id, due_at FROM open_event_notifications")
    }
    assert due[waits] is None
    assert due[retries] is not None, "a failed attempt has its own pause"


# ── what is asked for ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"email": "nobody"}, "email"),
        ({"email": "Ann <ann@example.org>"}, "email"),
        ({"email": "a@example.org,b@example.org"}, "email"),
        ({"email": "a\r\n@example.org"}, "email"),
        ({"termId": " "}, "termId"),
        ({"campusCode": "N\x00B"}, "campusCode"),
        ({"locale": "../etc"}, "locale"),
        ({"preferences": {"snoozeUntil": "9999-12-31T00:00:00Z"}}, "preferences.snoozeUntil"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], field: str) -> None:
    given = {**WHERE, "email": ANN, **change}
    with pytest.raises(InvalidRequest) as refused:
        order_of(msgspec.convert(given, SubscriptionRequest), "token")
    assert refused.value.field == field
    assert "example.org" not in str(refused.value), "an address stays out of messages"


def test_a_zone_must_exist() -> None:
    window = {"startMinutes": 0, "endMinutes": 5, "timeZone": "Mars/Olympus"}
    request = msgspec.convert({"deliveryWindow": window}, PreferencesRequest)
    with pytest.raises(InvalidRequest) as refused:
        changes_of(request)
    assert refused.value.field == "preferences.deliveryWindow.timeZone"


def test_what_is_left_out_is_no_change_and_null_is_the_default() -> None:
    assert changes_of(msgspec.convert({}, PreferencesRequest)) == {}
    assert changes_of(None) == {}
    window = {"startMinutes": 1320, "endMinutes": 360, "timeZone": "Asia/Shanghai"}
    given = {"snoozeUntil": None, "deliveryWindow": window, "maxNotifications": 1}
    assert changes_of(msgspec.convert(given, PreferencesRequest)) == given
