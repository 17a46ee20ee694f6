"""However many processes claim at once, no row is claimed twice."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.conftest import IN_FULL

from homing.db import Query, connect
from homing.lanes.mail_outbox.lane import transition
from homing.lanes.mail_outbox.outbox import MailOutbox

pytestmark = pytest.mark.slow

BATCH = 500
ON_POSTGRES, ON_SQLITE = (100_000, 20_000) if IN_FULL else (30_000, 10_000)

_FILL = """
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {rows})
INSERT INTO mail_outbox (to_address, subject, text_body)
SELECT 'mail' || n || '@example.org', 'One of many', 'Hello' FROM numbers
"""


async def fill(url: str, rows: int) -> None:
    # Not at the top: every claiming process imports this module, and needs neither.
    from homing.app import opened
    from homing.settings import load_settings

    async with opened(load_settings({"database_url": url}, environ={}), makes_file=True) as homing:
        await homing.migrate()
        await homing.database.run_script(_FILL.format(rows=rows))


async def status_counts(url: str) -> dict[tuple[str, int], int]:
    database = connect(url)
    sql = "SELECT status, claim_seq, count(*) AS count FROM mail_outbox GROUP BY status, claim_seq"
    rows = await database.fetch(Query("counts", sql, (), writes=False), {})
    await database.close()
    return {(row["status"], row["claim_seq"]): row["count"] for row in rows}


class Claimer:
    """What a claiming process is told; it writes the ids that it got into a file of its own."""

    def __init__(self, url: str, name: str, folder: Path) -> None:
        self.url, self.name = url, name
        self.result = folder / f"{name}.json"


def claim_all(claimer: Claimer, start: multiprocessing.synchronize.Barrier) -> None:
    """In a process of its own: everybody begins at the same moment and goes on until nothing is left."""
    sys.exit(asyncio.run(_claim_all(claimer, start)))


async def _claim_all(claimer: Claimer, start: multiprocessing.synchronize.Barrier) -> int:
    database = connect(claimer.url)
    outbox = MailOutbox(database, transition, owner=claimer.name, lease_seconds=600, max_attempts=5)
    await outbox.preview(1)
    start.wait(60)
    ids: list[int] = []
    while claims := await outbox.claim(BATCH):
        ids.extend(claim.id for claim in claims)
        # Others get their turn as well, as they would if these mails were sent now.
        await asyncio.sleep(0.005)
    claimer.result.write_bytes(msgspec.json.encode(ids))
    await database.close()
    return 0


def run_claimers(url: str, processes: int, folder: Path) -> list[list[int]]:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(processes)
    claimers = [Claimer(url, f"claimer-{number}", folder) for number in range(processes)]
    children = [context.Process(target=claim_all, args=(claimer, start)) for claimer in claimers]
    for child in children:
        child.start()
    for child in children:
        child.join(100)
    assert [child.exitcode for child in children] == [0] * processes
    return [msgspec.json.decode(claimer.result.read_bytes(), type=list[int]) for claimer in claimers]


def assert_each_once(claimed: Sequence[Sequence[int]], rows: int) -> None:
    everything = [row for ids in claimed for row in ids]
    assert len(everything) == rows, "every row was claimed"
    assert len(set(everything)) == rows, "and none twice"
    shares = [len(ids) for ids in claimed]
    assert sum(share > 0 for share in shares) >= 2, f"it was a contest: {shares}"


@pytest.mark.clause("OUT-04")
async def test_eight_processes_claim_all_rows_on_postgres(postgres_url: str, tmp_path: Path) -> None:
    await fill(postgres_url, ON_POSTGRES)
    claimed = await asyncio.to_thread(run_claimers, postgres_url, 8, tmp_path)
    assert_each_once(claimed, ON_POSTGRES)
    assert await status_counts(postgres_url) == {("dispatching", 1): ON_POSTGRES}


@pytest.mark.clause("OUT-04")
async def test_four_processes_claim_all_rows_on_sqlite(sqlite_url: str, tmp_path: Path) -> None:
    await fill(sqlite_url, ON_SQLITE)
    claimed = await asyncio.to_thread(run_claimers, sqlite_url, 4, tmp_path)
    assert_each_once(claimed, ON_SQLITE)
    assert await status_counts(sqlite_url) == {("dispatching", 1): ON_SQLITE}
