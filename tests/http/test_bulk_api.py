"""`/api/bulk` and the verbs of `/api/messages`: what they do, who may, and what is written down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.http.door import Door, opened_door, url_with_tables

DEAD = "status:dead lane:mail_outbox"
MAY = ("desk:read", "mail:read", "mail:operate")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return url_with_tables(tmp_path)


@pytest.fixture
async def door(sqlite_url: str) -> AsyncIterator[Door]:
    """Listens, as far as it knows, where others can reach it."""
    async with opened_door(sqlite_url, host="0.0.0.0") as door:
        yield door


async def order(door: Door, key: str, **body: Any) -> tuple[int, dict[str, Any]]:
    answer = await door.ask("POST", "/api/bulk", key, json={"verb": "requeue", "query": DEAD, **body})
    return answer.status_code, answer.json()


async def test_first_it_is_counted_then_meant_then_watched(door: Door) -> None:
    await door.insert(3, status="failed", last_error="timeout: x")
    key = await door.key(*MAY)
    status, counted = await order(door, key)
    assert (status, counted) == (
        200,
        {"dryRun": True, "total": 3, "isEstimate": False, "lanes": {"mail_outbox": 3}},
    )
    status, run = await order(door, key, dryRun=False)
    assert (status, run["state"], run["total"], run["lanes"]) == (202, "counting", None, ["mail_outbox"])
    await door.homing.bulk.runner().once()
    ended = (await door.ask("GET", f"/api/bulk/{run['id']}", key)).json()
    assert (ended["state"], ended["done"], ended["createdBy"]) == ("done", 3, f"key:{key.split('_')[1]}")
    assert ended["finishedAt"] is not None
    listed = (await door.ask("GET", "/api/bulk?limit=1", key)).json()
    assert listed == {"items": [ended], "next": run["id"]}
    assert (await door.ask("GET", f"/api/bulk?before={run['id']}", key)).json()["items"] == []
    actions = [(entry["action"], entry["outcome"]) for entry in await door.audit()]
    assert actions == [("bulk.start", "done"), ("bulk.end", "done")], "counting changes nothing"


async def test_a_run_is_cancelled(door: Door) -> None:
    await door.insert(1, status="failed")
    key = await door.key(*MAY)
    _, run = await order(door, key, dryRun=False)
    answer = await door.ask("POST", f"/api/bulk/{run['id']}/cancel", key)
    assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
    assert (await door.ask("POST", "/api/bulk/99/cancel", key)).status_code == 404
    assert (await door.ask("GET", f"/api/bulk/{10**30}", key)).status_code == 404


async def test_it_needs_the_desk_and_every_lane_that_is_touched(door: Door) -> None:
    await door.insert(1, status="failed")
    for scopes in (("mail:read", "mail:operate"), ("desk:read", "mail:read"), ("desk:read", "mail:operate")):
        key = await door.key(*scopes)
        for dry_run in (True, False):
            status, answer = await order(door, key, dryRun=dry_run)
            assert (status, answer["error"]["code"]) == (403, "FORBIDDEN"), scopes
    key = await door.key(*MAY)
    status, answer = await order(door, key, query="status:dead", dryRun=False)
    assert status == 403
    assert "lane:mail_outbox" in answer["error"]["message"]
    _, run = await order(door, key, dryRun=False)
    viewer = await door.key("desk:read", "mail:read")
    assert (await door.ask("GET", f"/api/bulk/{run['id']}", viewer)).status_code == 200
    assert (await door.ask("POST", f"/api/bulk/{run['id']}/cancel", viewer)).status_code == 403
    refused = [entry for entry in await door.audit() if entry["outcome"] == "refused"]
    assert {entry["action"] for entry in refused} == {"bulk.start", "bulk.cancel"}


async def test_what_is_wrong_with_an_order_is_said(door: Door) -> None:
    key = await door.key(*MAY)
    for body, told in (
        ({"verb": "delete"}, "verb"),
        ({"query": "tpye:x"}, "did you mean"),
        ({"query": " "}, "every message"),
        ({"query": "status:delivered lane:mail_outbox"}, "nothing that can be requeued"),
        ({"limit": 5}, "limit"),
    ):
        status, answer = await order(door, key, **body)
        assert status == 400, body
        assert told in answer["error"]["message"], answer
    for query in ("limit=0", "limit=101", "before=-1", f"before={10**30}"):
        assert (await door.ask("GET", f"/api/bulk?{query}", key)).status_code == 400, query


async def test_a_process_that_serves_takes_runs_up_by_itself(door: Door) -> None:
    await door.insert(2, status="failed")
    _, run = await order(door, await door.key(*MAY), dryRun=False)
    runner = door.homing.bulk.runner()
    working = asyncio.create_task(runner.run())
    async with asyncio.timeout(50):
        while (await door.homing.bulk.runs.existing(run["id"])).finished_at is None:
            await asyncio.sleep(0.02)
    # The next one wakes it.
    await door.insert(1, status="failed")
    _, other = await order(door, await door.key(*MAY), dryRun=False)
    async with asyncio.timeout(50):
        while (await door.homing.bulk.runs.existing(other["id"])).finished_at is None:
            await asyncio.sleep(0.02)
    runner.stop()
    await asyncio.wait_for(working, 50)


# ── one message ──────────────────────────────────────────────────────────────────────────────────


async def act(door: Door, key: str, verb: str, id: str = "outbox_1") -> tuple[int, dict[str, Any]]:
    answer = await door.ask("POST", f"/api/messages/{id}/{verb}", key)
    return answer.status_code, answer.json()


async def test_one_message_is_requeued_cancelled_and_sent_now(door: Door) -> None:
    await door.insert(1, status="failed", next_attempt_at="2099-01-01T00:00:00.000Z")
    key = await door.key("mail:operate")
    queued = {"id": "outbox_1", "lane": "mail_outbox", "state": "queued", "phase": "waiting"}
    assert await act(door, key, "requeue") == (200, queued)
    assert await act(door, key, "send-now") == (200, queued)
    status, answer = await act(door, key, "cancel")
    assert (status, answer["state"]) == (200, "cancelled")
    status, answer = await act(door, key, "send-now")
    assert (status, answer["error"]["code"]) == (409, "CONFLICT")
    assert "only one that is queued" in answer["error"]["message"]
    told = [(entry["action"], entry["object"], entry["outcome"]) for entry in await door.audit()]
    assert told == [
        ("messages.requeue", "outbox_1", "done"),
        ("messages.send_now", "outbox_1", "done"),
        ("messages.cancel", "outbox_1", "done"),
        ("messages.send_now", "outbox_1", "refused"),
    ]


async def test_the_scope_is_that_of_the_messages_lane(door: Door) -> None:
    await door.insert(1, status="failed")
    jobs = await door.key("jobs:operate", "mail:read", "desk:read")
    status, answer = await act(door, jobs, "requeue")
    assert (status, "mail:operate" in answer["error"]["message"]) == (403, True)
    assert (await door.row(1))["status"] == "failed"
    assert (await door.audit())[-1]["outcome"] == "refused"
    for id in ("outbox_99", "email_1", "notification_1", "0ARYZVZXW372S", "nonsense", "outbox_" + "9" * 40):
        status, _ = await act(door, await door.key("*"), "requeue", id)
        assert status == 404, id
