"""Pages of several lanes: whatever each lane has and however far it looks, nothing is lost or shown twice."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from homing.desk.desk import Desk
from homing.messages.model import LANES, LaneName, Seen, Summary, Wanted

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)


class Lane:
    """Rows with a number each, some of which match; looks at `window` of them at a time."""

    def __init__(self, name: LaneName, ages: list[tuple[int, bool]], window: int) -> None:
        self.name, self.scope = name, name
        self._window = window
        self._rows = [
            (number, BEGUN - timedelta(seconds=age), matches)
            for number, (age, matches) in zip(range(len(ages), 0, -1), sorted(ages), strict=True)
        ]

    @property
    def matching(self) -> list[tuple[str, int]]:
        return [(self.name, number) for number, _, matches in self._rows if matches]

    async def find(self, _wanted: Wanted, *, before: int | None, limit: int) -> Seen:
        ahead = [row for row in self._rows if before is None or row[0] < before]
        looked = ahead[: self._window]
        found = [self._summary(number, at) for number, at, matches in looked if matches]
        if len(found) >= limit:
            return Seen(found[:limit], found[limit - 1].number)
        return Seen(found, looked[-1][0] if len(looked) < len(ahead) else None, len(looked))

    def _summary(self, number: int, at: datetime) -> Summary:
        return Summary(self.name, f"{self.name}_{number}", number, "s", "dead", "", "", 0, None, at)


AGES = st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=12)


@given(
    lanes=st.fixed_dictionaries(dict.fromkeys(LANES, AGES)),
    window=st.integers(1, 12),
    limit=st.integers(1, 10),
)
async def test_all_pages_together_are_all_that_match(
    lanes: Mapping[LaneName, list[tuple[int, bool]]], window: int, limit: int
) -> None:
    fakes: Any = {name: Lane(name, ages, window) for name, ages in lanes.items()}
    desk = Desk(fakes)
    seen: list[tuple[str, int]] = []
    cursor = None
    for _ in range(200):
        page = await desk.find(Wanted(), cursor=cursor, limit=limit, may=lambda _scope: True)
        times = [row.created_at for row in page.rows]
        assert times == sorted(times, reverse=True)
        assert len(page.rows) <= limit
        seen += [(row.lane, row.number) for row in page.rows]
        cursor = page.next
        if cursor is None:
            break
    assert cursor is None
    assert len(seen) == len(set(seen))
    assert set(seen) == {row for lane in fakes.values() for row in lane.matching}
    if window > max(map(len, lanes.values())):
        # Where everything was looked at, the whole is in order too.
        ages = {(name, n): at for name, lane in fakes.items() for n, at, _ in lane._rows}
        assert [ages[row] for row in seen] == sorted((ages[row] for row in seen), reverse=True)
