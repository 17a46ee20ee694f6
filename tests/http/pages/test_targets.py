"""Targets on the desk: found, looked at, limited, paused, resumed, tested; and who may do so."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from html import unescape

import pytest
from tests.http.door import Door
from tests.http.pages.visitor import OWN, Visitor, door_with_people, forms_of, visiting
from tests.jobs import JobBench

from homing.lanes.dispatch_jobs.credentials import CreateCredentials
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.testing.http_sink import Answer, HttpSink

ACTIONS = {"/targets/pause", "/targets/limits", "/targets/test"}


@pytest.fixture
async def door(sqlite_url: str) -> AsyncIterator[Door]:
    async with door_with_people(sqlite_url, jobs_breaker_failures=2) as door:
        yield door


@pytest.fixture
async def operator(door: Door) -> AsyncIterator[Visitor]:
    async with visiting(door, "operator") as visitor:
        yield visitor


@pytest.fixture
async def sink() -> AsyncIterator[HttpSink]:
    async with HttpSink(
        {path: Answer(status=500, body=b"<b>no</b>") for path in ("/broken", "/worse")}
    ) as sink:
        yield sink


@pytest.fixture
async def jobs(door: Door) -> AsyncIterator[JobBench]:
    yield JobBench(door.homing, door.log)
    await door.homing.webhooks.deliverer.drain(5)


async def test_targets_are_listed_with_what_waits_and_what_went_wrong(
    jobs: JobBench, operator: Visitor, sink: HttpSink
) -> None:
    assert "No target here" in await operator.read("/targets")
    for _ in range(2):
        await jobs.create(f"{sink.url}/broken")
        await jobs.run_batch()
    assert "one URL left alone" in await operator.read("/targets")
    await jobs.pass_time(60)
    await jobs.create(f"{sink.url}/worse")
    await jobs.run_batch()
    await jobs.create("http://127.0.0.9:1/odd", 3)
    page = await operator.read("/targets")
    assert page.count('<th scope="row">') == 2
    assert "breaker open" in page
    assert "HTTP 500" in page
    assert 'data-name="Waiting">3</td>' in page
    assert sink.url not in await operator.read("/targets", state="closed")
    assert sink.url in await operator.read("/targets", state="open")
    assert sink.url in await operator.read("/targets", q=sink.url.upper()[7:])
    assert sink.url not in await operator.read("/targets", q="127.0.0.9")


async def test_an_error_that_is_over_is_told_as_such(
    jobs: JobBench, operator: Visitor, sink: HttpSink
) -> None:
    over = "Earlier error, none since"
    await jobs.create(f"{sink.url}/broken")
    await jobs.run_batch()
    assert over not in await operator.read("/targets/one", target=sink.url)
    await operator.done("/targets/resume", target=sink.url, credentials="")
    await jobs.create(f"{sink.url}/ok")
    await jobs.run_batch()
    assert over in await operator.read("/targets/one", target=sink.url)
    assert "earlier, none since:" in await operator.read("/targets")


async def test_who_waits_for_a_target_that_is_held_back_is_not_late(
    door: Door, jobs: JobBench, operator: Visitor, sink: HttpSink
) -> None:
    lane = door.homing.desk.lanes["dispatch_jobs"]
    await operator.done("/targets/pause", target=sink.url, credentials="", reason="they move house")
    await jobs.create(f"{sink.url}/ok")
    await jobs.pass_time(900)
    assert await lane.oldest_due() == 0.0
    assert "held back" in await operator.read("/targets/one", target=sink.url)
    assert re.search(r'nowrap">due <time', await operator.read("/messages"))
    assert "nothing due" in await operator.read("/queues")
    overview = await operator.read("/")
    assert "A target is paused" in overview
    assert "Nobody works on webhooks" not in overview
    await operator.done("/targets/resume", target=sink.url, credentials="")
    assert await lane.oldest_due() >= 900.0
    assert "ready to be sent" in await operator.read("/targets/one", target=sink.url)
    (waiting,) = await jobs.create("http://127.0.0.9:1/later", scheduled_for=datetime(2999, 1, 1, tzinfo=UTC))
    assert re.search(r'nowrap">next <time', await operator.read("/messages", q=f"id:{text_of(waiting)}"))


async def test_a_target_that_nobody_sent_to_is_not_said_to_answer(
    jobs: JobBench, operator: Visitor, sink: HttpSink
) -> None:
    page = await operator.read("/targets/one", target=sink.url)
    assert "nothing known" in page
    assert "answers" not in page
    assert f'value="{sink.url}"' in page
    await jobs.create(f"{sink.url}/hooks")
    await jobs.run_batch()
    page = await operator.read("/targets/one", target=sink.url)
    assert "answers" in page
    assert f'value="{sink.url}/hooks"' in page, "a test goes where jobs go"
    assert "which is not shown" not in page


async def test_a_test_is_offered_without_what_is_secret_in_the_url_of_a_job(
    jobs: JobBench, operator: Visitor, sink: HttpSink
) -> None:
    await jobs.create(f"{sink.url}/hooks?token=s3cret")
    page = await operator.read("/targets/one", target=sink.url)
    assert f'value="{sink.url}/hooks"' in page
    assert "s3cret" not in page
    assert "which is not shown: write it yourself" in page


async def test_a_pause_tells_who_asked_for_it_also_by_the_api(
    door: Door, operator: Visitor, sink: HttpSink
) -> None:
    key, told = await door.key("jobs:operate"), {"targetUrl": sink.url, "reason": "call the partner"}
    assert (await door.ask("POST", "/api/dispatch/targets/pause", key, json=told)).status_code == 200
    page = await operator.read("/targets/one", target=sink.url)
    assert re.search(r"until it is resumed: call the partner\. By test, <time ", page)
    await operator.done("/targets/resume", target=sink.url)
    assert "By test" not in await operator.read("/targets/one", target=sink.url)


async def test_one_target_is_paused_limited_and_resumed(
    door: Door, jobs: JobBench, operator: Visitor, sink: HttpSink
) -> None:
    named = {"target": sink.url, "credentials": ""}
    await jobs.create(f"{sink.url}/ok")
    told = await operator.done("/targets/pause", **named, span="1h", reason="maintenance <b>")
    assert told.startswith("Paused")
    page = await operator.read("/targets/one", target=sink.url)
    assert "maintenance &lt;b&gt;" in page
    assert re.search(r"maintenance &lt;b&gt;\. By user:operator, <time [^>]+>[^<]+</time>\.", page)
    assert "Resume</button>" in page
    await jobs.run_batch()
    assert not sink.requests
    assert "limits hold" in await operator.done(
        "/targets/limits", **named, max_concurrency="2", rate_per_second=""
    )
    page = await operator.read("/targets/one", target=sink.url)
    assert 'name="max_concurrency" type="number" min="1" max="10000" step="1" value="2"' in page
    await operator.done("/targets/resume", **named)
    await jobs.run_batch()
    assert len(sink.requests) == 1
    page = await operator.read("/targets/one", target=sink.url)
    assert "100 %" in page
    assert "1 of 1 attempts" in page
    told_of = [(one["action"], one["object"], one["detail"], one["outcome"]) for one in await door.audit()]
    assert told_of[1:] == [
        ("dispatch.targets.pause", sink.url, {"seconds": 3600, "reason": "maintenance <b>"}, "done"),
        ("dispatch.targets.limit", sink.url, {"maxConcurrency": "2"}, "done"),
        ("dispatch.targets.resume", sink.url, None, "done"),
    ]


async def test_limits_that_somebody_has_changed_are_not_written_over(
    operator: Visitor, sink: HttpSink
) -> None:
    def version(page: str) -> str:
        (found,) = re.findall(r'name="limits_version" value="([^"]*)"', page)
        return str(found)

    named = {"target": sink.url, "credentials": ""}
    seen = version(await operator.read("/targets/one", target=sink.url))
    await operator.done("/targets/limits", **named, max_concurrency="2", limits_version=seen)
    mine = {**named, "rate_per_second": "7.5", "limits_version": seen}
    # A mistake is mended with the version that the form was begun with.
    page = await operator.refused("/targets/limits", **{**mine, "rate_per_second": "x"})
    assert version(page) == seen
    page = await operator.refused("/targets/limits", **mine)
    assert "it is 2 at once and any number a second now" in page
    assert 'step="any" value="7.5"' in page, "what was typed is there"
    assert 'step="1" value=""' in page
    await operator.done("/targets/limits", **{**mine, "limits_version": version(page)})
    page = await operator.read("/targets/one", target=sink.url)
    assert (version(page), 'value="7.5"' in page) == ("-/7.5", True), "who was told may write over it"


@pytest.mark.clause("JOB-25")
async def test_a_test_event_is_signed_and_its_answer_shown(
    door: Door, operator: Visitor, sink: HttpSink
) -> None:
    shop = CreateCredentials(name="shop", allowed_targets=(sink.url,))
    issued = await door.homing.credentials.create(shop)
    named = {"target": sink.url, "credentials": text_of(issued.row["id"])}
    well = await operator.send("/targets/test", {**named, "url": f"{sink.url}/hook"})
    assert well.status_code == 200
    assert "it would have completed a job" in well.text
    (request,) = sink.requests
    assert request.path == "/hook"
    assert b"homing.test" in request.body
    assert request.header("webhook-signature")
    broken = await operator.send("/targets/test", {**named, "url": f"{sink.url}/broken"})
    assert "it would have failed" in broken.text
    assert "HTTP 500" in broken.text
    assert "&lt;b&gt;no&lt;/b&gt;" in broken.text
    elsewhere = await operator.refused("/targets/test", **named, url="http://127.0.0.1:1/x")
    assert "is not one of" in elsewhere
    actions = [(one["action"], one["outcome"]) for one in await door.audit()][1:]
    assert actions == [("dispatch.targets.validate", outcome) for outcome in ("done", "done", "refused")]


async def test_a_test_event_is_not_signed_for_somebody_else(
    door: Door, operator: Visitor, sink: HttpSink
) -> None:
    request = CreateCredentials(name="shop", allowed_targets=("https://partner.example",))
    issued = await door.homing.credentials.create(request)
    named = {"target": sink.url, "credentials": text_of(issued.row["id"])}
    page = await operator.refused("/targets/test", **named, url=f"{sink.url}/collect")
    assert "may not be used for" in page
    assert "homing credentials allow" in page
    assert sink.count == 0
    async with visiting(door, "admin") as admin:
        assert (await admin.send("/targets/test", {**named, "url": f"{sink.url}/hook"})).status_code == 200
    assert sink.count == 1, "whose credentials they are to give to anybody"


async def test_what_cannot_be_is_told_and_changes_nothing(operator: Visitor, sink: HttpSink) -> None:
    named = {"target": sink.url, "credentials": ""}
    for form, why in (
        ({"max_concurrency": "many"}, "write a number"),
        ({"max_concurrency": "0"}, "from 1 to 10,000"),
        ({"rate_per_second": "1e9"}, "100,000"),
    ):
        assert why in await operator.refused("/targets/limits", **named, **form)
    response = await operator.send("/targets/pause", {"target": "nonsense", "span": "1h"})
    assert response.status_code == 400
    assert 'value=""' in unescape(await operator.read("/targets/one", target=sink.url))


async def test_who_may_only_look_sees_no_buttons_and_is_refused(door: Door, sink: HttpSink) -> None:
    async with visiting(door, "viewer") as viewer, visiting(door, "operator") as operator:
        path = {"target": sink.url}
        assert forms_of(await viewer.read("/targets/one", **path)) == set()
        assert forms_of(await operator.read("/targets/one", **path)) >= ACTIONS
        for action in (*ACTIONS, "/targets/resume"):
            assert (await viewer.send(action, path)).status_code == 403
            forged = await operator.client.post(action, data={**path, "csrf": viewer.csrf}, headers=OWN)
            assert forged.status_code == 403
            bare = await operator.client.post(action, data={**path, "csrf": operator.csrf})
            assert bare.status_code == 403
    assert await door.homing.jobs.run("targets", after="", limit=10) == []
