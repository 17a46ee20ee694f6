"""`homing bench desk` in small: every page of the real application answers, and the bulk run does all."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from rich.console import Console

from homing.proof.bench.desk import DeskPlan, DeskTimes, PageTime, costs, desk
from homing.proof.bench.desk_paths import QUERIES
from homing.proof.bench.show import desk_table
from homing.testing.components.postgres import Postgres

#: Pages that must be among those that were found.
PAGES = {
    "/", "/messages", "/dead", "/bulk", "/bulk/1", "/targets", "/targets/one", "/credentials",
    "/credentials/one", "/subscriptions", "/subscriptions/one", "/queues", "/workers", "/router", "/audit",
    "/access", "/health", "/docs",
}  # fmt: skip


@pytest.mark.slow
async def test_every_page_and_query_line_is_asked_on_both_databases(postgres_server: Postgres) -> None:
    plan = DeskPlan(messages=20_000, in_file=2_000, requests=1, fresh=0)
    table = await desk(plan, lambda _: None, postgres_url=postgres_server.url())
    assert [line.database.split()[0] for line in table.lines] == ["PostgreSQL", "SQLite"]
    for line, dead in zip(table.lines, (400, 40), strict=True):
        asked = [urlsplit(page.path) for page in line.pages]
        assert {place.path for place in asked} >= PAGES
        assert {parse_qs(place.query).get("q", [""])[0] for place in asked} >= set(QUERIES)
        assert any(place.path.endswith("/mail.eml") for place in asked)
        assert all(page.p50_ms > 0 and page.first_ms > 0 for page in line.pages)
        assert line.bulk.requeued == dead, "five of a hundred jobs are dead"
    assert [budget.bound for budget in table.budgets] == [300.0, 300.0, 60.0] * 2
    console = Console(width=200)
    with console.capture() as capture:
        console.print(desk_table(table))
    assert "400 dead jobs were requeued in" in capture.get()


def test_first_answers_are_those_of_the_slowest_process() -> None:
    times = [
        DeskTimes((PageTime("/", 90.0),)),
        DeskTimes((PageTime("/", 30.0, tuple(float(n) for n in range(1, 101))),)),
    ]
    (cost,) = costs(times)
    assert (cost.p50_ms, cost.p95_ms, cost.longest_ms, cost.first_ms) == (50.0, 95.0, 100.0, 90.0)
