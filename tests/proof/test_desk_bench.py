"""`homing bench desk` in small: every page of the real application answers, and the bulk run does all."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from rich.console import Console

from homing.app import opened
from homing.proof.bench.desk import DeskPlan, DeskTimes, PageTime, costs, desk, make
from homing.proof.bench.desk_paths import QUERIES
from homing.proof.bench.desk_sample import SHARES, fill
from homing.proof.bench.show import desk_table
from homing.settings import load_settings
from homing.testing.components.postgres import Postgres

#: Pages that must be among those that were found.
PAGES = {
    "/", "/messages", "/dead", "/bulk", "/bulk/1", "/targets", "/targets/one", "/credentials",
    "/credentials/one", "/subscriptions", "/subscriptions/one", "/queues", "/workers", "/router", "/audit",
    "/access", "/health", "/docs",
}  # fmt: skip


@pytest.mark.slow
async def test_every_page_and_query_line_is_asked(postgres_server: Postgres) -> None:
    plan = DeskPlan(messages=20_000, in_file=0, waiting=(50,), requests=1, fresh=0)
    table = await desk(plan, lambda _: None, postgres_url=postgres_server.url())
    (line,) = table.lines
    assert line.database.startswith("PostgreSQL")
    asked = [urlsplit(page.path) for page in line.pages]
    assert {place.path for place in asked} >= PAGES
    assert {parse_qs(place.query).get("q", [""])[0] for place in asked} >= set(QUERIES)
    assert any(place.path.endswith("/mail.eml") for place in asked)
    assert all(page.p50_ms > 0 and page.first_ms > 0 for page in line.pages)
    assert line.bulk.requeued == 400, "of 8,000 jobs five of a hundred are dead"
    assert [budget.bound for budget in table.budgets] == [300.0, 60.0], (
        "first answers are told, and no promise"
    )
    console = Console(width=200)
    with console.capture() as capture:
        console.print(desk_table(table))
    told = " ".join(capture.get().split())
    assert "20,000 messages, 50 % waiting" in told
    assert f"A look of the alerts took {line.alerts_p95_ms:.0f} ms (p95)." in told
    assert line.alerts_p95_ms > 0
    assert "400 dead jobs were requeued in" in told
    assert "The slowest first answer of a process took" in told


async def test_a_file_is_filled_like_a_server(sqlite_url: str) -> None:
    version, paths = await make(sqlite_url, 1_000)
    assert version.startswith("SQLite")
    assert {urlsplit(path).path for path in paths} >= PAGES
    async with opened(load_settings({"database_url": sqlite_url}, environ={})) as homing:
        stores = (homing.jobs, homing.outbox, homing.emails, homing.notifications)
        counts = [await store.counts() for store in stores]
        assert [sum(one.values()) for one in counts] == [10 * share for share in SHARES.values()]
        assert counts[0]["ERROR"] == 20


async def test_an_incident_is_filled_with_what_waits(migrated_sqlite_url: str) -> None:
    async with opened(load_settings({"database_url": migrated_sqlite_url}, environ={})) as homing:
        await fill(homing.database, 2_000, waiting=50)
        waiting: dict[str, int] = {
            name: sum(
                count for state, count in (await lane.counts()).items() if lane.phases[state] == "waiting"
            )
            for name, lane in homing.desk.lanes.items()
        }
        for name, share in SHARES.items():
            assert 0.4 < waiting[name] / (20 * share) < 0.55, name


def test_first_answers_are_those_of_the_slowest_process() -> None:
    times = [
        DeskTimes((PageTime("/", 90.0),)),
        DeskTimes((PageTime("/", 30.0, tuple(float(n) for n in range(1, 101))),)),
    ]
    (cost,) = costs(times)
    assert (cost.p50_ms, cost.p95_ms, cost.longest_ms, cost.first_ms) == (50.0, 95.0, 100.0, 90.0)
