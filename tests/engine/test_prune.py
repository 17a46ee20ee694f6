"""Retention as it is written, the plan that follows from it, and the walk through a table."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from tests.outbox import LogLines

from homing.engine.prune import (
    SHORTEST_AGE,
    Ages,
    Found,
    Pace,
    Pruner,
    Retention,
    Step,
    Window,
    age_in_words,
    plan,
    prune,
    read_age,
    read_retention,
    survey,
)
from homing.errors import SettingsError, Unreachable
from homing.telemetry import Telemetry, make_logger

DAY = 86400.0


class Shelf:
    """Rows in memory: (id, state, age in seconds). It counts what it is asked."""

    def __init__(
        self,
        rows: Sequence[tuple[int, str, float]] = (),
        *,
        lane: str = "letters",
        states: Sequence[str] = ("sent", "failed"),
        follows: Sequence[str] = (),
    ) -> None:
        self.lane, self.states, self.follows = lane, states, follows
        self.rows = {id: (state, age) for id, state, age in rows}
        self.batches: list[int] = []
        self.windows = 0
        self.contested = False

    async def window(self, ages: Ages, after: int, size: int) -> Window:
        self.windows += 1
        ids = sorted(self.rows)
        ahead = ids[bisect_right(ids, after) :][:size]
        youngest = min(ages[state] for state in self.states if state in ages)
        return Window(ahead[-1] if ahead else None, any(self.rows[id][1] > youngest for id in ahead))

    async def survey(self, ages: Ages, after: int, until: int) -> list[Found]:
        ids = await self.candidates(ages, after, until, len(self.rows))
        return [Found(state, count, None) for state, count in Counter(self.rows[id][0] for id in ids).items()]

    async def candidates(self, ages: Ages, after: int, until: int, limit: int) -> list[int]:
        return [id for id in sorted(self.rows) if after < id <= until and self._may_go(id, ages)][:limit]

    async def prune(self, ages: Ages, ids: Sequence[int]) -> Mapping[str, int]:
        assert all(self._may_go(id, ages) for id in ids)
        self.batches.append(len(ids))
        if self.contested:
            return {}
        return Counter(self.rows.pop(id)[0] for id in ids)

    def _may_go(self, id: int, ages: Ages) -> bool:
        state, age = self.rows[id]
        return state in self.states and state in ages and age > ages[state]


class Clock:
    """Time passes only by sleeping, and by so much with every look at it."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 0.0, step
        self.slept: list[float] = []

    def __call__(self) -> float:
        self.now += self.step
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def pace(share: float = 1.0, step: float = 0.0) -> tuple[Pace, Clock]:
    clock = Clock(step)
    return Pace(share, monotonic=clock, sleep=clock.sleep), clock


# ── what is written ──────────────────────────────────────────────────────────────────────────────


def test_a_retention_is_read() -> None:
    retention = read_retention(" letters.sent = 30d, parcels=4w ,letters.failed=36h,")
    assert retention.ages == {"letters.sent": 30 * DAY, "parcels": 28 * DAY, "letters.failed": 1.5 * DAY}
    assert read_retention("").ages == {}, "nothing is deleted unless somebody says so"
    assert [age_in_words(age) for age in retention.ages.values()] == ["30d", "28d", "36h"]


@pytest.mark.parametrize(
    "text", ["30d", "letters=", "=30d", "letters=30", "letters=30m", "letters=-3d", "letters=1d,letters=2d"]
)
def test_what_is_no_retention_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as|keep one"):
        read_retention(text)


@pytest.mark.parametrize("text", ["23h", "0d"])
def test_an_idempotency_key_is_known_for_a_day_at_least(text: str) -> None:
    with pytest.raises(ValueError, match="idempotency"):
        read_age(text)
    assert read_age("24h") == SHORTEST_AGE


def test_an_age_has_an_end() -> None:
    with pytest.raises(ValueError, match="at most 100 years"):
        read_age("99999w")


# ── the plan ─────────────────────────────────────────────────────────────────────────────────────


def test_a_state_goes_before_its_lane() -> None:
    (step,) = plan(
        Retention({"letters": 90 * DAY, "letters.sent": 30 * DAY}), [Shelf(), Shelf(lane="parcels")]
    )
    assert step.ages == {"sent": 30 * DAY, "failed": 90 * DAY}


def test_what_has_no_age_is_kept() -> None:
    assert plan(Retention(), [Shelf()]) == []
    (step,) = plan(Retention({"letters.failed": 90 * DAY}), [Shelf()])
    assert step.ages == {"failed": 90 * DAY}


def test_a_table_follows_the_longest_age_when_all_have_one() -> None:
    stamps = Shelf(states=("stamps",), follows=("sent", "failed"))
    letters = Shelf()
    both = plan(Retention({"letters.sent": 30 * DAY, "letters.failed": 90 * DAY}), [letters, stamps])
    assert [step.table for step in both] == [letters, stamps]
    assert both[1].ages["stamps"] == 90 * DAY
    assert [s.table for s in plan(Retention({"letters.sent": 30 * DAY}), [letters, stamps])] == [letters]
    (_, said) = plan(Retention({"letters": 90 * DAY, "letters.stamps": 30 * DAY}), [letters, stamps])
    assert said.ages["stamps"] == 30 * DAY, "an age of its own comes first"


@pytest.mark.parametrize("name", ["letters.snet", "leters", "letters.queued"])
def test_a_wrong_name_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(SettingsError, match=r"letters\.sent"):
        plan(Retention({name: DAY}), [Shelf()])


# ── the walk ─────────────────────────────────────────────────────────────────────────────────────

#: Ids rise with time, so the first rows are the oldest.
ROWS = st.lists(
    st.tuples(st.sampled_from(["sent", "failed", "queued"]), st.floats(0, 100 * DAY)), max_size=300
).map(
    lambda pairs: [
        (id, state, age) for id, (state, age) in enumerate(sorted(pairs, key=lambda pair: -pair[1]), start=1)
    ]
)


@given(ROWS, st.floats(DAY, 100 * DAY), st.floats(DAY, 100 * DAY))
async def test_all_that_is_old_goes_and_nothing_else(
    rows: list[tuple[int, str, float]], sent: float, failed: float
) -> None:
    ages = {"sent": sent, "failed": failed}
    step = Step(table := Shelf(rows), ages)
    expected = {id for id, state, age in rows if age <= ages.get(state, float("inf"))}
    counted: Counter[str] = Counter()
    async for found in survey(step):
        counted.update({one.state: one.count for one in found})
    deleted: Counter[str] = Counter()
    async for counts in prune(step, pace()[0]):
        deleted.update(counts)
    assert set(table.rows) == expected
    assert deleted == counted


async def test_the_walk_ends_where_everything_is_young() -> None:
    old = [(id, "sent", 50 * DAY) for id in range(1, 12_001)]
    young = [(id, "sent", 1 * DAY) for id in range(12_001, 60_001)]
    table = Shelf(old + young)
    batches = [counts async for counts in prune(Step(table, {"sent": 30 * DAY}), pace()[0])]
    assert sum(sum(counts.values()) for counts in batches) == 12_000
    assert table.windows == 3, "two with something old, one without"
    assert max(table.batches) <= 2000


async def test_batches_grow_while_they_are_quick_and_shrink_when_they_are_not() -> None:
    quick, _ = pace(step=0.001)
    slow, clock = pace(share=0.25, step=1.0)
    for _ in range(5):
        await quick.rest(quick.monotonic())
        await slow.rest(slow.monotonic())
    assert (quick.batch, slow.batch) == (2000, 100)
    assert clock.slept == [3.0] * 5, "a quarter of the time, so three quarters are left to others"


async def test_who_finds_another_at_it_leaves_it_to_them() -> None:
    table = Shelf([(id, "sent", 50 * DAY) for id in range(1, 30_001)])
    table.contested = True
    batches = [counts async for counts in prune(Step(table, {"sent": 30 * DAY}), pace()[0])]
    assert batches == [{}]


# ── by itself ────────────────────────────────────────────────────────────────────────────────────


class Broken(Shelf):
    def __init__(self, error: Exception) -> None:
        super().__init__(lane="broken")
        self.error = error

    async def window(self, ages: Ages, after: int, size: int) -> Window:
        raise self.error


@pytest.mark.parametrize("error", [Unreachable("no database"), KeyError("a bug")])
async def test_a_table_in_trouble_holds_up_no_other(error: Exception) -> None:
    log = LogLines()
    telemetry = Telemetry(make_logger("json", 10, log.stream), CollectorRegistry())
    letters = Shelf([(1, "sent", 50 * DAY), (2, "sent", 1 * DAY)])
    steps: list[Any] = [Step(Broken(error), {"sent": DAY}), Step(letters, {"sent": 30 * DAY})]
    deleted = await Pruner(steps, telemetry, share=1.0).once()
    assert deleted == {("letters", "sent"): 1}
    assert list(letters.rows) == [2]
    events = [line["event"] for line in log.all()]
    assert events == [
        "retention.failed" if isinstance(error, Unreachable) else "retention.crashed",
        "retention.pruned",
    ]
    assert log.all("retention.pruned")[0]["count"] == 1
