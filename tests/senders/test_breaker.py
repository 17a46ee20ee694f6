"""The breaker, on a clock that only we move."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.senders.breaker import Breaker


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Target:
    """What is probed, and how often."""

    def __init__(self, *, reachable: bool = False) -> None:
        self.reachable = reachable
        self.probes = 0

    async def probe(self) -> bool:
        self.probes += 1
        return self.reachable


def fail(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        breaker.failed()


def is_open(breaker: Breaker) -> bool:
    return not breaker.closed


async def test_it_opens_after_failures_in_a_row() -> None:
    clock, target = Clock(), Target()
    breaker = Breaker(clock, threshold=3)
    fail(breaker, 2)
    breaker.succeeded()
    fail(breaker, 2)
    assert not is_open(breaker)
    assert await breaker.available(target.probe)
    breaker.failed()
    assert is_open(breaker)
    assert not await breaker.available(target.probe)
    assert target.probes == 0


async def test_the_cooldown_doubles_up_to_its_limit() -> None:
    clock, target = Clock(), Target()
    breaker = Breaker(clock, threshold=1, cooldown=1, longest=10)
    breaker.failed()
    waits = []
    for _ in range(6):
        waits.append(breaker.wait)
        clock.now += breaker.wait
        assert not await breaker.available(target.probe)
    assert waits == [1, 2, 4, 8, 10, 10]
    assert target.probes == 6


async def test_a_probe_closes_it_on_trial() -> None:
    clock, target = Clock(), Target(reachable=True)
    breaker = Breaker(clock, threshold=5, cooldown=1)
    fail(breaker, 5)
    clock.now += 1
    assert await breaker.available(target.probe)
    assert not is_open(breaker)
    breaker.failed()
    assert is_open(breaker)
    assert breaker.wait == 2
    clock.now += 2
    assert await breaker.available(target.probe)
    breaker.succeeded()
    fail(breaker, 4)
    assert not is_open(breaker)
    breaker.failed()
    assert breaker.wait == 1


async def test_only_one_probe_at_a_time() -> None:
    clock = Clock()
    breaker = Breaker(clock, threshold=1)
    breaker.failed()
    clock.now += 1
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def probe() -> bool:
        return await answer

    probing = asyncio.create_task(breaker.available(probe))
    await asyncio.sleep(0)
    assert not await breaker.available(probe)
    answer.set_result(True)
    assert await probing


async def test_a_cancelled_probe_leaves_the_next_one_free() -> None:
    clock = Clock()
    breaker = Breaker(clock, threshold=1)
    breaker.failed()
    clock.now += 1
    probing = asyncio.create_task(breaker.available(asyncio.Event().wait))
    await asyncio.sleep(0)
    probing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probing
    assert await breaker.available(Target(reachable=True).probe)


async def test_a_success_on_the_way_closes_it() -> None:
    clock = Clock()
    breaker = Breaker(clock, threshold=1)
    breaker.failed()
    clock.now += 1

    async def probe() -> bool:
        breaker.succeeded()
        return False

    assert await breaker.available(probe)


@given(st.lists(st.sampled_from(["fail", "succeed"]), max_size=60), st.integers(1, 6))
def test_it_is_open_exactly_after_a_run_of_failures(events: list[str], threshold: int) -> None:
    breaker = Breaker(Clock(), threshold=threshold)
    run = 0
    for event in events:
        run = run + 1 if event == "fail" else 0
        (breaker.failed if event == "fail" else breaker.succeeded)()
        assert breaker.closed == (run < threshold)
