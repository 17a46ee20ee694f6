"""The first page, dead letters and bulk runs: from what is shown to all that is mended, on both databases."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape

import pytest
from tests.emails import until
from tests.http.door import Door
from tests.http.pages.visitor import Visitor, door_with_people, forms_of, visiting
from tests.jobs import JobBench

from homing.desk.bulk import BulkRun
from homing.lanes.dispatch_jobs.statistics import JobStatistics, Statistics
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.testing.http_sink import Answer, HttpSink

ANSWERS = {"/broken": Answer(status=500), "/gone": Answer(status=410, body=b"gone")}


@pytest.fixture
async def door(database_url: str) -> AsyncIterator[Door]:
    async with door_with_people(database_url, jobs_breaker_failures=2) as door:
        yield door


@pytest.fixture
async def jobs(door: Door) -> AsyncIterator[JobBench]:
    yield JobBench(door.homing, door.log)
    await door.homing.webhooks.deliverer.drain(5)


@pytest.fixture
async def sink() -> AsyncIterator[HttpSink]:
    async with HttpSink(ANSWERS) as sink:
        yield sink


@asynccontextmanager
async def running_bulk(door: Door) -> AsyncIterator[None]:
    runner = door.homing.bulk.runner()
    task = asyncio.create_task(runner.run())
    try:
        yield
    finally:
        runner.stop()
        await task


@pytest.mark.clause("JOB-22", "RTY-15")
async def test_the_first_page_tells_how_it_goes_and_what_needs_a_person(
    door: Door, jobs: JobBench, sink: HttpSink
) -> None:
    await jobs.create(f"{sink.url}/ok", 3, source="shop", type="order.paid")
    (dead,) = await jobs.create(f"{sink.url}/gone", type="order.<b>cancelled</b>")
    await jobs.run_batch()
    for _ in range(2):
        await jobs.create(f"{sink.url}/broken")
        await jobs.run_batch()
    await door.insert(2)
    await door.deliver()
    await door.homing.figures.count.flush()
    async with visiting(door, "viewer") as viewer:
        page = await viewer.read("/")
        for state, count in (("COMPLETED", 3), ("ERROR", 1), ("FAILED", 2), ("sent", 2), ("PENDING", 0)):
            assert re.search(rf'status%3A{state}">{state} <strong class="num">{count}</strong>', page), state
        assert "1 webhook given up: http_410" in page
        assert f"{sink.url} keeps failing" in page
        # The chart, and the same for those who cannot see it.
        assert "3 delivered, 2 to be tried again, 1 given up." in page
        assert "Webhooks over time</title>" in page
        assert re.search(r"<td [^>]+>3</td><td [^>]+>2</td><td [^>]+>1</td>", page)
        # Success by source, duration by type, and what needs a person.
        assert re.search(r'source%3Ashop">shop</a></th><td [^>]+>3</td><td [^>]+>3</td>', page)
        assert re.search(r'type%3Aorder.paid">order.paid</a></th><td [^>]+>3</td>', page)
        assert f'<a href="/messages/{text_of(dead)}">order.&lt;b&gt;cancelled&lt;/b&gt;</a>' in page
        assert "<b>cancelled" not in page
        day = await viewer.read("/", hours=24)
        assert 'href="/?hours=24" aria-current="true"' in day
        assert forms_of(page) == set()
        # Every link of it leads somewhere.
        for link in set(re.findall(r'href="(/(?:messages|dead|targets|workers)\?[^"]*)"', page)):
            await viewer.read(unescape(link))


async def test_figures_that_take_their_time_are_not_waited_for(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, ask = asyncio.Event(), JobStatistics._ask

    async def slowly(statistics: JobStatistics) -> Statistics:
        await go.wait()
        return await ask(statistics)

    monkeypatch.setattr(JobStatistics, "_ask", slowly)
    async with door_with_people(sqlite_url) as door, visiting(door, "viewer") as viewer:
        assert 'id="webhooks-title"' not in await viewer.read("/")
        go.set()
        await until(lambda: is_told(viewer, 'id="webhooks-title"'))


async def test_of_many_webhooks_that_need_a_person_a_few_are_named(
    door: Door, jobs: JobBench, sink: HttpSink
) -> None:
    await jobs.create(f"{sink.url}/gone", 7)
    await jobs.run_batch()
    async with visiting(door, "viewer") as viewer:
        await until(lambda: is_told(viewer, 'id="needing-title"'))
        page = await viewer.read("/")
        named = page[page.index('id="needing-title"') : page.index('id="needing-more"')]
        assert len(re.findall(r'<th scope="row"><a href="/messages/', named)) == 5
        assert '<a href="/dead">dead letters</a>' in page[page.index('id="needing-more"') :]


async def is_told(viewer: Visitor, text: str) -> bool:
    return text in await viewer.read("/")


@pytest.mark.clause("RTY-15", "JOB-25")
async def test_a_group_of_dead_letters_is_requeued_as_a_whole(
    door: Door, jobs: JobBench, sink: HttpSink
) -> None:
    dead = await jobs.create(f"{sink.url}/gone", 3)
    await jobs.run_batch()
    async with visiting(door, "viewer") as viewer:
        page = await viewer.read("/dead")
        assert "http_410" in page
        assert "/bulk/new" not in page
        assert "needs the scope" in await viewer.read("/bulk/new", 422, q="status:dead", verb="requeue")
        refused = await viewer.send("/bulk", {"q": "status:dead lane:dispatch_jobs", "verb": "requeue"})
        assert refused.status_code == 403
    async with visiting(door, "operator") as operator, running_bulk(door):
        page = await operator.read("/dead")
        (link,) = re.findall(r'href="(/bulk/new\?[^"]+)"', page)
        page = await operator.read(unescape(link))
        assert "<strong>3</strong> messages would be requeued" in page
        assert await jobs.states(dead) == ["ERROR"] * 3, "nothing is changed by looking"
        (line,) = re.findall(r'name="q" value="([^"]*)"', page)
        answer = await operator.send("/bulk", {"q": unescape(line), "verb": "requeue"})
        assert answer.status_code == 303
        place = answer.headers["location"]
        await until(lambda: is_over(door, int(place.rpartition("/")[2])))
        page = await operator.read(place)
        assert 'data-over="yes"' in page
        assert f"{place}/cancel" not in forms_of(page)
        changed = page[page.index('id="changed-title"') :]
        assert [text_of(id) for id in dead if f'href="/messages/{text_of(id)}"' not in changed] == []
        assert await jobs.states(dead) == ["PENDING"] * 3
        assert f'<a href="{place}">Requeue #' in await operator.read("/bulk")
        assert await operator.done(f"{place}/cancel") == "It was over already."
        for path in ("/bulk/7777", "/bulk/7777777777777777777777"):
            await operator.read(path, 404)
        assert "would mean every message" in await operator.read("/bulk/new", 422, q="", verb="cancel")
        assert "did you mean" in await operator.read("/bulk/new", 422, q="statsu:dead", verb="cancel")
    told = [(entry["who"], entry["action"], entry["outcome"]) for entry in await door.audit()]
    assert ("user:viewer", "bulk.start", "refused") in told
    assert ("user:operator", "bulk.start", "done") in told


async def is_over(door: Door, id: int) -> bool:
    run: BulkRun = await door.homing.bulk.runs.existing(id)
    return run.is_over


async def test_a_run_that_nobody_has_begun_can_be_stopped(door: Door, jobs: JobBench, sink: HttpSink) -> None:
    dead = await jobs.create(f"{sink.url}/gone", 2)
    await jobs.run_batch()
    async with visiting(door, "operator") as operator:
        answer = await operator.send("/bulk", {"q": "status:dead lane:dispatch_jobs", "verb": "requeue"})
        place = answer.headers["location"]
        page = await operator.read(place)
        assert f'data-topic="/events?topic=bulk&amp;id={place.rpartition("/")[2]}"' in page
        assert f"{place}/cancel" in forms_of(page)
        assert "data-confirm" not in page, "while it asked the run would go on"
        assert await operator.done(f"{place}/cancel") == "It stops after the batch that is under way."
        async with running_bulk(door):
            await until(lambda: is_over(door, int(place.rpartition("/")[2])))
        assert "cancelled" in await operator.read(place)
    assert await jobs.states(dead) == ["ERROR"] * 2
