"""The history of attempts is complete: also of claims whose worker never said what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.jobs import JobBench, eventually, job_bench, job_benches

from homing.engine.model import Claim, Complete, Failure, RetryIn, Settlement
from homing.lanes.dispatch_jobs.job import Job, Report
from homing.testing.http_sink import Answer, HttpSink

URL = "https://partner.example/hooks"
SUCCESS = Complete(Report(0.5, 204, "fine", {"server": "x"}))
FAILED = RetryIn(90.0, Failure("http_500", "HTTP 500"), report=Report(0.25, 500, "oops", {}))
LOST = ("FAILURE", "worker_died", "outcome unknown: worker lost", True)


@pytest.fixture
async def lane(database_url: str) -> AsyncIterator[JobBench]:
    async with job_bench(database_url) as opened:
        yield opened


def told(attempt: dict[str, Any]) -> tuple[Any, ...]:
    unknown = bool(attempt["unknown"])
    return attempt["status"], attempt["error_class"], attempt["error_message"], unknown


async def lose(lane: JobBench, id: int) -> Any:
    """Somebody claims it and is never heard of again."""
    claim = await lane.jobs.claim_one(id)
    assert claim is not None
    await lane.pass_time(1000, only=id)
    await lane.homing.webhooks.maintenance.rescue()
    return claim


@pytest.mark.clause("JOB-30")
async def test_a_claim_that_ended_by_rescue_leaves_one_attempt(lane: JobBench) -> None:
    (id,) = await lane.create(URL)
    claim = await lane.jobs.claim_one(id)
    assert claim is not None
    held = await lane.row(id)
    await lane.pass_time(1000, only=id)
    assert await lane.jobs.rescue(10) == 1
    (attempt,) = await lane.attempts(id)
    assert told(attempt) == LOST
    assert (attempt["attempt_number"], attempt["claim_seq"]) == (1, claim.fence)
    assert attempt["worker"] == held["locked_by"]
    assert attempt["attempted_at"] == held["updated_at"], "when it was claimed"
    row = await lane.row(id)
    assert (row["status"], row["attempt_count"], row["rescue_count"]) == ("PENDING", 1, 1)
    assert row["last_attempt_at"] == held["updated_at"]
    assert await lane.jobs.rescue(10) == 0
    await lane.attempts_add_up()


@pytest.mark.clause("JOB-30")
async def test_lost_claims_do_not_count_towards_max_retries(lane: JobBench) -> None:
    (id,) = await lane.create(URL, max_retries=2)
    for _ in range(3):
        await lose(lane, id)
    for expected in ("FAILED", "ERROR"):
        await lane.make_due()
        claim = await lane.jobs.claim_one(id)
        assert claim is not None
        assert claim.attempts == (expected == "ERROR")
        async with HttpSink(lambda _: Answer(status=500)) as sink:
            await lane.change(id, target_url=sink.url)
            lane.deliverer.take([claim], until=lane.deliverer._monotonic() + 60)
            await lane.deliverer.settled([claim])
        assert await lane.states([id]) == [expected]
    assert [a["attempt_number"] for a in await lane.attempts(id)] == [1, 2, 3, 4, 5]
    await lane.attempts_add_up()


@pytest.mark.clause("JOB-30")
async def test_from_the_fourth_loss_on_it_counts_and_is_one_row_of_the_lost_claim(lane: JobBench) -> None:
    (id,) = await lane.create(URL, max_retries=2)
    lost = [await lose(lane, id) for _ in range(3)]
    row = await lane.row(id)
    assert row["attempt_count"] == row["attempts_before"] == 3
    claim = await lane.jobs.claim_one(id)
    assert claim is not None
    held = await lane.row(id)
    await lane.pass_time(1000, only=id)
    await lane.homing.webhooks.maintenance.rescue()
    row = await lane.row(id)
    assert (row["status"], row["attempt_count"] - row["attempts_before"]) == ("FAILED", 1)
    attempts = await lane.attempts(id)
    assert [told(a) for a in attempts] == [LOST] * 4
    assert [a["claim_seq"] for a in attempts] == [one.fence for one in (*lost, claim)]
    assert attempts[3]["worker"] == held["locked_by"]
    assert attempts[3]["attempted_at"] == held["updated_at"]
    assert await lane.jobs.settle([(claim, SUCCESS)]) == set()
    assert [a["status"] for a in await lane.attempts(id)] == ["FAILURE"] * 3 + ["SUCCESS"]
    await lane.make_due()
    await lose(lane, id)
    assert await lane.states([id]) == ["ERROR"], "a job that kills its workers ends"
    await lane.attempts_add_up()


@pytest.mark.clause("JOB-30")
async def test_a_late_result_replaces_the_row_of_its_claim_and_nothing_else(lane: JobBench) -> None:
    (id,) = await lane.create(URL)
    stale = await lose(lane, id)
    await lose(lane, id)
    before = await lane.row(id)
    for _ in range(2):
        assert await lane.jobs.settle([(stale, SUCCESS)]) == set(), "the job is another's by now"
        first, second = await lane.attempts(id)
        assert (first["status"], first["response_code"], first["response_body"]) == ("SUCCESS", 204, "fine")
        assert (first["error_class"], first["error_message"], bool(first["unknown"])) == (None, None, False)
        assert (first["attempt_number"], first["duration_millis"]) == (1, 500)
        assert told(second) == LOST
    await lane.jobs.settle([(stale, FAILED)])
    assert (await lane.attempts(id))[0]["status"] == "SUCCESS", "what is known stays"
    assert await lane.row(id) | {"now": 0} == before | {"now": 0}
    await lane.attempts_add_up()


@pytest.mark.clause("JOB-30")
async def test_an_attempt_on_a_job_that_was_changed_meanwhile_is_recorded(lane: JobBench) -> None:
    (id,) = await lane.create(URL)
    claim = await lane.jobs.claim_one(id)
    assert claim is not None
    await lane.change(id, status="CANCELLED")
    for _ in range(2):
        assert await lane.jobs.settle([(claim, SUCCESS)]) == set()
    row = await lane.row(id)
    assert (row["status"], row["attempt_count"], row["completed_at"]) == ("CANCELLED", 1, None)
    (attempt,) = await lane.attempts(id)
    assert (attempt["status"], attempt["response_code"]) == ("SUCCESS", 204)
    assert (attempt["attempt_number"], attempt["claim_seq"]) == (1, claim.fence)
    await lane.attempts_add_up()


@pytest.mark.clause("JOB-30")
async def test_late_results_of_several_claims_of_one_job_get_a_number_each(lane: JobBench) -> None:
    (id,) = await lane.create(URL)
    claims = []
    for _ in range(3):
        claim = await lane.jobs.claim_one(id)
        assert claim is not None
        claims.append(claim)
        await lane.change(id, status="PENDING")
    # The last is still its own: somebody put it back, and claimed it again.
    last = await lane.jobs.claim_one(id)
    assert last is not None
    batch: list[tuple[Claim[Job], Settlement]] = [
        (claims[1], SUCCESS),
        (claims[0], FAILED),
        (last, SUCCESS),
        (claims[2], FAILED),
    ]
    assert await lane.jobs.settle(batch) == {id}
    attempts = await lane.attempts(id)
    assert sorted(a["claim_seq"] for a in attempts) == [1, 2, 3, 4]
    assert await lane.states([id]) == ["COMPLETED"]
    await lane.attempts_add_up()


@pytest.mark.clause("JOB-30")
async def test_what_was_never_sent_is_no_attempt(lane: JobBench) -> None:
    (id,) = await lane.create(URL)
    claim = await lane.jobs.claim_one(id)
    assert claim is not None
    await lane.change(id, status="CANCELLED")
    busy = RetryIn(1.0, Failure("target_busy", "busy"), charged=False)
    assert await lane.jobs.settle([(claim, busy)]) == set()
    assert await lane.attempts(id) == []


@pytest.mark.clause("JOB-30")
async def test_a_stop_past_its_grace_leaves_an_attempt_of_what_was_sent_only(lane: JobBench) -> None:
    async with HttpSink(lambda _: Answer(delay=300)) as sink:
        (sent,) = await lane.create(sink.url)
        (waiting,) = await lane.create(sink.url)
        claims = {claim.id: claim for claim in await lane.claim()}
        lane.deliverer._concurrency = 1
        until = lane.deliverer._monotonic() + 60
        lane.deliverer.take([claims[sent], claims[waiting]], until=until)
        await sink.received(1)
        await lane.deliverer.drain(0.05)
    (attempt,) = await lane.attempts(sent)
    assert told(attempt) == LOST
    assert attempt["claim_seq"] == claims[sent].fence
    assert attempt["worker"]
    assert await lane.attempts(waiting) == []
    rows = [await lane.row(id) for id in (sent, waiting)]
    assert [row["status"] for row in rows] == ["PENDING"] * 2
    assert [row["attempt_count"] - row["attempts_before"] for row in rows] == [0, 0]
    await lane.attempts_add_up()


@pytest.mark.clause("JOB-30")
async def test_the_history_has_each_request_that_the_receiver_saw(database_url: str) -> None:
    """The first process is stopped past its grace, the second delivers."""
    async with job_benches(database_url, 2) as (first, second), HttpSink() as sink:
        sink.script = lambda _: Answer(delay=300) if sink.count < 1 else None
        (id,) = await first.create(sink.url)
        await first.deliverer.run_batch(1)
        await sink.received(1)
        await first.deliverer.drain(0.05)
        await second.run_batch()
        assert sink.count == 2
        attempts = await second.attempts(id)
        assert [(a["status"], a["worker"]) for a in attempts] == [
            ("FAILURE", "process-0"), ("SUCCESS", "process-1"),
        ]  # fmt: skip
        assert await second.states([id]) == ["COMPLETED"]
        await second.attempts_add_up()


@pytest.mark.clause("JOB-30")
async def test_an_attempt_that_is_aborted_because_somebody_changed_its_job_is_recorded(
    database_url: str,
) -> None:
    """The lease is found lost at the next renewal, while the receiver has the request already."""
    async with (
        HttpSink(lambda _: Answer(delay=300)) as sink,
        job_bench(database_url, jobs_lease_seconds=3) as lane,
    ):
        (id,) = await lane.create(sink.url)
        await lane.deliverer.run_batch(1)
        await sink.received(1)
        await lane.change(id, status="CANCELLED")

        async def recorded() -> list[Any]:
            return await lane.attempts(id)

        await eventually(recorded)
        (attempt,) = await lane.attempts(id)
        assert (attempt["status"], bool(attempt["unknown"])) == ("FAILURE", True)
        assert attempt["error_message"].startswith("outcome unknown")
        assert await lane.states([id]) == ["CANCELLED"]
        await lane.attempts_add_up()


@pytest.mark.clause("JOB-30")
async def test_a_rescue_and_a_late_result_at_once_leave_one_row(database_url: str) -> None:
    async with job_benches(database_url, 3) as benches:
        ids = await benches[0].create(URL, 20)
        claims = await benches[0].claim()
        await benches[0].pass_time(1000)
        await asyncio.gather(
            benches[1].jobs.rescue(100),
            benches[0].jobs.settle([(claim, SUCCESS) for claim in claims]),
            benches[2].jobs.settle([(claim, SUCCESS) for claim in claims[::-1]]),
        )
        for id in ids:
            (attempt,) = await benches[0].attempts(id)
            assert attempt["status"] == "SUCCESS"
        await benches[0].attempts_add_up()


@pytest.mark.clause("JOB-30")
async def test_after_a_hundred_attempts_too(lane: JobBench) -> None:
    """MongoDB keeps those elsewhere."""
    (id,) = await lane.create(URL, max_retries=1000)
    for _ in range(100):
        claim = await lane.jobs.claim_one(id)
        assert claim is not None
        await lane.jobs.settle([(claim, FAILED)])
        await lane.change(id, next_attempt_at=await lane.tables.now())
    stale = await lose(lane, id)
    claim = await lane.jobs.claim_one(id)
    assert claim is not None
    await lane.change(id, status="CANCELLED")
    await lane.jobs.settle([(claim, FAILED), (stale, SUCCESS)])
    assert [a["status"] for a in (await lane.attempts(id))[-2:]] == ["SUCCESS", "FAILURE"]
    assert (await lane.row(id))["attempt_count"] == 102
    await lane.attempts_add_up()
