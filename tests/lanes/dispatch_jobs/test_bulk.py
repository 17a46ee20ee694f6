"""Many jobs at once: counted first, then cancelled or requeued, and only what may be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.lanes.dispatch_jobs.api_bench import DELIVERED, JOB, TRY_AGAIN, ApiBench, api_bench


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[ApiBench]:
    async with api_bench(database_url) as bench:
        yield bench


async def count(api: ApiBench, status: str) -> int:
    return int((await api.get("jobs", status=status))["totalItems"])


@pytest.mark.clause("JOB-25", "JOB-09")
async def test_a_dry_run_counts_and_changes_nothing(api: ApiBench) -> None:
    await api.create_many([{"source": "a"}] * 3 + [{"source": "b"}] * 2)
    for body in ({"filter": {"source": "a"}}, {"filter": {"source": "a"}, "dryRun": True}):
        assert await api.post("jobs/cancel", body) == {
            "matched": 3, "changed": 0, "more": False, "dryRun": True,
        }  # fmt: skip
    assert await count(api, "PENDING") == 5
    assert await api.post("jobs/cancel", {"filter": {"source": "a"}, "limit": 2}) == {
        "matched": 2, "changed": 0, "more": True, "dryRun": True,
    }  # fmt: skip


@pytest.mark.clause("JOB-25", "JOB-09")
async def test_only_what_may_be_cancelled_is(api: ApiBench) -> None:
    await api.create_many([{"source": "done"}] * 2)
    await api.complete_all()
    await api.create_many([{"source": "failed", "targetUrl": "https://b.example.com/"}] * 2)
    await api.settle(await api.claim(), TRY_AGAIN)
    await api.create_many([{"source": "running", "targetUrl": "https://c.example.com/"}] * 2)
    await api.claim()
    await api.create_many([{"source": "pending"}] * 2)
    reply = await api.post("jobs/cancel", {"all": True, "dryRun": False})
    assert reply == {"matched": 4, "changed": 4, "more": False, "dryRun": False}
    cancelled = {job["source"] for job in (await api.get("jobs", status="CANCELLED"))["items"]}
    assert cancelled == {"failed", "pending"}
    assert (await count(api, "IN_PROGRESS"), await count(api, "COMPLETED")) == (2, 2)


@pytest.mark.clause("JOB-25", "JOB-09")
async def test_dead_jobs_are_requeued_by_what_they_died_of(api: ApiBench) -> None:
    await api.create_many([{"type": "a"}] * 3)
    await api.bury_all("timeout", "no answer within 30 s")
    await api.create_many([{"type": "b"}] * 2)
    await api.bury_all("http_410", "HTTP 410")
    cancelled = await api.create()
    await api.post(f"jobs/{cancelled['id']}/cancel")
    reply = await api.post("jobs/requeue", {"filter": {"errorClass": "timeout"}, "dryRun": False})
    assert (reply["matched"], reply["changed"]) == (3, 3)
    assert (await count(api, "ERROR"), await count(api, "CANCELLED"), await count(api, "PENDING")) == (
        2,
        1,
        3,
    )
    reply = await api.post("jobs/requeue", {"all": True, "dryRun": False})
    assert (reply["matched"], reply["changed"], await count(api, "PENDING")) == (3, 3, 6)


@pytest.mark.clause("JOB-17", "JOB-25")
async def test_filters_are_those_of_the_search(api: ApiBench) -> None:
    keep = await api.create(metadata={"tenantId": "other", "priority": "high"})
    await api.create_many([{"metadata": {"tenantId": "acme", "priority": "high"}, "groupId": "g"}] * 4)
    body: dict[str, Any] = {
        "filter": {"metadata": {"tenantId": "acme", "priority": "high"}, "groupId": "g", "status": "PENDING"},
        "dryRun": False,
    }
    assert (await api.post("jobs/cancel", body))["changed"] == 4
    assert (await api.get(f"jobs/{keep['id']}"))["status"] == "PENDING"
    later = {"filter": {"createdAfter": "2999-01-01T00:00:00Z"}, "dryRun": False}
    assert (await api.post("jobs/cancel", later))["matched"] == 0


async def test_thousands_go_in_batches_up_to_the_limit(api: ApiBench) -> None:
    for _ in range(3):
        await api.create_many([{"metadata": {"k": "v"}}] * 1000)
    reply = await api.post("jobs/cancel", {"filter": {"type": JOB["type"]}, "limit": 2500, "dryRun": False})
    assert reply == {"matched": 2500, "changed": 2500, "more": True, "dryRun": False}
    reply = await api.post("jobs/cancel", {"filter": {"metadata": {"k": "v"}}, "dryRun": False})
    assert reply == {"matched": 500, "changed": 500, "more": False, "dryRun": False}
    reply = await api.post("jobs/requeue", {"filter": {"metadata": {"k": "v"}}, "dryRun": False})
    assert reply == {"matched": 3000, "changed": 3000, "more": False, "dryRun": False}


async def test_an_ordered_group_is_cancelled_from_its_end_and_requeued_in_order(api: ApiBench) -> None:
    ids = await api.create_many([{"groupId": "g", "ordering": "group", "payload": f"{n}"} for n in range(5)])
    claimed = await api.claim()
    assert [claim.item.payload for claim in claimed] == ["0"]
    assert (await api.post("jobs/cancel", {"filter": {"groupId": "g"}, "dryRun": False}))["changed"] == 4
    await api.jobs.release(claimed)
    await api.post(f"jobs/{ids[0]}/cancel")
    assert (await api.post("jobs/requeue", {"filter": {"groupId": "g"}, "dryRun": False}))["changed"] == 5
    sent = []
    for _ in range(5):
        claims = await api.claim()
        sent += [claim.item.payload for claim in claims]
        await api.settle(claims, DELIVERED)
    assert sent == ["0", "1", "2", "3", "4"]


MISTAKES: list[tuple[Any, str | None, str]] = [
    ({}, "filter", '{"all": true}'),
    ({"filter": {}}, "filter", '{"all": true}'),
    ({"filter": None, "dryRun": False}, "filter", "every job"),
    ({"all": True, "filter": {"source": "a"}}, "all", "leave it out"),
    ({"filter": {"sauce": "a"}}, "sauce", "there is no such field"),
    ({"filtr": {"source": "a"}}, "filtr", "did you mean filter?"),
    ({"filter": {"source": ""}}, "filter.source", "must not be empty"),
    ({"filter": {"source": "a\0"}}, "filter.source", "control characters"),
    ({"filter": {"status": "COMPLETED"}}, "filter.status", "only jobs that are PENDING or FAILED"),
    ({"filter": {"errorClass": "timeout"}}, "filter.status", "only jobs that are PENDING or FAILED"),
    ({"filter": {"status": "done"}}, "filter.status", "is not possible"),
    ({"filter": {"metadata": {"a": 1}}}, "filter.metadata.a", "as a string"),
    ({"filter": {"metadata": {"a\tb": "1"}}}, "filter.metadata.a?b", "printable"),
    ({"filter": {"createdAfter": "2026-01-01T00:00:00"}}, "filter.createdAfter", "needs a zone"),
    ({"filter": {"createdAfter": "0001-01-01T00:00:00Z"}}, "createdAfter", "the year"),
    ({"all": True, "limit": 0}, "limit", "from 1 to 100,000"),
    ({"all": True, "limit": 100_001}, "limit", "at most 100000"),
    ({"all": True, "dryRun": "no"}, "dryRun", "must be true or false, not text"),
    ([], None, "a JSON object with a filter"),
]


@pytest.mark.parametrize(("body", "field", "words"), MISTAKES)
async def test_each_mistake_has_its_own_message(
    sqlite_url: str, body: Any, field: str | None, words: str
) -> None:
    async with api_bench(sqlite_url) as api:
        await api.create()
        response = await api.client.post("/api/dispatch/jobs/cancel", json=body)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["details"] == ({"field": field} if field else {})
        assert words in error["message"]
        assert await count(api, "PENDING") == 1
