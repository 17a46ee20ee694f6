"""Who is at work: what the tables say of it, on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from tests.jobs import job_bench
from tests.notifications import notification_bench
from tests.outbox import Bench, bench

from homing.app import Homing
from homing.brokers.router_reader import Reader
from homing.errors import InvalidRequest, NotFound
from homing.workers.model import Identity, LaneReport, Report, is_paused

ANN = Identity("ann:1", "ann", 1, "1.0", "first", ("mail_outbox",), serves=False)
REPORT = Report((LaneReport("mail_outbox", 3, 100, 40, 37),))


@pytest.fixture
async def lane(database_url: str) -> AsyncIterator[Bench]:
    async with bench(database_url) as opened:
        yield opened


async def beat(lane: Bench, who: Identity = ANN, state: Any = "running") -> None:
    await lane.homing.fleet.beat(who, state, REPORT, up_seconds=60.0)


async def silence(lane: Bench, seconds: float, name: str = "ann:1") -> None:
    """Let time pass for a process that is heard no more."""
    if lane.homing.database.dialect == "postgres":
        past = "now() - make_interval(secs => :s)"
    else:
        past = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', printf('%+.3f seconds', -:s))"
    statement = f"UPDATE homing_worker SET seen_at = {past} WHERE name = :name RETURNING name"
    assert await lane.sql(statement, s=seconds, name=name)


async def states(lane: Bench) -> dict[str, str]:
    return {worker.name: worker.state for worker in await lane.homing.fleet.workers()}


async def test_a_process_is_known_by_what_it_says(lane: Bench) -> None:
    await beat(lane)
    (worker,) = await lane.homing.fleet.workers()
    assert (worker.name, worker.host, worker.pid, worker.version) == ("ann:1", "ann", 1, "1.0")
    assert worker.lanes == ("mail_outbox",)
    assert not worker.serves
    assert worker.state == "running"
    assert worker.report == REPORT
    assert 59 < (worker.seen_at - worker.started_at).total_seconds() < 61
    assert worker.silent_seconds < 25


async def test_it_begins_once_and_anew_after_a_restart_under_the_same_name(lane: Bench) -> None:
    await beat(lane)
    (first,) = await lane.homing.fleet.workers()
    await lane.homing.fleet.beat(ANN, "running", REPORT, up_seconds=9000.0)
    (second,) = await lane.homing.fleet.workers()
    assert second.started_at == first.started_at
    assert second.seen_at >= first.seen_at
    await lane.homing.fleet.beat(
        msgspec.structs.replace(ANN, boot="second"), "running", REPORT, up_seconds=0.0
    )
    (third,) = await lane.homing.fleet.workers()
    assert third.started_at > first.started_at


async def test_who_is_silent_is_lost_and_who_said_goodbye_has_stopped(lane: Bench) -> None:
    for name in ("ann:1", "bo:2", "cy:3"):
        await beat(lane, msgspec.structs.replace(ANN, name=name))
    await beat(lane, msgspec.structs.replace(ANN, name="cy:3"), "stopped")
    for name in ("bo:2", "cy:3"):
        await silence(lane, 31, name)
    assert await states(lane) == {"ann:1": "running", "bo:2": "lost", "cy:3": "stopped"}
    assert list(await states(lane))[-1] == "cy:3", "those that stopped stand last"


async def test_the_old_are_forgotten_with_their_pauses(lane: Bench) -> None:
    fleet = lane.homing.fleet
    for name in ("ann:1", "bo:2", "cy:3", "dan:4"):
        await beat(lane, msgspec.structs.replace(ANN, name=name))
        await fleet.pause("worker", name, by="cli:eve")
    for name in ("cy:3", "dan:4"):
        await beat(lane, msgspec.structs.replace(ANN, name=name), "stopped")
    for name, seconds in (("ann:1", 80_000), ("bo:2", 90_000), ("cy:3", 3000), ("dan:4", 4000)):
        await silence(lane, seconds, name)
    await fleet.forget_the_old()
    assert await states(lane) == {"ann:1": "lost", "cy:3": "stopped"}
    assert [pause.name for pause in await fleet.pauses()] == ["ann:1", "cy:3"]


async def test_a_pause_names_who_asked_for_it_and_why(lane: Bench) -> None:
    fleet = lane.homing.fleet
    await beat(lane)
    assert await fleet.pause("lane", "mail_outbox", by="user:eve", reason="  the relay is moved  ")
    assert await fleet.pause("worker", "ann:1", by="cli:bo")
    assert not await fleet.pause("lane", "mail_outbox", by="user:mal"), "it is paused already"
    on_lane, on_worker = await fleet.pauses()
    assert (on_lane.scope, on_lane.name, on_lane.asked_by) == ("lane", "mail_outbox", "user:eve")
    assert on_lane.reason == "the relay is moved"
    (worker,) = await fleet.workers()
    assert worker.pause == on_worker
    assert await fleet.resume("lane", "mail_outbox")
    assert not await fleet.resume("lane", "mail_outbox")
    assert await fleet.pauses() == [on_worker]


async def test_what_does_not_exist_cannot_be_paused(lane: Bench) -> None:
    fleet = lane.homing.fleet
    with pytest.raises(InvalidRequest, match="there is no lane 'mails'; there are mail_outbox"):
        await fleet.pause("lane", "mails", by="cli:eve")
    with pytest.raises(NotFound, match="there is no worker bo:9"):
        await fleet.pause("worker", "bo:9", by="cli:eve")
    await beat(lane, state="stopped")
    with pytest.raises(InvalidRequest, match="has stopped"):
        await fleet.pause("worker", "ann:1", by="cli:eve")
    with pytest.raises(InvalidRequest, match="500 characters"):
        await fleet.pause("lane", "mail_outbox", by="cli:eve", reason="x" * 501)
    assert await fleet.pauses() == []


async def test_a_name_that_cannot_be_is_nobodys(lane: Bench) -> None:
    await beat(lane)
    await silence(lane, 60)
    fleet, odd = lane.homing.fleet, "an\x00n:1"
    with pytest.raises(NotFound):
        await lane.homing.operations.leases.release(odd)
    with pytest.raises(NotFound):
        await fleet.pause("worker", odd, by="cli:bo")
    await fleet.pause("worker", "ann:1", by="cli:bo", reason="for\x00 now")
    with pytest.raises(NotFound):
        await fleet.resume("worker", odd)
    assert [(pause.name, pause.reason) for pause in await fleet.pauses()] == [("ann:1", "for now")]


async def test_odd_words_of_a_message_or_a_mediator_make_nobody_silent(database_url: str) -> None:
    """The router warns in words that come from queues and other servers, and its process reports them."""
    async with bench(database_url, jobs_broker_url="memory://") as lane:
        router = lane.homing.router
        assert router is not None
        odd = "there is no pool a\x00b\ud800" + "x" * 100_000
        router._warn("unknown_pool", cast("Reader", SimpleNamespace(label="jobs")), odd)
        heartbeat = lane.homing.operations.heartbeat(["dispatch_jobs"], worked=[], serves=False)
        await heartbeat.begin()
        (worker,) = await lane.homing.fleet.workers()
        (warning,) = worker.report.warnings
        assert warning.detail.startswith("there is no pool a")
        assert len(warning.detail) <= 500


async def test_many_that_were_lost_hide_nobody_at_work(lane: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homing.workers.fleet._MOST_SHOWN", 3)
    for name in ("ann:1", "ann:2", "ann:3", "zoe:1"):
        await beat(lane, msgspec.structs.replace(ANN, name=name))
    for name in ("ann:1", "ann:2", "ann:3"):
        await silence(lane, 60, name)
    assert (await states(lane))["zoe:1"] == "running"
    assert not (await lane.homing.fleet.crew("mail_outbox")).is_idle


def test_a_stage_is_paused_with_its_lane_and_a_lane_not_with_its_stage() -> None:
    lane, stage, worker = ({("lane", "email_log")}, {("lane", "email_log:send")}, {("worker", "ann:1")})
    assert is_paused("ann:1", "email_log:send", frozenset(lane))
    assert is_paused("ann:1", "email_log:send", frozenset(stage))
    assert not is_paused("ann:1", "email_log:schedule", frozenset(stage))
    assert is_paused("ann:1", "open_events", frozenset(worker))
    assert not is_paused("bo:2", "open_events", frozenset(worker))


# ── leases ───────────────────────────────────────────────────────────────────────────────────────


async def claimed_by(lane: Bench, owner: str, ids: list[int]) -> None:
    for id in ids:
        await lane.sql("UPDATE mail_outbox SET locked_by = :o WHERE id = :id RETURNING id", o=owner, id=id)


async def test_leases_are_counted_by_worker_and_lane(lane: Bench) -> None:
    ids = await lane.insert(5)
    await lane.insert(1)
    assert len(await lane.outbox.claim(5)) == 5
    await claimed_by(lane, "ann:1", ids[:3])
    held = {(one.owner, one.lane): one for one in await lane.homing.operations.leases.held()}
    assert {key: one.count for key, one in held.items()} == {
        ("ann:1", "mail_outbox"): 3,
        (lane.homing.ground.owner, "mail_outbox"): 2,
    }
    assert held["ann:1", "mail_outbox"].ends_first is not None


async def test_what_a_lost_worker_holds_is_due_again_at_once_and_only_that(lane: Bench) -> None:
    leases = lane.homing.operations.leases
    ids = await lane.insert(5)
    claims = {claim.id: claim for claim in await lane.outbox.claim(5)}
    await claimed_by(lane, "ann:1", ids[:3])
    await beat(lane)
    with pytest.raises(InvalidRequest, match="finishes what it holds by itself"):
        await leases.release("ann:1")
    with pytest.raises(NotFound):
        await leases.release("bo:2")
    await silence(lane, 31)
    assert await leases.release("ann:1") == {"mail_outbox": 3}
    assert [(await lane.row(id))["status"] for id in ids] == ["queued"] * 3 + ["dispatching"] * 2
    assert await leases.release("ann:1") == {}
    # It was not gone, only cut off: what it says now is refused.
    assert await lane.outbox.renew([claims[id] for id in ids]) == set(ids[3:])


async def stopped(homing: Homing, name: str | None = None) -> str:
    who = msgspec.structs.replace(ANN, name=name or homing.ground.owner)
    await homing.fleet.beat(who, "stopped", REPORT, up_seconds=1.0)
    return who.name


async def test_emails_that_a_lost_scheduler_holds_are_published_by_the_next(lane: Bench) -> None:
    homing, store = lane.homing, lane.homing.email_schedule.lane.store
    await lane.sql(
        "INSERT INTO email_log (to_address, subject, body) VALUES ('a@b.c', 'Hi', 'Ho') RETURNING id"
    )
    assert len(await store.claim(1)) == 1
    assert await store.claim(1) == []
    assert [(one.lane, one.count) for one in await homing.operations.leases.held()] == [("email_log", 1)]
    assert await homing.operations.leases.release(await stopped(homing)) == {"email_log": 1}
    assert len(await store.claim(1)) == 1


async def test_notifications_that_a_lost_worker_holds_are_due(lane: Bench, database_url: str) -> None:
    """Another program's locks are its own: only ours is taken away."""
    async with notification_bench(database_url, owner="bo:2", migrated=False) as seats:
        ids = [await seats.notification() for _ in range(3)]
        await seats.other.change(ids[2], locked_by="bo:2", locked_at=datetime.now(UTC))
        assert len(await seats.notifications.claim(10)) == 2
        leases = lane.homing.operations.leases
        assert [(one.owner, one.count) for one in await leases.held()] == [("bo:2", 2)]
        assert await leases.release(await stopped(lane.homing, "bo:2")) == {"open_events": 2}
        assert {claim.id for claim in await seats.notifications.claim(10)} == set(ids[:2])


async def test_jobs_that_a_lost_worker_holds_are_due(jobs_database_url: str) -> None:
    async with job_bench(jobs_database_url) as lane:
        ids = await lane.create("http://127.0.0.1:9/hook", 3)
        assert len(await lane.claim(2)) == 2
        leases = lane.homing.operations.leases
        assert [(one.lane, one.count) for one in await leases.held()] == [("dispatch_jobs", 2)]
        assert await leases.release(await stopped(lane.homing)) == {"dispatch_jobs": 2}
        assert await lane.states(ids) == ["PENDING"] * 3
        assert await leases.held() == []
