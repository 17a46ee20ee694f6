"""Many small writes become few large ones; nobody waits for company, and nobody is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from homing.engine.coalesce import Batched, Coalescer
from homing.errors import Conflict, DatabaseError, Unreachable


class Gate:
    """A flush that is held until it is let through."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = asyncio.Event()

    async def flush(self, batch: Sequence[int]) -> None:
        self.batches.append(list(batch))
        await self.open.wait()


async def test_a_lone_entry_goes_out_at_once_and_the_next_batch_takes_all_that_waited() -> None:
    gate = Gate()
    coalescer: Coalescer[int] = Coalescer(gate.flush)
    coalescer.put(1)
    await asyncio.sleep(0)
    assert gate.batches == [[1]]
    for entry in range(2, 50):
        coalescer.put(entry)
    assert gate.batches == [[1]], "one flush at a time"
    gate.open.set()
    await coalescer.drained()
    assert gate.batches == [[1], list(range(2, 50))]


async def test_a_batch_has_a_limit_and_order_is_kept() -> None:
    gate = Gate()
    gate.open.set()
    coalescer: Coalescer[int] = Coalescer(gate.flush, limit=3)
    for entry in range(8):
        coalescer.put(entry)
    await coalescer.drained()
    assert gate.batches == [[0, 1, 2], [3, 4, 5], [6, 7]]


async def test_drained_waits_for_what_is_put_while_it_waits() -> None:
    gate = Gate()
    coalescer: Coalescer[int] = Coalescer(gate.flush)
    coalescer.put(1)
    drained = asyncio.create_task(coalescer.drained())
    await asyncio.sleep(0)
    coalescer.put(2)
    gate.open.set()
    await drained
    assert gate.batches == [[1], [2]]


async def test_a_cancelled_wait_for_the_end_does_not_cancel_the_writing() -> None:
    gate = Gate()
    coalescer: Coalescer[int] = Coalescer(gate.flush)
    coalescer.put(1)
    waiting = asyncio.create_task(coalescer.drained())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    coalescer.put(2)
    gate.open.set()
    await coalescer.drained()
    assert gate.batches == [[1], [2]]


async def test_calls_that_arrive_together_share_one_call_and_get_their_own_answers() -> None:
    calls: list[list[int]] = []

    async def double(numbers: Sequence[int]) -> list[int]:
        calls.append(list(numbers))
        await asyncio.sleep(0)
        return [number * 2 for number in numbers]

    batched: Batched[int, int] = Batched(double)
    assert await asyncio.gather(*(batched(number) for number in range(100))) == [n * 2 for n in range(100)]
    assert len(calls) <= 2


async def test_a_bad_entry_fails_alone() -> None:
    async def refuse_three(numbers: Sequence[int]) -> list[int]:
        await asyncio.sleep(0)
        if 3 in numbers:
            raise DatabaseError("three is refused")
        return list(numbers)

    batched: Batched[int, int] = Batched(refuse_three)
    answers = await asyncio.gather(*(batched(number) for number in range(6)), return_exceptions=True)
    assert [answer for answer in answers if not isinstance(answer, DatabaseError)] == [0, 1, 2, 4, 5]
    assert isinstance(answers[3], DatabaseError)


async def test_a_batch_that_lost_a_lock_is_tried_again_one_by_one() -> None:
    calls: list[int] = []

    async def conflict_once(numbers: Sequence[int]) -> list[int]:
        calls.append(len(numbers))
        await asyncio.sleep(0)
        if len(numbers) > 1:
            raise Conflict("another process was first; nothing was written")
        return list(numbers)

    batched: Batched[int, int] = Batched(conflict_once)
    assert await asyncio.gather(*(batched(number) for number in range(4))) == [0, 1, 2, 3]
    assert calls == [4, 1, 1, 1, 1]


async def test_a_batch_whose_outcome_is_unknown_is_not_repeated() -> None:
    """The connection was lost after the commit, perhaps: repeating it would order every mail twice."""
    written: list[int] = []

    async def commit_and_hang_up(numbers: Sequence[int]) -> list[int]:
        written.extend(numbers)
        await asyncio.sleep(0)
        raise Unreachable("the connection was closed in the middle of operation")

    batched: Batched[int, int] = Batched(commit_and_hang_up)
    answers = await asyncio.gather(*(batched(number) for number in range(5)), return_exceptions=True)
    assert all(isinstance(answer, Unreachable) for answer in answers)
    assert written == [0, 1, 2, 3, 4]


async def test_a_caller_that_gave_up_harms_nobody() -> None:
    release = asyncio.Event()

    async def wait(numbers: Sequence[int]) -> list[int]:
        await release.wait()
        return list(numbers)

    batched: Batched[int, int] = Batched(wait)
    first, second = asyncio.create_task(batched(1)), asyncio.create_task(batched(2))
    await asyncio.sleep(0)
    first.cancel()
    release.set()
    assert await second == 2
    assert await batched(3) == 3
