"""The room that large messages share: in turn, nobody has more than half, and nothing is lost of it."""

from __future__ import annotations

import asyncio
import random

from homing.engine.room import Room


class Visits:
    """Who is inside, and who was."""

    def __init__(self, limit: int) -> None:
        self.room = Room(limit)
        self.inside: list[str] = []
        self.most = 0

    def begin(self, name: str, size: int, party: str | None = None) -> asyncio.Task[None]:
        return asyncio.create_task(self._visit(name, size, party or name))

    async def _visit(self, name: str, size: int, party: str) -> None:
        async with self.room.take(party, size):
            self.inside.append(name)
            self.most = max(self.most, self.room.held)
            try:
                await asyncio.Event().wait()
            finally:
                self.inside.remove(name)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def leave(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await settle()


async def test_as_many_as_fit_are_let_in_and_the_others_in_turn() -> None:
    visits = Visits(100)
    tasks = [visits.begin(name, 40) for name in "abcd"]
    await settle()
    assert visits.inside == ["a", "b"]
    await leave(tasks[0])
    assert visits.inside == ["b", "c"]
    await leave(*tasks)
    assert (visits.inside, visits.room.held, visits.most) == ([], 0, 80)


async def test_one_party_has_half_at_most_and_is_passed_by() -> None:
    visits = Visits(100)
    tasks = [visits.begin(name, 20, "slow") for name in ("s1", "s2", "s3")]
    tasks.append(visits.begin("other", 50))
    await settle()
    assert visits.inside == ["s1", "s2", "other"], "although there would have been room for s3 before"
    await leave(*tasks)


async def test_what_is_larger_than_all_the_room_goes_alone() -> None:
    visits = Visits(100)
    small, large, last = visits.begin("small", 1), visits.begin("large", 1000), visits.begin("last", 1)
    await settle()
    assert visits.inside == ["small"], "who needs more is not overtaken for ever"
    await leave(small)
    assert visits.inside == ["large"]
    await leave(large)
    assert visits.inside == ["last"]
    await leave(last)


async def test_whoever_is_called_off_takes_nothing_along() -> None:
    rand, visits = random.Random(1), Visits(100)
    tasks: list[asyncio.Task[None]] = []
    for number in range(500):
        tasks.append(visits.begin(str(number), rand.randint(1, 60), rand.choice("abc")))
        if rand.random() < 0.7:
            tasks.pop(rand.randrange(len(tasks))).cancel()
        if rand.random() < 0.5:
            await asyncio.sleep(0)
    assert visits.most <= 100
    await leave(*tasks)
    assert (visits.inside, visits.room.held, len(visits.room._line)) == ([], 0, 0)
    assert not visits.room._held_by
