"""Jobs in MongoDB are watched over by the same rules, though no trigger notes who dies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from tests.alerts.bench import NOWHERE, AlertBench, alert_bench

from homing.db.mongo import MongoDatabase
from homing.errors import Unreachable
from homing.lanes.dispatch_jobs.tsid import text_of
from homing.testing.http_sink import Answer, HttpSink

SETTINGS: dict[str, Any] = {"alert_target_failures": 10, "jobs_breaker_failures": 100}


@pytest.fixture
async def bench(sqlite_url: str, migrated_mongodb_url: str) -> AsyncIterator[AlertBench]:
    async with alert_bench(sqlite_url, jobs_database_url=migrated_mongodb_url, **SETTINGS) as bench:
        yield bench


async def noted(bench: AlertBench) -> list[Any]:
    """What is still to be taken up."""
    database = bench.homing.jobs_database
    assert isinstance(database, MongoDatabase)
    return [one["death"] async for one in database.opened["dispatch_job"].find({"death": {"$exists": True}})]


@pytest.mark.clause("JOB-25")
async def test_jobs_that_die_and_those_that_expire_are_told_of(bench: AlertBench) -> None:
    dead = [await bench.job(NOWHERE, max_retries=1) for _ in range(3)]
    late = await bench.job(NOWHERE, type="late")
    await bench.jobs.change(
        "dispatch_job", {"expires_at": await bench.jobs.now() - timedelta(seconds=9)}, id=late
    )
    await bench.homing.jobs.sweep(100)
    await bench.deliver()
    assert await noted(bench) == ["", "", "", ""]
    await bench.look()
    assert sorted(await bench.titles()) == [
        "1 webhook was given up: expired",
        "3 webhooks were given up: connect_error",
    ]
    assert await noted(bench) == []
    (mail,) = [one for one in await bench.alert_mails() if "connect_error" in one["subject"]]
    assert text_of(max(dead)) in mail["text_body"], "one of them is named"
    await bench.pass_time(601)
    await bench.look()
    assert len(await bench.told()) == 2, "once"


async def test_one_that_dies_again_is_told_of_again(bench: AlertBench) -> None:
    job = await bench.job(NOWHERE, max_retries=1)
    await bench.deliver()
    await bench.look()
    await bench.homing.jobs.requeue([job])
    await bench.look()
    assert await bench.alerts.firing() == [], "it is not dead any more"
    await bench.deliver()
    await bench.pass_time(601)
    await bench.look()
    assert [one.event for one in await bench.told()] == ["fired", "fired"]


@pytest.mark.parametrize("step", ["count_deaths", "drop_deaths"])
async def test_a_crash_while_the_dead_are_counted_counts_none_twice(
    bench: AlertBench, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await bench.job(NOWHERE, max_retries=1)
    await bench.deliver()
    homing = bench.homing
    base = homing.database if step == "count_deaths" else homing.jobs_database
    fetch = base.fetch

    async def failing(query: Any, parameters: Any) -> Any:
        if query.name == step:
            raise Unreachable("the process is gone")
        return await fetch(query, parameters)

    with monkeypatch.context() as patch:
        patch.setattr(base, "fetch", failing)
        await bench.look_after_trouble()
    # Some that die after it are a batch of their own.
    await bench.job(NOWHERE, max_retries=1)
    await bench.deliver()
    await bench.look_after_trouble()
    await bench.pass_time(601)
    await bench.look_after_trouble()
    mails = [one["text_body"] for one in await bench.alert_mails()]
    told = sum(int(text.partition("Given up: ")[2].partition(" ")[0]) for text in mails)
    assert told == 4
    assert await noted(bench) == []


async def test_a_target_that_keeps_failing_is_told_of_level_by_level(bench: AlertBench) -> None:
    answers = [Answer(status=503)]
    async with HttpSink(lambda _request: answers[0]) as shop:
        for _ in range(10):
            await bench.job(shop.url, max_retries=5)
            await bench.deliver()
            await bench.look()
        told = [one.title.partition("(")[2].partition(" ")[0] for one in await bench.told()]
        assert told == ["50", "70", "90", "100"]
        answers[0] = Answer()
        await bench.job(shop.url)
        await bench.deliver()
        await bench.look()
        assert [one.event for one in (await bench.told())[4:]] == ["resolved"]


async def test_what_is_due_is_late_also_when_its_target_is_paused(bench: AlertBench) -> None:
    job = await bench.job(NOWHERE)
    await bench.jobs.shift("dispatch_job", ["next_attempt_at"], 1000, id=job)
    (shown,) = await bench.jobs.rows("dispatch_job")
    until = await bench.jobs.now() + timedelta(hours=1)
    jobs = bench.homing.jobs
    await jobs.run("pause_target", target=shown["target"], until=until, reason="it is mended")
    await bench.look()
    await bench.pass_time(61)
    await bench.look()
    titles = await bench.titles()
    assert "Webhooks are late: the oldest has waited 16 minutes" in titles
    (mail,) = [one for one in await bench.alert_mails() if "late" in one["subject"]]
    assert "Held back: 1 since 20" in mail["text_body"]
    assert "No worker takes webhooks" in titles


async def test_an_alert_that_dies_and_its_target_are_nobodys_business(
    sqlite_url: str, migrated_mongodb_url: str
) -> None:
    settings = {"alert_webhook_url": NOWHERE, "alert_mail_to": "", "alert_target_failures": 2}
    async with alert_bench(sqlite_url, jobs_database_url=migrated_mongodb_url, **settings) as bench:
        await bench.kill_mails(1)
        await bench.look()
        await bench.deliver_until_idle()
        (job,) = await bench.alert_jobs()
        assert (job["status"], job["attempt_count"]) == ("ERROR", 10)
        assert await noted(bench) == []
        for _ in range(2):
            await bench.look()
            await bench.pass_time(601)
        assert await bench.titles() == ["1 mail was given up: invalid_recipient"]
