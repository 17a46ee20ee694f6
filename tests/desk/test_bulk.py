"""Bulk runs: what they change, how they are stopped, and what is left when a process dies in the middle."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from tests.desk.bulk import ANN, Act, BulkBench, bulk_bench
from tests.desk.bulk_process import LEASE

from homing.desk.bulk import Asker, BulkRun
from homing.desk.query import LONGEST_LINE
from homing.errors import Forbidden, InvalidRequest, NotFound, Refused, Unreachable
from homing.messages.model import HowMany, Verb

DEAD = "status:dead lane:mail_outbox"


@pytest.fixture
async def desk_on_sqlite(sqlite_url: str) -> AsyncIterator[BulkBench]:
    """For what does not depend on the database."""
    async with bulk_bench(sqlite_url) as bench:
        yield bench


# ── what is changed ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.clause("JOB-25")
async def test_a_run_changes_all_that_its_line_means_and_nothing_else(desk: BulkBench) -> None:
    await desk.mails(2600)
    await desk.mails(30, error="invalid_recipient: no mailbox here")
    await desk.mails(20, status="cancelled", error=None)
    run = await desk.runs.start(f"{DEAD} error:timeout", "requeue", ANN)
    assert (run.state, run.total, run.is_over) == ("counting", None, False)
    assert await desk.runner().once()
    assert await desk.states() == {"queued": 2600, "failed": 30, "cancelled": 20}
    ended = await desk.now(run.id)
    assert (ended.state, ended.total, ended.is_estimate) == ("done", 2600, False)
    assert (ended.done, ended.skipped, ended.failed) == (2600, 0, 0)
    assert ended.share == 1.0
    assert ended.seconds_left is None
    assert ended.speed is not None
    assert not await desk.runner().once(), "it is over"


async def test_its_beginning_and_its_end_are_in_the_audit_log_with_the_figures(desk: BulkBench) -> None:
    await desk.mails(7)
    run = await desk.runs.start(DEAD, "requeue", ANN)
    await desk.runner().once()
    begun, ended = await desk.told()
    assert (begun.who, begun.action, begun.object) == ("user:ann", "bulk.start", f"bulk_{run.id}")
    assert (begun.address, begun.outcome) == ("127.0.0.1", "done")
    assert begun.detail == {"verb": "requeue", "query": DEAD, "lanes": ["mail_outbox"]}
    assert (ended.who, ended.action, ended.object) == ("user:ann", "bulk.end", f"bulk_{run.id}")
    figures = {"state": "done", "total": 7, "done": 7, "skipped": 0, "failed": 0}
    assert ended.detail is not None
    assert figures.items() <= ended.detail.items()


async def test_a_run_ends_though_more_messages_die_meanwhile(desk: BulkBench) -> None:
    """It means what was there when it was ordered."""
    await desk.mails(5)
    run = await desk.runs.start(DEAD, "requeue", ANN)
    later = datetime.now(UTC) + timedelta(minutes=1)
    await desk.mails(3)
    moment = later if desk.homing.database.dialect == "postgres" else later.isoformat()
    await desk.sql("UPDATE mail_outbox SET created_at = :at WHERE id > 5 RETURNING id", at=moment)
    await desk.runner().once()
    assert (await desk.now(run.id)).done == 5
    assert await desk.states() == {"queued": 5, "failed": 3}


async def test_a_run_goes_through_every_lane_that_has_such_messages(desk: BulkBench) -> None:
    await desk.mails(3)
    await desk.sql(
        "INSERT INTO email_log (to_address, subject, body, status, dead_reason) "
        "VALUES ('ann@example.org', 'Hi', 'Hello.', 'Dead', 'InvalidRecipient') RETURNING id"
    )
    counted = await desk.runs.count(desk.runs.read("status:dead"), "requeue", ANN.may)
    assert {name: count for name, count in counted.lanes.items() if count} == {
        "mail_outbox": 3,
        "email_log": 1,
    }
    run = await desk.runs.start("status:dead", "requeue", ANN)
    await desk.runner().once()
    assert (await desk.now(run.id)).done == 4
    assert [row["status"] for row in await desk.sql("SELECT status FROM email_log")] == ["Pending"]


async def test_what_is_not_in_a_state_for_the_verb_is_left_alone(desk: BulkBench) -> None:
    await desk.mails(4)
    await desk.mails(2, status="queued", error=None)
    counted = await desk.runs.count(desk.runs.read("lane:mail_outbox"), "cancel", ANN.may)
    assert (counted.total, counted.is_estimate) == (2, False)
    await desk.runs.start("lane:mail_outbox", "cancel", ANN)
    await desk.runner().once()
    assert await desk.states() == {"failed": 4, "cancelled": 2}


async def test_what_moved_on_before_its_turn_is_skipped(desk_on_sqlite: BulkBench) -> None:
    desk = desk_on_sqlite
    await desk.mails(10)

    async def somebody_else_is_quicker(act: Act, verb: Verb, numbers: Sequence[int]) -> Sequence[int]:
        await act(verb, numbers[:4])
        return await act(verb, numbers)

    runs = desk.troubled(somebody_else_is_quicker)
    run = await runs.start(DEAD, "requeue", ANN)
    await desk.runner(runs).once()
    ended = await desk.now(run.id)
    assert (ended.done, ended.skipped) == (6, 4)


async def test_a_row_that_its_database_refuses_does_not_hold_up_the_others(desk_on_sqlite: BulkBench) -> None:
    desk = desk_on_sqlite
    await desk.mails(20)

    async def seven_is_odd(act: Act, verb: Verb, numbers: Sequence[int]) -> Sequence[int]:
        if 7 in numbers:
            raise Refused("not this one")
        return await act(verb, numbers)

    runs = desk.troubled(seven_is_odd)
    run = await runs.start(DEAD, "requeue", ANN)
    await desk.runner(runs).once()
    ended = await desk.now(run.id)
    assert (ended.state, ended.done, ended.failed, ended.last_error) == ("done", 19, 1, "not this one")
    assert await desk.states() == {"queued": 19, "failed": 1}


# ── who may ──────────────────────────────────────────────────────────────────────────────────────


def with_scopes(*scopes: str) -> Asker:
    return Asker("key:abc", lambda scope: scope in {"desk:read", *scopes})


async def test_every_lane_that_a_line_touches_has_to_be_allowed(desk_on_sqlite: BulkBench) -> None:
    desk = desk_on_sqlite
    await desk.mails(1)
    mails_only = with_scopes("mail:read", "mail:operate")
    with pytest.raises(Forbidden, match=r"jobs:read; name the lanes"):
        await desk.runs.start("status:dead", "requeue", mails_only)
    with pytest.raises(Forbidden, match="mail:operate"):
        await desk.runs.start(DEAD, "requeue", with_scopes("mail:read"))
    with pytest.raises(Forbidden, match="mail:read"):
        await desk.runs.count(desk.runs.read(DEAD), "requeue", with_scopes("mail:operate").may)
    with pytest.raises(Forbidden, match="desk:read"):
        await desk.runs.count(desk.runs.read(DEAD), "requeue", lambda scope: scope != "desk:read")
    refused = [(entry.action, entry.outcome) for entry in await desk.told()]
    assert refused == [("bulk.start", "refused")] * 2
    assert not await desk.runs.page()
    run = await desk.runs.start(DEAD, "requeue", mails_only)
    with pytest.raises(Forbidden):
        await desk.runs.cancel(run.id, with_scopes("mail:read"))
    assert (await desk.now(run.id)).state == "counting"


async def test_a_line_that_means_everything_or_nothing_is_refused_in_words(desk_on_sqlite: BulkBench) -> None:
    runs = desk_on_sqlite.runs
    with pytest.raises(InvalidRequest, match="every message"):
        await runs.start("  ", "requeue", ANN)
    with pytest.raises(InvalidRequest, match="nothing that can be cancelled"):
        await runs.start("status:delivered", "cancel", ANN)
    with pytest.raises(InvalidRequest, match="query: "):
        await runs.start("tpye:x", "requeue", ANN)
    with pytest.raises(NotFound):
        await runs.cancel(99, ANN)


async def test_ages_in_a_line_are_fixed_when_the_run_is_ordered(desk_on_sqlite: BulkBench) -> None:
    desk = desk_on_sqlite
    await desk.mails(1)
    run = await desk.runs.start(f"{DEAD} since:2h", "requeue", ANN)
    wanted = desk.runs.read(run.query)
    assert wanted.since is not None
    assert "since:2h" not in run.query
    assert abs(wanted.since - (run.created_at - timedelta(hours=2))) < timedelta(minutes=1)


# ── stopped ──────────────────────────────────────────────────────────────────────────────────────


class Turnstile:
    """Lets batches through one at a time, when it is told."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.go = asyncio.Semaphore(0)

    async def __call__(self, act: Act, verb: Verb, numbers: Sequence[int]) -> Sequence[int]:
        self.arrived.set()
        await self.go.acquire()
        return await act(verb, numbers)


async def test_a_cancelled_run_stops_after_the_batch_that_is_under_way(desk: BulkBench) -> None:
    await desk.mails(3000)
    turnstile = Turnstile()
    runs = desk.troubled(turnstile)
    run = await runs.start(DEAD, "requeue", ANN)
    doing = asyncio.create_task(desk.runner(runs).once())
    await turnstile.arrived.wait()
    stopped = await desk.runs.cancel(run.id, ANN)
    assert (stopped.state, stopped.is_over, stopped.finished_at) == ("cancelled", True, None)
    turnstile.go.release()
    await asyncio.wait_for(doing, 50)
    ended = await desk.now(run.id)
    changed = (await desk.states())["queued"]
    assert (ended.state, ended.done, ended.skipped) == ("cancelled", changed, 0)
    assert 0 < changed < 3000
    assert ended.finished_at is not None
    actions = [(entry.action, (entry.detail or {}).get("done")) for entry in await desk.told()]
    assert actions == [("bulk.start", None), ("bulk.cancel", None), ("bulk.end", changed)]


async def test_a_run_that_is_looking_is_stopped_at_once(desk_on_sqlite: BulkBench) -> None:
    """Counting may take long; nobody waits for its end."""
    desk = desk_on_sqlite
    await desk.mails(1)
    runs = desk.troubled(Turnstile())
    looking = asyncio.Event()

    async def for_ever(*_arguments: Any, **_options: Any) -> HowMany:
        looking.set()
        await asyncio.Event().wait()
        return HowMany(0)

    runs.lanes["mail_outbox"].count = for_ever  # type: ignore[method-assign]  # one that takes long
    run = await runs.start(DEAD, "requeue", ANN)
    doing = asyncio.create_task(desk.runner(runs).once())
    await looking.wait()
    await desk.runs.cancel(run.id, ANN)
    ended = await desk.until(run.id, lambda run: run.finished_at is not None)
    assert (ended.state, ended.processed) == ("cancelled", 0)
    await doing


async def test_a_run_that_nobody_has_taken_up_is_ended_by_whoever_finds_it(desk: BulkBench) -> None:
    await desk.mails(2)
    run = await desk.runs.start(DEAD, "requeue", ANN)
    await desk.runs.cancel(run.id, ANN)
    assert await desk.runner().once()
    assert (await desk.now(run.id)).finished_at is not None
    assert await desk.states() == {"failed": 2}
    again = await desk.runs.cancel(run.id, ANN)
    assert again.state == "cancelled"
    assert [entry.action for entry in await desk.told()] == ["bulk.start", "bulk.cancel", "bulk.end"]


# ── left and taken up ────────────────────────────────────────────────────────────────────────────


async def test_a_process_that_stops_leaves_its_run_to_another_at_once(desk: BulkBench) -> None:
    await desk.mails(3000)
    turnstile = Turnstile()
    runs = desk.troubled(turnstile)
    run = await runs.start(DEAD, "requeue", ANN)
    first = desk.runner(runs)
    doing = asyncio.create_task(first.run())
    await turnstile.arrived.wait()
    first.stop()
    turnstile.go.release()
    await asyncio.wait_for(doing, 50)
    part = await desk.now(run.id)
    assert part.state == "running"
    assert 0 < part.done < 3000
    assert await desk.runner().once()
    ended = await desk.now(run.id)
    assert (ended.state, ended.done, ended.skipped) == ("done", 3000, 0)


async def test_what_a_process_did_before_it_died_is_counted_by_the_next(desk: BulkBench) -> None:
    """It died after the batch and before it had written down what came of it."""
    await desk.mails(2500)

    async def die(act: Act, verb: Verb, numbers: Sequence[int]) -> Sequence[int]:
        await act(verb, numbers)
        raise asyncio.CancelledError

    runs = desk.troubled(die)
    run = await runs.start(DEAD, "requeue", ANN)
    with pytest.raises(asyncio.CancelledError):
        await desk.runner(runs, lease_seconds=0.0).once()
    assert (await desk.now(run.id)).done == 0
    assert (await desk.states())["queued"] == 1000
    await desk.until_free(run.id)
    assert await desk.runner().once()
    ended = await desk.now(run.id)
    assert (ended.state, ended.total, ended.done, ended.skipped) == ("done", 2500, 2500, 0)


async def test_a_process_that_is_killed_in_the_middle_is_followed_by_another(
    desk: BulkBench, database_url: str
) -> None:
    await desk.mails(6000)
    run = await desk.runs.start(DEAD, "requeue", ANN)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.desk.bulk_process", database_url, env={**os.environ}
    )
    try:
        part = await desk.until(run.id, lambda run: run.done > 0)
    finally:
        process.kill()
        await process.wait()
    assert part.state == "running", "it was met in the middle"
    assert (await desk.states())["failed"] > 0
    doing = asyncio.create_task(taken_up(desk, run.id))
    ended = await asyncio.wait_for(doing, 50)
    assert (ended.state, ended.total, ended.done, ended.skipped) == ("done", 6000, 6000, 0)
    assert await desk.states() == {"queued": 6000}
    assert [entry.action for entry in await desk.told()] == ["bulk.start", "bulk.end"]


async def taken_up(desk: BulkBench, id: int) -> BulkRun:
    """By whoever comes when the lease of the dead is over."""
    runner = desk.runner(lease_seconds=LEASE)
    while not await runner.once():
        await asyncio.sleep(0.05)
    return await desk.now(id)


async def test_two_processes_do_not_do_one_run_at_once(desk: BulkBench) -> None:
    await desk.mails(10)
    turnstile = Turnstile()
    runs = desk.troubled(turnstile)
    run = await runs.start(DEAD, "requeue", ANN)
    doing = asyncio.create_task(desk.runner(runs).once())
    await turnstile.arrived.wait()
    assert not await desk.runner().once()
    turnstile.go.release()
    await doing
    assert (await desk.now(run.id)).done == 10


async def test_a_database_that_is_away_puts_a_run_off(desk_on_sqlite: BulkBench) -> None:
    desk = desk_on_sqlite
    await desk.mails(10)

    async def away(act: Act, verb: Verb, numbers: Sequence[int]) -> Sequence[int]:
        raise Unreachable("cannot reach it")

    runs = desk.troubled(away)
    run = await runs.start(DEAD, "requeue", ANN)
    await desk.runner(runs).once()
    put_off = await desk.now(run.id)
    assert (put_off.state, put_off.last_error, put_off.done) == ("running", "cannot reach it", 0)
    assert not await desk.runner().once(), "it is too soon"
    await desk.sql(
        "UPDATE homing_bulk_run SET lease_expires_at = created_at WHERE id = :id RETURNING id", id=run.id
    )
    assert await desk.runner().once()
    assert (await desk.now(run.id)).done == 10


async def test_a_line_that_its_database_refuses_fails_at_once(
    desk_on_sqlite: BulkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To try it again would change nothing."""
    desk = desk_on_sqlite

    async def refused(*_arguments: Any, **_named: Any) -> Any:
        raise Refused("it does not take a value")

    monkeypatch.setattr(desk.runs.lanes["mail_outbox"], "numbers", refused)
    run = await desk.runs.start(DEAD, "requeue", ANN)
    assert await desk.runner().once()
    ended = await desk.now(run.id)
    assert (ended.state, ended.last_error) == ("failed", "it does not take a value")
    assert ended.finished_at is not None


async def test_a_bug_ends_a_run_and_says_so(desk_on_sqlite: BulkBench) -> None:
    desk = desk_on_sqlite
    await desk.mails(1)

    async def buggy(act: Act, verb: Verb, numbers: Sequence[int]) -> Sequence[int]:
        raise ZeroDivisionError

    runs = desk.troubled(buggy)
    run = await runs.start(DEAD, "requeue", ANN)
    assert await desk.runner(runs).once()
    ended = await desk.now(run.id)
    assert (ended.state, ended.last_error) == ("failed", "a bug: ZeroDivisionError; the log has more")
    assert [(entry.action, entry.outcome) for entry in await desk.told()] == [
        ("bulk.start", "done"),
        ("bulk.end", "failed"),
    ]


# ── figures ──────────────────────────────────────────────────────────────────────────────────────

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
HALF = BulkRun(
    1, "requeue", DEAD, ("mail_outbox",), "user:ann", BEGUN, "running", 1000, False, 400, 80, 20, BEGUN,
    BEGUN + timedelta(seconds=10), None, None,
)  # fmt: skip


def test_progress_speed_and_time_left() -> None:
    assert (HALF.share, HALF.speed, HALF.seconds_left) == (0.5, 50.0, 10.0)
    counting = replace(HALF, state="counting", total=None, done=0, skipped=0, failed=0, started_at=None)
    assert (counting.share, counting.speed, counting.seconds_left) == (None, None, None)
    over = replace(HALF, state="cancelled", finished_at=HALF.updated_at)
    assert (over.is_over, over.share, over.seconds_left) == (True, 0.5, None)
    nothing = replace(HALF, total=0, done=0, skipped=0, failed=0)
    assert nothing.share == 1.0
    more = replace(HALF, total=100, is_estimate=True)
    assert (more.share, more.seconds_left) == (1.0, 0.0)


async def test_a_line_that_nobody_could_take_up_is_refused_when_it_is_ordered(desk: BulkBench) -> None:
    """A time is written out in it, which makes it longer than what was typed."""
    words = " ".join(f"{n:02d}{'x' * 121}" for n in range(16))
    line = f"status:failed since:2h {words}"[: LONGEST_LINE - 2]
    assert len(line) == LONGEST_LINE - 2
    with pytest.raises(InvalidRequest, match="longer than 2,000 characters"):
        await desk.runs.start(line, "requeue", ANN)
    assert await desk.told() == []
