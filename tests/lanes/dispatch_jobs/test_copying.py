"""Jobs move between databases of any kind: whole, resumed where it stopped, and compared at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import permutations

import msgspec
import pytest
from tests.jobs import JobBench, job, job_bench

from homing.engine.model import Bury, Complete, Failure, RetryIn
from homing.errors import NotAllowed
from homing.lanes.dispatch_jobs.copying import Copied, Copy, opened_copy
from homing.lanes.dispatch_jobs.credentials import CreateCredentials
from homing.lanes.dispatch_jobs.job import Report
from homing.lanes.dispatch_jobs.tsid import text_of

LIMITED = "https://other.example:443"
URL = "https://partner.example/hooks"
FAILURE = Failure("http_500", "HTTP $500")
REPORT = Report(0.25, 500, "$oops", {"server": "x.y"}, unknown=True)
KINDS = ("sqlite", "postgres", "mongodb")


@pytest.fixture(params=permutations(KINDS, 2), ids=lambda pair: f"{pair[0]}-{pair[1]}")
def urls(request: pytest.FixtureRequest) -> tuple[str, str]:
    source, target = request.param
    return request.getfixturevalue(f"{source}_url"), request.getfixturevalue(f"{target}_url")


@pytest.fixture
async def source(urls: tuple[str, str]) -> AsyncIterator[JobBench]:
    async with job_bench(urls[0]) as bench:
        await fill(bench)
        yield bench


async def fill(bench: JobBench) -> None:
    """A job of every kind: ended, failed, claimed, in a group, with and without all that is optional."""
    issued = await bench.homing.credentials.create(
        CreateCredentials(
            bearer_token="b", name="n", allowed_targets=("https://b.example", "https://a.example")
        )
    )
    orders = [
        job(URL, metadata={"tenant": "acme", "k": "$v"}, headers={"X-A": "b"}, timeout_seconds=2.5),
        job(URL, idempotency_key="once", fingerprint="f", external_id="e-1"),
        job(URL, scheduled_for="2999-01-01T00:00:00.000Z", expires_at="2999-02-01T00:00:00.000Z"),
        *(job(URL, group_id="g", ordering="group", payload=f"{n}é") for n in range(3)),
        job("https://other.example/", credentials_id=issued.row["id"]),
    ]
    ids = [ordered.id for ordered in await bench.order(orders)]
    claims = {claim.id: claim for claim in await bench.claim()}
    await bench.jobs.settle([
        (claims[ids[0]], Complete(REPORT)),
        (claims[ids[1]], RetryIn(60.0, FAILURE, report=REPORT)),
        (claims[ids[6]], Bury(FAILURE, report=REPORT)),
    ])  # fmt: skip
    await bench.jobs.run("limit_target", target=LIMITED, max_concurrency=3, rate_per_second=2.5)


async def copied(source: str, target: str, *, batch: int = 3, merge: bool = False) -> Copied:
    async with opened_copy(source, target, batch=batch, merge=merge) as copy:
        async for _ in copy:
            pass
        return copy.copied


@pytest.mark.clause("JOB-21")
async def test_everything_is_copied_between_any_two(source: JobBench, urls: tuple[str, str]) -> None:
    done = await copied(*urls)
    assert (done.jobs, done.credentials, done.targets, done.ranges) == (7, 1, 1, 3)
    assert (done.differing, done.differences) == (0, [])
    async with job_bench(urls[1]) as target:
        for row in await source.tables.rows("dispatch_job"):
            await same(source, target, row["id"])
        (limited,) = await target.tables.rows("homing_target")
        assert (limited["max_concurrency"], limited["rate_per_second"]) == (3, 2.5)
        (used,) = {r["credentials_id"] for r in await target.tables.rows("dispatch_job")} - {None}
        secrets = await target.homing.credentials.get(used)
        assert "b" in str(getattr(secrets, "bearer_token", lambda _: "")(await target.tables.now()))
        await works_on(target)


async def same(source: JobBench, target: JobBench, id: int) -> None:
    here, there = await source.row(id), await target.row(id)
    if here["status"] == "IN_PROGRESS":
        assert (there["status"], there["locked_by"], there["lease_expires_at"]) == ("PENDING", None, None)
    else:
        assert there["status"] == here["status"]
    for name in ("payload", "attempt_count", "position", "target", "last_error"):
        assert there[name] == here[name], name
    for name in ("metadata", "headers"):
        assert msgspec.json.decode(there[name] or "{}") == msgspec.json.decode(here[name] or "{}"), name
    attempts = [await bench.attempts(id) for bench in (source, target)]
    for one, other in zip(*attempts, strict=True):
        for name in ("id", "attempt_number", "status", "response_body", "error_message"):
            assert one[name] == other[name]
        assert bool(one["unknown"]) == bool(other["unknown"])


async def works_on(target: JobBench) -> None:
    """New jobs come behind the old ones, and a group goes on in its order."""
    before = await target.tables.rows("dispatch_job")
    (later,) = await target.create(URL, group_id="g", ordering="group")
    assert later > max(row["id"] for row in before)
    delivered = []
    for _ in range(5):
        claims = [c for c in await target.claim() if c.item.ordered_group]
        await target.jobs.settle([(claim, Complete(Report(0.1, 200, "", {}))) for claim in claims])
        delivered += [claim.id for claim in claims]
    assert delivered == [*sorted(r["id"] for r in before if r["group_id"] == "g"), later]
    await target.attempts_add_up()


async def test_a_copy_that_was_stopped_goes_on_and_a_second_changes_nothing(
    source: JobBench, urls: tuple[str, str]
) -> None:
    async with opened_copy(*urls, batch=2) as copy:
        await _stop_at(copy, jobs=4)
    done = await copied(*urls, batch=2)
    assert (done.jobs, done.differing) == (3, 0), "only what was missing"
    again = await copied(*urls)
    assert (again.jobs, again.differing) == (0, 0)
    (new,) = await source.create(URL)
    assert (await copied(*urls)).jobs == 1, "what came meanwhile"
    async with job_bench(urls[1]) as target:
        assert (await target.row(new))["status"] == "PENDING"


async def _stop_at(copy: Copy, jobs: int) -> None:
    async for progress in copy:
        if progress.step == "jobs" and progress.done >= jobs:
            return


async def test_what_differs_is_found_and_told_without_its_values(
    source: JobBench, urls: tuple[str, str]
) -> None:
    await copied(*urls)
    rows = sorted(await source.tables.rows("dispatch_job"), key=lambda row: row["id"])
    async with job_bench(urls[1]) as target:
        await target.change(rows[0]["id"], payload="tampered")
        await target.tables.delete("dispatch_job", id=rows[3]["id"])
        await target.tables.change("dispatch_credentials", {"bearer_token": "x"})
        await target.jobs.run("limit_target", target=LIMITED, max_concurrency=99, rate_per_second=2.5)
    found = await copied(*urls)
    told = {(one.kind, one.id): one.what for one in found.differences}
    credentials = next(row["credentials_id"] for row in rows if row["credentials_id"])
    assert told == {
        ("job", text_of(rows[0]["id"])): "differs in payload",
        ("credentials", text_of(credentials)): "missing or not the same in the target",
        ("target", LIMITED): "differs in max_concurrency",
    }
    assert found.differing == 3
    assert found.jobs == 1, "what was missing is there again"


@pytest.mark.parametrize("urls", [("postgres", "mongodb"), ("mongodb", "sqlite")], indirect=True)
async def test_groups_that_look_like_expressions_are_words(source: JobBench, urls: tuple[str, str]) -> None:
    """MongoDB reads `$x` as a path, where it is let."""
    for group in ("$order", "$$NOW", "$$x", "$a.$b"):
        await source.create(URL, 2, group_id=group, ordering="group")
    assert (await copied(*urls)).differing == 0
    async with job_bench(urls[1]) as target:
        for _ in range(2):
            claims = [c for c in await target.claim() if (c.item.ordered_group or "").startswith("$")]
            assert len(claims) == 4
            done = Complete(Report(0.1, 200, "", {}))
            assert len(await target.jobs.settle([(claim, done) for claim in claims])) == 4


@pytest.mark.parametrize("urls", [("sqlite", "mongodb"), ("mongodb", "postgres")], indirect=True)
async def test_a_target_with_other_jobs_is_refused_unless_they_are_merged(
    source: JobBench, urls: tuple[str, str]
) -> None:
    async with job_bench(urls[1]) as target:
        (other,) = await target.create(URL)
        with pytest.raises(NotAllowed, match="--merge"):
            await copied(*urls)
        done = await copied(*urls, merge=True)
        assert (done.jobs, done.differing) == (7, 0)
        assert (await target.row(other))["status"] == "PENDING"
        assert len(await target.tables.rows("dispatch_job")) == 8


@pytest.mark.parametrize("urls", [("mongodb", "postgres"), ("postgres", "mongodb")], indirect=True)
async def test_more_attempts_than_a_document_holds_are_copied(urls: tuple[str, str]) -> None:
    async with job_bench(urls[0], jobs_breaker_failures=100_000) as source:
        (id,) = await source.create(URL, max_retries=1000)
        for _ in range(103):
            (claim,) = await source.claim()
            await source.jobs.settle([(claim, RetryIn(0.0, FAILURE, report=REPORT))])
        await source.attempts_add_up()
        done = await copied(*urls)
        assert (done.jobs, done.differing) == (1, 0)
        async with job_bench(urls[1]) as target:
            assert [a["attempt_number"] for a in await target.attempts(id)] == list(range(1, 104))
            await target.attempts_add_up()
