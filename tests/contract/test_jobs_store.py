"""The conformance suite of the jobs' store: the same on every database."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from tests.jobs import JobBench, job, job_bench, job_benches

from homing.db import instant, iso
from homing.engine.model import Bury, Claim, Complete, Discard, Failure, RetryIn, Settlement
from homing.errors import Conflict, Refused
from homing.lanes.dispatch_jobs.job import Job, Report
from homing.lanes.dispatch_jobs.tsid import time_of

URL = "https://partner.example/hooks"
FAILURE = Failure("http_500", "HTTP 500")
REPORT = Report(0.25, 500, "oops", {"server": "x"})
TRY_AGAIN = RetryIn(90.0, FAILURE, report=REPORT)


@pytest.fixture
def database_url(jobs_database_url: str) -> str:
    """Jobs may be in MongoDB, too."""
    return jobs_database_url


@pytest.fixture
async def lane(database_url: str) -> AsyncIterator[JobBench]:
    async with job_bench(database_url) as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgres"])
async def sql_lane(request: pytest.FixtureRequest) -> AsyncIterator[JobBench]:
    """For what is about tables: in MongoDB a job is one document."""
    async with job_bench(request.getfixturevalue(f"{request.param}_url")) as opened:
        yield opened


def by_id(claims: list[Claim[Job]]) -> dict[int, Claim[Job]]:
    return {claim.id: claim for claim in claims}


# ── claim ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-09", "JOB-19", "JOB-21")
async def test_a_claim_takes_what_is_open_and_due_and_marks_it(lane: JobBench) -> None:
    due, failed, later, ended = await lane.create(URL, 4)
    await lane.change(failed, status="FAILED")
    await lane.pass_time(-60, only=later)
    await lane.change(ended, status="COMPLETED")
    claims = await lane.claim()
    assert [c.id for c in claims] == [due, failed]
    row = await lane.row(due)
    assert row["status"] == "IN_PROGRESS"
    assert row["lease_expires_at"] is not None
    assert row["locked_by"]
    assert await lane.states([later, ended]) == ["PENDING", "COMPLETED"]


@pytest.mark.parametrize("query", ["claim", "claim_one", "claim_lost"])
async def test_claims_return_their_columns_in_the_order_of_the_item(lane: JobBench, query: str) -> None:
    (id,) = await lane.create(URL, headers={"X-A": "b"}, timeout_seconds=2.0)
    if query == "claim_lost":
        await lane.claim()
        await lane.pass_time(1000)
        await lane.change(id, rescue_count=3)
    shares = f'[{{"target": "{(await lane.row(id))["target"]}", "slots": 1}}]'
    (row,) = await lane.jobs.run(query, limit=1, id=id, shares=shares)
    assert list(row.keys()) == [
        "id",
        "fence",
        "attempts",
        "deferrals",
        "age",
        "traceparent",
        *Job.__struct_fields__,
    ]


async def test_a_claim_is_limited(lane: JobBench) -> None:
    await lane.create(URL, 5)
    assert len(await lane.claim(2)) == 2
    assert len(await lane.claim(10)) == 3


async def test_claims_of_a_target_come_in_the_order_of_next_attempt_and_id(lane: JobBench) -> None:
    ids = await lane.create(URL, 6)
    for position, id in enumerate(ids):
        await lane.pass_time(10 * (3 - position % 3), only=id)
    expected = [ids[0], ids[3], ids[1], ids[4], ids[2], ids[5]]
    assert [c.id for c in await lane.claim(4)] == expected[:4]
    assert [c.id for c in await lane.claim(4)] == expected[4:]


async def test_concurrent_claims_of_eight_stores_are_exclusive(database_url: str) -> None:
    async with job_benches(database_url, 8) as stores:
        ids = [id for n in range(6) for id in await stores[0].create(f"https://partner{n}.example/", 20)]
        taken: list[Claim[Job]] = []
        while batches := [b for b in await asyncio.gather(*(s.claim(7) for s in stores)) if b]:
            taken += [claim for batch in batches for claim in batch]
        assert sorted(c.id for c in taken) == sorted(ids), "each once, and none left"
        assert {c.fence for c in taken} == {1}
        owners = {row["locked_by"] for row in await stores[0].tables.rows("dispatch_job")}
        assert len(owners) > 1, "it was a contest"


async def test_the_isolation_is_read_committed_whatever_the_server_says(postgres_url: str) -> None:
    async with job_bench(postgres_url) as lane:
        name = postgres_url.rsplit("/", 1)[1]
        await lane.sql(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'repeatable read'")
    async with job_benches(postgres_url, 3) as stores:
        (row,) = await stores[0].sql("SELECT current_setting('transaction_isolation') AS level")
        assert row["level"] == "read committed"
        ids = await stores[0].create(URL, 30)
        batches = await asyncio.gather(*(store.claim(10) for store in stores))
        assert sorted(c.id for batch in batches for c in batch) == ids, "nobody had to undo a claim"


async def test_one_job_is_claimed_by_its_id_if_it_is_due_and_nobodys(lane: JobBench) -> None:
    (id,) = await lane.create(URL)
    await lane.pass_time(-60, only=id)
    assert await lane.jobs.claim_one(id) is None, "not due yet"
    await lane.pass_time(60, only=id)
    claim = await lane.jobs.claim_one(id)
    assert claim is not None
    assert (claim.id, claim.fence, claim.item.target_url) == (id, 1, URL)
    assert await lane.jobs.claim_one(id) is None, "somebody has it"
    assert await lane.jobs.claim_one(id + 1) is None, "there is none"


async def test_one_job_of_a_paused_target_or_behind_another_is_not_claimed(lane: JobBench) -> None:
    (paused,) = await lane.create("https://paused.example/")
    _, second = await lane.create(URL, 2, group_id="g", ordering="group")
    until = datetime.now(UTC) + timedelta(hours=1)
    await lane.jobs.run(
        "pause_target", target="https://paused.example:443", until=lane.time(until), reason="x"
    )
    assert await lane.jobs.claim_one(paused) is None
    assert await lane.jobs.claim_one(second) is None


async def test_the_fence_rises_with_every_claim(lane: JobBench) -> None:
    await lane.create(URL)
    fences = []
    for _ in range(3):
        (claim,) = await lane.claim()
        fences.append(claim.fence)
        assert await lane.jobs.release([claim]) == {claim.id}
    assert fences == sorted(set(fences))


# ── settle, renew, release: only what is ours ────────────────────────────────────────────────────


@pytest.mark.clause("JOB-04", "JOB-09")
async def test_a_settlement_takes_effect_once_and_so_does_its_attempt(lane: JobBench) -> None:
    (id,) = await lane.create(URL)
    (claim,) = await lane.claim()
    held = await lane.jobs.get(id)
    assert held is not None
    assert await lane.jobs.settle([(claim, Complete(Report(0.5, 204, "", {})))]) == {id}
    assert await lane.jobs.settle([(claim, Bury(FAILURE, report=REPORT))]) == set()
    assert await lane.states([id]) == ["COMPLETED"]
    (attempt,) = await lane.attempts(id)
    assert (attempt["status"], attempt["response_code"], attempt["duration_millis"]) == ("SUCCESS", 204, 500)
    # Who made it stays known when the job is nobody's any more.
    assert attempt["worker"] == held["locked_by"]
    assert held["locked_by"]
    took = (instant(attempt["completed_at"]) or time_of(0)) - (instant(attempt["attempted_at"]) or time_of(0))
    assert took == timedelta(milliseconds=500)
    await lane.attempts_add_up()


async def test_a_settlement_whose_answer_was_lost_is_confirmed_and_no_other(lane: JobBench) -> None:
    settled, held, lost = await lane.create(URL, 3)
    claims = by_id(await lane.claim())
    await lane.jobs.settle([(claims[settled], Complete(REPORT))])
    await lane.pass_time(1000, only=lost)
    assert await lane.jobs.rescue(10) == 1
    assert await lane.jobs.confirm(list(claims.values())) == {settled}
    assert await lane.states([held, lost]) == ["IN_PROGRESS", "PENDING"]


async def test_a_stale_owner_is_refused_everything_but_its_line_in_the_history(lane: JobBench) -> None:
    (id,) = await lane.create(URL)
    (stale,) = await lane.claim()
    await lane.pass_time(1000)
    assert await lane.jobs.rescue(10) == 1
    (owner,) = await lane.claim()
    assert owner.fence > stale.fence
    for settlement in (Complete(REPORT), TRY_AGAIN, Bury(FAILURE), Discard(FAILURE)):
        assert await lane.jobs.settle([(stale, settlement)]) == set()
    assert await lane.jobs.renew([stale]) == set()
    assert await lane.jobs.release([stale]) == set()
    (attempt,) = await lane.attempts(id)
    assert (attempt["claim_seq"], attempt["status"]) == (stale.fence, "SUCCESS"), "what it was told first"
    assert await lane.states([id]) == ["IN_PROGRESS"]
    assert await lane.jobs.settle([(owner, Complete(REPORT))]) == {id}
    await lane.attempts_add_up()


@pytest.mark.clause("JOB-09")
async def test_one_batch_settles_each_claim_in_its_own_way(lane: JobBench) -> None:
    ids = await lane.create(URL, 7)
    claims = await _claimed(lane, ids)
    await lane.jobs.release([claims[6]])
    kinds: list[Settlement] = [
        Complete(REPORT), TRY_AGAIN, RetryIn(5.0, FAILURE, charged=False), Bury(FAILURE, report=REPORT),
        Bury(FAILURE, charged=False), Discard(FAILURE), Complete(REPORT),
    ]  # fmt: skip
    settled = await lane.jobs.settle(list(zip(reversed(claims), reversed(kinds), strict=True)))
    assert settled == set(ids[:6]), "the seventh was given back before; its attempt was made all the same"
    expected = ["COMPLETED", "FAILED", "PENDING", "ERROR", "ERROR", "ERROR", "PENDING"]
    assert await lane.states(ids) == expected
    assert [(await lane.row(id))["attempt_count"] for id in ids] == [1, 1, 0, 1, 0, 0, 1]
    await lane.attempts_add_up()


async def _claimed(lane: JobBench, ids: list[int]) -> list[Claim[Job]]:
    claims = by_id(await lane.claim())
    return [claims[id] for id in ids]


async def test_an_uncharged_return_of_a_job_that_failed_before_leaves_it_failed(lane: JobBench) -> None:
    (id,) = await lane.create(URL)
    (claim,) = await lane.claim()
    await lane.jobs.settle([(claim, TRY_AGAIN)])
    await lane.pass_time(100)
    (claim,) = await lane.claim()
    assert claim.attempts == 1
    await lane.jobs.settle([(claim, RetryIn(1.0, FAILURE, charged=False))])
    assert await lane.states([id]) == ["FAILED"]


async def test_a_renewal_prolongs_only_what_is_ours(lane: JobBench) -> None:
    ours, ended = await lane.create(URL, 2)
    claims = await lane.claim()
    await lane.jobs.settle([(by_id(claims)[ended], Complete(REPORT))])
    await lane.pass_time(50)
    before = (await lane.row(ours))["lease_expires_at"]
    assert await lane.jobs.renew(claims) == {ours}
    assert (await lane.row(ours))["lease_expires_at"] > before
    await lane.pass_time(50)
    assert await lane.jobs.rescue(10) == 0


async def test_a_release_charges_nothing_and_keeps_the_place_in_the_queue(lane: JobBench) -> None:
    fresh, failed = await lane.create(URL, 2)
    await _fail(lane, failed)
    before = [(await lane.row(id))["next_attempt_at"] for id in (fresh, failed)]
    claims = await lane.claim()
    assert await lane.jobs.release(claims) == {fresh, failed}
    rows = [await lane.row(id) for id in (fresh, failed)]
    assert [row["status"] for row in rows] == ["PENDING", "FAILED"]
    assert [row["attempt_count"] for row in rows] == [0, 1]
    assert [row["next_attempt_at"] for row in rows] == before
    assert [(row["lease_expires_at"], row["locked_by"]) for row in rows] == [(None, None)] * 2


async def _fail(lane: JobBench, id: int) -> None:
    """One charged attempt, and due again."""
    claim = await lane.jobs.claim_one(id)
    assert claim is not None
    await lane.jobs.settle([(claim, TRY_AGAIN)])
    await lane.pass_time(100, only=id)


# ── rescue ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-09")
async def test_jobs_of_a_dead_worker_are_what_they_were_and_behind_the_others(lane: JobBench) -> None:
    fresh, failed, requeued, other = await lane.create(URL, 4)
    await _fail(lane, failed)
    await _end_and_requeue(lane, requeued)
    for id in (fresh, failed, requeued):
        assert await lane.jobs.claim_one(id)
    assert await lane.jobs.rescue(10) == 0
    for id in (fresh, failed, requeued):
        await lane.pass_time(1000, only=id)
    assert await lane.jobs.rescue(10) == 3
    assert await lane.states([fresh, failed, requeued]) == ["PENDING", "FAILED", "PENDING"]
    claims = await lane.claim()
    assert claims[0].id == other, "it was due before"
    assert {c.id for c in claims[1:]} == {fresh, failed, requeued}
    await lane.attempts_add_up()


async def _end_and_requeue(lane: JobBench, id: int) -> None:
    claim = await lane.jobs.claim_one(id)
    assert claim is not None
    await lane.jobs.settle([(claim, Bury(FAILURE, report=REPORT))])
    assert await lane.jobs.requeue([id]) == [id]


@pytest.mark.clause("JOB-04", "JOB-30")
async def test_the_fourth_loss_is_charged_and_is_an_attempt(lane: JobBench) -> None:
    (id,) = await lane.create(URL)
    maintenance = lane.homing.webhooks.maintenance
    for losses in range(1, 5):
        (claim,) = await lane.claim()
        await lane.pass_time(1000)
        await maintenance.rescue()
        row = await lane.row(id)
        charged = int(losses == 4)
        assert (row["rescue_count"], row["attempt_count"]) == (losses, losses)
        assert row["attempt_count"] - row["attempts_before"] == charged
        assert row["status"] == ("FAILED" if charged else "PENDING")
        assert await lane.jobs.settle([(claim, Discard(FAILURE))]) == set()
    attempts = await lane.attempts(id)
    assert {(a["status"], a["error_class"]) for a in attempts} == {("FAILURE", "worker_died")}
    assert {a["error_message"] for a in attempts} == {"outcome unknown: worker lost"}
    assert await lane.claim() == [], "a charged loss waits like any failed attempt"


async def test_a_job_that_kills_its_workers_ends(lane: JobBench) -> None:
    (id,) = await lane.create(URL, max_retries=2)
    for _ in range(3 + 2):
        await lane.pass_time(100_000)
        assert len(await lane.claim()) == 1
        await lane.pass_time(100_000)
        await lane.homing.webhooks.maintenance.rescue()
    row = await lane.row(id)
    assert (row["status"], row["attempt_count"], row["error_class"]) == ("ERROR", 3 + 2, "worker_died")
    await lane.attempts_add_up()


async def test_a_claim_that_another_program_took_without_a_lease_is_rescued_too(lane: JobBench) -> None:
    (id,) = await lane.create(URL)
    await lane.change(id, status="IN_PROGRESS")
    assert await lane.jobs.rescue(10) == 0, "not before a lease's time has passed"
    await lane.tables.shift("dispatch_job", ["updated_at"], 61)
    assert await lane.jobs.rescue(10) == 1


# ── what ends by itself ──────────────────────────────────────────────────────────────────────────


def soon(seconds: float) -> str:
    text = iso(datetime.now(UTC) + timedelta(seconds=seconds))
    assert text is not None
    return text


@pytest.mark.clause("JOB-19")
async def test_what_has_expired_is_ended_unsent_with_that_reason(lane: JobBench) -> None:
    (past,) = await lane.create(URL, expires_at=soon(3600))
    (future,) = await lane.create(URL, expires_at=soon(7200))
    (never,) = await lane.create(URL)
    (held,) = await lane.create(URL, expires_at=soon(3600))
    assert await lane.jobs.claim_one(held)
    await lane.pass_time(4000)
    assert await lane.jobs.sweep(10) == {"ERROR": 1}
    assert await lane.states([past, future, never, held]) == ["ERROR", "PENDING", "PENDING", "IN_PROGRESS"]
    row = await lane.row(past)
    assert (row["error_class"], row["attempt_count"]) == ("expired", 0)
    assert "expired" in row["last_error"]
    assert row["completed_at"] is not None
    assert await lane.attempts(past) == []
    assert await lane.jobs.sweep(10) == {}


@pytest.mark.clause("JOB-34")
@pytest.mark.parametrize("by", ["sweep", "claim"])
async def test_an_expiry_keeps_the_last_real_error_beside_its_reason(lane: JobBench, by: str) -> None:
    failed, fresh = await lane.create(URL, 2, expires_at=soon(3600))
    await _fail(lane, failed)
    claim = await lane.jobs.claim_one(failed)
    assert claim is not None
    # Put off, which is no attempt: what the last one met is still what it met.
    await lane.jobs.settle([(claim, RetryIn(1.0, Failure("target_busy", "busy"), charged=False))])
    row = await lane.row(failed)
    assert (row["last_error"], row["error_class"]) == ("HTTP 500", "http_500")
    await lane.pass_time(4000)
    if by == "sweep":
        await lane.jobs.sweep(10)
    else:
        await lane.run_batch()
    rows = [await lane.row(id) for id in (failed, fresh)]
    assert {(row["status"], row["error_class"]) for row in rows} == {("ERROR", "expired")}
    reason = "expired before it could be delivered"
    assert [row["last_error"] for row in rows] == [f"{reason}; last error: HTTP 500", reason]


@pytest.mark.clause("JOB-33", "JOB-34")
async def test_a_reason_stands_once_however_often_a_job_is_put_back(lane: JobBench) -> None:
    failed, fresh = await lane.create(URL, 2, expires_at=soon(3600))
    await _fail(lane, failed)
    await lane.pass_time(4000)
    over = Bury(Failure("attempts_used_up", "all 1 attempts are used up"), charged=False)
    for _ in range(3):
        await lane.jobs.sweep(10)
        rows = [await lane.row(id) for id in (failed, fresh)]
        reason = "expired before it could be delivered"
        assert [row["last_error"] for row in rows] == [f"{reason}; last error: HTTP 500", reason]
        await lane.change(failed, status="PENDING")
        await lane.change(fresh, status="PENDING")
        claim = await lane.jobs.claim_one(failed)
        assert claim is not None
        await lane.jobs.settle([(claim, over)])
        row = await lane.row(failed)
        assert row["last_error"] == "all 1 attempts are used up; last error: HTTP 500"
        await lane.change(failed, status="PENDING")


async def test_a_sweep_is_limited_and_goes_on_where_it_stopped(lane: JobBench) -> None:
    await lane.create(URL, 5, expires_at=soon(60))
    await lane.pass_time(100)
    assert [await lane.jobs.sweep(2) for _ in range(4)] == [{"ERROR": 2}, {"ERROR": 2}, {"ERROR": 1}, {}]


# ── people's verbs ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-09")
async def test_only_what_nobody_has_claimed_can_be_cancelled(lane: JobBench) -> None:
    pending, failed, claimed, done = await lane.create(URL, 4)
    await _fail(lane, failed)
    assert await lane.jobs.claim_one(claimed)
    await lane.change(done, status="COMPLETED")
    assert sorted(await lane.jobs.cancel([pending, failed, claimed, done])) == sorted([pending, failed])
    assert await lane.states([pending, failed, claimed, done]) == [
        "CANCELLED", "CANCELLED", "IN_PROGRESS", "COMPLETED",
    ]  # fmt: skip
    assert await lane.claim() == []


@pytest.mark.clause("JOB-09")
async def test_a_requeued_job_has_all_its_attempts_again_and_counts_on(lane: JobBench) -> None:
    (id,) = await lane.create(URL, max_retries=2)
    for expected in (1, 2):
        (claim,) = await lane.claim()
        assert claim.attempts == expected - 1
        settlement = TRY_AGAIN if expected < 2 else Bury(FAILURE, report=REPORT)
        await lane.jobs.settle([(claim, settlement)])
        await lane.pass_time(100)
    assert await lane.jobs.requeue([id]) == [id]
    assert await lane.jobs.requeue([id]) == [], "it is open already"
    row = await lane.row(id)
    assert (row["status"], row["attempt_count"], row["completed_at"]) == ("PENDING", 2, None)
    (claim,) = await lane.claim()
    assert claim.attempts == 0
    await lane.jobs.settle([(claim, Complete(REPORT))])
    assert [a["attempt_number"] for a in await lane.attempts(id)] == [1, 2, 3]
    await lane.attempts_add_up()


async def test_a_requeued_job_that_had_expired_does_not_expire_at_once(lane: JobBench) -> None:
    (id,) = await lane.create(URL, expires_at=soon(60))
    await lane.pass_time(100)
    await lane.jobs.sweep(10)
    assert await lane.jobs.requeue([id]) == [id]
    (claim,) = await lane.claim()
    assert not claim.item.expired


async def test_counts_and_the_oldest_due(lane: JobBench) -> None:
    assert await lane.jobs.oldest_due() == 0.0
    open_, failed, done, cancelled, later = await lane.create(URL, 5)
    await _fail(lane, failed)
    await lane.change(done, status="COMPLETED")
    await lane.jobs.cancel([cancelled])
    await lane.pass_time(-1000, only=later)
    await lane.pass_time(30, only=open_)
    assert await lane.jobs.counts() == {
        "PENDING": 2, "IN_PROGRESS": 0, "COMPLETED": 1, "FAILED": 1, "ERROR": 0, "CANCELLED": 1,
    }  # fmt: skip
    assert 30 <= await lane.jobs.oldest_due() < 60


# ── durations ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-02")
async def test_the_duration_runs_from_the_later_of_creation_and_schedule(lane: JobBench) -> None:
    plain, scheduled, late = await lane.create(URL, 3)
    await _set_times(lane, plain, created=-50, scheduled=None)
    await _set_times(lane, scheduled, created=-5000, scheduled=-20)
    await _set_times(lane, late, created=-10, scheduled=-7000)
    claims = await lane.claim()
    await lane.jobs.settle([(c, Complete(REPORT)) for c in claims])
    for id, seconds in ((plain, 50), (scheduled, 20), (late, 10)):
        duration = (await lane.row(id))["duration_millis"]
        assert seconds * 1000 - 100 <= duration <= seconds * 1000 + 9000, "and a busy machine's few seconds"


async def _set_times(lane: JobBench, id: int, *, created: float, scheduled: float | None) -> None:
    now = await lane.tables.now()
    times = {"created_at": now + timedelta(seconds=created)}
    if scheduled is not None:
        times["scheduled_for"] = now + timedelta(seconds=scheduled)
    await lane.tables.change("dispatch_job", times, id=id)


# ── locks ────────────────────────────────────────────────────────────────────────────────────────


async def test_renewing_and_settling_the_same_rows_at_once_never_deadlocks(database_url: str) -> None:
    async with job_benches(database_url, 3) as stores:
        await stores[0].create(URL, 40)
        claims = await stores[0].claim()
        for _ in range(5):
            kept = await asyncio.gather(
                stores[0].jobs.renew(claims),
                stores[1].jobs.renew(claims[::-1]),
                stores[2].jobs.renew(claims[::3] + claims[1::3]),
            )
            assert [len(ids) for ids in kept] == [40, 40, 27]
        settlements: list[list[tuple[Claim[Job], Settlement]]] = [
            [(c, Complete(REPORT)) for c in order] for order in (claims[:30], claims[:9:-1], claims[::2])
        ]
        settled = await asyncio.gather(
            *(store.jobs.settle(batch) for store, batch in zip(stores, settlements, strict=True))
        )
        assert Counter(id for ids in settled for id in ids) == Counter(c.id for c in claims), "each by one"
        await stores[0].attempts_add_up()


@pytest.mark.parametrize("round_", range(3))
async def test_creating_settling_and_cancelling_in_the_same_groups_never_deadlocks(
    database_url: str, round_: int
) -> None:
    """Eight stores, the same ten groups, each in an order of its own: no ring of waiting may form."""
    groups = [f"group-{n}" for n in range(10)]
    async with job_benches(database_url, 8) as stores:
        orders = [
            job(URL, group_id=group, ordering="group", idempotency_key=f"{round_}-{group}-{n}")
            for n in range(6)
            for group in groups
        ]
        await stores[0].order(orders[:20])
        await asyncio.gather(
            *(store.order(orders[:: 1 if n % 2 else -1]) for n, store in enumerate(stores[:4])),
            *(_work(store, backwards=bool(n % 2)) for n, store in enumerate(stores[4:])),
        )
        counts = await stores[0].jobs.counts()
        assert sum(counts.values()) == len(orders), "each key once"
        assert counts["IN_PROGRESS"] == 0
        await _work(stores[0], backwards=False, rounds=20)
        counts = await stores[0].jobs.counts()
        assert counts["COMPLETED"] + counts["CANCELLED"] == len(orders)


async def _work(store: JobBench, *, backwards: bool, rounds: int = 6) -> None:
    for _ in range(rounds):
        claims = await store.claim(20)
        batch: list[tuple[Claim[Job], Settlement]] = [(c, Complete(REPORT)) for c in claims]
        await store.jobs.settle(batch[::-1] if backwards else batch)
        if backwards:
            open_ = (await store.tables.rows("dispatch_job", status="PENDING"))[:3]
            await store.jobs.cancel([row["id"] for row in reversed(open_)])


async def test_the_same_keys_in_opposite_orders_make_each_job_once(database_url: str) -> None:
    async with job_benches(database_url, 6) as stores:
        orders = [job(URL, idempotency_key=f"key-{n}", fingerprint=f"f{n}") for n in range(50)]
        results = await asyncio.gather(
            *(store.order(orders[:: 1 if n % 2 else -1]) for n, store in enumerate(stores))
        )
        straight = [r if n % 2 else r[::-1] for n, r in enumerate(results)]
        assert {tuple(o.id for o in result) for result in straight} == {tuple(o.id for o in straight[0])}
        made = Counter(o.verdict for result in results for o in result)
        assert made == {"created": 50, "duplicate": 250}
        other = await stores[0].order([job(URL, idempotency_key="key-1", fingerprint="another")])
        assert [o.verdict for o in other] == ["conflict"]


# ── ids ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-15")
async def test_ids_are_unique_among_stores_and_rise_with_time(database_url: str) -> None:
    async with job_benches(database_url, 4) as stores:
        before = datetime.now(UTC)
        batches = await asyncio.gather(*(store.create(URL, 50) for store in stores for _ in range(3)))
        ids = [id for batch in batches for id in batch]
        assert len(set(ids)) == 600
        assert all(batch == sorted(batch) for batch in batches), "in the order of the request"
        assert all(0 < id < 2**63 for id in ids)
        (later,) = await stores[3].create(URL)
        assert later > max(ids)
        # The database's clock may differ a little from ours, and on SQLite a crowd runs some ids ahead.
        assert abs((time_of(ids[0]) - before).total_seconds()) < 30


@pytest.mark.clause("JOB-15")
async def test_an_external_id_has_up_to_32_characters(lane: JobBench) -> None:
    (id,) = await lane.create(URL, external_id="x" * 32)
    assert (await lane.row(id))["external_id"] == "x" * 32
    with pytest.raises(Refused):
        await lane.create(URL, external_id="x" * 33)


# ── tables ───────────────────────────────────────────────────────────────────────────────────────

SPECIFIED_COLUMNS = {
    "dispatch_job": {
        "id", "external_id", "created_at", "updated_at", "source", "type", "group_id", "target_url",
        "protocol", "payload", "payload_content_type", "credentials_id", "status", "max_retries",
        "retry_strategy", "scheduled_for", "expires_at", "attempt_count", "last_attempt_at", "completed_at",
        "duration_millis", "last_error", "idempotency_key",
    },
    "dispatch_job_metadata": {"id", "dispatch_job_id", "meta_key", "meta_value"},
    "dispatch_attempt": {
        "id", "dispatch_job_id", "attempt_number", "attempted_at", "completed_at", "duration_millis",
        "status", "response_code", "response_body", "error_message", "error_stack_trace",
    },
    "dispatch_credentials": {"id", "bearer_token", "signing_secret", "algorithm", "created_at", "updated_at"},
    "dispatch_job_headers": {"dispatch_job_id", "header_name", "header_value"},
}  # fmt: skip
#: By table and index: the columns that it must begin with.
SPECIFIED_INDEXES = {
    ("dispatch_job", "idx_dispatch_external_id"): ["external_id"],
    ("dispatch_job", "idx_dispatch_status"): ["status"],
    ("dispatch_job", "idx_dispatch_source"): ["source"],
    ("dispatch_job", "idx_dispatch_type"): ["type"],
    ("dispatch_job", "idx_dispatch_group_id"): ["group_id"],
    ("dispatch_job", "idx_dispatch_scheduled"): ["scheduled_for"],
    ("dispatch_job", "idx_dispatch_created"): ["created_at"],
    ("dispatch_job_metadata", "idx_metadata_job_id"): ["dispatch_job_id"],
    ("dispatch_job_metadata", "idx_metadata_key_value"): ["meta_key", "meta_value"],
    ("dispatch_attempt", "idx_attempt_job_id"): ["dispatch_job_id"],
    ("dispatch_attempt", "idx_attempt_status"): ["status"],
    ("dispatch_attempt", "idx_attempt_attempted_at"): ["attempted_at"],
}


@pytest.mark.clause("JOB-14")
async def test_tables_columns_and_indexes_are_named_as_specified_on_postgres(postgres_url: str) -> None:
    async with job_bench(postgres_url) as lane:
        columns = await lane.sql(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
        )
        found = {(row["table_name"], row["column_name"]) for row in columns}
        assert {(t, c) for t, names in SPECIFIED_COLUMNS.items() for c in names} <= found
        types = await lane.sql(
            "SELECT table_name, data_type FROM information_schema.columns WHERE column_name = 'id' "
            "AND table_name LIKE 'dispatch_%'"
        )
        assert {row["data_type"] for row in types} == {"bigint"}
        indexes = await lane.sql(
            "SELECT t.relname AS on_table, i.relname AS name, array_agg(a.attname ORDER BY k.n) AS names "
            "FROM pg_index AS x JOIN pg_class AS i ON i.oid = x.indexrelid "
            "JOIN pg_class AS t ON t.oid = x.indrelid "
            "CROSS JOIN unnest(x.indkey) WITH ORDINALITY AS k(attnum, n) "
            "JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum = k.attnum "
            "WHERE x.indpred IS NULL OR pg_get_expr(x.indpred, t.oid) ~ '^\\(\\w+ IS NOT NULL\\)$' "
            "GROUP BY t.relname, i.relname"
        )
        built = {(row["on_table"], row["name"]): [str(name) for name in row["names"]] for row in indexes}
        _assert_specified(built)


@pytest.mark.clause("JOB-14")
async def test_tables_columns_and_indexes_are_named_as_specified_on_sqlite(sqlite_url: str) -> None:
    async with job_bench(sqlite_url) as lane:
        built: dict[tuple[str, str], list[str]] = {}
        for table, names in SPECIFIED_COLUMNS.items():
            columns = await lane.sql(f"SELECT name FROM pragma_table_info('{table}')")
            assert names <= {row["name"] for row in columns}, table
            made = await lane.sql(
                "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = :table", table=table
            )
            for index in made:
                of = await lane.sql(f"SELECT name FROM pragma_index_info('{index['name']}') ORDER BY seqno")
                if re.search(r"\)( WHERE \w+ IS NOT NULL)?$", index["sql"] or ""):
                    built[table, index["name"]] = [row["name"] for row in of]
        _assert_specified(built)


def _assert_specified(built: dict[tuple[str, str], list[str]]) -> None:
    """`built` holds the indexes of all rows, those apart that have no value: nobody searches for these."""
    for (table, index), columns in SPECIFIED_INDEXES.items():
        assert built[table, index][: len(columns)] == columns, index


@pytest.mark.clause("JOB-16")
async def test_there_are_no_foreign_keys(sql_lane: JobBench) -> None:
    lane = sql_lane
    on_postgres = "SELECT conname FROM pg_constraint WHERE contype = 'f' AND conrelid = '{}'::regclass"
    on_sqlite = "SELECT * FROM pragma_foreign_key_list('{}')"
    keys_of = on_postgres if lane.homing.database.dialect == "postgres" else on_sqlite
    for table in SPECIFIED_COLUMNS:
        assert await lane.sql(keys_of.format(table)) == [], table


async def test_attempts_go_into_the_week_of_their_time(postgres_url: str) -> None:
    async with job_bench(postgres_url) as lane:
        (id,) = await lane.create(URL)
        (claim,) = await lane.claim()
        await lane.jobs.settle([(claim, Complete(REPORT))])
        (row,) = await lane.sql(
            "SELECT tableoid::regclass::text AS part, "
            "to_char(now() AT TIME ZONE 'UTC', '\"dispatch_attempt_\"IYYY\"w\"IW') AS week "
            "FROM dispatch_attempt"
        )
        assert row["part"] == row["week"]
        assert len(await lane.attempts(id)) == 1


# ── orphans ──────────────────────────────────────────────────────────────────────────────────────

AN_HOUR = 3_600_000 << 22


async def _leave_orphans(lane: JobBench, job_id: int, *, first: int, count: int = 3) -> None:
    for n in range(count):
        await lane.sql(
            "INSERT INTO dispatch_job_metadata (id, dispatch_job_id, meta_key, meta_value) "
            "VALUES (:id, :job, 'k', 'v') RETURNING id", id=first + n, job=job_id + n,
        )  # fmt: skip
        await lane.sql(
            "INSERT INTO dispatch_job_headers (dispatch_job_id, header_name, header_value) "
            "VALUES (:job, 'X-A', 'b'), (:job, 'X-B', 'b') RETURNING dispatch_job_id", job=job_id + n,
        )  # fmt: skip
        await lane.sql(
            "INSERT INTO dispatch_attempt (id, dispatch_job_id, attempt_number, attempted_at, status) "
            f"VALUES (:id, :job, 1, {_now(lane)}, 'FAILURE') RETURNING id", id=first + n, job=job_id + n,
        )  # fmt: skip


def _now(lane: JobBench) -> str:
    return "now()" if lane.homing.database.dialect == "postgres" else "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"


async def _rows_of_jobs(lane: JobBench) -> dict[str, int]:
    tables = ("dispatch_job_metadata", "dispatch_job_headers", "dispatch_attempt")
    return {t: (await lane.sql(f"SELECT count(*) AS n FROM {t}"))[0]["n"] for t in tables}


@pytest.mark.clause("JOB-16")
async def test_what_belongs_to_no_job_is_swept_and_everything_else_stays(sql_lane: JobBench) -> None:
    lane = sql_lane
    (kept,) = await lane.create(URL, metadata={"a": "1", "b": "2"}, headers={"X-C": "d"})
    (claim,) = await lane.claim()
    await lane.jobs.settle([(claim, Complete(REPORT))])
    old = kept - 3 * AN_HOUR
    await _leave_orphans(lane, old, first=old)
    fresh = kept + 1000
    await _leave_orphans(lane, fresh, first=fresh, count=1)
    await lane.jobs.sweep(1000)
    # What was written within the hour may be waiting for its job.
    assert await _rows_of_jobs(lane) == {
        "dispatch_job_metadata": 2 + 1,
        "dispatch_job_headers": 1 + 2,
        "dispatch_attempt": 1 + 1,
    }
    assert len(await lane.attempts(kept)) == 1


@pytest.mark.clause("JOB-16")
async def test_orphans_are_swept_a_window_at_a_time_and_none_is_passed_over(sql_lane: JobBench) -> None:
    lane = sql_lane
    (kept,) = await lane.create(URL)
    old = kept - 3 * AN_HOUR
    await _leave_orphans(lane, old, first=old, count=7)
    for _ in range(4):
        lane.jobs._chores_at = 0.0
        await lane.jobs.sweep(3)
    assert set((await _rows_of_jobs(lane)).values()) == {0}


async def test_a_store_that_waits_for_a_lock_says_so_and_writes_nothing(postgres_url: str) -> None:
    """Somebody holds a row in a console: the settlement is refused as a conflict, to be tried again."""
    async with job_bench(postgres_url) as lane:
        (id,) = await lane.create(URL)
        (claim,) = await lane.claim()
        console = await asyncpg.connect(postgres_url)
        try:
            async with console.transaction():
                await console.execute("SELECT FROM dispatch_job WHERE id = $1 FOR UPDATE", id)
                await lane.sql("SET lock_timeout = '50ms'")
                with pytest.raises(Conflict):
                    await lane.jobs.settle([(claim, Complete(REPORT))])
        finally:
            await console.close()
        assert await lane.attempts(id) == []
        assert await lane.jobs.settle([(claim, Complete(REPORT))]) == {id}
