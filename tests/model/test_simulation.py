"""The engine under faults that no test could cause on demand, on virtual time. See `simulation.py`."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from tests.model.simulation import Plan, Run, plan_of, simulate
from tests.model.virtual_time import Process, Stuck, VirtualLoop, run_virtually
from tests.model.world import Weather

SEEDS = 300
STORMY = Weather(
    statement_fails=0.15,
    commit_unknown=0.1,
    statement_hangs=0.01,
    slow_send=0.1,
    reply_lost=0.05,
    deferred=0.2,
)


def explained(run: Run) -> str:
    return (
        f"seed {run.seed} (replay: python -m tests.model.simulation --first {run.seed} --seeds 1 --verbose)"
    )


@pytest.mark.slow
def test_no_seed_loses_a_row_or_settles_it_twice() -> None:
    figures = Counter[str]()
    for seed in range(SEEDS):
        run = simulate(plan_of(seed), seed)
        assert run.violations == [], explained(run)
        figures.update(event.kind for event in run.events)
        figures["doubles"] += run.doubles
    # The faults did happen: rows were rescued, late settlements refused, claims given back.
    assert figures["insert"] > SEEDS * 10
    for kind in ("rescue", "stale", "release", "requeue", "doubles"):
        assert figures[kind] > SEEDS / 20, kind


def test_without_a_fault_nothing_is_sent_twice_and_nothing_is_rescued() -> None:
    for seed in range(20):
        run = simulate(Plan(weather=Weather(deferred=0.2, busy=0.1, refused=0.05)), seed)
        assert run.violations == [], explained(run)
        assert (run.doubles, run.count("stale"), run.count("rescue")) == (0, 0, 0), explained(run)


@pytest.mark.slow
def test_a_rolling_deployment_sends_nothing_twice_and_leaves_no_lease_behind() -> None:
    released = 0
    for seed in range(20):
        run = simulate(Plan(restarts=0.3, weather=Weather(send_seconds=2.0), lease=60.0), seed)
        assert run.violations == [], explained(run)
        assert (run.doubles, run.count("rescue")) == (0, 0), explained(run)
        released += run.count("release")
    assert released > 0


@pytest.mark.slow
def test_a_grace_that_is_too_short_gives_back_what_is_under_way() -> None:
    given_back = sent_twice = 0
    for seed in range(20):
        plan = Plan(restarts=0.3, weather=Weather(send_seconds=6.0), lease=60.0, grace=0.1)
        events = simulate(plan, seed).events
        given_back += sum(event.kind == "release" for event in events)
        sent_twice += sum(event.kind == "rescue" for event in events)
    assert given_back > 0
    assert sent_twice == 0, "nobody has to wait for a lease to end"


@pytest.mark.slow
def test_a_crash_at_every_point_where_a_process_waits() -> None:
    """Before and after each statement and each send: claim, attempt, renew, settle, rescue, release."""
    plan = Plan(workers=2, rows=5, seconds=2.0, lease=1.5, weather=Weather(deferred=0.2, slow_send=0.3))
    points = simulate(plan, seed=3).awaits
    assert points > 80
    for point in range(points):
        run = simulate(replace(plan, crash_at=point), seed=3)
        assert run.violations == [], f"crash at point {point}: {explained(run)}"


@pytest.mark.slow
def test_a_worker_stopped_beyond_its_lease_writes_nothing() -> None:
    """R4: stopped like a zombie, then let go on, again and again."""
    stale = 0
    for seed in range(30):
        run = simulate(Plan(workers=3, pauses=0.2, weather=Weather(send_seconds=1.0), lease=1.5), seed)
        assert run.violations == [], explained(run)
        stale += run.count("stale")
    assert stale > 0, "some tried, and were refused"


@pytest.mark.slow
def test_a_database_that_fails_hangs_and_lies_about_commits_loses_nothing() -> None:
    for seed in range(30):
        run = simulate(Plan(weather=STORMY), seed)
        assert run.violations == [], explained(run)


@pytest.mark.slow
def test_a_step_of_the_databases_clock_loses_nothing() -> None:
    """R17: forwards ends leases early, backwards late; the processes' own clocks agree with nobody's."""
    for seed in range(30):
        run = simulate(Plan(clock_steps=0.2, weather=Weather(send_seconds=1.0)), seed)
        assert run.violations == [], explained(run)


# ── the test of the test ─────────────────────────────────────────────────────────────────────────


def test_a_store_without_a_fence_is_caught() -> None:
    plan = Plan(workers=3, pauses=0.2, weather=Weather(send_seconds=1.0), lease=1.5, fenced=False)
    violations = [violation for seed in range(10) for violation in simulate(plan, seed).violations]
    assert any("stale claim" in violation for violation in violations)


def test_a_seed_replays() -> None:
    for seed in (7, 11, 13):
        assert simulate(plan_of(seed), seed) == simulate(plan_of(seed), seed)


def test_the_virtual_clock_jumps_and_says_when_nothing_can_happen() -> None:
    async def sleep_for_a_week(loop: VirtualLoop) -> float:
        await asyncio.sleep(7 * 86400)
        return loop.time()

    assert run_virtually(sleep_for_a_week) == pytest.approx(7 * 86400)

    async def wait_for_nobody(loop: VirtualLoop) -> None:
        await loop.create_future()

    with pytest.raises(Stuck):
        run_virtually(wait_for_nobody)


def test_a_paused_process_stands_still_and_a_killed_one_writes_nothing() -> None:
    async def scenario(loop: VirtualLoop) -> list[tuple[str, float]]:
        ticks: list[tuple[str, float]] = []

        async def tick(name: str) -> None:
            while True:
                await asyncio.sleep(1)
                ticks.append((name, loop.time()))

        stopped, killed = Process("stopped", loop), Process("killed", loop)
        stopped.spawn(tick("stopped"))
        killed.spawn(tick("killed"))
        await asyncio.sleep(1.5)
        stopped.pause()
        killed.kill()
        await asyncio.sleep(10)
        stopped.resume()
        await asyncio.sleep(1.1)
        return ticks

    assert run_virtually(scenario) == [("stopped", 1), ("killed", 1), ("stopped", 11.5), ("stopped", 12.5)]
