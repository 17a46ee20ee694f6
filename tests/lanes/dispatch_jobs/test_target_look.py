"""Targets as the desk lists them, and what it asks of credentials: on all three databases."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.jobs import JobBench, job_bench

from homing.errors import NotAllowed
from homing.lanes.dispatch_jobs import target_look
from homing.lanes.dispatch_jobs.credentials import CreateCredentials, RotateCredentials
from homing.lanes.dispatch_jobs.dead_letters import SOURCE
from homing.lanes.dispatch_jobs.target_look import LastUrl, Load, TargetFilter, TargetLook
from homing.testing.http_sink import Answer, HttpSink

NAMES = [f"http://t{number:03}.example:80" for number in range(60)]


@pytest.fixture
async def bench(database_url: str) -> AsyncIterator[JobBench]:
    async with job_bench(database_url, mail_url="memory://") as bench:
        yield bench


async def seen(look: TargetLook, wanted: TargetFilter) -> list[list[str]]:
    """All pages."""
    pages, after = list[list[str]](), ""
    while True:
        page = await look.page(wanted, after)
        pages.append([one.view.target for one in page.items])
        if page.next is None:
            return pages
        after = page.next


async def test_those_with_jobs_and_those_with_a_row_come_page_by_page(bench: JobBench) -> None:
    look = TargetLook(bench.jobs)
    assert await seen(look, TargetFilter()) == [[]]
    for name in NAMES[::2]:
        await bench.create(f"{name}/hook", 2)
    for name in NAMES[1::2]:
        await bench.jobs.run("limit_target", target=name, max_concurrency=1, rate_per_second=None)
    assert await seen(look, TargetFilter()) == [NAMES[:50], NAMES[50:]]
    assert await seen(look, TargetFilter("T03")) == [NAMES[30:40]]
    assert await seen(look, TargetFilter(state="paused")) == [[]]
    (held, *_) = await bench.claim(1)
    (one,) = (await look.page(TargetFilter(held.item.target[7:]))).items
    assert one.load == await look.load(held.item.target) == Load(1, 1)
    assert await look.load("http://nobody.example:80") == Load()


async def test_what_came_of_the_last_hour(bench: JobBench) -> None:
    look = TargetLook(bench.jobs)
    async with HttpSink({"/broken": Answer(status=500)}) as sink:
        await bench.create(f"{sink.url}/ok", 3)
        await bench.create(f"{sink.url}/broken")
        await bench.run_batch()
        found = await look.results(sink.url)
    if bench.jobs.database.dialect == "mongodb":
        assert found is None
        return
    assert found is not None
    assert (found.attempts, found.successful, found.success, found.since) == (4, 3, 0.75, None)
    other = await look.results("http://nobody.example:80")
    assert other is not None
    assert (other.attempts, other.success) == (0, None)


async def test_where_the_last_job_of_a_target_went(bench: JobBench, monkeypatch: pytest.MonkeyPatch) -> None:
    look = TargetLook(bench.jobs)
    assert await look.last_url("http://a.example:80") is None
    for path in ("old", "new"):
        await bench.create(f"http://a.example/{path}")
    (id,) = await bench.create("http://b.example/hook?token=s3cret")
    await bench.create("http://c.example/chat", source=SOURCE)
    assert await look.last_url("http://a.example:80") == LastUrl("http://a.example/new", is_cut=False)
    assert await look.last_url("http://b.example:80") == LastUrl("http://b.example/hook", is_cut=True)
    assert await look.last_url("http://c.example:80") == LastUrl(None, is_cut=True)
    monkeypatch.setattr(target_look, "_LAST_OF", 1)
    assert await look.last_url("http://b.example:80") is not None, "one that waits is found by its target"
    await bench.change(id, status="COMPLETED")
    assert await look.last_url("http://b.example:80") is None


async def test_who_uses_credentials_and_when_their_grace_ends(bench: JobBench) -> None:
    credentials = bench.homing.credentials
    first, second = [
        (await credentials.create(CreateCredentials(name=name))).row["id"] for name in ("first", "second")
    ]
    ids = await bench.create("http://t.example/hook", 2, credentials_id=first)
    await bench.change(ids[0], status="COMPLETED")
    assert dict(await credentials.uses([first, second])) == {first: 1, second: 0}
    assert dict(await credentials.uses([])) == {}
    await credentials.rotate(first, RotateCredentials())
    assert (await credentials.describe(first))["previous_until"] is not None
    assert (await credentials.end_grace(first))["previous_until"] is None
    for id in (first, second):
        with pytest.raises(NotAllowed, match="no previous secrets"):
            await credentials.end_grace(id)
