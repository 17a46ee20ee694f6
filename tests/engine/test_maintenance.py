"""Rescue, charge, sweep: on a real store, by any number of processes, through outages."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry
from tests.engine.waiting import until
from tests.outbox import Bench, LogLines, bench

from homing.engine.maintenance import Maintenance
from homing.errors import Conflict
from homing.telemetry import Telemetry, make_logger


def maintenance_of(opened: Bench, log: LogLines) -> Maintenance:
    telemetry = Telemetry(make_logger("json", 10, log.stream), CollectorRegistry())
    return Maintenance(opened.homing.mail.lane, telemetry)


@pytest.mark.clause("OUT-13")
async def test_many_processes_rescue_each_row_once(database_url: str) -> None:
    async with bench(database_url) as opened:
        lost = await opened.insert(30)
        await opened.outbox.claim(30)
        for one in lost:
            await opened.age(one, 1000)
        await asyncio.gather(*(opened.homing.mail.maintenance.once() for _ in range(8)))
        rows = [await opened.row(one) for one in lost]
        assert {(row["status"], row["rescue_count"], row["retry_count"]) for row in rows} == {
            ("queued", 1, 0)
        }


@pytest.mark.clause("OUT-13")
async def test_many_processes_charge_a_lost_row_once(database_url: str) -> None:
    async with bench(database_url) as opened:
        (lost,) = await opened.insert()
        await opened.outbox.claim(1)
        await opened.sql("UPDATE mail_outbox SET rescue_count = 3 WHERE id = :id RETURNING id", id=lost)
        await opened.age(lost, 1000)
        await asyncio.gather(*(opened.homing.mail.maintenance.rescue() for _ in range(8)))
        row = await opened.row(lost)
        assert (row["status"], row["rescue_count"], row["retry_count"]) == ("queued", 4, 1)


async def test_it_says_what_it_did_and_is_silent_otherwise(sqlite_url: str) -> None:
    async with bench(sqlite_url) as opened:
        log = LogLines()
        maintenance = maintenance_of(opened, log)
        await maintenance.once()
        assert log.text == ""
        (lost,) = await opened.insert()
        await opened.outbox.claim(1)
        await opened.age(lost, 1000)
        (over,) = await opened.insert(expires_at="2020-01-01T00:00:00.000Z")
        await maintenance.once()
        assert [(line["requeued"], line["charged"]) for line in log.all("lease.rescued")] == [(1, 0)]
        assert [line["expired"] for line in log.all("lane.swept")] == [1]
        assert (await opened.row(over))["status"] == "expired"


async def test_an_outage_is_logged_and_outlived(sqlite_url: str) -> None:
    async with bench(sqlite_url, dispatch_lease_seconds=1.0) as opened:
        (lost,) = await opened.insert()
        await opened.outbox.claim(1)
        log = LogLines()
        maintenance = maintenance_of(opened, log)
        rescue, failures = opened.outbox.rescue, iter([Conflict("locked"), Conflict("locked")])

        async def fail_twice(limit: int) -> int:
            if (failure := next(failures, None)) is not None:
                raise failure
            return await rescue(limit)

        opened.outbox.rescue = fail_twice  # type: ignore[method-assign]
        running = asyncio.create_task(maintenance.run())
        await opened.age(lost, 1000)

        async def rescued() -> bool:
            return bool((await opened.row(lost))["status"] == "queued")

        await until(rescued)
        running.cancel()
        assert len(log.all("maintenance.failed")) == 2


async def test_a_rescue_is_late_by_no_more_than_a_fifth_of_the_lease(sqlite_url: str) -> None:
    async with bench(sqlite_url, dispatch_lease_seconds=5.0) as opened:
        assert opened.homing.mail.maintenance.interval == 1.0
    async with bench(sqlite_url, dispatch_lease_seconds=3600.0) as opened:
        assert opened.homing.mail.maintenance.interval == 5.0


async def test_a_round_that_crashes_does_not_end_the_rounds(sqlite_url: str) -> None:
    """A bug, or a row that cannot be read, must not keep all others from being rescued for ever."""
    async with bench(sqlite_url, dispatch_lease_seconds=1.0) as opened:
        (lost,) = await opened.insert()
        await opened.outbox.claim(1)
        await opened.age(lost, 1000)
        log = LogLines()
        maintenance = maintenance_of(opened, log)
        rescue, calls = opened.outbox.rescue, 0

        async def stumble(limit: int) -> int:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise ZeroDivisionError("a secret")
            return await rescue(limit)

        opened.outbox.rescue = stumble  # type: ignore[method-assign]
        running = asyncio.create_task(maintenance.run())
        await until(lambda: bool(log.all("lease.rescued")))
        running.cancel()
        assert (await opened.row(lost))["status"] == "queued"
        assert len(log.all("maintenance.crashed")) == 1
        assert "a secret" not in log.text
