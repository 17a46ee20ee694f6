"""A job processed by its id: what is sent, what is written, and what whoever asked is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.jobs import JobBench, job_bench, job_benches
from tests.lanes.dispatch_jobs.waiting import Crowd

from homing.engine.model import Claim
from homing.lanes.dispatch_jobs.processing import Processing, ProcessReply
from homing.lanes.dispatch_jobs.tokens import ProcessTokens, open_tokens
from homing.testing.http_sink import Answer, HttpSink

GONE = "https://partner.example/hooks"


@pytest.fixture
async def lane(database_url: str) -> AsyncIterator[JobBench]:
    async with job_bench(database_url, jobs_backoff_base_seconds=40.0) as opened:
        yield opened


async def process(lane: JobBench, id: int) -> ProcessReply:
    return await lane.homing.processing(id)


async def pause(lane: JobBench, url: str, **length: float) -> None:
    until = lane.time(datetime.now(UTC) + timedelta(**length))
    await lane.jobs.run("pause_target", target=url, until=until, reason="maintenance")


def place(url: str) -> str:
    """The target of a URL of the sink."""
    return url.rstrip("/")


# ── delivered, failed, exhausted ─────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-10")
async def test_what_the_receiver_takes_is_completed_and_acknowledged(lane: JobBench) -> None:
    async with HttpSink() as sink:
        (id,) = await lane.create(sink.url)
        reply = await process(lane, id)
        await sink.received(1)
    assert reply == ProcessReply(ack=True, message="delivered")
    assert await lane.states([id]) == ["COMPLETED"]
    assert [a["status"] for a in await lane.attempts(id)] == ["SUCCESS"]


@pytest.mark.clause("JOB-10")
async def test_what_fails_comes_again_until_its_attempts_are_used_up(lane: JobBench) -> None:
    async with HttpSink(lambda _: Answer(status=500)) as sink:
        (id,) = await lane.create(sink.url, max_retries=2, retry_strategy="fixed")
        first = await process(lane, id)
        assert (first.ack, first.delay_seconds, first.message) == (False, 40, "failed: HTTP 500")
        assert await lane.states([id]) == ["FAILED"]
        early = await process(lane, id)
        assert (early.ack, early.message) == (False, "it is not due yet")
        assert 30 <= early.delay_seconds <= 41
        await lane.pass_time(41)
        last = await process(lane, id)
        assert last == ProcessReply(ack=True, message="ended in ERROR: HTTP 500")
        assert len(await sink.received(2)) == 2
    assert await lane.states([id]) == ["ERROR"]
    assert (await lane.row(id))["attempt_count"] == 2


@pytest.mark.clause("JOB-10")
async def test_a_410_and_what_has_expired_end_and_are_acknowledged(lane: JobBench) -> None:
    async with HttpSink(lambda _: Answer(status=410)) as sink:
        refused, expired = await lane.create(sink.url, 2)
        await lane.change(expired, expires_at=datetime.now(UTC) - timedelta(seconds=1))
        assert (await process(lane, refused)).ack
        assert (await process(lane, expired)).ack
        assert len(sink.requests) == 1
    assert await lane.states([refused, expired]) == ["ERROR", "ERROR"]
    assert (await lane.row(expired))["error_class"] == "expired"


# ── nothing to do ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-10")
@pytest.mark.parametrize("state", ["COMPLETED", "ERROR", "CANCELLED"])
async def test_a_job_that_has_ended_is_acknowledged_and_nothing_is_sent(lane: JobBench, state: str) -> None:
    async with HttpSink() as sink:
        (id,) = await lane.create(sink.url)
        await lane.change(id, status=state)
        assert await process(lane, id) == ProcessReply(ack=True, message=f"it is {state} already")
        assert sink.requests == []
    assert await lane.states([id]) == [state]


@pytest.mark.clause("JOB-10")
async def test_a_job_that_does_not_exist_is_acknowledged(lane: JobBench) -> None:
    assert await process(lane, 12345) == ProcessReply(ack=True, message="there is no such job")


# ── not now ──────────────────────────────────────────────────────────────────────────────────────


# Delays are whole seconds, rounded up, of times that SQLite keeps in milliseconds: what was put off
# by 20 seconds within the same millisecond is 21 seconds away.


@pytest.mark.clause("JOB-10")
async def test_what_is_scheduled_leased_or_paused_waits_and_is_not_charged(lane: JobBench) -> None:
    async with HttpSink() as sink:
        scheduled, leased, paused = await lane.create(sink.url, 3)
        await lane.pass_time(-90, only=scheduled)
        assert isinstance(await lane.jobs.claim_one(leased), Claim)
        not_due = await process(lane, scheduled)
        assert (not_due.ack, not_due.message) == (False, "it is not due yet")
        assert 80 <= not_due.delay_seconds <= 91
        taken = await process(lane, leased)
        assert taken == ProcessReply(ack=False, message="it is being processed", delay_seconds=10)
        await pause(lane, place(sink.url), seconds=20)
        closed = await process(lane, paused)
        assert (closed.ack, closed.message) == (False, "its target is paused, or keeps failing")
        assert 15 <= closed.delay_seconds <= 21
        await pause(lane, place(sink.url), days=100)
        assert (await process(lane, paused)).delay_seconds == 60, "it may be resumed at any time"
        assert sink.requests == []
    for id in (scheduled, leased, paused):
        assert (await lane.row(id))["attempt_count"] == 0
        assert await lane.attempts(id) == []


@pytest.mark.clause("JOB-10")
async def test_an_open_breaker_lets_nothing_through_and_then_one_probe(lane: JobBench) -> None:
    async with HttpSink(lambda _: Answer(silent=True)) as sink:
        first, second = await lane.create(sink.url, 2)
        await lane.jobs.run(
            "limit_target", target=place(sink.url), max_concurrency=None, rate_per_second=None
        )
        opened = {"open_until": datetime.now(UTC) + timedelta(seconds=30), "failures": 10}
        await lane.tables.change("homing_target", opened)
        assert not (await process(lane, first)).ack
        assert sink.requests == []
        await lane.pass_time(31)
        probe = asyncio.create_task(process(lane, first))
        await sink.received(1)
        other = await process(lane, second)
        assert other == ProcessReply(
            ack=False, message="its target takes no more at the moment", delay_seconds=1
        )
        sink.script = None
        sink.say(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        assert (await probe).ack
        await lane.jobs.judged()
        assert (await process(lane, second)).ack


@pytest.mark.clause("JOB-10")
async def test_the_limits_of_a_target_hold_over_all_processes(database_url: str) -> None:
    crowd = Crowd(0.7, enough=2)
    async with job_benches(database_url, 3) as benches, HttpSink(crowd) as sink:
        ids = await benches[0].create(sink.url, 12)
        await benches[0].jobs.run(
            "limit_target", target=place(sink.url), max_concurrency=2, rate_per_second=None
        )
        replies = await asyncio.gather(*(process(benches[n % 3], id) for n, id in enumerate(ids)))
        assert crowd.peak == 2
        assert {reply.delay_seconds for reply in replies if not reply.ack} == {1}
        assert len(sink.requests) == sum(reply.ack for reply in replies)


@pytest.mark.clause("JOB-10")
async def test_the_rate_of_a_target_holds_over_all_processes(database_url: str) -> None:
    async with job_benches(database_url, 3) as benches, HttpSink() as sink:
        ids = await benches[0].create(sink.url, 12)
        await benches[0].jobs.run(
            "limit_target", target=place(sink.url), max_concurrency=None, rate_per_second=0.01
        )
        replies = [await process(benches[n % 3], id) for n, id in enumerate(ids)]
        assert [reply.ack for reply in replies] == [True, *[False] * 11]
        assert len(sink.requests) == 1
        await benches[0].pass_time(101)
        assert (await process(benches[1], ids[5])).ack


# ── groups ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-10", "JOB-12")
async def test_whoever_comes_too_soon_has_the_first_of_its_group_go_first(lane: JobBench) -> None:
    """The message of the first may be lost, or stand behind: then nobody else would ever have its turn."""
    async with HttpSink() as sink:
        ids = [id for n in range(4) for id in await lane.create(sink.url, payload=f"{n}", **GROUP)]
        assert (await process(lane, ids[2])).ack
        assert [request.body for request in sink.requests] == [b"0", b"1", b"2"]
        assert (await process(lane, ids[0])).message == "it is COMPLETED already"
        assert (await process(lane, ids[3])).ack
    assert await lane.states(ids) == ["COMPLETED"] * 4


@pytest.mark.clause("JOB-10")
async def test_what_is_behind_a_failed_job_of_its_group_waits_as_long(lane: JobBench) -> None:
    async with HttpSink(lambda _: Answer(status=503)) as sink:
        first, second = await lane.create(sink.url, 2, **GROUP)
        assert (await process(lane, first)).delay_seconds >= 30
        reply = await process(lane, second)
        assert reply.message == "an earlier job of its group waits: it is not due yet"
        assert 25 <= reply.delay_seconds <= 60
        assert len(sink.requests) == 1
    assert (await lane.row(second))["attempt_count"] == 0


async def test_two_who_ask_for_one_group_at_the_same_time_keep_it_in_order(database_url: str) -> None:
    async with job_benches(database_url, 2) as benches, HttpSink() as sink:
        ids = [id for n in range(6) for id in await benches[0].create(sink.url, payload=f"{n}", **GROUP)]
        done = False
        while not done:
            two = await asyncio.gather(process(benches[0], ids[5]), process(benches[1], ids[4]))
            done = all(reply.ack for reply in two)
        assert [request.body for request in sink.requests] == [b"%d" % n for n in range(6)]


GROUP: dict[str, Any] = {"group_id": "order-1", "ordering": "group"}


# ── the end, and being killed ────────────────────────────────────────────────────────────────────


async def test_a_process_that_stops_claims_nothing_more(lane: JobBench) -> None:
    (id,) = await lane.create(GONE)
    lane.deliverer.claim_no_more()
    assert await process(lane, id) == ProcessReply(
        ack=False, message="this process is stopping", delay_seconds=1
    )
    assert await lane.states([id]) == ["PENDING"]


async def test_two_messages_for_one_job_send_it_once(database_url: str) -> None:
    async with job_benches(database_url, 4) as benches, HttpSink(lambda _: Answer(delay=0.2)) as sink:
        (id,) = await benches[0].create(sink.url)
        replies = await asyncio.gather(*(process(bench, id) for bench in benches for _ in range(3)))
        assert sum(reply.ack for reply in replies) >= 1
        assert len(sink.requests) == 1


async def test_a_message_that_waits_is_not_taken_for_lost(lane: JobBench) -> None:
    processing = Processing(lane.jobs, lane.deliverer, window=100.0)
    (id,) = await lane.create(GONE)
    await lane.pass_time(-60, only=id)
    assert not (await processing(id)).ack
    row = await lane.row(id)
    assert row["queued"]
    assert (await lane.jobs.run("unsent", limit=5))[0]["count"] == 0


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-10")
def test_a_token_is_good_for_one_job_and_for_every_key_that_is_still_known() -> None:
    old, new = ProcessTokens([b"o" * 32]), ProcessTokens([b"n" * 32, b"o" * 32])
    assert len(old.token("a")) == 64
    assert new.accepts("a", old.token("a"))
    assert new.accepts("a", new.token("a"))
    assert not old.accepts("a", new.token("a"))
    assert not new.accepts("b", new.token("a"))
    assert not any(new.accepts("a", text) for text in ("", "x", "é", "\ud800", old.token("a").upper()))


def test_tokens_come_of_the_keys_that_seal_credentials(tmp_path: object) -> None:
    key = "A" * 43 + "="
    assert open_tokens(key, "sqlite:///x.db").token("a") == ProcessTokens([b"\0" * 32]).token("a")
    other = "/" * 42 + "8="
    both = open_tokens(f" {other} , {key}", "sqlite:///x.db")
    assert both.accepts("a", open_tokens(key, "sqlite:///x.db").token("a"))
    url = f"sqlite:///{tmp_path}/homing.db"
    assert open_tokens(None, url).token("a") == open_tokens(None, url).token("a")
