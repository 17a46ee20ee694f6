"""The pages /queues, /workers and /router, and what their forms do."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from msgspec import structs
from tests.http.door import Door, opened_door, url_with_tables

from homing.brokers.base import Publication
from homing.desk.checkup import Finding
from homing.doctor import examine
from homing.workers.model import Identity, LaneReport, PoolReport, Report, WarningReport

ANN = Identity("ann:1", "ann", 1, "1.0", "first", ("mail_outbox", "email_log"), serves=False)


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    url = f"memory://{uuid4().hex}"
    async with opened_door(url_with_tables(tmp_path), jobs_broker_url=url, email_broker_url=url) as opened:
        yield opened


async def beat(door: Door, who: Identity = ANN, state: Any = "running", report: Report | None = None) -> None:
    given = report or Report((LaneReport("mail_outbox", 3, 100, 1234, 1200),))
    await door.homing.fleet.beat(who, state, given, up_seconds=3600.0)


async def lose(door: Door) -> None:
    await door.sql("UPDATE homing_worker SET seen_at = '2020-01-01T00:00:00.000Z' RETURNING name")


async def words(door: Door, path: str) -> str:
    """What a person reads."""
    page = await door.client.get(path)
    assert page.status_code == 200, page.text
    assert not re.search(r"<script(?! src=)|\sstyle=|\son[a-z]+=", page.text), "nothing inline"
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page.text)).split())


async def send(door: Door, path: str, **fields: str) -> httpx.Response:
    return await door.client.post(path, data=fields, headers={"Origin": door.address})


# ── workers ──────────────────────────────────────────────────────────────────────────────────────


async def test_workers_are_shown_with_what_they_do(door: Door) -> None:
    assert "Nobody is at work" in await words(door, "/workers")
    await beat(door)
    told = await words(door, "/workers")
    assert "ann:1" in told
    assert "3 room for 100" in told
    assert "3 1,234 claimed 1,200 31 otherwise" in told
    assert "At work 1" in told
    await lose(door)
    told = await words(door, "/workers")
    assert "Lost 1" in told
    assert "Pause ann:1" not in told


async def test_a_whole_process_is_paused_after_a_question_and_for_a_reason(door: Door) -> None:
    await beat(door)
    page = (await door.client.get("/workers")).text
    assert 'data-confirm="Pause ann:1?' in page
    assert 'aria-label="Why ann:1 is paused"' in page
    await send(door, "/workers/pause", scope="worker", name="ann:1", reason="the machine is moved")
    assert "the machine is moved" in await words(door, "/workers")
    await send(door, "/workers/resume", scope="worker", name="ann:1")
    refused = await send(door, "/workers/pause", scope="worker", name="ann:1", reason="x" * 501)
    assert refused.status_code == 422
    assert f'value="{"x" * 501}" aria-invalid="true"' in refused.text


async def test_who_works_on_a_lane_is_told_truly_everywhere(door: Door) -> None:
    """The only worker runs, is paused, and is lost, while a mail and a webhook are due."""
    await door.homing.database.run_script(DUE_MAIL)
    page = "/messages/outbox_1"
    assert "It is due, but nobody works on mail_outbox" in await words(door, page)
    assert "nobody works on it" in await words(door, "/queues")
    await beat(door)
    assert "It is due, and the next free worker takes it" in await words(door, page)
    assert "Nobody works on mails" not in await words(door, "/")
    await door.homing.fleet.pause("worker", "ann:1", by="user:ann", reason="a look")
    await beat(door, state="paused")
    why = "all workers of mail_outbox are paused: ann:1 by user:ann (a look)"
    assert f"It is due, but {why}" in await words(door, page)
    for path in ("/queues", "/workers"):
        assert "all workers paused" in await words(door, path), path
    trouble = await attention_of(door)
    assert ("The worker ann:1 is paused", "by user:ann: a look") in trouble
    assert "Nobody works on mails" in dict(trouble)
    assert "ann:1 is paused by user:ann" in (await workers_finding(door)).detail
    await door.homing.fleet.resume("worker", "ann:1")
    await lose(door)
    assert "nobody works on mail_outbox: ann:1 fell silent" in await words(door, page)
    assert "nobody works on it" in await words(door, "/queues")
    found = await workers_finding(door)
    assert not found.well
    assert "nobody works on mail_outbox: ann:1 fell silent" in found.detail
    assert "messages are due for" in found.detail
    other = structs.replace(ANN, name="ben:2", boot="second")
    await beat(door, other)
    found = await workers_finding(door)
    assert (found.well, found.detail) == (True, "1 running, 1 lost (whose work others do)")


DUE_MAIL = """INSERT INTO mail_outbox (to_address, subject, text_body, next_attempt_at, created_at)
    VALUES ('a@example.com', 'Hi', 'Hello.', '2026-01-01T00:00:00.000Z', '2026-01-01T00:00:00.000Z')"""


async def attention_of(door: Door) -> list[tuple[str, str]]:
    """Asked anew: a page may show what it knew two seconds ago."""
    view = await door.homing.figures.make_overview().look(datetime.now(UTC))
    return [(item.title, item.detail) for item in view.attention]


async def workers_finding(door: Door) -> Finding:
    return next(found for found in await examine(door.homing.settings) if found.check == "workers")


async def test_a_lane_is_paused_and_resumed_by_a_form(door: Door) -> None:
    done = await send(door, "/workers/pause", scope="lane", name="mail_outbox", reason="the relay is moved")
    assert (done.status_code, done.headers["location"]) == (303, "/workers")
    (pause,) = await door.homing.fleet.pauses()
    assert (pause.name, pause.reason, pause.asked_by) == ("mail_outbox", "the relay is moved", "loopback")
    assert "the relay is moved" in await words(door, "/workers")
    assert "refresh" not in (await door.client.get("/workers")).headers
    await beat(door)
    assert (await door.client.get("/workers")).headers["refresh"] == "2", "until it has heard of it"
    assert "paused" in await words(door, "/queues")
    await send(door, "/workers/resume", scope="lane", name="mail_outbox")
    assert await door.homing.fleet.pauses() == []
    entries = [(entry["action"], entry["object"], entry["outcome"]) for entry in await door.audit()]
    assert entries == [
        ("workers.pause", "lane mail_outbox", "done"),
        ("workers.resume", "lane mail_outbox", "done"),
    ]


async def test_a_stage_that_is_paused_is_seen_on_the_overview(door: Door) -> None:
    await door.homing.fleet.pause("lane", "email_log:send", by="user:ann", reason=None)
    assert ("Emails are paused", "by user:ann; nothing waits") in await attention_of(door)


async def test_a_worker_is_paused_and_what_does_not_exist_is_refused(door: Door) -> None:
    await beat(door)
    await send(door, "/workers/pause", scope="worker", name="ann:1")
    assert [pause.name for pause in await door.homing.fleet.pauses()] == ["ann:1"]
    refused = await send(door, "/workers/pause", scope="lane", name="<b>")
    assert refused.status_code == 422
    assert "there is no lane" in refused.text
    assert "<b>" not in refused.text
    assert (await door.audit())[-1]["outcome"] == "refused"


async def test_the_leases_of_a_lost_worker_are_released_by_a_form(door: Door) -> None:
    (id,) = await door.insert()
    await door.outbox.claim(1)
    await door.sql("UPDATE mail_outbox SET locked_by = 'ann:1' WHERE id = :id RETURNING id", id=id)
    assert "not known here" in await words(door, "/workers"), "of whom nothing was heard yet"
    await beat(door)
    await lose(door)
    assert "Release its leases" in await words(door, "/workers")
    await send(door, "/workers/release", name="ann:1")
    assert (await door.row(id))["status"] == "queued"
    assert (await door.audit())[-1]["action"] == "workers.release"


async def test_who_may_only_look_sees_no_forms_and_changes_nothing(door: Door) -> None:
    key = await door.key("desk:read", "router:read")
    for path in ("/workers", "/queues", "/router"):
        page = await door.ask("GET", path, key)
        assert page.status_code == 200
        assert 'action="/workers' not in page.text
        assert 'action="/router' not in page.text
    for path in ("/workers/pause", "/workers/resume", "/workers/release", "/router"):
        refused = await door.ask("POST", path, key, data={"scope": "lane", "name": "mail_outbox"})
        assert refused.status_code == 403
    assert await door.homing.fleet.pauses() == []


# ── queues ───────────────────────────────────────────────────────────────────────────────────────


async def test_queues_show_how_much_waits_where(door: Door) -> None:
    queues = door.homing.email_queues
    await door.insert(7)
    await door.homing.email_broker.publish(queues.send, [Publication(b"x")] * 5)
    report = Report(pools=(PoolReport("DISPATCH-POOL", 5, 2, 41, 5),))
    await beat(door, report=report)
    told = await words(door, "/queues")
    assert "mail_outbox 7 " in told
    assert "email.dispatcher.send memory 5 0 0" in told
    assert "DISPATCH-POOL 1 5 2 41 5" in told
    assert "/messages?q=lane%3Amail_outbox" in (await door.client.get("/queues")).text
    metrics = (await door.client.get("/metrics")).text
    assert 'homing_queue_messages{queue="email.dispatcher.send",state="waiting"} 5.0' in metrics


# ── the router ───────────────────────────────────────────────────────────────────────────────────


FORM = {
    "version": "0",
    "queue_a_0": "orders.fifo", "queue_b_0": "Orders", "queue_c_0": "3",
    "queue_a_2": "other.fifo",
    "pool_a_0": "DISPATCH-POOL", "pool_b_0": "40", "pool_c_0": "600",
    "pool_a_1": "SLOW", "pool_b_1": "2", "pool_c_1": "",
    "connections": "2",
}  # fmt: skip


async def test_the_router_is_changed_by_a_form_and_as_json(door: Door) -> None:
    assert "nobody has changed it" in await words(door, "/router")
    done = await send(door, "/router", **FORM)
    assert done.status_code == 303, done.text
    config = (await door.client.get("/api/config")).json()
    assert config == {
        "queues": [
            {"queueUri": "orders.fifo", "queueName": "Orders", "connections": 3},
            {"queueUri": "other.fifo", "queueName": None, "connections": None},
        ],
        "processingPools": [
            {"code": "DISPATCH-POOL", "concurrency": 40, "rateLimitPerMinute": 600},
            {"code": "SLOW", "concurrency": 2, "rateLimitPerMinute": None},
        ],
        "connections": 2,
    }
    told = await words(door, "/router")
    assert "Version 1" in told
    (entry,) = await door.audit()
    assert (entry["action"], entry["outcome"]) == ("router.change", "done")
    assert entry["detail"]["processingPools"] == [
        "DISPATCH-POOL: 40 at once, 600 a minute",
        "SLOW: 2 at once",
    ]
    text = '{"queues": [{"queueUri": "q"}], "processingPools": [{"code": "P"}]}'
    assert (await send(door, "/router", version="1", config=text)).status_code == 303
    assert (await door.client.get("/api/config")).json()["processingPools"][0]["concurrency"] == 5


WRONG = (
    ({"pool_b_0": "0"}, "Pool 1, at once"),
    ({"pool_b_0": "many"}, "write a number"),
    ({"queue_a_0": "has a space"}, "no spaces"),
    ({"pool_a_1": "DISPATCH-POOL"}, "is given 2 times"),
    ({"config": "{"}, "JSON"),
    ({"config": '{"queues": [], "processingPools": []}'}, "must name one at least"),
)


async def test_what_is_wrong_is_told_and_kept_in_the_form(door: Door) -> None:
    for fields, why in WRONG:
        refused = await send(door, "/router", **{**FORM, **fields})
        assert refused.status_code == 422, fields
        assert re.search(rf'id="refused" role="alert">[^<]*{why}', unescape(refused.text))
        assert next(iter(fields.values())) in unescape(refused.text)
    assert (await door.homing.router_configs.current())[1] == 0
    assert {entry["outcome"] for entry in await door.audit()} == {"refused"}


async def test_of_two_who_change_it_at_once_the_second_is_told(door: Door) -> None:
    assert (await send(door, "/router", **FORM)).status_code == 303
    late = await send(door, "/router", **{**FORM, "pool_b_0": "7"})
    assert late.status_code == 422
    assert "Somebody has changed it" in late.text
    assert 'value="7"' in late.text, "what was written is not lost"
    assert 'name="version" value="1"' in late.text, "and can be saved over theirs on purpose"
    assert (await send(door, "/router", **{**FORM, "pool_b_0": "7", "version": "1"})).status_code == 303
    assert (await door.homing.router_configs.current())[0].processing_pools[0].concurrency == 7


def versions(page: httpx.Response) -> list[str]:
    """Of the form of lines, and of the one of JSON."""
    return re.findall(r'name="version" value="([^"]*)"', page.text)


async def test_a_mistake_does_not_write_over_what_somebody_has_changed_meanwhile(door: Door) -> None:
    """The form that comes back was begun before theirs, and is only sent again when that was told."""
    assert (await send(door, "/router", **FORM)).status_code == 303
    mine = {**FORM, "pool_a_0": "MINE"}
    mistaken = await send(door, "/router", **{**mine, "pool_b_0": "many"})
    assert versions(mistaken) == ["0", "0"], "both forms hold what was written"
    late = await send(door, "/router", **{**mine, "version": versions(mistaken)[0]})
    assert late.status_code == 422
    assert "Somebody has changed it" in late.text
    assert versions(late) == ["1", "1"]
    assert (await door.homing.router_configs.current())[0].processing_pools[0].code == "DISPATCH-POOL"


async def test_the_same_of_json_beside_which_the_other_form_holds_theirs(door: Door) -> None:
    assert (await send(door, "/router", **FORM)).status_code == 303
    mistaken = await send(door, "/router", version="0", config="{")
    assert versions(mistaken) == ["1", "0"]
    text = '{"queues": [{"queueUri": "q"}], "processingPools": [{"code": "MINE"}]}'
    late = await send(door, "/router", version="0", config=text)
    assert "Somebody has changed it" in late.text
    assert versions(late) == ["1", "1"]
    assert (await door.homing.router_configs.current())[1] == 1
    odd = await send(door, "/router", version='"><b>', config="{")
    assert versions(odd) == ["1", "&#34;&gt;&lt;b&gt;"]


async def test_the_router_page_shows_what_runs_and_what_it_warns_of(door: Door) -> None:
    warning = WarningReport(datetime(2027, 1, 1, tzinfo=UTC), "unknown_pool", "q", "there is no pool <X>")
    report = Report(pools=(PoolReport("DISPATCH-POOL", 5, 2, 41, 5),), warnings=(warning,))
    await beat(door, report=report)
    told = await words(door, "/router")
    assert "DISPATCH-POOL 2 of 5, 41 in line" in told
    assert "there is no pool <X>" in told
