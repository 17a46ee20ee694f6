"""Ordered groups: one at a time, in the order in which they were created, whatever happens to the head."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zlib import crc32

import asyncpg
import pytest
from tests.jobs import JobBench, job, job_bench, job_benches

from homing.db import iso
from homing.engine.model import Bury, Claim, Complete, Discard, Failure, RetryIn, Settlement
from homing.errors import Refused
from homing.lanes.dispatch_jobs.job import Job, NewJob, Report
from homing.lanes.dispatch_jobs.view import waiting_for
from homing.testing.http_sink import Answer, HttpSink, SinkRequest

URL = "https://partner.example/hooks"
FAILURE = Failure("http_500", "HTTP 500")
DONE = Complete(Report(0.01, 200, "", {}, target_failed=False))


@pytest.fixture
async def lane(database_url: str) -> AsyncIterator[JobBench]:
    async with job_bench(database_url) as opened:
        yield opened


def ordered(group: str = "g", url: str = URL, **columns: Any) -> NewJob:
    return job(url, group_id=group, ordering="group", **columns)


async def create(lane: JobBench, count: int, group: str = "g", **columns: Any) -> list[int]:
    return [o.id for o in await lane.order([ordered(group, **columns) for _ in range(count)])]


async def claimed(lane: JobBench) -> list[int]:
    """What can be claimed now; it is held from then on."""
    return [claim.id for claim in await lane.claim()]


async def settle_next(lane: JobBench, settlement: Settlement = DONE) -> int:
    """Claim the one that can be, and settle it; its id."""
    (claim,) = await lane.claim()
    assert await lane.jobs.settle([(claim, settlement)]) == {claim.id}
    return claim.id


async def drain(lane: JobBench) -> list[int]:
    """Complete one after the other, as long as there is one; in that order."""
    found = []
    while claims := await lane.claim():
        assert len(claims) == 1, "one at a time"
        await lane.jobs.settle([(claims[0], DONE)])
        found.append(claims[0].id)
    return found


# ── in order, one at a time ──────────────────────────────────────────────────────────────────────


async def test_a_group_is_delivered_in_the_order_of_creation(lane: JobBench) -> None:
    first = await create(lane, 3)
    second = await create(lane, 4)
    assert await claimed(lane) == first[:1]
    assert await claimed(lane) == [], "while the head is under way"
    await lane.pass_time(1000)
    await lane.jobs.rescue(10)
    assert await drain(lane) == [*first, *second]


async def test_the_order_of_a_batch_is_the_order_of_the_request_whatever_the_keys(lane: JobBench) -> None:
    orders = [ordered(idempotency_key=f"key-{9 - n}", source=f"s{n % 3}", payload=str(n)) for n in range(10)]
    ids = [o.id for o in await lane.order(orders)]
    assert [(await lane.row(id))["payload"] for id in await drain(lane)] == [str(n) for n in range(10)]
    assert ids == sorted(ids)


async def test_a_repeated_key_takes_no_place(lane: JobBench) -> None:
    (first,) = await lane.order([ordered(idempotency_key="a")])
    found = await lane.order(
        [ordered(idempotency_key="b"), ordered(idempotency_key="a"), ordered(idempotency_key="c")]
    )
    assert [o.verdict for o in found] == ["created", "duplicate", "created"]
    assert await drain(lane) == [first.id, found[0].id, found[2].id]


async def test_groups_do_not_wait_for_each_other_nor_do_others_with_the_same_group_id(lane: JobBench) -> None:
    a, b = await create(lane, 2, "a"), await create(lane, 2, "b")
    plain = await lane.create(URL, 3, group_id="a")
    assert sorted(await claimed(lane)) == sorted([a[0], b[0], *plain])


async def test_a_group_is_ordered_across_targets(lane: JobBench) -> None:
    urls = [f"https://partner{n % 3}.example/" for n in range(6)]
    ids = [o.id for o in await lane.order([ordered(url=url) for url in urls])]
    assert await drain(lane) == ids


async def test_eight_stores_never_hold_two_of_a_group(database_url: str) -> None:
    async with job_benches(database_url, 8) as stores:
        for n in range(5):
            await create(stores[0], 6, f"g{n}")
        done: dict[str, list[int]] = defaultdict(list)
        while claims := await _claim_at_once(stores):
            groups = [claim.item.ordered_group for claim in claims]
            assert len(set(groups)) == len(groups)
            await asyncio.gather(
                *(store.jobs.settle([(c, DONE)]) for store, c in zip(stores, claims, strict=False))
            )
            for claim in claims:
                done[claim.item.ordered_group or ""].append(claim.id)
        assert {len(ids) for ids in done.values()} == {6}
        assert all(ids == sorted(ids) for ids in done.values())


async def _claim_at_once(stores: Sequence[JobBench]) -> list[Claim[Job]]:
    return [claim for batch in await asyncio.gather(*(s.claim(50) for s in stores)) for claim in batch]


async def test_concurrent_creates_have_one_order_and_it_is_the_order_of_delivery(database_url: str) -> None:
    async with job_benches(database_url, 8) as stores:
        made = await asyncio.gather(*(_create_one_by_one(store, 10) for store in stores))
        rows = sorted(await stores[0].tables.rows("dispatch_job"), key=lambda row: row["position"])
        assert len({row["position"] for row in rows}) == 80
        delivered = await drain(stores[0])
        assert delivered == [row["id"] for row in rows]
        places = {id: place for place, id in enumerate(delivered)}
        for ids in made:
            assert [places[id] for id in ids] == sorted(places[id] for id in ids), "as each created them"


async def _create_one_by_one(store: JobBench, count: int) -> list[int]:
    return [(await create(store, 1))[0] for _ in range(count)]


# ── a head that holds ────────────────────────────────────────────────────────────────────────────


async def test_a_failing_head_holds_its_group_until_it_ends(lane: JobBench) -> None:
    ids = await create(lane, 3)
    (other,) = await create(lane, 1, "other")
    claims = {claim.id: claim for claim in await lane.claim()}
    assert set(claims) == {ids[0], other}
    await lane.jobs.settle([(claims[ids[0]], RetryIn(90.0, FAILURE)), (claims[other], DONE)])
    assert await claimed(lane) == []
    held = waiting_for(await lane.row(ids[1]), (await lane.jobs.run("group_head", group_id="g"))[0])
    assert held is not None
    assert held.reason == "group"
    assert "FAILED" in held.message
    await lane.pass_time(100)
    assert await settle_next(lane, RetryIn(1.0, FAILURE, charged=False)) == ids[0]
    await lane.pass_time(100)
    assert await drain(lane) == ids


@pytest.mark.parametrize("end", [Bury(FAILURE), Bury(FAILURE, charged=False), Discard(FAILURE), DONE])
async def test_however_a_head_ends_the_next_goes_on(lane: JobBench, end: Settlement) -> None:
    ids = await create(lane, 2)
    assert await settle_next(lane, end) == ids[0]
    assert await claimed(lane) == ids[1:]


async def test_a_scheduled_head_holds_its_group(lane: JobBench) -> None:
    tomorrow = iso(datetime.now(UTC) + timedelta(days=1))
    (head,) = await create(lane, 1, scheduled_for=tomorrow)
    others = await create(lane, 2)
    assert await claimed(lane) == []
    await lane.pass_time(86401)
    assert await drain(lane) == [head, *others]


async def test_a_head_of_a_paused_target_holds_its_group(lane: JobBench) -> None:
    (head,) = await create(lane, 1, url="https://paused.example/")
    others = await create(lane, 2)
    until = datetime.now(UTC) + timedelta(hours=1)
    target = "https://paused.example:443"
    await lane.jobs.run("pause_target", target=target, until=lane.time(until), reason="x")
    assert await claimed(lane) == []
    await lane.jobs.run("resume_target", target="https://paused.example:443")
    assert await drain(lane) == [head, *others]


@pytest.mark.parametrize("by", ["sweep", "claim"])
async def test_an_expired_head_lets_the_next_go(lane: JobBench, by: str) -> None:
    (head,) = await create(lane, 1, expires_at=iso(datetime.now(UTC) + timedelta(seconds=60)))
    others = await create(lane, 2)
    await lane.pass_time(61)
    if by == "sweep":
        assert await lane.jobs.sweep(10) == {"ERROR": 1}
    else:
        await lane.run_batch(1)
    assert await lane.states([head]) == ["ERROR"]
    assert await drain(lane) == others


async def test_one_in_the_middle_expires_or_is_cancelled_and_the_head_stays(lane: JobBench) -> None:
    first = await create(lane, 1)
    await create(lane, 1, expires_at=iso(datetime.now(UTC) + timedelta(seconds=60)))
    cancelled = await create(lane, 1)
    last = await create(lane, 1)
    await lane.pass_time(61)
    await lane.jobs.sweep(10)
    assert await lane.jobs.cancel(cancelled) == cancelled
    assert await claimed(lane) == first
    await lane.pass_time(1000)
    await lane.jobs.rescue(10)
    assert await drain(lane) == [*first, *last]


async def test_a_cancelled_head_lets_the_next_go_and_a_claimed_one_cannot_be(lane: JobBench) -> None:
    ids = await create(lane, 4)
    assert sorted(await lane.jobs.cancel(ids[:2])) == ids[:2]
    assert await claimed(lane) == ids[2:3]
    assert await lane.jobs.cancel(ids[2:3]) == []
    assert await claimed(lane) == []


async def test_requeued_jobs_go_to_the_back_in_their_old_order(lane: JobBench) -> None:
    ids = await create(lane, 6)
    for _ in range(3):
        await settle_next(lane, Bury(FAILURE))
    assert sorted(await lane.jobs.requeue([ids[2], ids[0], ids[1]])) == ids[:3]
    assert await drain(lane) == [*ids[3:], *ids[:3]]


async def test_a_requeued_job_of_an_idle_group_goes_at_once(lane: JobBench) -> None:
    ids = await create(lane, 2)
    assert sorted(await lane.jobs.cancel(ids)) == ids
    assert await lane.jobs.requeue(ids[1:]) == ids[1:]
    (new,) = await create(lane, 1)
    assert await drain(lane) == [ids[1], new]


async def test_a_lost_worker_does_not_break_the_order(lane: JobBench) -> None:
    ids = await create(lane, 3)
    maintenance = lane.homing.webhooks.maintenance
    for _ in range(4):
        assert await claimed(lane) == ids[:1]
        await lane.pass_time(1000)
        await maintenance.rescue()
    row = await lane.row(ids[0])
    assert row["attempt_count"] - row["attempts_before"] == 1, "only the fourth loss counts"
    assert await claimed(lane) == [], "it waits for its next attempt, and the group with it"
    await lane.pass_time(1000)
    assert await drain(lane) == ids


async def test_a_producer_with_an_open_transaction_keeps_its_group_waiting_and_no_other_job(
    postgres_url: str,
) -> None:
    async with job_bench(postgres_url) as lane:
        ids, mended = await create(lane, 2), await create(lane, 2, "mended")
        await lane.order([job(URL)])
        await lane.tables.delete("dispatch_job", id=mended[0])
        claims = await lane.claim()
        producer = await asyncpg.connect(postgres_url)
        transaction = producer.transaction()
        await transaction.start()
        insert = (
            "INSERT INTO dispatch_job (source, type, target_url, payload, group_id, ordering)"
            " VALUES ('s', 't', $1, '', 'g', 'group') RETURNING id"
        )
        last = await producer.fetchval(insert, URL)
        assert await lane.jobs.settle([(claim, DONE) for claim in claims]) == {claim.id for claim in claims}
        await lane.jobs.sweep(10)
        assert await drain(lane) == mended[1:]
        await transaction.commit()
        await producer.close()
        lane.jobs._chores_at = 0.0
        await lane.jobs.sweep(10)
        assert await drain(lane) == [ids[1], last]


async def test_a_late_settlement_of_the_head_lets_nobody_past(lane: JobBench) -> None:
    ids = await create(lane, 2)
    (stale,) = await lane.claim()
    await lane.pass_time(1000)
    await lane.jobs.rescue(10)
    assert await claimed(lane) == ids[:1]
    assert await lane.jobs.settle([(stale, DONE)]) == set()
    assert await claimed(lane) == []
    assert await lane.states(ids) == ["IN_PROGRESS", "PENDING"]


async def test_a_release_of_the_head_keeps_it_the_head(lane: JobBench) -> None:
    ids = await create(lane, 2)
    claims = await lane.claim()
    await lane.jobs.release(claims)
    assert await drain(lane) == ids


# ── others' SQL ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", ["CANCELLED", "COMPLETED", "deleted"])
async def test_a_head_that_somebody_ended_by_hand_is_noticed(lane: JobBench, status: str) -> None:
    stuck, fine = await create(lane, 3, "stuck"), await create(lane, 2, "fine")
    if status == "deleted":
        await lane.tables.delete("dispatch_job", id=stuck[0])
    else:
        await lane.change(stuck[0], status=status)
    assert await claimed(lane) == fine[:1], "nobody has told the others"
    await lane.jobs.sweep(10)
    assert await claimed(lane) == stuck[1:2]
    await lane.jobs.sweep(10)
    assert await claimed(lane) == []


async def test_stuck_groups_are_looked_for_a_window_at_a_time(lane: JobBench) -> None:
    heads = [(await create(lane, 2, f"g{n}"))[0] for n in range(7)]
    for head in heads:
        await lane.change(head, status="CANCELLED")
    for _ in range(3):
        lane.jobs._chores_at = 0.0
        await lane.jobs.sweep(3)
    assert len(await claimed(lane)) == 7


async def test_the_database_itself_refuses_a_second_that_is_ready(lane: JobBench) -> None:
    head, second = await create(lane, 2)
    for status in ("PENDING", "FAILED", "IN_PROGRESS"):
        await lane.change(head, status=status)
        with pytest.raises(Refused):
            await lane.change(second, ready=True)
    await lane.change(head, status="COMPLETED")
    await lane.change(second, ready=True)


async def test_an_ordered_job_needs_a_group(lane: JobBench) -> None:
    with pytest.raises(Refused):
        await lane.order([job(URL, ordering="group")])


# ── with a receiver ──────────────────────────────────────────────────────────────────────────────


class Watching:
    """A receiver that fails now and then, and notes who came while another of its group was there."""

    def __init__(self, fails: Callable[[str], bool]) -> None:
        self._fails = fails
        self.accepted: dict[str, list[int]] = defaultdict(list)
        self._here: set[str] = set()
        self.together = 0

    def __call__(self, request: SinkRequest) -> Answer:
        group, number = request.body.decode().split("/")
        self.together += group in self._here
        self._here.add(group)
        asyncio.get_running_loop().call_later(0.002, self._here.discard, group)
        if self._fails(request.body.decode()):
            return Answer(status=500, delay=0.004)
        self.accepted[group].append(int(number))
        return Answer(delay=0.004)


@pytest.mark.slow
async def test_groups_arrive_in_order_though_one_in_five_fails_and_three_work_on_them(
    database_url: str,
) -> None:
    seen: set[str] = set()

    def fails_at_first(key: str) -> bool:
        fails = crc32(key.encode()) % 5 == 0 and key not in seen
        seen.add(key)
        return fails

    watching = Watching(fails_at_first)
    quick = {"jobs_backoff_base_seconds": 0.02, "jobs_breaker_failures": 1000}
    async with HttpSink(watching) as sink, job_benches(database_url, 3, **quick) as benches:
        orders = [
            ordered(f"g{group}", sink.url, payload=f"g{group}/{n}", retry_strategy="fixed", max_retries=50)
            for n in range(8)
            for group in range(12)
        ]
        await benches[0].order(orders)
        workers = [bench.homing.webhooks.worker() for bench in benches]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        async with asyncio.timeout(120):
            while (await benches[0].jobs.counts())["COMPLETED"] < len(orders):
                await asyncio.sleep(0.05)
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)
        await benches[0].attempts_add_up()
    assert watching.accepted == {f"g{group}": list(range(8)) for group in range(12)}
    assert watching.together == 0
