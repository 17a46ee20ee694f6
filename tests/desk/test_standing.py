"""Counts for pages: never waited for, bounded at first, with their age; the exact ones follow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, cast

import pytest
from tests.desk.rows import Bench, bench
from tests.http.pages.visitor import door_with_people, visiting
from tests.plans import Plan

from homing.db import Query
from homing.db.backlog import Snapshot
from homing.db.lately import Lately
from homing.db.walking import counted_up_to
from homing.desk import bulk, standing
from homing.desk.standing import Standing
from homing.lanes.mail_outbox.desk_conditions import LAYOUT
from homing.messages.model import HowMany, LaneDesk, LaneName, Phase, Wanted
from homing.messages.searched import BY_INDEX

MANY = "INSERT INTO mail_outbox (to_address, status) SELECT 'a@b.c', '{}' FROM generate_series(1, {});"


class SlowLane:
    """It counts as long as it is told to."""

    name: LaneName = "mail_outbox"
    phases: Mapping[str, Phase] = {"queued": "waiting", "sent": "delivered", "failed": "dead"}

    def __init__(self) -> None:
        self.now = 0.0
        self.rows = {"queued": 3_000_000, "sent": 5, "failed": 7}
        self.let_go = asyncio.Event()

    async def counts(self) -> Mapping[str, int]:
        await self.let_go.wait()
        self.now += 1.0
        return dict(self.rows)

    async def oldest_due(self) -> float:
        return self.now

    async def count(self, wanted: Wanted, *, most: int, seconds: float) -> HowMany:
        assert seconds < 0.1
        (state,) = wanted.states
        return HowMany(min(self.rows[state], most), self.rows[state] > most)


def standing_of(lane: SlowLane) -> Standing:
    return Standing(cast("LaneDesk", lane), lambda: lane.now)


async def until_exact(look: Standing, queued: int) -> Snapshot:
    async with asyncio.timeout(10):
        while (seen := await look.look()).counts["queued"] != queued:
            await asyncio.sleep(0)
    return seen


async def test_a_page_never_waits_for_millions_to_be_counted() -> None:
    lane = SlowLane()
    look = standing_of(lane)
    async with asyncio.timeout(5):
        first = await look.look()
    assert first.counts == {"queued": standing.MOST, "sent": 0, "failed": 7}
    assert first.at_least == {"queued", "sent"}, "what has arrived is the rest, which nobody knows yet"
    lane.let_go.set()
    exact = await until_exact(look, 3_000_000)
    assert (exact.counts, exact.at_least, exact.age) == (lane.rows, frozenset(), 0.0)
    lane.let_go.clear()
    lane.rows = {**lane.rows, "queued": 4_000_000}
    lane.now += 3600.0
    async with asyncio.timeout(5):
        old = await look.look()
    assert (old.counts["queued"], old.age) == (3_000_000, 3600.0), "the last that is known, with its age"
    assert old.oldest_due == lane.now, "by which is judged what is late, so it is of now"
    lane.let_go.set()
    assert (await until_exact(look, 4_000_000)).age == 0.0


async def test_few_are_exact_at_once() -> None:
    lane = SlowLane()
    lane.rows["queued"] = 2
    lane.let_go.set()
    seen = await standing_of(lane).look()
    assert (seen.counts, seen.at_least) == ({"queued": 2, "sent": 5, "failed": 7}, frozenset())


async def test_an_answer_that_fails_is_told_and_asked_for_again() -> None:
    answers: list[Any] = [OSError("away"), 5]

    async def ask() -> int:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return int(answer)

    lately = Lately(ask, lambda _took: 0.0)
    with pytest.raises(OSError, match="away"):
        await lately.at_hand(5.0)
    assert not lately.has_answered
    known = await lately.at_hand(5.0)
    assert known is not None
    assert known.answer == 5


async def test_what_is_made_in_a_moment_is_not_half_a_minute_old() -> None:
    """Also where the machine was busy when it was made the first time."""
    now, asked = 0.0, 0

    async def ask() -> int:
        nonlocal now, asked
        now += 0.1
        asked += 1
        return asked

    lately = Lately(ask, lambda took: took / 0.05, lambda: now)
    assert await lately() == 1
    now += 30.0
    assert await lately() == 2
    now += 30.0
    known = await lately.at_hand(5.0)
    assert known is not None
    assert (known.answer, known.age) == (3, 0.0)
    now += 5.0
    assert await lately() == 3, "while it is young it serves, and a new one is made beside"


# ── with real lanes ──────────────────────────────────────────────────────────────────────────────


async def in_state(lanes: Bench, lane: LaneName, state: str, most: int) -> HowMany:
    return await lanes.desk.lanes[lane].count(Wanted(lanes=(lane,), states=(state,)), most=most, seconds=1.0)


async def test_up_to_a_number_is_counted_as_exactly_as_by_counting(database_url: str) -> None:
    async with bench(database_url, migrates=False) as lanes:
        await lanes.fill()
        for name, lane in lanes.desk.lanes.items():
            exact = await lane.counts()
            open_states = [state for state, phase in lane.phases.items() if phase != "delivered"]
            found = {state: await in_state(lanes, name, state, 100) for state in open_states}
            assert {state: many.number for state, many in found.items()} == {
                state: exact[state] for state in open_states
            }, name
            assert not any(many.is_lower_bound for many in found.values())
            assert sum(exact.values()) > 1


async def test_no_more_than_that_many_are_read_and_from_the_index(postgres_url: str) -> None:
    async with bench(postgres_url, migrates=False) as lanes:
        script = MANY.format("sent", 3000) + MANY.format("queued", 500) + "ANALYZE mail_outbox;"
        await lanes.homing.database.run_script(script)
        assert await in_state(lanes, "mail_outbox", "queued", 100) == HowMany(100, is_lower_bound=True)
        assert await in_state(lanes, "mail_outbox", "queued", 500) == HowMany(500)
        counted = counted_up_to(LAYOUT.table, ["o.status = 'queued'"], 101, "postgres")
        explain = Query("explain", f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {counted.sql}", (), False)
        _set, rows = await lanes.homing.database.fetch_all([BY_INDEX, explain], {})
        ((plan,),) = rows
        assert "mail_outbox_due" in plan
        assert Plan(json.loads(plan)[0]["Plan"]).rows_read == 101


async def test_a_bulk_page_says_at_least_and_the_run_counts_to_the_last(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_FOR_A_LOOK", (100, 0.1))
    monkeypatch.setattr(standing, "MOST", 100)
    async with door_with_people(postgres_url) as door, visiting(door, "operator") as ann:
        await door.homing.database.run_script(MANY.format("queued", 250))
        page = await ann.read("/bulk/new?q=status:waiting+lane:mail_outbox&verb=cancel")
        assert "<strong>at least 100</strong> messages would be cancelled" in page
        runs = door.homing.bulk.runs
        asker = bulk.Asker("user:ann", lambda _scope: True)
        run = await runs.start("status:waiting lane:mail_outbox", "cancel", asker)
        counted = await runs.count_of(run)
        assert (counted.total, counted.is_estimate) == (250, False)


async def test_pages_say_that_there_are_more_and_how_old_a_figure_is(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Snapshot({"queued": 100_000, "sent": 0, "failed": 7}, 0.0, at_least=frozenset({"queued", "sent"}))

    async def look(_self: Standing) -> Snapshot:
        return seen

    monkeypatch.setattr(Standing, "look", look)
    async with door_with_people(sqlite_url) as door, visiting(door, "admin") as ann:
        first, queues = await ann.read("/"), await ann.read("/queues")
        assert 'queued <strong class="num">100,000+</strong>' in first
        assert 'sent <strong class="num">…</strong>' in first
        assert 'failed <strong class="num">7</strong>' in first
        assert ">100k+<" in first
        assert "counted" not in first
        assert 'data-name="Waiting">100,000+</td>' in queues
        seen = Snapshot({"queued": 3_000_000, "sent": 5, "failed": 7}, 0.0, age=125.0)
        day, queues = await ann.read("/?hours=24"), await ann.read("/queues")
        assert day.count("; counted 2 min ago") == 4
        assert 'data-name="Waiting">3,000,000<br><small class="quiet">2 min ago</small></td>' in queues
