"""A look in windows: whatever their size, all that is asked for comes once, from the newest to the oldest."""

from __future__ import annotations

import pytest
from tests.desk.rows import Bench, bench

from homing.db import looking

#: Queued mails lie in no order of ids, so a look picks the next of them; failed ones lie in order.
MIXED = """
INSERT INTO mail_outbox (to_address, subject, status)
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 40)
SELECT CASE WHEN n % 7 = 0 THEN 'ann@x.com' ELSE 'bob@y.org' END, 'Mail ' || n,
    CASE WHEN n % 3 = 0 THEN 'failed' WHEN n % 10 = 1 THEN 'sent' ELSE 'queued' END
FROM numbers;
"""


async def paged(lanes: Bench, line: str, limit: int) -> list[int]:
    seen: list[int] = []
    cursor = None
    while True:
        page = await lanes.find(f"{line} lane:mail_outbox", cursor=cursor, limit=limit)
        seen += [row.number for row in page.rows]
        cursor = page.next
        if cursor is None:
            return seen


@pytest.mark.parametrize("limit", [3, 8])
async def test_small_windows_lose_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(looking, "FIRST_WINDOW", 2)
    monkeypatch.setattr(looking, "SCATTERED", 5)
    async with bench(database_url, migrates=False) as lanes:
        await lanes.homing.database.run_script(MIXED)
        queued = [n for n in range(40, 0, -1) if n % 3 and n % 10 != 1]
        either = [n for n in range(40, 0, -1) if not n % 3 or n % 10 != 1]
        assert await paged(lanes, "status:waiting", limit) == queued
        assert await paged(lanes, "status:waiting,dead", limit) == either
        assert await paged(lanes, "status:waiting to:*@x.com", limit) == [n for n in queued if n % 7 == 0]
        assert await paged(lanes, "status:waiting,dead to:*@x.com", limit) == [
            n for n in either if n % 7 == 0
        ]
