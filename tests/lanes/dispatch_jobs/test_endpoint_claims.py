"""A claim costs the same whether a host's jobs go to one URL or to as many URLs as there are jobs."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.jobs import JobBench, job, job_bench

from homing.lanes.dispatch_jobs.target import target_of

FULL = bool(os.environ.get("HOMING_TEST_FULL"))
JOBS = 100_000 if FULL else 10_000
TURNS = 41
EACH = 100
ONE, MANY = "https://one.example", "https://many.example"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 if FULL else 120)]


@pytest.fixture(params=["sqlite", "postgres"])
async def lanes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[dict[str, JobBench]]:
    """A database for each: in one for both, each look at the targets would be at those of the other, too."""
    first = request.getfixturevalue(f"{request.param}_url")
    server = request.getfixturevalue("postgres_server") if request.param == "postgres" else None
    second = server.create_database() if server else f"sqlite:///{tmp_path / 'many.db'}"
    async with job_bench(first) as one, job_bench(second) as many:
        yield {ONE: one, MANY: many}
    if server:
        server.drop_database(second)


async def test_many_urls_of_one_host_are_claimed_as_quickly_as_one(lanes: dict[str, JobBench]) -> None:
    for first in range(0, JOBS, 5000):
        await lanes[ONE].order([job(f"{ONE}/hooks") for _ in range(5000)])
        await lanes[MANY].order([job(f"{MANY}/hooks/{n}") for n in range(first, first + 5000)])
    seconds: dict[str, list[float]] = {ONE: [], MANY: []}
    for _ in range(TURNS):
        for place, taken in seconds.items():
            taken.append(await _claim(lanes[place], place))
    # Whatever else the machine does makes a claim slower, never quicker.
    ratio = min(seconds[MANY]) / min(seconds[ONE])
    assert ratio <= 1.5, f"with {JOBS:,} URLs a claim of {EACH} takes {ratio:.2f} times as long as with one"


async def _claim(lane: JobBench, place: str) -> float:
    """The seconds of a look at the targets, and a claim of one; given back, so that the next is alike."""
    began = time.perf_counter()
    await lane.jobs._standings()
    claims = await lane.jobs._claim({target_of(place, None): EACH}, locked=False)
    took = time.perf_counter() - began
    assert len(claims) == EACH
    await lane.jobs.release(claims)
    return took
