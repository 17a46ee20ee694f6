"""Who gets how many slots, and who may go in: properties that hold whatever comes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.model.virtual_time import VirtualLoop, run_virtually

from homing.lanes.dispatch_jobs.target import LONGEST_TURN, Gate, Standing, Targets, Wish, endpoint_of, fill

# ── fill ─────────────────────────────────────────────────────────────────────────────────────────

numbers = st.integers(0, 40)
wishes = st.lists(st.tuples(numbers, numbers), max_size=30).map(
    lambda pairs: [Wish(f"t{n}", held, room) for n, (held, room) in enumerate(pairs)]
)


@given(st.integers(0, 400), wishes, st.randoms(use_true_random=False))
def test_all_that_is_free_is_shared_out_and_nobody_gets_more_than_fits(
    free: int, asked: list[Wish], rand: random.Random
) -> None:
    shares = fill(free, asked, rand.random)
    rooms = {wish.target: wish.room for wish in asked}
    assert all(0 < share <= rooms[target] for target, share in shares.items())
    assert sum(shares.values()) == min(free, sum(rooms.values()))


@given(st.integers(0, 400), wishes, st.randoms(use_true_random=False))
def test_nobody_gets_more_while_another_that_has_less_could_take_it(
    free: int, asked: list[Wish], rand: random.Random
) -> None:
    shares = fill(free, asked, rand.random)
    level = {wish.target: wish.held + shares.get(wish.target, 0) for wish in asked}
    given_to = [level[target] for target in shares]
    could_take_more = [level[w.target] for w in asked if shares.get(w.target, 0) < w.room]
    assert max(given_to, default=0) <= min(could_take_more, default=10_000) + 1


@given(st.integers(1, 20), st.integers(2, 60), st.integers(0, 2**32))
def test_what_does_not_go_round_is_drawn_by_lot_so_nobody_starves(free: int, count: int, seed: int) -> None:
    """With fewer slots than targets each gets its turn: after enough rounds all have had some."""
    rand = random.Random(seed)
    left = {f"t{n}" for n in range(count)}
    rounds = 0
    while left:
        left -= set(fill(free, [Wish(f"t{n}", 0, 5) for n in range(count)], rand.random))
        rounds += 1
        assert rounds < 60 * count


# ── share_out ────────────────────────────────────────────────────────────────────────────────────

NOW = 1000.0


@st.composite
def standings(draw: st.DrawFn) -> list[Standing]:
    found = []
    for n in range(draw(st.integers(0, 12))):
        ours = draw(st.integers(0, 15))
        found.append(
            Standing(
                f"t{n}",
                due=draw(st.booleans()),
                in_flight=ours + draw(st.integers(0, 10)),
                ours=ours,
                most_in_flight=draw(st.none() | st.integers(1, 20)),
                rate_per_second=draw(st.none() | st.just(5.0)),
            )
        )
    return found


def targets_with(
    speeds: Sequence[float | None], *, slots: int, connections: int, closed: set[str]
) -> Targets:
    """`None` has never been asked."""
    targets = Targets(
        slots=slots, connections=connections, monotonic=lambda: NOW, rand=random.Random(1).random
    )
    for n, seconds in enumerate(speeds):
        if seconds is not None:
            targets.gate(f"t{n}").seconds = seconds
    for name in closed:
        targets.gate(name).closed_until = NOW + 5
    return targets


speeds = st.lists(st.sampled_from([None, 0.0, 0.01, 0.3, 0.99, 1.0, 30.0]), min_size=12, max_size=12)


@given(
    standings(), speeds, st.integers(0, 120), st.integers(2, 120), st.integers(1, 30),
    st.sets(st.integers(0, 11).map("t{}".format), max_size=3),
)  # fmt: skip
def test_shares_keep_to_what_is_free_to_limits_and_to_the_half_of_the_slow(
    found: list[Standing],
    known: list[float | None],
    free: int,
    slots: int,
    connections: int,
    closed: set[str],
) -> None:
    targets = targets_with(known, slots=slots, connections=connections, closed=closed)
    shares = targets.share_out(free, found)
    by_name = {standing.target: standing for standing in found}
    assert sum(shares.values()) <= free
    slow = {s.target for n, s in enumerate(found) if (known[n] is None or (known[n] or 0) >= 1.0)}
    for target, share in shares.items():
        standing = by_name[target]
        assert share > 0
        assert standing.due
        assert target not in closed
        if standing.most_in_flight is not None:
            assert standing.in_flight + share <= standing.most_in_flight
        most = connections if target in slow else max(connections, slots)
        assert standing.ours + share <= most, "what can be sent at once, or what will be soon"
    held = sum(s.ours for s in found if s.target in slow)
    assert held + sum(shares.get(target, 0) for target in slow) <= max(held, slots // 2)


@given(st.integers(2, 200), st.integers(1, 50), st.integers(1, 30))
def test_the_quick_always_find_the_other_half(slots: int, connections: int, slow_ones: int) -> None:
    """However many slow targets want everything, and hold all that they may."""
    targets = Targets(slots=slots, connections=connections, monotonic=lambda: NOW)
    targets.gate("quick").seconds = 0.001
    crowd = [Standing(f"slow{n}", due=True, in_flight=0, ours=0) for n in range(slow_ones)]
    for standing in crowd:
        targets.gate(standing.target).seconds = 5.0
    assert sum(targets.share_out(slots, crowd).values()) <= slots // 2
    half = slots // 2
    held = [replace(s, ours=half // slow_ones + (n < half % slow_ones)) for n, s in enumerate(crowd)]
    quick = Standing("quick", due=True, in_flight=0, ours=0)
    shares = targets.share_out(slots - half, [*held, quick])
    assert shares == {"quick": slots - half}


async def entered(gate: Gate, loop: VirtualLoop) -> int:
    ticket = await gate.enter(loop.time)
    assert ticket is not None
    return ticket


def test_a_target_is_slow_while_it_keeps_somebody_waiting_and_after_it_did() -> None:
    async def scenario(loop: VirtualLoop) -> list[bool]:
        gate, seen = Gate(5), []
        seen.append(gate.is_quick(loop.time()))  # nobody knows it yet
        gate.leave(await entered(gate, loop), 0.01)
        seen.append(gate.is_quick(loop.time()))
        ticket = await entered(gate, loop)
        await asyncio.sleep(0.9)
        seen.append(gate.is_quick(loop.time()))
        await asyncio.sleep(0.2)
        seen.append(gate.is_quick(loop.time()))  # it has not answered for more than a second
        gate.leave(ticket, 1.1)
        seen.append(gate.is_quick(loop.time()))
        gate.leave(await entered(gate, loop), None)
        seen.append(gate.is_quick(loop.time()))  # it was not asked, so nothing was learnt
        return seen

    assert run_virtually(scenario) == [False, True, True, False, False, False]


def test_idle_targets_are_forgotten_when_there_are_very_many_and_pauses_are_not() -> None:
    targets = Targets(slots=10, connections=2, monotonic=lambda: NOW)
    targets.forget_above = 50
    targets.follow([Standing("paused", due=True, in_flight=0, ours=0, closed_for=60.0)])
    for n in range(500):
        targets.gate(f"t{n}")
        targets.close("t", f"https://t.example/{n}", 60)
    assert len(targets._gates) <= 51
    assert len(targets._closings) <= 51
    assert targets.closed_for("paused") == 60
    assert targets.admit("t", "https://t.example/499") == 60


def test_what_an_endpoint_said_counts_before_the_table_knows_and_then_the_table_does() -> None:
    now = 0.0
    targets = Targets(slots=10, connections=2, monotonic=lambda: now)
    url = "https://t.example/a"
    said = Standing("t", due=True, in_flight=0, ours=0, endpoint=endpoint_of(url))
    assert targets.close("t", url, 60)
    assert not targets.close("t", url, 60), "it is closed already"
    targets.follow([said])
    assert targets.admit("t", url) == 60, "the table has not heard of it yet"
    assert targets.admit("t", "https://t.example/b") == 0
    assert targets.share_out(10, [said]) == {"t": 2}
    now = 4.0
    targets.follow([said])
    assert targets.admit("t", url) == 0, "somebody has opened it again"
    targets.follow([replace(said, endpoint_closed_for=30.0)])
    assert targets.admit("t", f"{url}?x=1") == 30
    now = 35.0
    assert [targets.admit("t", url) > 0 for _ in range(3)] == [False, True, True], "one tries"
    targets.is_well("t", url)
    assert targets.admit("t", url) == 0


def test_a_target_is_closed_and_opened_as_the_table_says() -> None:
    targets = Targets(slots=10, connections=2, monotonic=lambda: NOW)
    said = Standing("t", due=True, in_flight=0, ours=0)
    targets.follow([replace(said, closed_for=30.0)])
    assert targets.closed_for("t") == 30.0
    assert targets.share_out(10, [said]) == {}


# ── the gate ─────────────────────────────────────────────────────────────────────────────────────


class Crowd:
    """Visitors of one gate, some of whom are called off at any moment; it counts who is inside."""

    def __init__(self, gate: Gate, loop: VirtualLoop, rand: random.Random) -> None:
        self._gate, self._loop, self._rand = gate, loop, rand
        self.inside = self.most = self.served = self.sent_back = self.called_off = 0

    async def visit(self) -> None:
        arrived = self._loop.time()
        ticket = await self._gate.enter(self._loop.time)
        if ticket is None:
            self.sent_back += 1
            assert self._loop.time() - arrived >= LONGEST_TURN - 1e-6, "not before its time"
            return
        assert self._loop.time() - arrived < LONGEST_TURN + 0.01, "it would have been sent back"
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await asyncio.sleep(self._rand.choice([0.0, 0.01, 0.3, 1.5]))
            self.served += 1
        finally:
            self.inside -= 1
            self._gate.leave(ticket, 0.1)

    async def run(self, visitors: int) -> None:
        tasks = []
        for _ in range(visitors):
            tasks.append(asyncio.create_task(self.visit()))
            await asyncio.sleep(self._rand.choice([0.0, 0.0, 0.001, 0.05, 0.25]))
            if self._rand.random() < 0.3:
                self._rand.choice(tasks).cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            self.called_off += isinstance(outcome, asyncio.CancelledError)
            assert outcome is None or isinstance(outcome, asyncio.CancelledError)


@pytest.mark.parametrize("seed", range(60))
def test_never_more_than_its_width_are_inside_and_no_place_is_lost(seed: int) -> None:
    rand = random.Random(seed)
    width = rand.randint(1, 4)

    async def scenario(loop: VirtualLoop) -> tuple[Crowd, bool, int]:
        gate = Gate(width)
        crowd = Crowd(gate, loop, rand)
        await crowd.run(60)
        was_idle = gate.idle
        # All places are there again: so many go in at once, and one more does not.
        inside = [asyncio.create_task(gate.enter(loop.time)) for _ in range(width + 1)]
        await asyncio.sleep(0.01)
        return crowd, was_idle, sum(task.done() for task in inside)

    crowd, was_idle, went_in = run_virtually(scenario)
    assert crowd.most <= width
    assert crowd.served + crowd.sent_back + crowd.called_off == 60
    assert was_idle
    assert went_in == width


def test_turns_are_handed_over_in_the_order_of_arrival() -> None:
    async def scenario(loop: VirtualLoop) -> list[int]:
        gate, order = Gate(1), list[int]()

        async def visit(id: int) -> None:
            ticket = await entered(gate, loop)
            order.append(id)
            await asyncio.sleep(0.01)
            gate.leave(ticket, 0.01)

        await asyncio.gather(*(visit(n) for n in range(20)))
        return order

    assert run_virtually(scenario) == list(range(20))


def test_who_waits_too_long_is_sent_back_at_its_own_time() -> None:
    async def scenario(loop: VirtualLoop) -> list[tuple[int | None, float]]:
        gate = Gate(1)
        await entered(gate, loop)

        async def visit(after: float) -> tuple[int | None, float]:
            await asyncio.sleep(after)
            return await gate.enter(loop.time), round(loop.time() - after, 2)

        return list(await asyncio.gather(*map(visit, (0.0, 0.4, 0.4, 2.0))))

    assert run_virtually(scenario) == [(None, LONGEST_TURN)] * 4


def test_who_is_called_off_at_the_moment_of_its_turn_hands_it_on() -> None:
    async def scenario(loop: VirtualLoop) -> tuple[bool, bool]:
        gate = Gate(1)
        inside = await entered(gate, loop)
        first, second = (asyncio.create_task(gate.enter(loop.time)) for _ in range(2))
        await asyncio.sleep(0)
        gate.leave(inside, 0.1)
        first.cancel()
        return await second is not None, await _was_cancelled(first)

    assert run_virtually(scenario) == (True, True)


def test_who_is_called_off_at_the_moment_it_is_sent_back_makes_no_place() -> None:
    async def scenario(loop: VirtualLoop) -> tuple[bool, bool]:
        gate = Gate(1)
        await entered(gate, loop)
        waiting = asyncio.create_task(gate.enter(loop.time))
        # The gate's own timer was set a step before this one, so that it is sent back just before.
        await asyncio.sleep(0)
        loop.call_at(LONGEST_TURN, waiting.cancel)
        await asyncio.sleep(LONGEST_TURN + 0.1)
        another = asyncio.create_task(gate.enter(loop.time))
        await asyncio.sleep(0.1)
        return await _was_cancelled(waiting), another.done()

    assert run_virtually(scenario) == (True, False), "the one place is still taken"


async def _was_cancelled(task: asyncio.Task[Any]) -> bool:
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


def test_whoever_leaves_gives_back_its_own_place_and_nobody_elses() -> None:
    """A job whose lease was lost may come back to this process while its old attempt still ends."""

    async def scenario(loop: VirtualLoop) -> tuple[bool, bool, bool]:
        gate = Gate(2)
        old = await entered(gate, loop)
        await asyncio.sleep(0.5)
        new = await entered(gate, loop)
        gate.leave(old, 0.1)
        await asyncio.sleep(0.6)
        is_quick = gate.is_quick(loop.time())
        was_idle = gate.idle
        gate.leave(new, 0.1)
        return is_quick, was_idle, gate.idle

    assert run_virtually(scenario) == (True, False, True)


# ── half-open breakers ───────────────────────────────────────────────────────────────────────────

URLS = {1: "https://t/a?page=1", 2: "https://t/a?page=2", 3: "https://t/b", 4: "https://t/c"}


def test_a_broken_target_is_tried_by_each_endpoint_before_any_tries_again() -> None:
    targets = Targets(slots=10, connections=1)
    broken = Standing("https://t:443", due=True, in_flight=0, ours=0, broken=True)
    # Of what is only in flight nobody knows how its target stands.
    held = Standing("https://t:443", due=False, in_flight=1, ours=1)
    for _ in range(3):
        tried = []
        for standing in (broken, held, broken):
            targets.follow([standing])
            tried.append(targets.pick_probe("https://t:443", URLS))
        assert sorted(tried) == [1, 3, 4], "the first of each endpoint"


def test_a_target_that_is_well_again_begins_anew() -> None:
    targets = Targets(slots=10, connections=1, rand=lambda: 0.0)
    assert [targets.pick_probe("https://t:443", URLS) for _ in range(2)] == [1, 3]
    targets.follow([Standing("https://t:443", due=True, in_flight=0, ours=0, broken=False)])
    assert targets.pick_probe("https://t:443", URLS) == 1
