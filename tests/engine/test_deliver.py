"""The deliverer: leases, lost leases, settlements in batches, the end of a process.

Where time matters it is virtual; where the database has to fail on demand it is scripted. What a real
SQLite can show is shown on one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.model.virtual_time import VirtualLoop, run_virtually
from tests.outbox import LogLines, bench

from homing.db import Query
from homing.engine.deliver import Deliverer
from homing.engine.model import (
    Bury,
    Claim,
    Complete,
    Delivered,
    Failure,
    Outcome,
    Reject,
    RetryIn,
    Settlement,
)
from homing.engine.policy import Exponential, Policy
from homing.errors import Conflict, Locked, Refused, Unreachable
from homing.senders.mail import MailMessage, SendResult
from homing.telemetry import Telemetry, make_logger

LEASE = 30.0


class ScriptedStore:
    """Owns every claim until it is told otherwise; `trouble` decides what a call raises."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self.due: list[Claim[str]] = []
        self.lost: set[int] = set()
        self.locked: set[int] = set()
        self.settled: dict[int, Settlement] = {}
        self.trouble: Callable[[str], Exception | None] = lambda _name: None
        self.hangs: set[str] = set()
        self.refuse: Callable[[Settlement], Exception | None] = lambda _settlement: None

    async def claim(self, limit: int) -> list[Claim[str]]:
        await self._arrive("claim", [])
        claims, self.due = self.due[:limit], self.due[limit:]
        return claims

    async def settle(self, batch: Sequence[tuple[Claim[str], Settlement]]) -> set[int]:
        await self._arrive("settle", [claim.id for claim, _ in batch])
        for _, settlement in batch:
            if (refusal := self.refuse(settlement)) is not None:
                raise refusal
        mine = {claim.id: settlement for claim, settlement in batch if claim.id not in self.lost}
        self.settled.update(mine)
        return set(mine)

    async def confirm(self, claims: Sequence[Claim[str]]) -> set[int]:
        return {claim.id for claim in claims if claim.id in self.settled}

    async def renew(self, claims: Sequence[Claim[str]]) -> set[int]:
        await self._arrive("renew", [claim.id for claim in claims])
        if self.locked & {claim.id for claim in claims}:
            raise Locked("somebody has the row open")
        return {claim.id for claim in claims} - self.lost - set(self.settled)

    async def release(self, claims: Sequence[Claim[str]]) -> set[int]:
        await self._arrive("release", [claim.id for claim in claims])
        return {claim.id for claim in claims} - self.lost

    async def rescue(self, limit: int) -> int:
        return 0

    async def claim_lost(self, limit: int) -> list[Claim[str]]:
        return []

    async def sweep(self, limit: int) -> Mapping[str, int]:
        return {}

    async def _arrive(self, name: str, ids: list[int]) -> None:
        self.calls.append((name, ids))
        await asyncio.sleep(0.001)
        if name in self.hangs:
            await asyncio.sleep(60)
            raise Unreachable("no answer within a minute")
        if (error := self.trouble(name)) is not None:
            raise error

    def named(self, name: str) -> list[list[int]]:
        return [ids for called, ids in self.calls if called == name]


class ScriptedLane:
    name = "scripted"
    lease_seconds = LEASE
    policy = Policy(5, Exponential(1, 10, 0.0))

    def policy_of(self, _claim: Claim[Any]) -> Policy:
        return self.policy

    def __init__(self, work: Callable[[Claim[str]], Awaitable[Outcome]]) -> None:
        self.store = ScriptedStore()
        self.started: list[int] = []
        self.aborted: list[int] = []
        self._work = work

    async def attempt(self, claim: Claim[str]) -> Outcome:
        self.started.append(claim.id)
        try:
            return await self._work(claim)
        except asyncio.CancelledError:
            self.aborted.append(claim.id)
            raise

    async def available(self) -> bool:
        return True

    def describe(self, claim: Claim[str], settlement: Settlement | None) -> Mapping[str, Any]:
        return {}


class Desk:
    """A deliverer on a scripted lane."""

    def __init__(
        self,
        work: Callable[[Claim[str]], Awaitable[Outcome]],
        *,
        concurrency: int = 10,
        slots: int = 100,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        self.log = LogLines()
        self.lane = ScriptedLane(work)
        self.store = self.lane.store
        self.deliverer = Deliverer(
            self.lane,
            Telemetry(make_logger("json", 10, self.log.stream)),
            concurrency=concurrency,
            slots=slots,
            monotonic=monotonic or asyncio.get_running_loop().time,
        )

    async def claim(self, count: int, first: int = 1) -> list[Claim[str]]:
        self.store.due += [Claim(number, 1, 0, "") for number in range(first, first + count)]
        return await self.deliverer.claim(count)


def lasting(seconds: float) -> Callable[[Claim[str]], Awaitable[Outcome]]:
    async def work(_claim: Claim[str]) -> Outcome:
        await asyncio.sleep(seconds)
        return Delivered()

    return work


def untimed(ends: Mapping[int, Settlement | None]) -> dict[int, Settlement | None]:
    """How long an attempt took is not what these tests are about."""
    return {id: replace(end, millis=None) if isinstance(end, Complete) else end for id, end in ends.items()}


def virtually(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main(_loop: VirtualLoop) -> None:
        await scenario()

    run_virtually(main)


# ── leases ───────────────────────────────────────────────────────────────────────────────────────


def test_leases_are_renewed_at_a_third_of_their_length_in_one_statement_for_everything_in_flight() -> None:
    async def scenario() -> None:
        desk = Desk(lasting(35), concurrency=3)
        claims = await desk.claim(5)
        await asyncio.sleep(LEASE - 1)
        assert desk.store.named("renew") == [[1, 2, 3, 4, 5]] * 2
        # Five sends of 35 s, three at a time: longer than two leases, and nobody loses one.
        assert set(untimed(await desk.deliverer.settled(claims)).values()) == {Complete(None)}
        assert desk.lane.aborted == []
        assert desk.store.named("renew")[3] == [4, 5], "what has ended is not renewed"

    virtually(scenario)


def test_a_lost_lease_aborts_the_attempt_and_writes_nothing() -> None:
    async def scenario() -> None:
        desk = Desk(lasting(25))
        claims = await desk.claim(2)
        desk.store.lost.add(1)
        ends = await desk.deliverer.settled(claims)
        assert untimed(ends) == {1: None, 2: Complete(None)}
        assert desk.lane.aborted == [1]
        assert desk.store.named("settle") == [[2]]
        assert [line["id"] for line in desk.log.all("lease.lost")] == [1]

    virtually(scenario)


def test_renewals_may_fail_twice_and_nothing_is_lost() -> None:
    async def scenario() -> None:
        desk = Desk(lasting(50))
        failures = iter([Unreachable("away"), Conflict("locked")])
        desk.store.trouble = lambda name: next(failures, None) if name == "renew" else None
        claims = await desk.claim(3)
        assert set(untimed(await desk.deliverer.settled(claims)).values()) == {Complete(None)}
        assert len(desk.log.all("lease.renewal_delayed")) == 2

    virtually(scenario)


def test_a_lease_that_could_not_be_renewed_in_time_is_given_up() -> None:
    async def scenario() -> None:
        desk = Desk(lasting(200))
        desk.store.trouble = lambda name: Unreachable("away") if name == "renew" else None
        claims = await desk.claim(3)
        assert set(untimed(await desk.deliverer.settled(claims)).values()) == {None}
        await asyncio.sleep(0)
        assert sorted(desk.lane.aborted) == [1, 2, 3]
        assert asyncio.get_running_loop().time() == pytest.approx(LEASE, abs=0.1)
        assert desk.store.named("settle") == []

    virtually(scenario)


@pytest.mark.parametrize("open_rows", [{2}, {1, 2, 7}])
def test_rows_that_somebody_has_open_cost_no_other_its_lease(open_rows: set[int]) -> None:
    async def scenario() -> None:
        desk = Desk(lasting(70))
        claims = await desk.claim(9)
        desk.store.locked |= open_rows
        ends = await desk.deliverer.settled(claims)
        assert untimed(ends) == {id: None if id in open_rows else Complete(None) for id in range(1, 10)}
        assert {*desk.lane.aborted} == open_rows

    virtually(scenario)


def test_a_renewal_that_hangs_does_not_hold_up_the_next_one() -> None:
    """A half-open connection answers after a minute or never; the lease is shorter than that."""

    async def scenario() -> None:
        desk = Desk(lasting(40))
        claims = await desk.claim(3)
        desk.store.hangs.add("renew")
        await asyncio.sleep(LEASE / 2)
        desk.store.hangs.clear()
        assert set(untimed(await desk.deliverer.settled(claims)).values()) == {Complete(None)}

    virtually(scenario)


def test_a_claim_whose_lease_is_over_is_not_attempted() -> None:
    """The process was stopped between the claim and the attempt, and did not notice."""

    async def scenario() -> None:
        stopped_for = 0.0
        loop = asyncio.get_running_loop()
        desk = Desk(lasting(1), concurrency=1, monotonic=lambda: loop.time() + stopped_for)
        claims = await desk.claim(3)
        await asyncio.sleep(0.5)
        stopped_for = LEASE
        ends = await desk.deliverer.settled(claims)
        assert desk.lane.started == [1]
        assert untimed(ends) == {1: Complete(None), 2: None, 3: None}, "the fence decides about the first"

    virtually(scenario)


@pytest.mark.parametrize("concurrency", [1, 10])
def test_a_row_that_comes_back_to_the_process_that_lost_it_is_sent_by_the_new_claim_alone(
    concurrency: int,
) -> None:
    async def scenario() -> None:
        desk = Desk(lasting(5), concurrency=concurrency)
        first = await desk.claim(2)
        old = asyncio.create_task(desk.deliverer.settled(first))
        await asyncio.sleep(1)
        again = [Claim(number, 2, 0, "") for number in (1, 2)]
        desk.deliverer.take(again, until=asyncio.get_running_loop().time() + LEASE)
        assert set(untimed(await desk.deliverer.settled(again)).values()) == {Complete(None)}
        assert await asyncio.wait_for(old, 1) == {1: None, 2: None}
        assert desk.lane.aborted == [1, 2][:concurrency]
        assert sum(map(len, desk.store.named("settle"))) == 2

    virtually(scenario)


# ── attempts ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_bug_in_an_attempt_costs_an_attempt_and_stops_nobody(sqlite_url: str) -> None:
    async with bench(sqlite_url) as opened:
        bad, good = await opened.insert(), await opened.insert(to_address="good@example.org")
        send = opened.sender.send

        async def explode(message: Any) -> Any:
            if "ann@example.org" in message.recipients:
                raise ZeroDivisionError("a secret")
            return await send(message)

        opened.sender.send = explode  # type: ignore[method-assign]
        ends = await opened.deliver()
        assert isinstance(ends[bad[0]], RetryIn)
        assert isinstance(ends[good[0]], Complete)
        row = await opened.row(bad[0])
        assert (row["status"], row["retry_count"]) == ("queued", 1)
        assert row["last_error"] == "internal_error: ZeroDivisionError"
        (line,) = opened.log.all("delivery.crashed")
        assert (line["id"], line["level"]) == (bad[0], "error")
        assert "a secret" not in opened.log.text


def test_no_more_run_at_once_than_allowed_and_the_rest_wait_in_order() -> None:
    async def scenario() -> None:
        running = most = 0

        async def work(_claim: Claim[str]) -> Outcome:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(1)
            running -= 1
            return Delivered()

        desk = Desk(work, concurrency=3)
        await desk.deliverer.settled(await desk.claim(10))
        assert most == 3
        assert desk.lane.started == list(range(1, 11))

    virtually(scenario)


def test_room_is_told_when_a_fifth_of_the_slots_is_free() -> None:
    async def scenario() -> None:
        desk = Desk(lasting(1), concurrency=1, slots=10)
        claims = await desk.claim(10)
        assert desk.deliverer.free == 0
        waiting = asyncio.create_task(desk.deliverer.has_room())
        await asyncio.sleep(1.5)
        assert (desk.deliverer.free, waiting.done()) == (1, False), (
            "a claim for one row costs as much as for two"
        )
        await asyncio.sleep(1)
        assert (desk.deliverer.free, waiting.done()) == (2, True)
        await desk.deliverer.settled(claims)
        assert desk.deliverer.free == 10

    virtually(scenario)


def test_one_that_claims_no_more_is_not_kept_waiting_for_room() -> None:
    async def scenario() -> None:
        desk = Desk(lasting(1000), concurrency=1, slots=1)
        await desk.claim(1)
        waiting = asyncio.create_task(desk.deliverer.has_room())
        await asyncio.sleep(0)
        assert not waiting.done()
        desk.deliverer.claim_no_more()
        await asyncio.wait_for(waiting, 1)
        await desk.deliverer.drain(0)

    virtually(scenario)


# ── settlements ──────────────────────────────────────────────────────────────────────────────────


async def test_settlements_are_written_in_batches(sqlite_url: str) -> None:
    """Counted at the database: claims, renewals and settlements of 400 mails."""
    async with bench(sqlite_url, mail_batch=400, mail_connections=50) as opened:
        await opened.sql(
            "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 400) "
            "INSERT INTO mail_outbox (to_address, text_body) SELECT 'a@b.example', 'b' FROM s RETURNING id"
        )
        statements = Counter[str]()
        fetch = opened.homing.database.fetch

        async def counted(query: Query, parameters: Mapping[str, Any]) -> Any:
            statements[query.name] += 1
            return await fetch(query, parameters)

        opened.homing.database.fetch = counted  # type: ignore[method-assign]
        ends = await opened.deliver(400)
        assert sum(isinstance(end, Complete) for end in ends.values()) == 400
        assert statements["claim"] == 1
        assert statements.total() <= 400 * 0.05, statements


def test_what_was_sent_is_settled_when_the_database_comes_back() -> None:
    async def scenario() -> None:
        desk = Desk(lasting(1))
        outage_ends = 25.0
        loop = asyncio.get_running_loop()
        desk.store.trouble = lambda name: (
            Unreachable("away") if name == "settle" and loop.time() < outage_ends else None
        )
        claims = await desk.claim(4)
        assert set(untimed(await desk.deliverer.settled(claims)).values()) == {Complete(None)}
        assert loop.time() == pytest.approx(outage_ends, abs=2.1), "the pause between tries has a limit"
        assert len(desk.log.all("settle.delayed")) < 25
        assert len(desk.log.all("delivery.attempted")) == 4

    virtually(scenario)


def test_settlements_that_arrive_during_an_outage_go_out_together_after_it() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        desk = Desk(lasting(1), concurrency=1)
        desk.store.trouble = lambda name: (
            Unreachable("away") if name == "settle" and loop.time() < 12 else None
        )
        await desk.deliverer.settled(await desk.claim(10))
        assert desk.store.named("settle")[-1] == list(range(2, 11))

    virtually(scenario)


@pytest.mark.parametrize(
    "error", [Refused("22P05"), UnicodeEncodeError("utf-8", "\udc80", 0, 1, "surrogates")]
)
def test_a_settlement_that_the_database_refuses_holds_up_nobody(error: Exception) -> None:
    async def scenario() -> None:
        async def work(claim: Claim[str]) -> Outcome:
            return Reject(Failure("refused", "poison" if claim.id == 2 else "no such user"))

        desk = Desk(work)
        desk.store.refuse = lambda s: (
            error if getattr(s, "failure", Failure("")).message == "poison" else None
        )
        ends = await desk.deliverer.settled(await desk.claim(3))
        assert {number for number, end in ends.items() if isinstance(end, Bury)} == {1, 2, 3}
        assert replace(desk.store.settled[2], millis=None) == Bury(Failure("refused"))
        assert replace(desk.store.settled[3], millis=None) == Bury(Failure("refused", "no such user"))

    virtually(scenario)


@pytest.mark.parametrize("error", [Refused("22P05"), Locked("somebody has the row open")])
@pytest.mark.parametrize("batch", [3, 1])
def test_a_settlement_that_can_never_be_written_holds_up_nobody(batch: int, error: Exception) -> None:
    """It goes on trying, row and lease stay ours, and all others are settled meanwhile, before and after."""

    async def scenario() -> None:
        async def work(claim: Claim[str]) -> Outcome:
            return Reject(Failure("poison" if claim.id == 1 else "refused"))

        desk = Desk(work)
        desk.store.refuse = lambda s: error if getattr(s, "failure", Failure("")).code == "poison" else None
        first = await desk.claim(batch)
        async with asyncio.timeout(60):
            await desk.deliverer.settled([claim for claim in first if claim.id != 1])
            await desk.deliverer.settled(await desk.claim(3, first=4))
        assert set(desk.store.settled) == {2, 3, 4, 5, 6} - set(range(batch + 1, 4))
        assert not desk.deliverer.idle
        desk.store.refuse = lambda _settlement: None
        await desk.deliverer.settled(first)
        assert 1 in desk.store.settled

    virtually(scenario)


def test_a_settlement_that_comes_too_late_is_reported_as_lost() -> None:
    async def scenario() -> None:
        desk = Desk(lasting(1))
        claims = await desk.claim(1)
        desk.store.lost.add(1)
        assert await desk.deliverer.settled(claims) == {1: None}
        (line,) = desk.log.all("delivery.attempted")
        assert (line["settled"], line["outcome"], line["level"]) == (False, "delivered", "warning")

    virtually(scenario)


# ── the end ──────────────────────────────────────────────────────────────────────────────────────


def test_a_drain_gives_back_what_waits_at_once_and_lets_finish_what_runs() -> None:
    async def scenario() -> None:
        desk = Desk(lasting(10), concurrency=2)
        claims = await desk.claim(5)
        ends = asyncio.create_task(desk.deliverer.settled(claims))
        await asyncio.sleep(1)
        draining = asyncio.create_task(desk.deliverer.drain(30))
        await asyncio.sleep(0.1)
        assert desk.store.named("release") == [[3, 4, 5]]
        await draining
        assert asyncio.get_running_loop().time() == pytest.approx(10, abs=0.1)
        assert untimed(await ends) == {1: Complete(None), 2: Complete(None), 3: None, 4: None, 5: None}
        assert desk.lane.started == [1, 2]

    virtually(scenario)


def test_a_drain_gives_back_what_outlasts_the_grace() -> None:
    async def scenario() -> None:
        async def work(claim: Claim[str]) -> Outcome:
            await asyncio.sleep(1 if claim.id == 1 else 500)
            return Delivered()

        desk = Desk(work)
        claims = await desk.claim(3)
        ends = asyncio.create_task(desk.deliverer.settled(claims))
        await asyncio.sleep(0.5)
        await desk.deliverer.drain(5)
        assert asyncio.get_running_loop().time() == pytest.approx(5.5, abs=0.1)
        assert untimed(await ends) == {1: Complete(None), 2: None, 3: None}
        assert desk.store.named("release") == [[2, 3]]
        assert desk.lane.aborted == [2, 3]
        assert len(desk.log.all("drain.grace_over")) == 1

    virtually(scenario)


def test_an_immediate_end_is_no_grace_that_is_over() -> None:
    async def scenario() -> None:
        desk = Desk(lasting(500))
        await desk.claim(1)
        draining = asyncio.create_task(desk.deliverer.drain(10))
        await asyncio.sleep(4)
        draining.cancel()
        await asyncio.wait({draining})
        await desk.deliverer.drain(0)
        assert desk.store.named("release") == [[1]]
        assert desk.log.all("drain.grace_over") == []
        assert [entry["in_flight"] for entry in desk.log.all("drain.stopped_now")] == [1]

    virtually(scenario)


def test_a_drain_in_an_outage_ends_in_time() -> None:
    async def scenario() -> None:
        desk = Desk(lasting(1), concurrency=2)
        await desk.claim(4)
        await asyncio.sleep(0.5)
        desk.store.trouble = lambda _name: Unreachable("away")
        await desk.deliverer.drain(5)
        assert asyncio.get_running_loop().time() < 0.5 + 5 + 2.5
        assert len(desk.log.all("release.failed")) == 1

    virtually(scenario)


def test_a_drain_does_not_wait_for_a_database_that_is_silent() -> None:
    async def scenario() -> None:
        desk = Desk(lasting(100), concurrency=2)
        await desk.claim(4)
        await asyncio.sleep(0.5)
        desk.store.hangs.add("release")
        await desk.deliverer.drain(8)
        assert asyncio.get_running_loop().time() == pytest.approx(0.5 + 8 + 5, abs=0.1)
        assert [line["error"] for line in desk.log.all("release.failed")] == ["no answer", "no answer"]

    virtually(scenario)


def test_a_drain_with_nothing_to_do_returns_at_once_and_stops_the_heartbeat() -> None:
    async def scenario() -> None:
        desk = Desk(lasting(1))
        await desk.deliverer.settled(await desk.claim(2))
        await desk.deliverer.drain(60)
        assert asyncio.get_running_loop().time() < 2
        await asyncio.sleep(LEASE)
        assert desk.store.named("renew") == []

    virtually(scenario)


async def test_a_drained_process_leaves_its_rows_as_if_it_had_never_been(sqlite_url: str) -> None:
    async with bench(sqlite_url, mail_connections=1, mail_batch=50) as opened:
        ids = await opened.insert(20)
        before = {one: (await opened.row(one))["next_attempt_at"] for one in ids}
        hold = asyncio.Event()

        async def stall(message: MailMessage) -> SendResult:
            await hold.wait()
            raise AssertionError("nobody lets it go on")

        opened.sender.send = stall  # type: ignore[method-assign]
        await opened.deliverer.claim(20)
        await opened.deliverer.drain(0)
        for one in ids:
            row = await opened.row(one)
            assert (row["status"], row["retry_count"], row["next_attempt_at"]) == ("queued", 0, before[one])
            assert (row["locked_by"], row["lease_expires_at"]) == (None, None)
