"""Jobs whose ids do not follow their times: producers have clocks and transactions of their own."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.desk.rows import Bench, bench

from homing.db import iso

BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
STATES = ("PENDING", "FAILED", "ERROR", "CANCELLED")
#: Lines, and the condition that says the same of the table.
LINES = {
    "": "1 = 1",
    "status:waiting": "status IN ('PENDING', 'FAILED')",
    "status:waiting,dead": "status IN ('PENDING', 'FAILED', 'ERROR')",
    "status:waiting,dead,stopped order": "1 = 1",
    "status:dead error:http_500": "status = 'ERROR' AND error_class = 'http_500'",
    "error:http_500": "error_class = 'http_500'",
    "status:waiting,dead code:http_500 code:timeout": "status <> 'CANCELLED'",
    "status:dead code:http_500 code:timeout": "status = 'ERROR'",
    "status:waiting,dead meta.tenant:acme": "status <> 'CANCELLED' AND source = 'shop'",
    "source:shop status:waiting,dead": "status <> 'CANCELLED' AND source = 'shop'",
    "type:order.* since:2026-01-01T12:00:00.100Z": "created_at >= '2026-01-01T12:00:00.100Z'",
}


@pytest.fixture
async def jobs(database_url: str) -> AsyncIterator[Bench]:
    async with bench(database_url) as lanes:
        await lanes.homing.database.run_script(_script(random.Random(4)))
        yield lanes


def _script(chance: random.Random) -> str:
    """Ids that are up to 40 ms off, some at the very same time."""
    rows = [_row(number, chance) for number in range(120)]
    columns = "id, created_at, next_attempt_at, source, type, target_url, payload, status, error_class"
    return (
        f"INSERT INTO dispatch_job ({columns}) VALUES {', '.join(rows)};\n"
        "INSERT INTO dispatch_job_metadata (dispatch_job_id, meta_key, meta_value)\n"
        "SELECT id, 'tenant', 'acme' FROM dispatch_job WHERE source = 'shop';"
    )


def _row(number: int, chance: random.Random) -> str:
    at = BEGIN + timedelta(milliseconds=3 * (number // 2))
    clock = at + timedelta(milliseconds=chance.randint(-40, 40))
    id = (round((clock - datetime(2020, 1, 1, tzinfo=UTC)).total_seconds() * 1000) << 22) + number
    source, error = chance.choice(["shop", "crm"]), chance.choice(["http_500", "timeout"])
    return (
        f"({id}, '{iso(at)}', '{iso(at)}', '{source}', 'order.paid', 'https://x.example/h', '{{}}', "
        f"'{chance.choice(STATES)}', '{error}')"
    )


async def paged(jobs: Bench, line: str, limit: int) -> list[int]:
    seen: list[int] = []
    cursor = None
    while True:
        page = await jobs.find(f"{line} lane:dispatch_jobs", cursor=cursor, limit=limit)
        seen += [row.number for row in page.rows]
        cursor = page.next
        if cursor is None:
            return seen


@pytest.mark.clause("JOB-22")
async def test_pages_have_every_job_once_whatever_its_id_says(jobs: Bench) -> None:
    for line, condition in LINES.items():
        rows = await jobs.run(f"SELECT id FROM dispatch_job WHERE {condition}")
        seen = await paged(jobs, line, 7)
        assert len(seen) == len(set(seen)), line
        assert set(seen) == {row["id"] for row in rows}, line


async def test_streams_that_end_in_a_window_lose_nothing(
    jobs: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WINDOW", "SCATTERED", "FIRST_WINDOW"):
        monkeypatch.setattr(f"homing.lanes.dispatch_jobs.desk_find.{name}", 5)
    seen = await paged(jobs, "status:waiting,dead error:http_*", 7)
    rows = await jobs.run(
        "SELECT id FROM dispatch_job WHERE status <> 'CANCELLED' AND error_class = 'http_500'"
    )
    assert len(seen) == len(set(seen))
    assert set(seen) == {row["id"] for row in rows}


async def test_several_states_are_in_the_order_of_their_times(jobs: Bench) -> None:
    found = await jobs.find("status:waiting,dead lane:dispatch_jobs", limit=200)
    places = [(row.created_at, row.number) for row in found.rows]
    assert places == sorted(places, reverse=True)
