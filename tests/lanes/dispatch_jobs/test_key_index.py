"""The unique index of idempotency keys, and processes of the version before that need the former one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from tests.jobs import JobBench, job, job_bench

from homing.lanes.dispatch_jobs.key_index import former_key_index_until
from homing.lanes.dispatch_jobs.orders import fingerprint
from homing.lanes.dispatch_jobs.placing import enqueue_together
from homing.service import Stop, run
from homing.workers.model import Identity, Own, Report

pytestmark = pytest.mark.clause("JOB-18")

URL = "https://partner.example.com/hooks"
#: As the version before inserts a job: its index is named by its columns.
FORMER_INSERT = """
INSERT INTO dispatch_job (source, type, target_url, target, payload, idempotency_key, fingerprint)
VALUES ('order-service', 'order.created', 'https://partner.example.com/hooks', 'https://partner.example.com:443',
    :payload, :key, :payload)
ON CONFLICT (idempotency_key, source, type, {url}) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING id
"""


@pytest.fixture(params=["sqlite", "postgres"])
async def lane(request: pytest.FixtureRequest) -> AsyncIterator[JobBench]:
    async with job_bench(request.getfixturevalue(f"{request.param}_url")) as bench:
        yield bench


@pytest.fixture
async def upgraded(lane: JobBench) -> JobBench:
    """As right after the migration, while the version before is at work."""
    url = "md5(target_url)" if lane.jobs.database.dialect == "postgres" else "target_url"
    await lane.jobs.database.run_script(
        "DROP INDEX homing_job_key; CREATE UNIQUE INDEX homing_job_idempotency ON dispatch_job"
        f" (idempotency_key, source, type, {url}) WHERE idempotency_key IS NOT NULL;"
    )
    return lane


def keyed(credentials_id: int | None, payload: str = "{}") -> Any:
    order = job(URL, credentials_id=credentials_id, payload=payload, idempotency_key="event-1")
    return replace(order, fingerprint=fingerprint(order))


async def insert_as_before(lane: JobBench, key: str, payload: str = "old") -> int:
    url = "md5(target_url)" if lane.jobs.database.dialect == "postgres" else "target_url"
    return len(await lane.sql(FORMER_INSERT.format(url=url), key=key, payload=payload))


async def beat(lane: JobBench, state: Own, *, began_before_migration: bool) -> None:
    """A process says that it lives."""
    who = Identity("other:1", "other", 1, "0.1.0", "boot", ("dispatch_jobs",), serves=True)
    until = await former_key_index_until(lane.jobs.database)
    now = await lane.tables.now()
    up = (now - until if until is not None else timedelta()) + timedelta(minutes=1)
    await lane.homing.fleet.beat(
        who, state, Report(), up_seconds=up.total_seconds() if began_before_migration else 0.0
    )


async def test_migrating_an_empty_database_leaves_only_our_index(lane: JobBench) -> None:
    assert await former_key_index_until(lane.jobs.database) is None
    assert await lane.homing.finish_migration()


async def test_the_version_before_keeps_its_index_until_it_has_stopped(upgraded: JobBench) -> None:
    lane = upgraded
    await beat(lane, "running", began_before_migration=True)
    await lane.homing.migrate()
    assert not await lane.homing.finish_migration()
    assert await insert_as_before(lane, "key-1") == 1
    assert await insert_as_before(lane, "key-1") == 0
    await beat(lane, "stopped", began_before_migration=True)
    assert await lane.homing.finish_migration()
    assert await former_key_index_until(lane.jobs.database) is None


async def test_processes_of_this_version_do_not_need_it(upgraded: JobBench) -> None:
    await beat(upgraded, "running", began_before_migration=False)
    assert await upgraded.homing.finish_migration()


async def test_meanwhile_other_credentials_are_a_conflict_as_before(upgraded: JobBench) -> None:
    lane = upgraded
    (first,) = await lane.order([keyed(None)])
    (again,) = await lane.order([keyed(None)])
    (other,) = await lane.order([keyed(7)])
    assert [first.verdict, again.verdict, other.verdict] == ["created", "duplicate", "conflict"]
    assert again.id == other.id == first.id
    with pytest.raises(Exception, match=r"zero|overflow"):
        await enqueue_together(lane.jobs, [job(URL, payload="unkeyed"), keyed(7)])
    assert len(await lane.tables.rows("dispatch_job")) == 1
    assert await lane.homing.finish_migration()
    (other,) = await lane.order([keyed(7)])
    assert other.verdict == "created"


async def test_old_and_new_create_the_same_job_at_the_same_time(upgraded: JobBench) -> None:
    lane = upgraded

    async def ours(key: str) -> int:
        order = job(URL, payload="old", idempotency_key=key, fingerprint="old")
        (ordered,) = await lane.order([order])
        return int(ordered.verdict == "created")

    for n in range(20):
        key = f"key-{n}"
        made = await asyncio.gather(
            *(ours(key) for _ in range(3)), *(insert_as_before(lane, key) for _ in range(3))
        )
        assert sum(made) == 1


async def test_a_process_at_work_replaces_it(upgraded: JobBench) -> None:
    stop = Stop()

    async def until_replaced() -> None:
        while await former_key_index_until(upgraded.jobs.database) is not None:
            await asyncio.sleep(0.05)
        stop.ask()

    async with asyncio.timeout(60):
        await asyncio.gather(
            until_replaced(), run(upgraded.homing, stop, api=False, work=(), ready=lambda _: None)
        )
