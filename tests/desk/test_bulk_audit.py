"""What is done to a bulk run and its entry in the audit log are one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.desk.bulk import ANN, BulkBench, bulk_bench

from homing.access.audit import AuditLog, Entry
from homing.errors import DatabaseError

DEAD = "lane:mail_outbox status:dead"


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[BulkBench]:
    async with bulk_bench(database_url) as desk:
        await desk.mails(1)
        yield desk


class ProcessEnds(BaseException):
    """Nothing that comes after it is done."""


async def test_a_crash_leaves_no_run_without_its_entry(
    desk: BulkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def crash(*_arguments: Any) -> Any:
        raise ProcessEnds

    monkeypatch.setattr(AuditLog, "insert", crash)
    run = await desk.runs.start(DEAD, "requeue", ANN)
    await desk.runs.cancel(run.id, ANN)
    begun, ended = await desk.told()
    assert (begun.action, begun.object, begun.who, begun.address, begun.outcome) == (
        "bulk.start", f"bulk_{run.id}", "user:ann", "127.0.0.1", "done",
    )  # fmt: skip
    assert begun.detail == {"verb": "requeue", "query": run.query, "lanes": ["mail_outbox"]}
    assert (ended.action, ended.object, ended.detail) == ("bulk.cancel", f"bulk_{run.id}", None)


async def test_what_cannot_be_written_into_the_log_is_not_done(desk: BulkBench) -> None:
    run = await desk.runs.start(DEAD, "requeue", ANN)
    await desk.sql("ALTER TABLE homing_audit RENAME TO put_aside")
    with pytest.raises(DatabaseError):
        await desk.runs.start(DEAD, "requeue", ANN)
    with pytest.raises(DatabaseError):
        await desk.runs.cancel(run.id, ANN)
    await desk.sql("ALTER TABLE put_aside RENAME TO homing_audit")
    assert [one.state for one in await desk.runs.page()] == ["counting"]
    assert [one.action for one in await desk.told()] == ["bulk.start"]


async def test_of_many_who_stop_a_run_one_has_done_it(desk: BulkBench) -> None:
    run = await desk.runs.start(DEAD, "requeue", ANN)
    stopped = await asyncio.gather(*(desk.runs.cancel(run.id, ANN) for _ in range(4)))
    assert {one.state for one in stopped} == {"cancelled"}
    assert [one.action for one in await desk.told()] == ["bulk.start", "bulk.cancel"]


async def test_an_end_that_is_somebody_elses_is_not_told(desk: BulkBench) -> None:
    """Whoever has lost the run has not ended it."""
    run = await desk.runs.start(DEAD, "requeue", ANN)
    told = Entry("user:ann", "bulk.end", f"bulk_{run.id}")
    assert await desk.runs.finish(run.id, 77, "done", None, told) == []
    assert [one.action for one in await desk.told()] == ["bulk.start"]
