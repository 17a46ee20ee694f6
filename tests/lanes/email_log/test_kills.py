"""Whoever publishes is killed at every await point: no email is lost, and none is sent twice."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.emails import EmailBench, email_bench
from tests.lanes.email_log.killed import SHARE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[3]
#: More than there are; a process that ends before is not killed.
MOST_STEPS = 400
#: So many die side by side.
AT_ONCE = 8


class Killed:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def at(self, steps: Iterable[int]) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{' '.join(map(str, steps))}\n".encode())
        async with asyncio.timeout(60):
            return (await self._process.stdout.readline()).decode().split()


@asynccontextmanager
async def killed(mode: str, settings: dict[str, Any]) -> AsyncIterator[Killed]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.lanes.email_log.killed", mode, json.dumps(settings),
        cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Killed(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


def settings_for(database_url: str, rabbitmq_url: str) -> dict[str, Any]:
    return {
        "database_url": database_url,
        "email_broker_url": rabbitmq_url,
        "email_queue_prefix": f"test.{uuid4().hex}",
        "encryption_key": "A" * 43 + "=",
        "mail_url": "memory://",
        "mail_from": "shop@example.com",
    }


def next_steps(answers: list[str]) -> range:
    return range(len(answers) + 1, len(answers) + 1 + AT_ONCE)


async def finish(lane: EmailBench) -> None:
    """Leases end, and another scheduler and another sender do what is left."""
    for row in await lane.sql("SELECT id FROM email_log"):
        await lane.age(row["id"])
    await lane.homing.email_send.maintenance.once()
    await lane.homing.email_schedule.maintenance.once()
    await lane.schedule()
    await lane.consume()


@pytest.mark.clause("RTY-12", "RTY-16", "RTY-01")
async def test_a_scheduler_killed_at_every_await_point(database_url: str, rabbitmq_url: str) -> None:
    settings = settings_for(database_url, rabbitmq_url)
    async with email_bench(**settings) as lane, killed("schedule", settings) as scheduler:
        answers: list[str] = []
        while len(answers) < MOST_STEPS and "done" not in answers:
            for id in await lane.insert(SHARE * AT_ONCE, status="Failed", attempt_count=1):
                await lane.shift(id, 5, "next_attempt_at")
            answers += await scheduler.at(next_steps(answers))
        assert set(answers) == {"killed", "done"}
        assert len(answers) > 10, "there are that many places to die in"
        states = Counter(row["status"] for row in await lane.sql("SELECT status FROM email_log"))
        assert states["RetryQueued"], "some died with a claim"
        assert states["Pending"], "some died after they had settled"
        await finish(lane)
        await check_each_sent_once(lane, len(answers) * SHARE)


@pytest.mark.clause("RTY-16", "RTY-19")
async def test_whoever_creates_killed_at_every_await_point(database_url: str, rabbitmq_url: str) -> None:
    settings = settings_for(database_url, rabbitmq_url)
    async with email_bench(**settings) as lane, killed("order", settings) as creator:
        answers: list[str] = []
        while len(answers) < MOST_STEPS and "done" not in answers:
            answers += await creator.at(next_steps(answers))
        assert set(answers) == {"killed", "done"}
        written = len(await lane.sql("SELECT id FROM email_log"))
        assert SHARE <= written < len(answers) * SHARE, "some died before anything was written"
        assert len(await lane.sql("SELECT message_key FROM email_idempotency")) == written
        await finish(lane)
        await check_each_sent_once(lane, written)


async def check_each_sent_once(lane: EmailBench, expected: int) -> None:
    rows = await lane.sql("SELECT status, token FROM email_log")
    assert Counter(row["status"] for row in rows) == {"Sent": expected}, "none is lost"
    sent = Counter(message.dedupe_key for _, message in lane.sender.delivered)
    assert sent == Counter(row["token"] for row in rows), "and none was sent twice"
