"""Health: the page answers at once, the doctor works beside it, and no secret is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry
from tests.http.door import Door
from tests.http.pages.visitor import Visitor, door_with_people, visiting
from tests.outbox import LogLines

from homing.desk.checkup import Checkup, Examine, Finding
from homing.doctor import findings
from homing.errors import DatabaseError
from homing.telemetry import Telemetry, make_logger


@pytest.fixture
async def door(sqlite_url: str) -> AsyncIterator[Door]:
    settings = {"retention": "mail_outbox.sent=30d", "jobs_dead_letter_url": "https://x.example/canary-path"}
    async with door_with_people(sqlite_url, **settings) as door:
        yield door


@pytest.fixture
async def operator(door: Door) -> AsyncIterator[Visitor]:
    async with visiting(door, "operator") as visitor:
        yield visitor


async def test_what_the_doctor_found_is_shown_with_what_runs_here(door: Door, operator: Visitor) -> None:
    door.homing.health.examine = lambda: findings(door.homing.settings)
    first = await operator.client.get("/health")
    assert first.headers["refresh"] == "2"
    assert "The doctor is looking" in first.text
    await door.homing.health.checkup.ended()
    answer = await operator.client.get("/health")
    assert "refresh" not in answer.headers
    page = answer.text
    for word in (
        "migrations",
        "all applied",
        "clock skew",
        "✔ well",
        "✖ mend",
        "memory://",
        "30d",
        door.homing.ground.owner,
    ):
        assert word in page, word
    assert "HOMING_RETENTION" in page
    assert '<span class="tag">flag</span>' in page
    for hidden in ("canary", "A" * 43, "postgres:"):
        assert hidden not in page


async def test_it_looks_again_when_it_is_told_to(door: Door, operator: Visitor) -> None:
    door.homing.health.examine, go = _slow()
    await operator.read("/health")
    assert "looking already" in await operator.done("/health/run")
    go.set()
    await door.homing.health.checkup.ended()
    assert "All 1 checks are well" in await operator.read("/health")
    assert "The doctor looks" in await operator.done("/health/run")
    await door.homing.health.checkup.ended()
    async with visiting(door, "viewer") as viewer:
        assert "/health/run" not in await viewer.read("/health")
        assert (await viewer.send("/health/run", {})).status_code == 403
    actions = [(one["who"], one["action"], one["outcome"]) for one in await door.audit()]
    assert ("user:operator", "health.run", "done") in actions
    assert ("user:viewer", "health.run", "refused") in actions


async def test_a_look_that_broke_off_is_not_called_well(door: Door, operator: Visitor) -> None:
    async def away() -> AsyncIterator[Finding]:
        for finding in found:
            yield finding
        raise DatabaseError("the server is away")

    found: list[Finding] = []
    door.homing.health.examine = away
    for verdict in ("", "", "1 of 2 checks needs attention"):
        door.homing.health.checkup.start()
        await door.homing.health.checkup.ended()
        page = await operator.read("/health")
        assert "The look was not finished: the server is away" in page
        assert ('id="verdict"' in page, "are well" in page) == (bool(verdict), False)
        assert verdict in page
        assert ('aria-label="Checks"' in page) == bool(found)
        found.append(Finding("database", not found, "so"))


def _slow() -> tuple[Examine, asyncio.Event]:
    go = asyncio.Event()

    async def examine() -> AsyncIterator[Finding]:
        await go.wait()
        yield Finding("database", True, "there")

    return examine, go


# ── the look itself ──────────────────────────────────────────────────────────────────────────────


def checkup(examine: Examine | None, log: LogLines | None = None) -> Checkup:
    telemetry = Telemetry(make_logger("json", 10, (log or LogLines()).stream), CollectorRegistry())
    return Checkup(lambda: examine, telemetry, clock=lambda: datetime(2026, 1, 1, tzinfo=UTC))


async def test_one_look_at_a_time() -> None:
    examine, go = _slow()
    one = checkup(examine)
    assert one.is_old
    assert [one.start(), one.start()] == [True, False]
    assert one.is_running
    go.set()
    await one.ended()
    assert one.last is not None
    assert [timed.finding.check for timed in one.last.findings] == ["database"]
    assert (one.last.wrong, one.is_old, one.is_running) == (0, False, False)


async def test_a_doctor_in_trouble_is_told_of_and_ends_nothing() -> None:
    async def away() -> AsyncIterator[Finding]:
        yield Finding("database", False, "gone")
        raise DatabaseError("the server is away")

    async def broken() -> AsyncIterator[Finding]:
        yield Finding("database", True, "there")
        raise RuntimeError("canary")

    log = LogLines()
    for examine, why in ((away, "the server is away"), (broken, "RuntimeError in the doctor itself")):
        one = checkup(examine, log)
        one.start()
        await one.ended()
        assert one.last is not None
        assert why in (one.last.broken or "")
        assert len(one.last.findings) == 1
    assert "canary" not in str(one.last)


async def test_without_a_doctor_there_is_nothing_to_start_or_close() -> None:
    none = checkup(None)
    assert not none.is_possible
    assert not none.start()
    await none.close()
    examine, _ = _slow()
    one = checkup(examine)
    one.start()
    await one.close()
    assert one.last is None
