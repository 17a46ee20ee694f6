"""What MongoDB reads for the queries that matter, among 100,000 jobs: few entries of an index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.jobs import JobBench, job_bench

from homing.db import connect
from homing.db.migrate import load_migrations, migrate
from homing.db.mongo import MongoDatabase, Session
from homing.lanes.dispatch_jobs.filters import Filter
from homing.lanes.dispatch_jobs.mongo_search import MongoJobSearch
from homing.testing.components.mongodb import MongoDb

JOBS = 100_000
SOURCES, TARGETS = 10, 40


@pytest.fixture(scope="module")
def filled_url(mongodb_server: MongoDb) -> Iterator[str]:
    url = mongodb_server.create_database()
    # Before the indexes, which are then made in one go: a twentieth of the time.
    mongodb_server.command(_fill(), urlsplit(url).path.strip("/"))
    asyncio.run(_prepare(url))
    yield url
    mongodb_server.drop_database(url)


async def _prepare(url: str) -> None:
    database = connect(url)
    try:
        await migrate(database, load_migrations(["homing.lanes.dispatch_jobs"], "mongodb"))
    finally:
        await database.close()


def _fill() -> dict[str, Any]:
    """Made by the server itself: a hundredth of them is open, a tenth dead, the rest completed."""
    n = "$n"
    status = {
        "$switch": {
            "branches": [
                {"case": {"$eq": [{"$mod": [n, 100]}, 0]}, "then": "PENDING"},
                {"case": {"$eq": [{"$mod": [n, 100]}, 50]}, "then": "FAILED"},
                {"case": {"$eq": [{"$mod": [n, 10]}, 5]}, "then": "ERROR"},
            ],
            "default": "COMPLETED",
        }
    }
    is_grouped = {"$lt": [{"$mod": [n, 1000]}, 200]}
    target = {"$mod": [{"$floor": {"$divide": [n, 50]}}, TARGETS]}
    text = {"$toString": {"$mod": [n, SOURCES]}}
    document = {
        "_id": {"$toLong": {"$add": [n, 1]}},
        "created_at": {"$subtract": ["$$NOW", {"$multiply": [{"$subtract": [JOBS, n]}, 1000]}]},
        "updated_at": "$$NOW",
        "source": {"$concat": ["s", text]},
        "type": {"$concat": ["t", {"$toString": {"$mod": [{"$floor": {"$divide": [n, 7]}}, 5]}}]},
        "group_id": {"$cond": [is_grouped, {"$concat": ["g", {"$toString": {"$mod": [n, 20]}}]}, "$$REMOVE"]},
        "ordering": {"$cond": [is_grouped, "group", "none"]},
        "position": n,
        "ready": {"$not": [is_grouped]},
        "target_url": "https://a.example/",
        "target": {"$concat": ["https://t", {"$toString": target}]},
        "protocol": "HTTP_WEBHOOK",
        "payload": "{}",
        "payload_content_type": "application/json",
        "status": status,
        "max_retries": 3,
        "retry_strategy": "exponential",
        "attempt_count": 0,
        "next_attempt_at": {"$subtract": ["$$NOW", n]},
        "queue_at": "$$NOW",
        "queued": False,
        "send_number": 0,
        "attempts_before": 0,
        "dead_letter_sent": True,
        "claim_seq": 0,
        "rescue_count": 0,
        "defer_count": 0,
        "error_class": {"$cond": [{"$eq": [{"$mod": [n, 10]}, 5]}, "http_500", "$$REMOVE"]},
        "metadata": [
            {"k": "tenant", "v": {"$concat": ["t", {"$toString": {"$mod": [n, 50]}}]}},
            {"k": "order", "v": {"$toString": n}},
        ],
    }  # fmt: skip
    steps: Sequence[Mapping[str, Any]] = [
        {"$documents": [{"n": {"$range": [0, JOBS]}}]},
        {"$unwind": "$n"},
        {"$project": {name: _value(value) for name, value in document.items()}},
        {"$out": "dispatch_job"},
    ]
    return {"aggregate": 1, "pipeline": steps, "cursor": {}}


def _value(value: Any) -> Any:
    """A projection would take a number for a wish to leave the field out."""
    is_plain = isinstance(value, int) or (isinstance(value, str) and not value.startswith("$"))
    return {"$literal": value} if is_plain else value


@pytest.fixture
async def lane(filled_url: str) -> AsyncIterator[JobBench]:
    async with job_bench(filled_url) as bench:
        yield bench


class Watch:
    """Explains every read of a session before it is done."""

    def __init__(self, database: MongoDatabase) -> None:
        self.database = database
        self.plans: list[Mapping[str, Any]] = []

    @property
    def keys(self) -> int:
        return sum(_sums(plan, "totalKeysExamined") for plan in self.plans)

    @property
    def documents(self) -> int:
        return sum(_sums(plan, "totalDocsExamined") for plan in self.plans)

    @property
    def stages(self) -> set[str]:
        return {stage for plan in self.plans for stage in _stages(plan)}

    async def explain(self, command: Mapping[str, Any]) -> None:
        self.plans.append(
            await self.database.opened.command("explain", dict(command), verbosity="executionStats")
        )


def _stages(plan: Any) -> Iterator[str]:
    """Of the plan that was chosen; others that were weighed are left out."""
    if isinstance(plan, Mapping):
        if "stage" in plan:
            yield plan["stage"]
        for name, part in plan.items():
            if name not in {"rejectedPlans", "command"}:
                yield from _stages(part)
    elif isinstance(plan, list):
        for part in plan:
            yield from _stages(part)


def _sums(plan: Any, name: str) -> int:
    """A pipeline tells of its own reads, and of those of the collections it joins."""
    if isinstance(plan, Mapping):
        own = int(plan.get(name, 0))
        return own + sum(
            _sums(part, name)
            for key, part in plan.items()
            if key not in {"rejectedPlans", "allPlansExecution"}
        )
    return sum(_sums(part, name) for part in plan) if isinstance(plan, list) else 0


@contextmanager
def watching(lane: JobBench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    database = lane.homing.jobs_database
    assert isinstance(database, MongoDatabase)
    watch = Watch(database)
    find, aggregate, first_of_each = Session.find, Session.aggregate, Session.first_of_each

    async def found(self: Session, collection: str, filter: Any, columns: Any = None, **options: Any) -> Any:
        wanted = {"sort": options.get("sort"), "limit": options.get("limit"), "hint": options.get("hint")}
        command = {"find": collection, "filter": filter, "projection": columns or {}}
        await watch.explain({**command, **{name: value for name, value in wanted.items() if value}})
        return await find(self, collection, filter, columns, **options)

    async def aggregated(self: Session, collection: str, pipeline: Any, **options: Any) -> Any:
        hint = {"hint": options["hint"]} if "hint" in options else {}
        await watch.explain({"aggregate": collection, "pipeline": list(pipeline), "cursor": {}, **hint})
        return await aggregate(self, collection, pipeline, **options)

    async def first(self: Session, collection: str, column: str, values: Any, **options: Any) -> Any:
        for value in values:
            # A join tells little of what it reads, so each value is asked for by itself.
            match = {**options["condition"], column: value}
            steps = [{"$match": match}, {"$sort": options["sort"]}, {"$limit": options["limit"]}]
            await watch.explain({"aggregate": collection, "pipeline": steps, "cursor": {}})
        return await first_of_each(self, collection, column, values, **options)

    monkeypatch.setattr(Session, "find", found)
    monkeypatch.setattr(Session, "aggregate", aggregated)
    monkeypatch.setattr(Session, "first_of_each", first)
    yield watch
    monkeypatch.undo()


@pytest.mark.clause("JOB-21")
async def test_a_claim_reads_one_entry_per_target_and_then_what_it_takes(
    lane: JobBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watching(lane, monkeypatch) as watch:
        claims = await lane.claim(100)
    assert len(claims) == 100
    assert "COLLSCAN" not in watch.stages
    assert "DISTINCT_SCAN" in watch.stages
    # Two looks at the standings at most, each a jump per target and state, then twice what is claimed.
    assert watch.keys <= 4 * 2 * TARGETS + 10 * 100
    assert watch.documents <= 10 * 100
    assert await lane.jobs.release(claims) == {claim.id for claim in claims}


async def test_nothing_that_looks_after_jobs_reads_them_all(
    lane: JobBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watching(lane, monkeypatch) as watch:
        await lane.jobs.rescue(100)
        await lane.jobs.claim_lost(100)
        await lane.jobs.run("expired", limit=100)
        await lane.jobs.run("dead_letters", limit=100)
        await lane.jobs.oldest_due()
        await lane.jobs.run("stuck_groups", after="", limit=50)
        await lane.jobs.run("group_head", group_id="g0")
        await lane.jobs.run("has_deaths")
        await lane.jobs.run("mark_deaths", batch="b", limit=100)
        await lane.jobs.run("marked_deaths")
        await lane.jobs.run("failing_targets", least=5, told='["https://t1"]', alert_target="", most=200)
    assert "COLLSCAN" not in watch.stages
    assert watch.documents <= 500
    assert watch.keys <= 1500


FILTERS = [
    Filter(),
    Filter(status="ERROR"),
    Filter(source="s3"),
    Filter(type="t1"),
    Filter(source="s5", status="ERROR"),
    Filter(group_id="g3"),
    Filter(error_class="http_500"),
    Filter(metadata=(("tenant", "t7"),)),
    Filter(metadata=(("order", "77777"), ("tenant", "t27"))),
    Filter(metadata=(("tenant", "t7"),), source="s7"),
]


@pytest.mark.clause("JOB-03", "JOB-17")
@pytest.mark.parametrize("filter", FILTERS, ids=repr)
async def test_a_page_is_read_and_not_sorted(
    lane: JobBench, monkeypatch: pytest.MonkeyPatch, filter: Filter
) -> None:
    search = MongoJobSearch(lane.jobs)
    first = await search.first(filter)
    with watching(lane, monkeypatch) as watch:
        places = await search.places(filter, first, limit=21)
        if places:
            places += await search.places(filter, first, after=places[-1], limit=21)
    assert places
    assert {"COLLSCAN", "SORT"}.isdisjoint(watch.stages)
    assert watch.documents <= 50
    assert watch.keys <= 60
    assert len({place.id for place in places}) == len(places)


async def test_created_before_ends_where_it_says(lane: JobBench, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = await lane.tables.now() - timedelta(seconds=JOBS / 2)
    with watching(lane, monkeypatch) as watch:
        places = await MongoJobSearch(lane.jobs).places(Filter(created_before=moment), 0, limit=20)
    assert len(places) == 20
    assert watch.keys <= 25


@pytest.mark.clause("JOB-27")
async def test_durations_are_read_without_the_documents(
    lane: JobBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watching(lane, monkeypatch) as watch:
        await lane.jobs.run("duration_by_type", most=100)
        await lane.jobs.run("needs_attention", limit=20)
        await lane.jobs.run("count_attention")
    assert {"COLLSCAN", "FETCH"}.isdisjoint(watch.stages)
    assert watch.documents == 0
