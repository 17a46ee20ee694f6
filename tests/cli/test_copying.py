"""`homing jobs copy` from a console: what it prints, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.jobs import job_bench

from homing.lanes.dispatch_jobs.tsid import text_of


def homing(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "homing", *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip


async def test_a_copy_is_told_and_a_difference_ends_with_one(sqlite_url: str, mongodb_url: str) -> None:
    async with job_bench(sqlite_url) as lane:
        ids = await lane.create("https://a.example/", 5)
    done = homing("jobs", "copy", "--from", sqlite_url, "--to", mongodb_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "5 jobs, 0 credentials and 0 targets copied, 1 ranges compared" in done.stdout
    async with job_bench(mongodb_url) as lane:
        await lane.change(ids[0], payload="secret")
    again = homing("jobs", "copy", "--from", sqlite_url, "--to", mongodb_url, "--json")
    assert again.returncode == 1
    told: dict[str, Any] = json.loads(again.stdout)
    assert told["differences"] == [{"kind": "job", "id": text_of(ids[0]), "what": "differs in payload"}]
    assert "secret" not in again.stdout + again.stderr


async def test_mistakes_are_explained(sqlite_url: str) -> None:
    same = homing("jobs", "copy", "--from", sqlite_url, "--to", sqlite_url)
    assert (same.returncode, "the same database" in same.stderr) == (2, True)
    wrong = homing("jobs", "copy", "--from", "oracle://x", "--to", sqlite_url)
    assert (wrong.returncode, "no database URL" in wrong.stderr) == (2, True)
