"""What a search costs in a large table: every filter alone, and some together, by time and by rows read.

Values are chosen for what they do to a plan: half of the table, a handful, only old rows, none at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct

from homing.db import Query, Row, connect
from homing.db.migrate import load_migrations, migrate
from homing.lanes.dispatch_jobs.filters import Filter
from homing.lanes.dispatch_jobs.jobs import DispatchJobs
from homing.lanes.dispatch_jobs.search import JobSearch
from homing.lanes.dispatch_jobs.target import Targets
from homing.proof.bench.measure import Budget, percentile
from homing.proof.bench.sample_search import fill_jobs
from homing.proof.bench.servers import fresh_database, postgres

Step = Callable[[str], None]

LONGEST_MS = 300.0
_REPETITIONS = 11
_LANE = "homing.lanes.dispatch_jobs"


class Case(Struct, frozen=True):
    name: str
    filter: Filter
    page: int = 0
    #: Some combinations of filters have no index of their own, and no budget.
    promised: bool = True


class Cost(Struct, frozen=True):
    """One search of twenty jobs, with its total."""

    name: str
    best_ms: float
    p95_ms: float
    #: Entries of tables and indexes that its statements looked at.
    rows_read: int
    total: int
    is_estimate: bool
    #: The indexes that served it.
    plan: str
    promised: bool


class SearchTable(Struct, frozen=True):
    rows: int
    costs: tuple[Cost, ...]
    budgets: tuple[Budget, ...]


async def search(rows: int, step: Step, *, postgres_url: str | None = None) -> SearchTable:
    """Fill a table of that many jobs and search it."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(postgres(postgres_url))
        url = stack.enter_context(fresh_database(server))
        step(f"filling: {rows:,} jobs with metadata")
        await make_jobs(url, rows)
        step("searching")
        costs = await measure(url, cases(rows))
    return SearchTable(rows, tuple(costs), tuple(budgets(costs)))


async def make_jobs(url: str, rows: int) -> None:
    database = connect(url)
    try:
        await migrate(database, load_migrations([_LANE], database.dialect))
    finally:
        await database.close()
    await fill_jobs(url, rows)


def cases(rows: int) -> list[Case]:
    """The newest job is from now, each other half a second older."""
    whole = timedelta(seconds=rows / 2)
    now = datetime.now(UTC)
    middle, early = now - whole / 2, now - whole * 0.99
    return [
        Case("no filter", Filter()),
        *_alone("status", "COMPLETED", "ERROR", "FAILED", "PENDING", "IN_PROGRESS", "CANCELLED"),
        *_alone("source", "huge-service", "medium-1", "rare-service", "retired-service", "nobody"),
        *_alone("type", "order.created", "kind-7", "audit.sealed", "legacy.event", "nothing"),
        *_alone("group_id", "bulk", "order-77", "old-group", "nobody"),
        *_alone("external_id", "shared", f"ext-{rows - 5}", "nobody"),
        *_alone("error_class", "http_500", "nothing"),
        Case("created after, all", Filter(created_after=early)),
        Case("created before, old", Filter(created_before=early)),
        Case("created, in between", Filter(created_after=middle - whole / 50, created_before=middle)),
        *_by_metadata("tenantId=acme", "tenantId=tenant-77", "tenantId=gone", "tenantId=nobody"),
        *_by_metadata("priority=urgent", "priority=high", "tenantId=acme&priority=high"),
        *_by_metadata("tenantId=tenant-77&priority=urgent", "priority=urgent&tenantId=gone"),
        *_by_source_status_and_time(middle, whole),
        Case("page 500", Filter(), page=500),
        Case("page 500 of a source", Filter(source="medium-1"), page=min(500, rows // 250)),
        *_together(),
    ]


def _alone(name: str, *values: str) -> Iterator[Case]:
    for value in values:
        yield Case(f"{name} = {value}", Filter(**{name: value}))  # type: ignore[arg-type]  # names of texts only


def _by_metadata(*queries: str) -> Iterator[Case]:
    for query in queries:
        pairs = sorted(tuple(pair.split("=")) for pair in query.split("&"))
        yield Case(f"metadata {query}", Filter(metadata=tuple((key, value) for key, value in pairs)))


def _by_source_status_and_time(middle: datetime, whole: timedelta) -> Iterator[Case]:
    for source in ("huge-service", "rare-service", "retired-service"):
        for status in ("COMPLETED", "ERROR", "FAILED", "PENDING"):
            yield Case(
                f"{source}, {status}, a tenth of the time",
                Filter(
                    source=source, status=status, created_after=middle - whole / 10, created_before=middle
                ),
            )
    yield Case("huge-service, CANCELLED", Filter(source="huge-service", status="CANCELLED"))


def _together() -> Iterator[Case]:
    given = {
        "source and type, both frequent": Filter(source="huge-service", type="order.created"),
        "source and type, never together": Filter(source="medium-1", type="kind-7"),
        "type and status": Filter(type="order.created", status="ERROR"),
        "type and status, never together": Filter(type="kind-7", status="ERROR"),
        "group and status": Filter(group_id="bulk", status="PENDING"),
        "metadata and status": Filter(metadata=(("tenantId", "acme"),), status="ERROR"),
        "metadata and status, rare": Filter(metadata=(("tenantId", "acme"),), status="IN_PROGRESS"),
        "metadata and source": Filter(metadata=(("tenantId", "gone"),), source="huge-service"),
        "metadata and source, never together": Filter(metadata=(("tenantId", "gone"),), source="medium-2"),
    }
    return (Case(name, filter, promised=False) for name, filter in given.items())


# ── measuring ────────────────────────────────────────────────────────────────────────────────────


async def measure(url: str, cases: Sequence[Case]) -> list[Cost]:
    database = connect(url)
    try:
        watched = _Explaining(database)
        plain, explaining = _search_of(database), _search_of(watched)
        return [await _cost(case, plain, explaining, watched) for case in cases]
    finally:
        await database.close()


def _search_of(database: Any) -> JobSearch:
    targets = Targets(slots=1, connections=1)
    return JobSearch(DispatchJobs(database, targets, owner="bench", lease_seconds=60))


async def _cost(case: Case, plain: JobSearch, explaining: JobSearch, watched: _Explaining) -> Cost:
    watched.plans.clear()
    found = await explaining.page(case.filter, page=case.page)
    times = []
    for _ in range(_REPETITIONS):
        started = time.perf_counter()
        await plain.page(case.filter, page=case.page)
        times.append((time.perf_counter() - started) * 1000)
    nodes = [node for plan in watched.plans for node in _nodes(plan)]
    return Cost(
        case.name,
        min(times),
        percentile(times, 0.95),
        sum(_rows_read(node) for node in nodes),
        found.total.items,
        found.total.is_estimate,
        ", ".join(dict.fromkeys(served for node in nodes if (served := _served_by(node)))),
        case.promised,
    )


class _Explaining:
    """The database, which also keeps the plans of what it was asked."""

    dialect = "postgres"

    def __init__(self, database: Any) -> None:
        self._database = database
        self.plans: list[Mapping[str, Any]] = []

    async def fetch(self, query: Query, parameters: Mapping[str, Any]) -> Sequence[Row]:
        await self._explain([query], parameters)
        rows: Sequence[Row] = await self._database.fetch(query, parameters)
        return rows

    async def fetch_all(self, queries: Sequence[Query], parameters: Mapping[str, Any]) -> list[Sequence[Row]]:
        if not queries[-1].sql.startswith("EXPLAIN"):
            await self._explain(queries, parameters)
        rows: list[Sequence[Row]] = await self._database.fetch_all(queries, parameters)
        return rows

    async def _explain(self, queries: Sequence[Query], parameters: Mapping[str, Any]) -> None:
        *before, last = queries
        analyze = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {last.sql}"
        explained = msgspec.structs.replace(last, sql=analyze)
        rows = (await self._database.fetch_all([*before, explained], parameters))[-1]
        self.plans.append(msgspec.json.decode(next(iter(rows[0])))[0]["Plan"])


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _rows_read(node: Mapping[str, Any]) -> int:
    if "Scan" not in node["Node Type"] or node["Node Type"] in {"CTE Scan", "Function Scan", "Subquery Scan"}:
        return 0
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return int((node["Actual Rows"] + removed) * node["Actual Loops"])


def _served_by(node: Mapping[str, Any]) -> str | None:
    if node["Node Type"] == "Seq Scan":
        return f"all of {node['Relation Name']}"
    return node.get("Index Name")


def budgets(costs: Sequence[Cost]) -> list[Budget]:
    """Of every filter alone, and of source, status and time together."""
    slowest = max((cost for cost in costs if cost.promised), key=lambda cost: cost.p95_ms)
    return [Budget(f"slowest search ({slowest.name})", slowest.p95_ms, LONGEST_MS, "most", unit=" ms")]
