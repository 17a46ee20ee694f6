"""Targets that fail, that have limits, that are paused: several processes, one table, real receivers."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.jobs import JobBench, eventually, job, job_bench, job_benches

from homing.db import instant, iso
from homing.engine.model import Claim, Complete, Failure, RetryIn, Settlement
from homing.lanes.dispatch_jobs import jobs as jobs_module
from homing.lanes.dispatch_jobs.job import Job, Report
from homing.lanes.dispatch_jobs.target import SEVERAL, endpoint_of, target_of
from homing.lanes.dispatch_jobs.tsid import time_of
from homing.lanes.dispatch_jobs.view import waiting_for
from homing.testing.http_sink import Answer, HttpSink, SinkRequest

URL = "https://partner.example/hooks"
TARGET = "https://partner.example:443"
FAILED = RetryIn(
    0.0,
    Failure("connect_error", "cannot connect"),
    report=Report(0.01, target_failed=True, unreachable=True),
)
SUCCEEDED = Complete(Report(0.01, 200, "", {}, target_failed=False))
#: The job's own fault, or the receiver's for this job alone: it says that the target is there.
REFUSED = RetryIn(0.0, Failure("http_404", "HTTP 404"), report=Report(0.01, 404, "", {}, target_failed=False))
BREAKING = {"jobs_breaker_failures": 6, "jobs_breaker_seconds": 20, "jobs_breaker_max_seconds": 60}


@pytest.fixture
async def stores(database_url: str) -> AsyncIterator[list[JobBench]]:
    """Four of them, as four processes would have."""
    async with job_benches(database_url, 4, **BREAKING) as opened:
        yield opened


async def claim_at_once(stores: Sequence[JobBench], limit: int = 50) -> list[Claim[Job]]:
    return [claim for batch in await asyncio.gather(*(s.claim(limit) for s in stores)) for claim in batch]


async def attempted(store: JobBench, settlement: Settlement, count: int) -> None:
    """So many attempts by this store, all with the same end."""
    claims = await store.claim(count)
    assert len(claims) == count
    assert len(await store.jobs.settle([(claim, settlement) for claim in claims])) == count
    await store.jobs.judged()


async def open_for(store: JobBench) -> float:
    """Seconds until the breaker lets somebody try."""
    row = await store.target(TARGET)
    until, now = instant(row["open_until"]), instant(row["now"])
    assert until is not None
    assert now is not None
    return (until - now).total_seconds()


# ── breaker ──────────────────────────────────────────────────────────────────────────────────────


async def test_failures_in_a_row_open_the_breaker_whoever_had_them(stores: list[JobBench]) -> None:
    await stores[0].create(URL, 20)
    for store in stores[:2]:
        await attempted(store, FAILED, 2)
    await attempted(stores[2], FAILED, 1)
    assert (await stores[0].target(TARGET))["open_until"] is None, "five are not six"
    await attempted(stores[3], FAILED, 1)
    row = await stores[0].target(TARGET)
    assert (row["failures"], row["last_error"]) == (6, "cannot connect")
    assert 10 < await open_for(stores[0]) <= 20
    assert await claim_at_once(stores) == []


async def test_a_success_in_between_starts_the_count_again(stores: list[JobBench]) -> None:
    await stores[0].create(URL, 40)
    for settlement in (SUCCEEDED, REFUSED):
        await attempted(stores[0], FAILED, 5)
        await attempted(stores[1], settlement, 1)
        assert (await stores[0].target(TARGET))["failures"] == 0
    await attempted(stores[2], FAILED, 5)
    assert (await stores[0].target(TARGET))["open_until"] is None
    claims = await stores[0].claim(8)
    mixed: list[Settlement] = [FAILED, SUCCEEDED, FAILED, FAILED, FAILED, FAILED, FAILED, FAILED]
    await stores[0].jobs.settle(list(zip(claims, mixed, strict=True)))
    await stores[0].jobs.judged()
    assert (await stores[0].target(TARGET))["failures"] == 6, "those after the success"
    assert await open_for(stores[0]) > 0


async def test_the_opening_is_told_once(stores: list[JobBench]) -> None:
    await stores[0].create(URL, 12)
    claims = await stores[0].claim(12)
    for first in range(0, 12, 3):
        await stores[0].jobs.settle([(claim, FAILED) for claim in claims[first : first + 3]])
        await stores[0].jobs.judged()
    assert [line["target"] for line in stores[0].log.all("breaker.opened")] == [TARGET]


async def test_jobs_of_an_open_breaker_wait_uncharged_and_say_why(stores: list[JobBench]) -> None:
    *_, waiting = await stores[0].create(URL, 7)
    await attempted(stores[0], FAILED, 6)
    row = await stores[0].row(waiting)
    held = waiting_for(row)
    assert held is not None
    assert held.reason == "breaker_open"
    assert "cannot connect" in held.message
    assert held.until == iso(row["open_until"])
    (other,) = await stores[1].create("https://other.example/")
    assert [c.id for c in await claim_at_once(stores)] == [other]
    assert (row["status"], row["attempt_count"]) == ("PENDING", 0)


async def test_half_open_it_is_probed_by_one_at_a_time(stores: list[JobBench]) -> None:
    await stores[0].create(URL, 20)
    await attempted(stores[0], FAILED, 6)
    await stores[0].pass_time(21)
    for _ in range(3):
        probes = await claim_at_once(stores)
        assert len(probes) == 1, "four stores asked at the same moment"
        assert await claim_at_once(stores) == [], "while the probe is under way"
        await stores[1].jobs.release(probes)
    (probe,) = await claim_at_once(stores)
    owner = (await stores[0].row(probe.id))["locked_by"]
    (prober,) = [store for store in stores if store.jobs._parameters["owner"] == owner]
    await prober.jobs.settle([(probe, SUCCEEDED)])
    await prober.jobs.judged()
    row = await stores[0].target(TARGET)
    assert (row["failures"], row["open_until"], row["cooldown"]) == (0, None, 0)
    assert len(await claim_at_once(stores)) == 19, "closed again"


async def test_each_failed_probe_doubles_the_wait_up_to_a_limit(stores: list[JobBench]) -> None:
    await stores[0].create(URL, 20)
    await attempted(stores[0], FAILED, 6)
    for expected in (40, 60, 60):
        await stores[0].pass_time(61)
        await attempted(stores[1], FAILED, 1)
        assert expected - 10 < await open_for(stores[0]) <= expected
        assert await claim_at_once(stores) == []
    await stores[0].pass_time(61)
    await attempted(stores[2], SUCCEEDED, 1)
    await attempted(stores[0], FAILED, 6)
    assert 10 < await open_for(stores[0]) <= 20, "from the beginning"


async def test_attempts_that_were_under_way_do_not_prolong_an_open_breaker(stores: list[JobBench]) -> None:
    await stores[0].create(URL, 20)
    claims = await stores[0].claim(20)
    await stores[0].jobs.settle([(claim, FAILED) for claim in claims[:6]])
    await stores[0].jobs.judged()
    before = (await stores[0].target(TARGET))["open_until"]
    await stores[0].jobs.settle([(claim, FAILED) for claim in claims[6:]])
    await stores[0].jobs.judged()
    assert (await stores[0].target(TARGET))["open_until"] == before


async def test_a_receiver_that_breaks_and_comes_back(database_url: str) -> None:
    """From end to end: few requests reach it while it is broken, and all jobs arrive in the end."""
    async with (
        HttpSink(lambda _: Answer(status=500)) as sink,
        job_benches(database_url, 2, **BREAKING) as benches,
    ):
        ids = await benches[0].create(sink.url, 30, max_retries=10)
        for _ in range(4):
            await benches[0].make_due()
            await asyncio.gather(*(bench.run_batch(5) for bench in benches))
        assert 6 <= sink.count <= 20, "what was under way when it opened, and no more"
        charged = sum([(await benches[0].row(id))["attempt_count"] for id in ids])
        assert charged == sink.count
        sink.script = None

        async def all_done() -> bool:
            for bench in benches:
                await bench.pass_time(30)
            return (await benches[0].jobs.counts())["COMPLETED"] == 30

        async with working(benches):
            await eventually(all_done)
        await benches[0].attempts_add_up()


# ── one endpoint and its neighbours ──────────────────────────────────────────────────────────────


class Endpoints:
    """A receiver that answers each path in its own way, 200 where nothing else is said."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = {f"/{name}": answer for name, answer in answers.items()}
        self.asked: list[str] = []

    def __call__(self, request: SinkRequest) -> Answer:
        path = request.path.partition("?")[0]
        self.asked.append(path)
        return self.answers.get(path, Answer())


BROKEN = Answer(status=500)
AN_HOUR = Answer(status=429, headers=(("Retry-After", "3600"),))


async def paused_for(store: JobBench, target: str) -> float:
    row = await store.target(target)
    until, now = instant(row["paused_until"]), instant(row["now"])
    assert until is not None
    assert now is not None
    return (until - now).total_seconds()


async def test_a_path_that_fails_holds_back_its_own_jobs_only(database_url: str) -> None:
    """Fourteen failures of one customer, and another one's job goes out as if nothing had happened."""
    endpoints = Endpoints(a=BROKEN)
    async with HttpSink(endpoints) as sink, job_benches(database_url, 2) as benches:
        failing = await benches[0].create(f"{sink.url}/a?page=1", 14, max_retries=10)
        await benches[0].run_batch()
        row = await benches[0].target(sink.url)
        assert (row["failures"], row["open_until"], row["paused_until"]) == (14, None, None)
        for bench in benches:
            ids = await bench.create(f"{sink.url}/b", 3)
            await bench.run_batch()
            assert await bench.states(ids) == ["COMPLETED"] * 3
        assert set(await benches[0].states(failing)) == {"FAILED"}
        assert waiting_for(await benches[0].row(failing[0])).reason == "retry"  # type: ignore[union-attr]  # it waits


async def test_a_path_that_asks_for_an_hour_holds_back_its_own_jobs_only(database_url: str) -> None:
    endpoints = Endpoints(a=AN_HOUR)
    async with HttpSink(endpoints) as sink, job_benches(database_url, 2) as benches:
        (asked,) = await benches[0].create(f"{sink.url}/a")
        await benches[0].run_batch()
        row = await benches[0].row(asked)
        wait = (instant(row["next_attempt_at"]) - instant(row["now"])).total_seconds()  # type: ignore[operator]  # both are there
        assert 3500 < wait <= 3600
        for bench in benches:
            others = await bench.create(f"{sink.url}/b", 2)
            own = await bench.create(f"{sink.url}/a?again", 2)
            await bench.run_batch()
            assert await bench.states(others) == ["COMPLETED"] * 2
            assert await bench.states(own) == ["PENDING"] * 2, "uncharged, without another request"
        assert endpoints.asked.count("/a") == 1
        await benches[1].jobs.run("resume_target", target=sink.url)
        endpoints.answers.clear()
        for bench in benches:
            bench.forget_targets()
        await benches[1].make_due()
        await benches[1].run_batch()
        assert await benches[1].states([asked, *own]) == ["COMPLETED"] * 3, "who resumes means all of it"


async def test_an_endpoint_that_keeps_failing_is_left_alone_by_all_processes(database_url: str) -> None:
    """As long as it is the only one, its jobs wait uncharged, then one tries; the breaker stays closed."""
    endpoints = Endpoints(a=BROKEN)
    async with HttpSink(endpoints) as sink, job_benches(database_url, 2, **BREAKING) as benches:
        await benches[0].create(f"{sink.url}/a", 30, max_retries=10)
        await benches[0].run_batch(6)
        for bench in benches:
            await bench.run_batch(20)
        assert endpoints.asked == ["/a"] * 6
        row = await benches[0].target(sink.url)
        assert (row["endpoint"], row["open_until"]) == (endpoint_of(f"{sink.url}/a"), None)
        for cooldown in (40, 60, 60):
            asked = len(endpoints.asked)
            await benches[0].pass_time(61)
            benches[1].forget_targets()
            await benches[0].make_due()
            await benches[0].run_batch(20)
            assert len(endpoints.asked) == asked + 1, "one tries"
            row = await benches[0].target(sink.url)
            left = (instant(row["endpoint_until"]) - instant(row["now"])).total_seconds()  # type: ignore[operator]  # both are there
            assert cooldown - 10 < left <= cooldown
        endpoints.answers.clear()
        for bench in benches:
            await bench.pass_time(301)
        await benches[0].make_due()
        await benches[0].run_batch(1)
        row = await benches[0].target(sink.url)
        assert (row["failures"], row["endpoint"], row["endpoint_until"]) == (0, None, None)
        await benches[0].run_until_idle()
        await benches[0].attempts_add_up()


@asynccontextmanager
async def no_tls() -> AsyncIterator[str]:
    """A receiver that takes longer for TLS than anybody waits here."""
    opened: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: opened.append(writer), "127.0.0.1", 0)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in opened:
            writer.transport.abort()


@pytest.mark.parametrize("own", [0.1, None])
async def test_a_job_in_a_hurry_says_nothing_of_the_target(database_url: str, own: float | None) -> None:
    """Its own time-out is its customer's choice, and others share the host; the installation's is ours."""
    ours = 0.1 if own is None else 30.0
    async with (
        no_tls() as url,
        job_benches(database_url, 2, jobs_timeout_seconds=ours, **BREAKING) as benches,
    ):
        hurried = await benches[0].create(f"{url}/a", 8, timeout_seconds=own, max_retries=10)
        await benches[0].run_batch()
        row = await benches[0].row(hurried[0])
        assert (row["attempt_count"], row["last_error"]) == (1, "no connection within 0.1 s")
        others = await benches[0].create(f"{url}/b", 3)
        claims = await benches[1].claim()
        assert sorted(claim.id for claim in claims) == ([] if own is None else others)
        known = await benches[0].tables.rows("homing_target")
        assert [row["target"] for row in known if row["failures"]] == ([url] if own is None else [])
        await benches[1].jobs.release(claims)


async def test_answers_that_jobs_in_a_hurry_did_not_wait_for_say_nothing_either(database_url: str) -> None:
    async with HttpSink(lambda _: Answer(silent=True)) as sink, job_bench(database_url, **BREAKING) as lane:
        hurried = [
            id for path in "ab" for id in await lane.create(f"{sink.url}/{path}", 4, timeout_seconds=0.1)
        ]
        await lane.run_batch()
        assert {(await lane.row(id))["error_class"] for id in hurried} == {"timeout"}
        sink.script = None
        (other,) = await lane.create(f"{sink.url}/c")
        await lane.run_batch()
        assert await lane.states([other]) == ["COMPLETED"]


async def test_two_endpoints_that_fail_open_the_breaker_of_all(database_url: str) -> None:
    endpoints = Endpoints(a=BROKEN, b=BROKEN)
    async with HttpSink(endpoints) as sink, job_benches(database_url, 2, **BREAKING) as benches:
        await benches[0].create(f"{sink.url}/a", 5)
        await benches[0].run_batch()
        await benches[1].create(f"{sink.url}/b", 1)
        await benches[1].run_batch()
        row = await benches[0].target(sink.url)
        assert (row["failures"], row["endpoint"]) == (6, SEVERAL)
        assert row["open_until"] is not None
        (other,) = await benches[0].create(f"{sink.url}/c")
        await benches[0].run_batch()
        assert await benches[0].states([other]) == ["PENDING"]


async def test_behind_a_backlog_that_fails_another_endpoint_is_soon_tried(database_url: str) -> None:
    """Two paths of one customer opened the breaker, and have hundreds of jobs in front of another one's."""
    endpoints = Endpoints(a=BROKEN, b=BROKEN)
    async with HttpSink(endpoints) as sink, job_benches(database_url, 1, **BREAKING) as (bench,):
        for path, count in (("a", 5), ("b", 1)):
            await bench.create(f"{sink.url}/{path}", count)
            await bench.run_batch()
        assert (await bench.target(sink.url))["open_until"] is not None
        for path in ("a?page=1", "b"):
            await bench.create(f"{sink.url}/{path}", 300, max_retries=10)
        (other,) = await bench.create(f"{sink.url}/c")
        asked = len(endpoints.asked)
        while (await bench.states([other])) == ["PENDING"]:
            await bench.pass_time(61)
            await bench.run_batch()
        assert len(endpoints.asked) <= asked + 3
        assert (await bench.target(sink.url))["open_until"] is None


async def test_a_success_between_the_failures_of_two_keeps_the_breaker_closed(database_url: str) -> None:
    endpoints = Endpoints(a=BROKEN, b=BROKEN)
    async with HttpSink(endpoints) as sink, job_benches(database_url, 2, **BREAKING) as benches:
        for number, path in enumerate("acbcacbc"):
            await benches[number % 2].create(f"{sink.url}/{path}", 1 if path == "c" else 5)
            await benches[number % 2].run_batch()
        assert (await benches[0].target(sink.url))["open_until"] is None


@pytest.mark.parametrize("well", [True, False])
async def test_two_endpoints_that_ask_for_an_hour_pause_all_for_less_while_others_answer(
    database_url: str, *, well: bool
) -> None:
    endpoints = Endpoints(a=AN_HOUR, b=AN_HOUR)
    async with HttpSink(endpoints) as sink, job_bench(database_url) as lane:
        if well:
            await lane.create(f"{sink.url}/c")
            await lane.run_batch()
        for path in "ab":
            await lane.create(f"{sink.url}/{path}")
            await lane.run_batch()
        seconds = await paused_for(lane, sink.url)
        assert 50 < seconds <= 60 if well else 3500 < seconds <= 3600


async def test_who_answered_longer_than_five_minutes_ago_does_not_shorten_a_pause(database_url: str) -> None:
    endpoints = Endpoints(a=AN_HOUR, b=AN_HOUR)
    async with HttpSink(endpoints) as sink, job_benches(database_url, 2) as benches:
        for path in "aca":
            await benches[0].create(f"{sink.url}/{path}")
            await benches[0].run_batch()
            await benches[0].pass_time(3601 if path == "a" else 301)
        await benches[1].create(f"{sink.url}/b")
        await benches[1].run_batch()
        assert await paused_for(benches[1], sink.url) > 3500


def test_an_endpoint_is_a_url_without_its_query() -> None:
    assert endpoint_of("https://a.example/x?token=1") == endpoint_of("https://a.example/x#y")
    assert endpoint_of("https://a.example/x") != endpoint_of("https://a.example/y")


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


async def limit(store: JobBench, target: str, concurrency: int | None, rate: float | None = None) -> None:
    await store.jobs.run("limit_target", target=target, max_concurrency=concurrency, rate_per_second=rate)


@asynccontextmanager
async def working(benches: Sequence[JobBench]) -> AsyncIterator[None]:
    """All of them at work, as processes would be."""
    workers = [bench.homing.webhooks.worker() for bench in benches]
    running = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)
        for bench in benches:
            await bench.deliverer.drain(5)
            await bench.jobs.judged()


class Counting:
    """A receiver that knows how many are with it, and takes its time until there are enough."""

    def __init__(self, enough: int) -> None:
        self._enough = enough
        self.now = self.most = 0

    def __call__(self, _request: SinkRequest) -> Answer:
        self.now += 1
        self.most = max(self.most, self.now)
        seconds = 0.6 if self.most < self._enough else 0.03
        # Set before the sink's own timer: it is gone when the answer goes out.
        asyncio.get_running_loop().call_later(seconds, self._done)
        return Answer(delay=seconds)

    def _done(self) -> None:
        self.now -= 1


async def test_concurrent_claims_of_four_stores_keep_to_the_limit(stores: list[JobBench]) -> None:
    await stores[0].create(URL, 60)
    await limit(stores[0], TARGET, 7)
    claims = await claim_at_once(stores)
    assert len(claims) == 7
    await stores[0].jobs.settle([(claim, SUCCEEDED) for claim in claims[:3]])
    await stores[0].jobs.judged()
    assert len(await claim_at_once(stores)) == 3
    await limit(stores[1], TARGET, 2)
    assert await claim_at_once(stores) == [], "lowered: what is under way ends first"
    await limit(stores[1], TARGET, None)
    assert len(await claim_at_once(stores)) == 50


@pytest.mark.slow
async def test_a_receiver_never_has_more_at_once_than_its_limit(database_url: str) -> None:
    counting = Counting(3)
    async with HttpSink(counting) as sink, job_benches(database_url, 4) as benches:
        await limit(benches[0], sink.url, 3)
        await benches[0].create(sink.url, 40)
        async with working(benches):
            await sink.received(40, timeout=60)
    assert counting.most == 3


async def test_what_a_process_sends_at_once_to_one_target_is_limited_too(database_url: str) -> None:
    counting = Counting(4)
    async with HttpSink(counting) as sink, job_bench(database_url, jobs_connections_per_target=4) as lane:
        ids = await lane.create(sink.url, 20)
        await lane.run_until_idle()
        assert await lane.states(ids) == ["COMPLETED"] * 20
    assert counting.most == 4


async def test_a_rate_is_kept_by_four_stores_together(stores: list[JobBench]) -> None:
    """Two in a hundred seconds, so that the seconds which really pass decide nothing."""
    await stores[0].create(URL, 60)
    await limit(stores[0], TARGET, None, rate=0.02)
    taken = [len(await claim_at_once(stores))]
    for seconds in (50, 30, 20, 600, 25):
        await stores[0].pass_time(seconds)
        taken.append(len(await claim_at_once(stores)))
    assert taken == [1, 1, 0, 1, 1, 0], "never more than one saved up"


async def test_a_rate_saves_up_a_second_and_no_more(stores: list[JobBench]) -> None:
    await stores[0].create(URL, 60)
    await limit(stores[0], TARGET, None, rate=5.0)
    began = time.monotonic()
    await stores[0].pass_time(3600)
    first = len(await claim_at_once(stores))
    took = time.monotonic() - began
    assert 5 <= first <= 5 + 5 * took + 1, "five, and what a busy machine lets pass meanwhile"


@pytest.mark.slow
async def test_a_receiver_gets_no_more_in_a_while_than_its_rate(database_url: str) -> None:
    async with HttpSink() as sink, job_benches(database_url, 4) as benches:
        await limit(benches[0], sink.url, None, rate=40.0)
        await benches[0].create(sink.url, 100)
        taken = [Timed(bench) for bench in benches]
        async with working(benches):
            await sink.received(100, timeout=60)
    claims = [claim for timed in taken for claim in timed.claims]
    assert sum(count for _, _, count in claims) == 100
    # A second's worth may be saved up; one more each for the clocks of two machines. Requests that a busy
    # machine holds up arrive together: what counts is what was let go, and that was within these times.
    for start, _, _ in claims:
        for _, end, _ in claims:
            count = sum(n for began, ended, n in claims if start <= began and ended <= end)
            assert count <= 40 + 40 * max(end - start, 0.0) + 2
    assert max(end for _, end, _ in claims) - min(start for start, _, _ in claims) >= 60 / 40 - 0.1


class Timed:
    """The claims of a process that brought something: when each was begun and over, and how many."""

    def __init__(self, bench: JobBench) -> None:
        self.claims: list[tuple[float, float, int]] = []
        self._claim = bench.jobs.claim
        bench.jobs.claim = self._timed  # type: ignore[method-assign]  # to look on, in the place of all callers

    async def _timed(self, limit: int) -> list[Claim[Job]]:
        began = time.monotonic()
        found = await self._claim(limit)
        if found:
            self.claims.append((began, time.monotonic(), len(found)))
        return found


# ── pauses ───────────────────────────────────────────────────────────────────────────────────────


async def pause(store: JobBench, target: str, seconds: float, reason: str = "maintenance") -> None:
    until = datetime.now(UTC) + timedelta(seconds=seconds)
    await store.jobs.run("pause_target", target=target, until=store.time(until), reason=reason)


async def test_a_paused_target_holds_its_own_jobs_and_no_others(database_url: str) -> None:
    async with HttpSink() as sink, HttpSink() as other, job_benches(database_url, 2) as benches:
        held = await benches[0].create(sink.url, 3)
        free = await benches[0].create(other.url, 3)
        await pause(benches[1], sink.url, 3600)
        for bench in benches:
            await bench.run_batch()
        assert await benches[0].states([*held, *free]) == ["PENDING"] * 3 + ["COMPLETED"] * 3
        waiting = waiting_for(await benches[0].row(held[0]))
        assert waiting is not None
        assert (waiting.reason, "maintenance" in waiting.message) == ("target_paused", True)
        await benches[1].jobs.run("resume_target", target=sink.url)
        await benches[0].run_batch()
        assert await benches[0].states(held) == ["COMPLETED"] * 3
        assert sink.count == 3


async def test_a_pause_ends_by_itself(stores: list[JobBench]) -> None:
    await stores[0].create(URL, 2)
    await pause(stores[0], TARGET, 100)
    assert await claim_at_once(stores) == []
    await stores[0].pass_time(101)
    assert len(await claim_at_once(stores)) == 2


async def test_who_resumes_closes_the_breaker_too(stores: list[JobBench]) -> None:
    await stores[0].create(URL, 10)
    await attempted(stores[0], FAILED, 6)
    await stores[1].jobs.run("resume_target", target=TARGET)
    row = await stores[0].target(TARGET)
    assert (row["failures"], row["open_until"]) == (0, None)
    assert len(await claim_at_once(stores)) == 10


async def test_the_same_host_with_other_credentials_or_another_port_is_another_target(
    stores: list[JobBench],
) -> None:
    urls: list[tuple[str, int | None]] = [
        (URL, None),
        (URL, 1),
        (URL, 2),
        ("https://partner.example:8443/", None),
        ("http://partner.example/", None),
        ("https://PARTNER.example/else", None),
    ]
    orders = [job(url, credentials_id=id) for url, id in urls]
    ids = [ordered.id for ordered in await stores[0].order(orders)]
    await pause(stores[0], TARGET, 100)
    assert sorted(c.id for c in await claim_at_once(stores)) == ids[1:5]


# ── fairness ─────────────────────────────────────────────────────────────────────────────────────


async def test_one_silent_target_never_holds_more_than_its_share(database_url: str) -> None:
    """It has a thousand jobs and answers nothing; the others are delivered meanwhile."""
    async with (
        HttpSink(lambda _: Answer(silent=True)) as silent,
        HttpSink() as healthy,
        job_bench(database_url, jobs_batch=40, jobs_connections_per_target=10) as lane,
    ):
        await lane.create(silent.url, 200, timeout_seconds=300.0)
        held: list[int] = []
        async with working([lane]):
            await silent.received(10, timeout=60)
            for _ in range(5):
                before = healthy.count
                ids = await lane.create(healthy.url, 20)
                await healthy.received(before + 20, timeout=60)
                rows = await lane.tables.rows("dispatch_job", status="IN_PROGRESS", target=silent.url)
                held.append(len(rows))

                async def done(ids: list[int] = ids) -> bool:
                    return set(await lane.states(ids)) == {"COMPLETED"}

                await eventually(done)
            # So that nobody has to wait for it at the end, also who comes a moment later.
            lane.deliverer.claim_no_more()
            silent.script = None
            silent.hang_up()
        assert held == [10] * 5, "as many as are sent at once"


async def test_many_targets_share_what_is_free(database_url: str) -> None:
    async with job_bench(database_url, jobs_batch=100, jobs_connections_per_target=50) as lane:
        for n in range(10):
            await lane.create(f"https://partner{n}.example/", 3 if n else 500)
            lane.jobs._targets.gate(f"https://partner{n}.example:443").seconds = 0.001
        claims = await lane.claim(50)
        taken = [sum(f"partner{n}.example" in c.item.target for c in claims) for n in range(10)]
        assert taken == [23, *[3] * 9], "the small ones get all they have, the large one the rest"


async def test_a_claim_looks_at_some_targets_at_a_time_and_reaches_them_all(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "_MOST_TARGETS", 3)
    async with job_bench(database_url) as lane:
        ids = [(await lane.create(f"https://partner{n}.example/"))[0] for n in range(8)]
        found: list[int] = []
        for _ in range(3):
            claims = await lane.claim()
            assert len(claims) <= 3
            found += [claim.id for claim in claims]
        assert sorted(found) == ids


async def test_targets_with_nothing_due_cost_a_claim_nothing_else(stores: list[JobBench]) -> None:
    """One that has jobs for tomorrow only, and one that is full, beside one that is due."""
    tomorrow = iso(datetime.now(UTC) + timedelta(days=1))
    await stores[0].create("https://a.example/", 5, scheduled_for=tomorrow)
    await stores[0].create("https://b.example/", 5)
    await limit(stores[0], "https://b.example:443", 2)
    assert len(await stores[1].claim(5)) == 2
    due = await stores[0].create("https://c.example/", 3)
    assert [c.id for c in await stores[0].claim(10)] == due


async def test_a_success_that_takes_longer_than_a_poll_closes_the_breaker(database_url: str) -> None:
    """While its only job is under way a target has nothing due, and must not be forgotten for that."""
    statuses = [500, 500, 200]
    async with (
        HttpSink(lambda _: Answer(status=statuses.pop(0), delay=0.15)) as receiver,
        job_bench(
            database_url, jobs_breaker_failures=2, jobs_breaker_seconds=0.1, jobs_backoff_base_seconds=0.01
        ) as lane,
    ):
        (id,) = await lane.create(receiver.url, max_retries=5, retry_strategy="fixed")
        async with working([lane]):
            await receiver.received(2)

            async def done() -> bool:
                return await lane.states([id]) == ["COMPLETED"]

            await eventually(done)
        (target,) = await lane.tables.rows("homing_target")
    assert (target["failures"], target.get("open_until")) == (0, None)


async def test_what_is_due_is_found_behind_more_targets_than_one_look_takes_in(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "_MOST_TARGETS", 3)
    async with job_bench(database_url) as lane:
        for n in range(10):
            await lane.create(f"https://a{n}.example/", scheduled_for="2999-01-01T00:00:00.000Z")
        (due,) = await lane.create("https://z.example/")
        assert [claim.id for claim in await lane.claim()] == [due]


async def test_a_requeued_job_waits_for_its_time(database_url: str) -> None:
    async with job_bench(database_url) as lane:
        (id,) = await lane.create("https://a.example/", scheduled_for="2999-01-01T00:00:00.000Z")
        await lane.jobs.cancel([id])
        assert await lane.jobs.requeue([id]) == [id]
        assert await lane.claim() == []


async def test_header_rows_of_others_cannot_say_what_is_ours_to_say(database_url: str) -> None:
    async with HttpSink() as receiver, job_bench(database_url) as lane:
        (id,) = await lane.create(receiver.url, headers={"X-Mine": "1"})
        for name in ("Webhook-Id", "Authorization", "content-type", "X-FLOWCATALYST-SIGNATURE"):
            await lane.tables.add_header(id, name, "evil")
        await lane.run_until_idle()
        (request,) = await receiver.received(1)
    assert "evil" not in [value for _, value in request.headers]
    assert request.header("x-mine") == "1"


@pytest.mark.parametrize(
    "notation", ["http://localhost.:9000/x", "http://LOCALHOST:9000/y", "http://\uff4cocalhost:9000/"]
)
def test_other_notations_of_a_host_are_the_same_target(notation: str) -> None:
    assert target_of(notation, 7) == target_of("http://localhost:9000/", 7)


async def test_what_we_lack_ourselves_costs_a_job_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault of a machine that has no file left, which a healthy one cannot show on demand."""
    async with job_bench(database_url, jobs_breaker_failures=1) as lane:

        def no_more_files(*_: Any) -> Any:
            raise OSError(errno.EMFILE, "too many open files")

        monkeypatch.setattr(lane.homing.egress, "open_socket", no_more_files)
        (id,) = await lane.create("http://127.0.0.1:9/", max_retries=1)
        await lane.run_batch()
        row = await lane.row(id)
        assert (row["status"], row["attempt_count"], row["error_class"]) == ("PENDING", 0, "out_of_resources")
        assert await lane.attempts(id) == []
        assert await lane.tables.rows("homing_target") == []


async def test_an_id_that_was_deleted_is_not_given_out_again(tmp_path: Path) -> None:
    """Receivers drop what they have seen by its id. The first is as old as the table."""
    sqlite_url = f"sqlite:///{tmp_path / 'new.db'}"
    insert = (
        "INSERT INTO dispatch_job (source, type, target_url, payload) "
        "VALUES ('s', 't', 'https://a.example/', '{}') RETURNING id"
    )
    async with job_bench(sqlite_url) as lane:
        (first,) = await lane.sql(insert)
        await lane.sql("DELETE FROM dispatch_job RETURNING id")
        (second,) = await lane.sql(insert)
    assert second["id"] > first["id"]
    assert abs((time_of(first["id"]) - datetime.now(UTC)).total_seconds()) < 60
