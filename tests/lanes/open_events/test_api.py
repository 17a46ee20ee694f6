"""`/api/notifications`: flips in, subscriptions and notifications looked after, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from tests.lanes.open_events.desk import OPENED, WHERE, Desk, called_desk

from homing.db import iso

ANN = "ann@example.org"
EVENTS = "/api/notifications/events"
SUBSCRIPTIONS = "/api/notifications/subscriptions"
ORDER = {**WHERE, "email": ANN}


@pytest.fixture
async def desk(seats_url: str) -> AsyncIterator[Desk]:
    async with called_desk(seats_url) as desk:
        yield desk


@pytest.fixture
async def sqlite_desk(sqlite_url: str) -> AsyncIterator[Desk]:
    """For what is the same on every database."""
    async with called_desk(sqlite_url) as desk:
        yield desk


async def _get(desk: Desk, path: str, **parameters: Any) -> Any:
    response = await desk.client.get(path, params=parameters)
    assert response.status_code == 200, response.text
    return response.json()


def _error(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"code", "message", "details"}
    return error


# ── flips ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("NTF-23")
async def test_a_flip_is_answered_with_what_became_of_it(desk: Desk) -> None:
    await desk.subscriber()
    opened = await desk.client.post(EVENTS, json=OPENED)
    assert opened.status_code == 202
    assert opened.json() == {"openEventId": 1, "notifications": 1, "duplicate": False, "verdict": "opened"}
    again = await desk.client.post(EVENTS, json=OPENED)
    assert again.status_code == 200
    assert again.json() == {"openEventId": 1, "notifications": 0, "duplicate": True, "verdict": "duplicate"}
    closed = await desk.client.post(EVENTS, json={**OPENED, "statusBefore": "Open", "statusAfter": "Closed"})
    assert closed.status_code == 200
    assert closed.json() == {
        "openEventId": None, "notifications": 0, "duplicate": False, "verdict": "closed",
    }  # fmt: skip


WRONG_FLIPS: list[tuple[dict[str, Any], str]] = [
    ({"statusAfter": "ajar"}, "statusAfter"),
    ({"statusAfter": None}, "statusAfter"),
    ({"indexNumber": 12345}, "indexNumber"),
    ({"indexNumber": ""}, "indexNumber"),
    ({"termId": "x" * 101}, "termId"),
    ({"eventAt": "2026-11-16T12:00:00"}, "eventAt"),
    ({"eventAt": "2999-11-16T12:00:00Z"}, "eventAt"),
    ({"sectionId": 0}, "sectionId"),
    ({"seatDelta": "5"}, "seatDelta"),
    ({"payload": []}, "payload"),
    ({"surprise": 1}, "surprise"),
]


async def test_a_flip_that_makes_no_sense_is_refused(sqlite_desk: Desk) -> None:
    for change, field in WRONG_FLIPS:
        error = _error(await sqlite_desk.client.post(EVENTS, json={**OPENED, **change}), 400)
        assert (error["code"], error["details"]) == ("INVALID_REQUEST", {"field": field})
    assert await sqlite_desk.count("open_events") == 0


async def test_many_flips_get_a_verdict_each(desk: Desk) -> None:
    await desk.subscriber()
    flips = [
        OPENED,
        {**OPENED, "statusAfter": "ajar"},
        OPENED,
        {**OPENED, "indexNumber": "2", "statusBefore": "Open", "statusAfter": "Wait"},
        5,
        {**OPENED, "indexNumber": "3"},
    ]
    response = await desk.client.post(f"{EVENTS}/batch", json=flips)
    assert response.status_code == 200
    reply = response.json()
    verdicts = [item["verdict"] for item in reply["items"]]
    assert verdicts == ["opened", "invalid", "duplicate", "closed", "invalid", "opened"]
    assert reply["notifications"] == 1
    assert reply["items"][1]["error"]["details"] == {"field": "statusAfter"}
    assert [reply["items"][n]["openEventId"] for n in (0, 2)] == [1, 1]
    for wrong in ([], [OPENED] * 501, OPENED):
        _error(await desk.client.post(f"{EVENTS}/batch", json=wrong), 400)
    plain = await desk.client.post(f"{EVENTS}/batch", content=b"[]", headers={"content-type": "text/plain"})
    _error(plain, 415)


# ── subscriptions ────────────────────────────────────────────────────────────────────────────────


async def test_nobody_learns_whether_an_address_is_subscribed(desk: Desk) -> None:
    """The answer is the same, to the byte, for every state that an address can be in."""
    answers = [await desk.client.post(SUBSCRIPTIONS, json=ORDER)]
    for status in ("pending", "active", "paused", "suppressed", "unsubscribed"):
        await desk.sql("UPDATE subscriptions SET status = :status", status=status)
        answers.append(await desk.client.post(SUBSCRIPTIONS, json=ORDER))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.content for answer in answers}) == 1
    reply = answers[0].json()
    assert (reply["status"], reply["email"]) == ("pending", "a***@example.org")
    assert "subscriptionId" not in reply
    assert ANN not in answers[0].text
    assert await desk.count("subscriptions") == 1


WRONG_ORDERS: list[tuple[dict[str, Any], str | None]] = [
    ({"email": "nobody"}, "email"),
    ({"email": None}, "email"),
    ({"email": ["a@example.org"]}, "email"),
    ({"locale": "x" * 36}, "locale"),
    ({"locale": "no locale"}, "locale"),
    ({"campusCode": None}, "campusCode"),
    ({"status": "active"}, "status"),
    ({"preferences": {"notifyOn": "open"}}, "preferences.notifyOn"),
    ({"preferences": {"notifyOn": ["closed"]}}, "preferences.notifyOn[0]"),
    ({"preferences": {"maxNotifications": 0}}, "preferences.maxNotifications"),
    ({"preferences": {"maxNotifications": 1.5}}, "preferences.maxNotifications"),
    ({"preferences": {"snoozeUntil": "2026-11-16T12:00:00"}}, "preferences.snoozeUntil"),
    ({"preferences": {"snoozeUntil": "tomorrow"}}, "preferences.snoozeUntil"),
    ({"preferences": {"deliveryWindow": {"startMinutes": 0}}}, None),
    (
        {"preferences": {"deliveryWindow": {"startMinutes": 0, "endMinutes": 1440}}},
        "preferences.deliveryWindow.endMinutes",
    ),
    (
        {"preferences": {"deliveryWindow": {"startMinutes": 0, "endMinutes": 1, "timeZone": "Mars"}}},
        "preferences.deliveryWindow.timeZone",
    ),
    ({"preferences": {"color": "red"}}, None),
]


async def test_a_subscription_that_makes_no_sense_is_refused(sqlite_desk: Desk) -> None:
    for change, field in WRONG_ORDERS:
        error = _error(await sqlite_desk.client.post(SUBSCRIPTIONS, json={**ORDER, **change}), 400)
        assert error["code"] == "INVALID_REQUEST"
        assert field is None or error["details"] == {"field": field}, change
    assert await sqlite_desk.count("subscriptions") == 0
    assert sqlite_desk.mails == []


async def test_one_subscription_is_shown_with_its_history_and_without_its_address(desk: Desk) -> None:
    course = await desk.insert("courses", "course_id", course_string="01:640:151", title="Calculus")
    await desk.insert(
        "sections", "section_id",
        term_id="92026", campus_code="NB", index_number="12345", course_id=course, section_number="07",
    )  # fmt: skip
    window = {"startMinutes": 1320, "endMinutes": 360, "timeZone": "Asia/Shanghai"}
    order = {**ORDER, "locale": "zh-CN", "preferences": {"deliveryWindow": window}}
    await desk.client.post(SUBSCRIPTIONS, json=order)
    response = await desk.client.get(f"{SUBSCRIPTIONS}/1")
    shown = response.json()
    assert (shown["subscriptionId"], shown["status"], shown["verified"]) == (1, "pending", False)
    assert (shown["contact"], shown["locale"]) == ("a***@example.org", "zh-CN")
    assert shown["preferences"] == {"notifyOn": ["open"], "deliveryWindow": window}
    assert (shown["courseTitle"], shown["sectionNumber"]) == ("Calculus", "07")
    assert [event["type"] for event in shown["events"]] == ["verification_sent", "created"]
    token = (await desk.row(1))["unsubscribe_token"]
    assert ANN not in response.text
    assert token not in response.text
    for wrong in ("2", "0", f"{2**70}"):
        _error(await desk.client.get(f"{SUBSCRIPTIONS}/{wrong}"), 404)
    _error(await desk.client.get(f"{SUBSCRIPTIONS}/nonsense"), 404)


async def test_what_another_program_wrote_is_shown_whatever_it_is(desk: Desk) -> None:
    broken = {"locale": "??", "metadata": "{", "status": "Active"}
    if desk.database.dialect == "sqlite":
        broken["created_at"] = "yesterday"
    id = await desk.subscriber("not an address", **broken)
    await desk.insert("subscription_events", "event_id", subscription_id=id, event_type="odd", payload="{")
    shown = await _get(desk, f"{SUBSCRIPTIONS}/{id}")
    assert (shown["contact"], shown["status"]) == ("***", "active")
    assert shown["events"][0]["details"] is None


async def test_lists_by_section_status_and_address_and_page_by_page(desk: Desk) -> None:
    for number in range(4):
        await desk.subscriber(f"s{number}@example.org", status="paused" if number == 3 else "active")
    other = await desk.subscriber("s0@example.org", index_number="2")

    async def ids(**parameters: Any) -> list[int]:
        page = await _get(desk, SUBSCRIPTIONS, **parameters)
        return [item["subscriptionId"] for item in page["items"]]

    page = await _get(desk, SUBSCRIPTIONS, limit=3)
    assert [item["subscriptionId"] for item in page["items"]] == [5, 4, 3]
    assert await ids(limit=3, before=page["next"]) == [2, 1]
    assert (await _get(desk, SUBSCRIPTIONS, before=2))["next"] is None
    assert await ids(**WHERE) == [4, 3, 2, 1]
    assert await ids(**WHERE, status="paused") == [4]
    assert await ids(email=" S0@Example.org") == [other, 1]
    assert await ids(email="s0@example.org", **WHERE) == [1]
    assert await ids(email="stranger@example.org") == []
    wrong: list[dict[str, Any]] = [
        {"status": "x"}, {"limit": 0}, {"limit": 101}, {"before": -1}, {"before": 2**70}, {"email": "x"},
        {"termId": "92026"}, {**WHERE, "termId": "\x00"},
    ]  # fmt: skip
    for parameters in wrong:
        _error(await desk.client.get(SUBSCRIPTIONS, params=parameters), 400)


async def test_preferences_are_changed_one_by_one(desk: Desk) -> None:
    id = await desk.subscriber(preferences={"maxNotifications": 9}, locale="en-US")
    path = f"{SUBSCRIPTIONS}/{id}"
    later = iso(desk.clock() + timedelta(days=1))
    change = {"locale": "zh-cn", "preferences": {"snoozeUntil": later}}
    shown = (await desk.client.patch(path, json=change)).json()
    assert shown["locale"] == "zh-CN"
    assert shown["preferences"] == {"notifyOn": ["open"], "maxNotifications": 9, "snoozeUntil": later}
    change = {"preferences": {"snoozeUntil": None, "maxNotifications": None, "notifyOn": []}}
    shown = (await desk.client.patch(path, json=change)).json()
    assert shown["preferences"] == {"notifyOn": []}
    assert shown["locale"] == "zh-CN"
    assert (await desk.client.patch(path, json={})).status_code == 200
    _error(await desk.client.patch(path, json={"status": "active"}), 400)
    _error(await desk.client.patch(f"{SUBSCRIPTIONS}/99", json={}), 404)


async def test_pause_resume_and_the_end(desk: Desk) -> None:
    id = await desk.subscriber()
    path = f"{SUBSCRIPTIONS}/{id}"

    async def to(verb: str) -> str:
        response = await desk.client.post(f"{path}/{verb}")
        assert response.status_code == 200, response.text
        return str(response.json()["status"])

    assert await to("pause") == "paused"
    error = _error(await desk.client.post(f"{path}/pause"), 409)
    assert error["code"] == "CONFLICT"
    assert "paused" in error["message"]
    assert await to("resume") == "active"
    queued = await desk.notification(id)
    ended = await desk.client.delete(path)
    assert (ended.status_code, ended.json()["status"]) == (200, "unsubscribed")
    shown = await _get(desk, f"/api/notifications/notification_{queued}")
    assert (shown["status"], shown["errorCode"]) == ("skipped", "unsubscribed")
    assert await to("unsubscribe") == "unsubscribed", "twice is as once"
    for verb in ("pause", "resume"):
        _error(await desk.client.post(f"{path}/{verb}"), 409)
    for verb in ("pause", "resume", "unsubscribe"):
        _error(await desk.client.post(f"{SUBSCRIPTIONS}/99/{verb}"), 404)
    _error(await desk.client.delete(f"{SUBSCRIPTIONS}/99"), 404)


# ── notifications ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("NTF-16")
async def test_notifications_are_listed_and_put_back(desk: Desk) -> None:
    id = await desk.subscriber()
    failed = '{"code":"network_error","message":"x"}'
    for event in range(1, 4):
        await desk.notification(id, event, fanout_status="failed", fanout_attempts=3, error=failed)
    await desk.notification(id, 4, fanout_status="sent", fanout_attempts=1)
    page = await _get(desk, "/api/notifications", limit=3)
    assert [item["id"] for item in page["items"]] == [f"notification_{n}" for n in (4, 3, 2)]
    assert [i["id"] for i in (await _get(desk, "/api/notifications", before=page["next"]))["items"]] == [
        "notification_1"
    ]
    assert len((await _get(desk, "/api/notifications", status="failed"))["items"]) == 3
    one = await desk.client.post("/api/notifications/notification_1/requeue")
    assert (one.status_code, one.json()["status"], one.json()["attempts"]) == (200, "pending", 0)
    _error(await desk.client.post("/api/notifications/notification_4/requeue"), 409)
    _error(await desk.client.post("/api/notifications/notification_99/requeue"), 404)
    _error(await desk.client.get("/api/notifications/nonsense"), 404)
    wanted = {"status": "failed", "code": "network_error"}
    counted = await desk.client.post("/api/notifications/requeue", json=wanted)
    assert counted.json() == {"matched": 2, "requeued": 0, "more": False, "dryRun": True}
    done = await desk.client.post("/api/notifications/requeue", json={**wanted, "dryRun": False})
    assert done.json() == {"matched": 2, "requeued": 2, "more": False, "dryRun": False}
    for parameters in ({"status": "nonsense"}, {"limit": 0}):
        _error(await desk.client.get("/api/notifications", params=parameters), 400)
