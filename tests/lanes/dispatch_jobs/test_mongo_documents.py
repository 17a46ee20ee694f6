"""Documents of MongoDB as the specification has them, and those of the version before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.jobs import JobBench, job_bench

from homing.db.mongo import MongoDatabase
from homing.testing.http_sink import HttpSink

HEADERS = {"X-Custom-Header": "value", "X.Dotted": "a", "$dollar": "b", "_id": "c"}


@pytest.fixture
async def lane(mongodb_url: str) -> AsyncIterator[JobBench]:
    async with job_bench(mongodb_url) as bench:
        yield bench


@pytest.fixture
async def sink() -> AsyncIterator[HttpSink]:
    async with HttpSink() as opened:
        yield opened


def jobs_of(lane: JobBench) -> Any:
    assert isinstance(lane.jobs.database, MongoDatabase)
    return lane.jobs.database.opened["dispatch_job"]


@pytest.mark.clause("JOB-21")
async def test_headers_are_an_object(lane: JobBench, sink: HttpSink) -> None:
    (id,) = await lane.create(f"{sink.url}/hooks", headers=HEADERS)
    assert (await jobs_of(lane).find_one({"_id": id}))["headers"] == HEADERS
    await lane.run_batch()
    assert (await lane.row(id))["status"] == "COMPLETED"
    (request,) = sink.requests
    assert HEADERS.items() <= dict(request.headers).items()


@pytest.mark.clause("JOB-21")
async def test_documents_of_the_version_before_stay_readable(lane: JobBench, sink: HttpSink) -> None:
    (id,) = await lane.create(f"{sink.url}/hooks")
    pairs = [["X-One", "1"], ["X-Two", "2"]]
    await jobs_of(lane).update_one({"_id": id}, {"$set": {"headers": pairs}})
    assert (await lane.row(id))["headers"] == '{"X-One":"1","X-Two":"2"}'
    await lane.run_batch()
    (request,) = sink.requests
    assert {("X-One", "1"), ("X-Two", "2")} <= set(request.headers)


@pytest.mark.clause("JOB-14", "JOB-21")
async def test_attempts_have_the_specifications_indexes(lane: JobBench) -> None:
    database = lane.jobs.database
    assert isinstance(database, MongoDatabase)
    #: Those within a job's document, and those after its first hundred.
    embedded = await database.opened["dispatch_job"].index_information()
    later = await database.opened["dispatch_attempt"].index_information()
    for name, column in (("idx_attempt_status", "status"), ("idx_attempt_attempted_at", "attempted_at")):
        assert embedded[name]["key"] == [(f"attempts.{column}", 1)]
        assert later[name]["key"] == [(column, 1)]
    assert later["idx_attempt_job_id"]["key"][0] == ("dispatch_job_id", 1)
