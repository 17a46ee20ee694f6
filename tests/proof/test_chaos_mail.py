"""Crashes, in the short form of `homing chaos mail`; and that the checker sees what it is there to see."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from homing.engine.deliver import Deliverer
from homing.engine.maintenance import Maintenance
from homing.engine.model import Claim, Complete, Delivered, Outcome, Settlement
from homing.engine.policy import Exponential, Policy
from homing.errors import Unreachable
from homing.proof.chaos.checker import Evidence, Fault, Settled, Testimony, Verdict, check
from homing.proof.chaos.mail import Plan, run_mail
from homing.proof.chaos.processes import Delivery
from homing.proof.chaos.table import End, Held
from homing.proof.chaos.waiting import until
from homing.telemetry import Telemetry
from homing.testing.components.postgres import PostgresServer

# ── real processes ───────────────────────────────────────────────────────────────────────────────


def assert_kept(verdict: Verdict) -> None:
    broken = [check for check in verdict.checks if not check.passed]
    assert not broken, f"{broken}\n{verdict.figures}"


@pytest.mark.slow
@pytest.mark.clause("OUT-13")
async def test_killed_workers_lose_nothing_on_postgres(postgres_url: str, tmp_path: Path) -> None:
    plan = Plan(mails=1500, workers=4, kills=8, stops=0, lease=2.0, seed=1)
    verdict = (await run_mail(plan, postgres_url, tmp_path)).verdict
    assert_kept(verdict)
    assert verdict.figures["rescues"] >= verdict.figures["in_flight_taken_over"] > 0


@pytest.mark.slow
@pytest.mark.clause("OUT-13")
async def test_killed_workers_lose_nothing_on_sqlite(sqlite_url: str, tmp_path: Path) -> None:
    plan = Plan(mails=500, workers=3, kills=4, stops=0, lease=2.0, seed=2)
    assert_kept((await run_mail(plan, sqlite_url, tmp_path)).verdict)


@pytest.mark.slow
async def test_worker_that_was_stopped_beyond_its_lease_settles_nothing(
    postgres_url: str, tmp_path: Path
) -> None:
    plan = Plan(mails=400, workers=2, kills=0, stops=2, lease=2.0, seed=3)
    verdict = (await run_mail(plan, postgres_url, tmp_path)).verdict
    assert_kept(verdict)
    figures = verdict.figures
    assert figures["stops"] == 2
    assert figures["stale_claims"] > 0
    assert figures["stale_settles_refused"] + figures["leases_noticed_lost"] >= figures["stale_claims"]


@pytest.mark.slow
async def test_workers_outlive_crashes_of_postgres(private_postgres: PostgresServer, tmp_path: Path) -> None:
    url = private_postgres.create_database("chaos")
    plan = Plan(mails=300, workers=2, kills=0, stops=0, restarts=2, lease=2.0, seed=4)
    verdict = (await run_mail(plan, url, tmp_path, restart=private_postgres.restart)).verdict
    assert_kept(verdict)
    assert verdict.figures["restarts"] == 2


# ── the checker ──────────────────────────────────────────────────────────────────────────────────

ADDRESSES = ("a@x.example", "b@x.example")
ROW = End(1, "sent", ADDRESSES[0], "t1", 1, 0, 0, has_sent_at=True)
ROWS = (ROW, End(2, "sent", ADDRESSES[1], "t2", 1, 0, 0, has_sent_at=True))
MAILS = (Delivery((ADDRESSES[0],), "<t1@x>"), Delivery((ADDRESSES[1],), "<t2@x>"))
WORDS = (Settled((1, 1), took_effect=True, completes=True), Settled((2, 1), took_effect=True, completes=True))
GOOD = Evidence(ADDRESSES, ROWS, MAILS, (), Testimony(WORDS))
HELD = Held(1, 1, "host:1", ADDRESSES[0])
TAKEN_OVER = replace(ROW, claim_seq=2)
BY_THE_SECOND = (replace(WORDS[0], claim=(1, 2)), WORDS[1])


def broken(evidence: Evidence) -> set[str]:
    return {found.name for found in check(evidence).checks if not found.passed}


def test_a_run_without_faults_passes() -> None:
    verdict = check(GOOD)
    assert verdict.passed
    assert verdict.figures["arrived"] == 2
    assert verdict.figures["duplicated"] == 0


def test_a_double_is_allowed_once_for_each_claim_that_was_interrupted() -> None:
    evidence = replace(
        GOOD,
        ends=(TAKEN_OVER, ROWS[1]),
        deliveries=(*MAILS, MAILS[0]),
        testimony=Testimony(BY_THE_SECOND),
        faults=(Fault("kill", (HELD,), 1),),
    )
    assert check(evidence).passed
    thrice = replace(evidence, deliveries=(*MAILS, MAILS[0], MAILS[0]))
    assert broken(thrice) == {"doubles within what was in flight"}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"deliveries": MAILS[:1]}, "lost"),
        ({"ends": ROWS[:1], "deliveries": MAILS[:1], "testimony": Testimony(WORDS[:1])}, "lost"),
        ({"deliveries": (*MAILS, Delivery(("c@x.example",), "<t3@x>"))}, "unexpected"),
        ({"deliveries": (*MAILS, MAILS[0])}, "doubles within what was in flight"),
        ({"ends": (replace(ROW, status="dispatching"), ROWS[1])}, "left in dispatching"),
        ({"ends": (replace(ROW, status="failed"), ROWS[1])}, "all sent"),
        ({"ends": (replace(ROW, has_sent_at=False), ROWS[1])}, "all sent"),
        ({"testimony": Testimony((*WORDS, WORDS[0]))}, "settled more than once"),
        ({"ends": (TAKEN_OVER, ROWS[1])}, "settled more than once"),
        ({"faults": (Fault("stop", (HELD,), stale=((1, 1),)),)}, "settled by a stale claim"),
        ({"deserters": ("worker-001: 1",)}, "workers that ended by themselves"),
        ({"wanted_hits": 1}, "kills that hit mail in flight"),
        ({"faults": (Fault("kill", (HELD,), recovery=9.0),), "recovery_limit": 8.0}, "recovery"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_found(change: Mapping[str, Any], found: str) -> None:
    assert found in broken(replace(GOOD, **change))


def test_a_double_with_another_message_id_is_found() -> None:
    evidence = replace(
        GOOD, deliveries=(*MAILS, Delivery((ADDRESSES[0],), "<t1@y>")), faults=(Fault("kill", (HELD,)),)
    )
    assert broken(evidence) == {"doubles with another Message-ID"}


# ── what the runs have found ─────────────────────────────────────────────────────────────────────


class Shelf:
    """A lane of numbers and its store, in memory: attempts wait until they are let go."""

    name = "shelf"
    policy = Policy(5, Exponential(30, 3600, 0.2))
    lease_seconds = 60.0

    def __init__(self) -> None:
        self.store = self
        self.let_go = asyncio.Event()
        self.done: set[int] = set()

    def policy_of(self, _claim: Claim[int]) -> Policy:
        return self.policy

    async def attempt(self, claim: Claim[int]) -> Outcome:
        await self.let_go.wait()
        return Delivered()

    async def settle(self, batch: list[tuple[Claim[int], Settlement]]) -> set[int]:
        self.done |= {claim.id for claim, settlement in batch if isinstance(settlement, Complete)}
        return {claim.id for claim, _ in batch}

    async def confirm(self, claims: list[Claim[int]]) -> set[int]:
        return set()

    async def renew(self, claims: list[Claim[int]]) -> set[int]:
        return {claim.id for claim in claims}

    async def release(self, claims: list[Claim[int]]) -> set[int]:
        return {claim.id for claim in claims}

    def describe(self, claim: Claim[int], settlement: Settlement | None) -> Mapping[str, Any]:
        return {}


async def test_a_claim_lost_before_its_attempt_began_gives_its_place_back() -> None:
    """A task that is cancelled before its first step runs none of its own code, no `finally` either."""
    shelf = Shelf()
    lane: Any = shelf
    deliverer = Deliverer(lane, Telemetry(), concurrency=1, slots=4)
    deliverer.take([Claim(1, 1, 0, 0)], until=float("inf"))
    # No step of the loop lies between the start of the attempt and the loss.
    deliverer._lose(deliverer._flights[1])
    deliverer.take([Claim(2, 1, 0, 0)], until=float("inf"))
    shelf.let_go.set()
    async with asyncio.timeout(60):
        await deliverer.finished()
    assert shelf.done == {2}
    await deliverer.drain(1)


class Interrupted(Shelf):
    """A store that is out of reach at first."""

    lease_seconds = 0.05

    def __init__(self) -> None:
        super().__init__()
        self.rounds = 0
        self.rescued_in: list[int] = []

    async def rescue(self, limit: int) -> int:
        if self.rounds == 0:
            self.rounds = 1
            raise Unreachable("the database is away")
        self.rescued_in.append(self.rounds)
        return 0

    async def claim_lost(self, limit: int) -> list[Claim[int]]:
        return []

    async def sweep(self, limit: int) -> Mapping[str, int]:
        self.rounds += 1
        return {}

    async def has_gone_on(self) -> bool:
        return self.rounds >= 5

    async def has_rescued(self) -> bool:
        return bool(self.rescued_in)


async def test_after_an_outage_the_living_may_settle_before_anything_is_rescued() -> None:
    """Their leases ended while it was away; taken back at once, what they sent would go out twice."""
    store = Interrupted()
    lane: Any = store
    now = 100.0
    running = asyncio.create_task(Maintenance(lane, Telemetry(), monotonic=lambda: now).run())
    assert await until(store.has_gone_on, 60)
    assert store.rescued_in == [], "other rounds go on"
    now += 5.0
    assert await until(store.has_rescued, 60)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
