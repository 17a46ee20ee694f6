"""Bulk runs and alerts that are over are pruned as messages are."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.alerts.bench import alert_bench
from tests.desk.bulk import ANN, bulk_bench
from tests.tables import Tables

from homing.app import Homing
from homing.engine.prune import Found, Pace, Retention, Step, plan, prune, survey
from homing.parts.retention import prunable_tables

DAY = 86400.0


def steps(homing: Homing, lane: str) -> list[Step]:
    tables = prunable_tables(homing.database, homing.jobs_database, homing.notify_database)
    return plan(Retention({lane: 30 * DAY}), tables)


async def found(homing: Homing, lane: str) -> list[Found]:
    return [one for step in steps(homing, lane) async for some in survey(step) for one in some]


async def deleted(homing: Homing, lane: str) -> list[dict[str, int]]:
    return [dict(counts) for step in steps(homing, lane) async for counts in prune(step, Pace(1.0))]


@pytest.mark.clause("JOB-25")
async def test_runs_that_ended_long_ago_go(database_url: str) -> None:
    async with bulk_bench(database_url) as lane:
        tables = Tables(lane.homing.database)
        old, young, open_ = [(await lane.runs.start("status:dead", "requeue", ANN)).id for _ in range(3)]
        for id in (old, young):
            assert await lane.runner().once(id)
        await tables.shift("homing_bulk_run", ["created_at"], 40 * DAY)
        await tables.shift("homing_bulk_run", ["finished_at"], 40 * DAY, id=old)
        await tables.shift("homing_bulk_run", ["finished_at"], 20 * DAY, id=young)
        (one,) = await found(lane.homing, "bulk_runs")
        assert (one.state, one.count) == ("done", 1)
        assert one.oldest is not None
        assert timedelta(days=39) < await tables.now() - one.oldest < timedelta(days=41)
        assert await deleted(lane.homing, "bulk_runs") == [{"done": 1}]
        left = {row["id"]: row["state"] for row in await tables.rows("homing_bulk_run")}
        assert left == {young: "done", open_: "counting"}, "one that waits stays, however old"
        assert await deleted(lane.homing, "bulk_runs") == []


async def test_alerts_that_went_out_long_ago_go(database_url: str) -> None:
    async with alert_bench(database_url) as bench:
        tables = bench.tables
        old, young, waiting = [(await bench.alerts.test()).id for _ in range(3)]
        await tables.change("homing_alert", {"handed_over": False}, id=waiting)
        await tables.shift("homing_alert", ["at"], 40 * DAY)
        await tables.shift("homing_alert", ["at"], -20 * DAY, id=young)
        (one,) = await found(bench.homing, "alerts")
        assert (one.state, one.count) == ("told", 1)
        assert await deleted(bench.homing, "alerts") == [{"told": 1}]
        assert {row["id"] for row in await tables.rows("homing_alert")} == {young, waiting}
        assert old not in {young, waiting}
